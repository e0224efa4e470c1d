"""A job's network, tried on a few samples before any other process waits: its parameters, its loss, its metric."""

import logging
import math
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from config import Config
from trainer.datasets.feed import Feed
from trainer.datasets.sources import Arrays, described
from trainer.engine import mx
from trainer.evaluation import initial_parameters
from trainer.evaluation.evaluator import Correct, Evaluator, Measurement
from trainer.jobs import measurements
from trainer.jobs.gluon import GluonNetwork
from trainer.jobs.gluon_blocks import arrays_in, cross_entropy, initialize, place
from trainer.jobs.job import Job, classes_of
from trainer.jobs.user_errors import last_line, users_errors
from trainer.metric import ACCURACY, Metric
from trainer.passes import Batch, Loss, shapes_told, single
from utils import SetupError

BATCH = 500  # takes a third of the CPU time of batches of 64, with the built-in networks on 28 x 28 pixels
INPUT_BYTES = 8 << 20  # of a batch, at most, since the network's own arrays are many times as large
FEW = 2  # samples of the trial: BatchNorm needs more than one
SOME = 64  # test samples on which the metric is tried and timed: more of them have all classes
MISTAKES = (NameError, TypeError, AttributeError, ImportError, SetupError)  # that other samples would not mend


class BuiltNetwork(NamedTuple):
    """A network with its initial parameters on the device, and what its trial has shown."""

    network: GluonNetwork
    loss: Loss | None
    classes: int  # for which it has scores, if its loss is cross-entropy; else 0
    metric: Metric
    measurement: Callable[[], Measurement]
    input_shapes: tuple[tuple[int, ...], ...] | None  # of a sample's inputs; None: not known


def build(config: Config, job: Job, device: mx.Context, log: Callable[[str], None] = logging.info) -> BuiltNetwork:
    """Builds and tries the network. `log` gets a line about the parameters of --init-from. Raises SetupError if it
    cannot be trained on this job's samples, or --init-from names no parameters that fit."""
    path = job.file.path
    mx.random.seed(config.seed)
    np.random.seed(config.seed % 2**32)
    random.seed(config.seed)
    with users_errors(path, "data(folder)"):
        raw = job.first(FEW, config.seed)
    with users_errors(path, job.makes_samples):
        first = Feed(mx.cpu(), job.prepare)(raw) if raw is not None else None
        if first is not None and (fault := first.fault()):
            raise SetupError(fault)
    # Names do not depend on the networks that this process has built.
    with users_errors(path, "network()"), mx.cpu(), mx.name.NameManager():
        network = job.network(config, first)
        initialize(network, own_loop=job.file.train is not None)
        outputs = None
        if first is not None:
            with shapes_told(first.inputs, first.targets):
                outputs = network(*first.inputs)
                mx.nd.waitall()
    loss, classes, metric, measurement = _learnt(job, first, outputs)
    if job.file.metric is not None and job.test is not None:
        _try_metric(job, GluonNetwork(network, mx.cpu()), metric, measurement, config.seed)
    with users_errors(path, "network()"):
        place(network, device)
    mine = GluonNetwork(network, device)
    if config.init_from:
        log(initial_parameters.load(mine, Path(config.init_from)))
    shapes = tuple(tuple(array.shape[1:]) for array in first.inputs) if first is not None else None
    return BuiltNetwork(mine, loss, classes, metric, measurement, shapes)


def evaluator_of(config: Config, job: Job, built: BuiltNetwork, feed: Feed) -> Evaluator:
    """Measures a job's network on its test part, in batches that are at least those of training."""
    most = INPUT_BYTES // (4 * sum(map(math.prod, built.input_shapes))) if built.input_shapes else 0
    size = max(config.batch_size, min(BATCH, most))
    return Evaluator(built.network, partial(job.test_batches, feed, size, config.seed), built.measurement)


def evaluator_of_some(
    job: Job, network: GluonNetwork, measurement: Callable[[], Measurement], feed: Feed, seed: int
) -> Evaluator:
    """Measures on SOME test samples, spread over all."""
    return Evaluator(network, partial(job.some_test_batches, feed, SOME, seed), measurement)


