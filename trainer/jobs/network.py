"""A job's network, tried on a few samples before any other process waits: its parameters, its loss, its metric."""

import contextlib
import logging
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from config import Config
from esync.metric import ACCURACY, Metric
from trainer.datasets.batches import Feed
from trainer.datasets.sources import Arrays, Raw, described
from trainer.evaluation import initial_parameters
from trainer.evaluation.evaluator import Evaluator, Measurement, accuracy, mean_loss, measurement_of
from trainer.jobs.job import Job, classes_of
from trainer.jobs.user_errors import users_errors
from trainer.network import Batch, JobNetwork, arrays_in, numpy_of, shapes_told
from utils import SetupError

BATCH = 500  # takes a third of the CPU time of batches of 64, with the built-in networks on 28 x 28 pixels
INPUT_BYTES = 8 << 20  # of a batch, at most, since the network's own arrays are many times as large
FEW = 2  # samples of the trial: BatchNorm needs more than one
SOME = 64  # test samples on which the metric is tried and timed: more of them have all classes
MISTAKES = (NameError, TypeError, AttributeError, ImportError, SetupError)  # that other samples would not mend


class BuiltNetwork(NamedTuple):
    """A network with its initial parameters on the device, and what its trial has shown."""

    network: JobNetwork
    loss: Any  # as its network's `tried` has it
    classes: int  # for which it has scores, if its loss is cross-entropy; else 0
    metric: Metric
    measurement: Measurement
    input_shapes: tuple[tuple[int, ...], ...] | None  # of a sample's inputs; None: not known


def build(config: Config, job: Job, log: Callable[[str], None] = logging.info) -> BuiltNetwork:
    """Builds and tries the network. `log` gets a line about the parameters of --init-from. Raises SetupError if it
    cannot be trained on this job's samples, or --init-from names no parameters that fit."""
    path = job.file.path
    with users_errors(path, "data(folder)"):
        raw = job.first(FEW, config.seed)
    network, first = _begun(config, job, raw)
    with users_errors(path, "network()"):
        outputs = None if first is None else network.outputs(first)
        if isinstance(outputs, Mapping):
            raise SetupError(f"the network gives {described(outputs)}: give an array, or a tuple of arrays")
        for each in arrays_in(outputs):
            numpy_of(each)  # waits for it
    shapes = tuple(tuple(array.shape[1:]) for array in first.inputs) if first is not None else None
    built = BuiltNetwork(network, *_learnt(job, network, first, outputs), shapes)
    if job.file.metric is not None and job.test is not None:
        _try_metric(job, built, config.seed)
    with users_errors(path, "network()"):
        built = built._replace(network=network.on(bool(config.cpu), config.gpu))
    if config.init_from:
        log(initial_parameters.load(built.network, Path(config.init_from)))
    return built


def _begun(config: Config, job: Job, raw: Raw | None) -> tuple[JobNetwork, Batch | None]:
    """The network with its initial parameters, on the CPU, and the first samples as it takes them."""
    path, made, torch = job.file.path, None, sys.modules.get("torch")
    np.random.seed(config.seed % 2**32)
    random.seed(config.seed)
    if job.file.network is not None and torch is not None:
        torch.manual_seed(config.seed)
        with users_errors(path, "network()"), _own_names():
            made = job.file.network()
        if isinstance(made, torch.nn.Module):
            with users_errors(path, "network()"):
                network = of_library(made)
            return network, _fed(job, network.feed(job.prepare), raw)
    from trainer.engine import mx
    from trainer.jobs import gluon

    mx.random.seed(config.seed)
    first = _fed(job, gluon.GluonFeed(mx.cpu(), job.prepare), raw)
    with users_errors(path, "network()"), _own_names():
        made = made or (job.file.network or partial(job.built_in, config, first))()
        gluon.initialize(made, own_loop=job.file.train is not None)
    return of_library(made), first


@contextlib.contextmanager
def _own_names() -> Iterator[None]:
    """The names of gluon's layers do not depend on the networks that this process has built."""
    if mx := sys.modules.get("mxnet"):
        with mx.cpu(), mx.name.NameManager():
            yield
    else:
        yield


def of_library(made: Any) -> JobNetwork:
    """What network() has made, as the network of a job. Raises SetupError if it cannot be trained here."""
    if (torch := sys.modules.get("torch")) and isinstance(made, torch.nn.Module):
        from trainer.jobs.torch_network import TorchNetwork

        return TorchNetwork(made)
    from trainer.jobs.gluon import GluonNetwork

    return GluonNetwork(made)


def _fed(job: Job, feed: Feed, raw: Raw | None) -> Batch | None:
    with users_errors(job.file.path, job.makes_samples):
        first = feed(raw) if raw is not None else None
        if first is not None and (fault := first.fault()):
            raise SetupError(fault)
        return first


def evaluator_of(config: Config, job: Job, built: BuiltNetwork) -> Evaluator:
    """Measures a job's network on its test part, in batches that are at least those of training."""
    most = INPUT_BYTES // (4 * sum(map(math.prod, built.input_shapes))) if built.input_shapes else 0
    size, feed = max(config.batch_size, min(BATCH, most)), built.network.feed(job.prepare)
    return Evaluator(built.network, partial(job.test_batches, feed, size, config.seed), built.measurement)


def evaluator_of_some(job: Job, built: BuiltNetwork, seed: int) -> Evaluator:
    """Measures on SOME test samples, spread over all."""
    feed = built.network.feed(job.prepare)
    return Evaluator(built.network, partial(job.some_test_batches, feed, SOME, seed), built.measurement)


def _learnt(job: Job, network: JobNetwork, first: Batch | None, outputs: Any) -> tuple[Any, int, Metric, Measurement]:
    """The loss, the classes, and the metric with its measurement; defaults are cross-entropy and accuracy, or the
    file's loss where its outputs are no scores. Raises SetupError if loss and outputs do not fit, or no metric is
    known."""
    file = job.file
    is_score = (
        not isinstance(outputs, (tuple, list)) and getattr(outputs, "ndim", 0) == 2 and outputs.shape[1] > 1
        and first is not None and [tuple(each.shape) for each in first.targets] == [(first.size,)]
    )  # fmt: skip
    loss: Any = None
    if file.train is None:
        assert first is not None
        if file.loss is None and not is_score:
            shapes = [str(tuple(each.shape)) for each in first.targets]
            raise SetupError(
                f"the loss is cross-entropy, for scores (N, C) and classes (N,); here the network gives "
                f"{described(outputs)} and the targets are {' and '.join(shapes)}: define loss"
            )
        with users_errors(file.path, "loss(outputs, targets)"), shapes_told(first.inputs, first.targets):
            loss = network.tried(file.loss, first, outputs)
    classes = outputs.shape[1] if is_score and file.loss is None and file.train is None else 0
    labels = classes_of(job.train)
    if classes and labels is not None:
        _check_classes(job, labels, classes)
    if file.metric is not None:
        return loss, classes, *measurement_of(file.metric, file.more_is_better, file.path)
    # Of arrays the targets say it, of other samples those of torch, which keep their type.
    is_class = file.loss is None or labels is not None or (first and "int" in str(first.targets[0].dtype))
    if (is_score and is_class) or (loss is None and job.test is None):
        return loss, classes, ACCURACY, accuracy
    if loss is None:
        raise SetupError(
            f"{file.path}: train(worker) has a loss of its own, and the outputs are no scores: define metric"
        )
    return loss, classes, Metric("test-loss", more_is_better=False), partial(mean_loss, partial(network.total, loss))


def _try_metric(job: Job, built: BuiltNetwork, seed: int) -> None:
    """Calls the file's metric on some test samples, spread over all. Its value may be any number, since the network is
    not trained. Raises SetupError for what is no number, and for an error that other samples would not mend."""
    try:
        evaluator_of_some(job, built, seed)()
    except SetupError as error:
        if isinstance(error.__context__ or error, MISTAKES):
            raise
        logging.warning(
            "warning: the metric %s fails on %d samples (%s); where it does in training, there is no evaluation",
            built.metric.name,
            SOME,
            error,
        )


def _check_classes(job: Job, labels: np.ndarray, scores: int) -> None:
    """Checks a sample of each class, as prepare() leaves them: of the first million, and the least and the greatest."""
    assert isinstance(job.train, Arrays)
    with users_errors(job.file.path, job.makes_samples):
        chosen = np.array([labels.argmin(), labels.argmax(), *np.unique(labels[: 1 << 20], return_index=True)[1]])
        targets = Feed(job.prepare)(job.train.take(chosen)).targets[0]
    least, most = int(targets.min()), int(targets.max())
    if not 0 <= least <= most < scores:
        raise SetupError(
            f"the targets are classes from {least} to {most}, and the network gives {scores} scores: "
            f"give one for each class from 0 on"
        )