def _learnt(job: Job, first: Batch | None, outputs: Any) -> tuple[Loss | None, int, Metric, Callable[[], Measurement]]:
    """The loss, the classes, and the metric with its measurement; defaults are cross-entropy and accuracy, or the
    file's loss where its outputs are no scores. Raises SetupError if loss and outputs do not fit, or no metric is
    known."""
    file = job.file
    is_score = (
        isinstance(outputs, mx.nd.NDArray) and outputs.ndim == 2 and outputs.shape[1] > 1
        and first is not None and [each.shape for each in first.targets] == [(first.size,)]
    )  # fmt: skip
    loss: Loss | None = None
    if file.train is None:
        assert first is not None
        if file.loss is None and not is_score:
            shapes = [str(each.shape) for each in first.targets]
            raise SetupError(
                f"the loss is cross-entropy, for scores (N, C) and classes (N,); here the network gives "
                f"{described(outputs)} and the targets are {' and '.join(shapes)}: define loss"
            )
        loss = file.loss or cross_entropy()
        if isinstance(loss, mx.gluon.HybridBlock) and type(loss).__module__.startswith("mxnet."):
            loss.hybridize()
        for each in arrays_in(outputs):
            each.attach_grad()
        with users_errors(file.path, "loss(outputs, targets)"), shapes_told(first.inputs, first.targets):
            with mx.autograd.record(train_mode=False):
                losses = loss(outputs, single(first.targets))
            _check_loss(losses, first.size, outputs)
    classes = outputs.shape[1] if is_score and file.loss is None and file.train is None else 0
    labels = classes_of(job.train)
    if classes and labels is not None:
        _check_classes(job, labels, classes)
    if file.metric is not None:
        return loss, classes, *measurements.of(file.metric, file.more_is_better, file.path)
    if is_score and (file.loss is None or labels is not None):
        return loss, classes, ACCURACY, Correct
    if loss is None:
        if job.test is None:
            return loss, classes, ACCURACY, Correct
        raise SetupError(
            f"{file.path}: train(worker) has a loss of its own, and the outputs are no scores: define metric"
        )
    return loss, classes, Metric("test-loss", more_is_better=False), partial(measurements.MeanLoss, loss)


def _try_metric(
    job: Job, network: GluonNetwork, metric: Metric, measurement: Callable[[], Measurement], seed: int
) -> None:
    """Calls the file's metric on some test samples, spread over all. Its value may be any number, since the network is
    not trained. Raises SetupError for what is no number, and for an error that other samples would not mend."""
    try:
        evaluator_of_some(job, network, measurement, Feed(mx.cpu(), job.prepare), seed)()
    except SetupError as error:
        if isinstance(error.__context__ or error, MISTAKES):
            raise
        logging.warning(
            "warning: the metric %s fails on %d samples (%s); where it does in training, there is no evaluation",
            metric.name,
            SOME,
            error,
        )


def _check_classes(job: Job, labels: np.ndarray, scores: int) -> None:
    """Checks a sample of each class, as prepare() leaves them: of the first million, and the least and the greatest."""
    assert isinstance(job.train, Arrays)
    with users_errors(job.file.path, job.makes_samples):
        chosen = np.array([labels.argmin(), labels.argmax(), *np.unique(labels[: 1 << 20], return_index=True)[1]])
        targets = Feed(mx.cpu(), job.prepare)(job.train.take(chosen)).targets[0]
    least, most = int(targets.min().asscalar()), int(targets.max().asscalar())
    if not 0 <= least <= most < scores:
        raise SetupError(
            f"the targets are classes from {least} to {most}, and the network gives {scores} scores: "
            f"give one for each class from 0 on"
        )


def _check_loss(value: Any, size: int, outputs: Any) -> None:
    if not isinstance(value, mx.nd.NDArray):
        raise SetupError(f"gives {described(value)}: give an mx.nd array (N,) with the loss of each sample")
    if value.shape != (size,):
        raise SetupError(
            f"gives an array {value.shape} for {size} samples: give the loss of each sample, shape ({size},)"
            + (", not their mean" if value.size == 1 else ", the mean over its other axes")
        )
    remedy = "compute it of the outputs, by functions of mx.nd that have a gradient, without asnumpy() or detach()"
    try:
        value.backward()
        mx.nd.waitall()
    except mx.MXNetError as error:
        cut = "it does not depend on the outputs" if "computational graph" in str(error) else last_line(error)
        raise SetupError(f"has no gradient, since {cut}: {remedy}") from None
    if value.asnumpy().any() and not any(each.grad.asnumpy().any() for each in arrays_in(outputs)):
        logging.warning("warning: the gradient of the loss is 0 for the first samples: %s", remedy)
