"""Builds the learning task and the run settings from the flags, for real and for virtual workers."""

from functools import partial
from typing import Any

import numpy as np

from config import SGD, Config
from rates import parse_schedule
from trainer.collectives.compression import Compression
from trainer.context import LearningTask, RunSettings
from trainer.datasets.feed import Feed
from trainer.datasets.samples import WHITE
from trainer.engine import mx
from trainer.evaluation.evaluator import of_job
from trainer.evaluation.saved_model import input_names
from trainer.jobs.job import Job
from trainer.jobs.network import BuiltNetwork
from trainer.jobs.own_loop import OwnLoop
from trainer.membership import Membership
from trainer.metric import ACCURACY, Metric
from trainer.steps import Rule
from trainer.stop import Limits
from utils import SetupError

TELL_EVERY_S = 1.0  # between console lines of a standalone job, whose rounds are single steps


def learning_task(config: Config, job: Job, built: BuiltNetwork, device: mx.Context, mine: Membership) -> LearningTask:
    """The network and the batches of this worker's partition."""
    # All ranks have the same initial weights, but each has its own dropout masks and order of samples.
    seed = config.seed + 1 + mine.rank
    mx.random.seed(seed)
    np.random.seed(seed % 2**32)
    feed = Feed(device, job.prepare)
    batches = job.batches(feed, config, mine.rank, mine.num_workers, mine.partition)
    raw = job.first(config.batch_size, config.seed) if job.train is not None else None
    return LearningTask(
        network=built.network,
        batches=batches,
        warm_up_batch=next(batches) if raw is None else feed(raw),
        loss=built.loss,
        passes=partial(OwnLoop, job.file.train) if job.file.train is not None else None,
        classes=built.classes,
        evaluate=None if job.test is None else of_job(config, job, built, feed),
        metric=built.metric,
    )


def run_settings(config: Config, metric: Metric = ACCURACY, **others: Any) -> RunSettings:
    """The run's settings; `others` are fields that no flag decides. `metric` is that of the learning task. Raises
    SetupError if the target is none of the metric."""
    return RunSettings(
        rule=Rule(
            None if config.optimizer == SGD else config.optimizer,
            config.momentum,
            config.weight_decay,
            config.batch_size,
            parse_schedule(config.lr_schedule),
        ),
        compression=Compression(config.compression, config.compression_threshold),
        limits=Limits(
            config.max_rounds, config.max_seconds, target_of(config, metric), metric, config.target_evaluations
        ),
        eval_every=config.eval_duration,
        eval_every_s=config.eval_seconds,
        max_bad_steps=config.max_bad_steps,
        logs_lines=config.logs_lines,
        tell_every_s=0.0 if config.algorithm.is_distributed else TELL_EVERY_S,
        **others,
    )


def target_of(config: Config, metric: Metric) -> float | None:
    """The metric's value that ends the job; None where none does. Raises SetupError if the flag is for another metric,
    or the metric has no such value."""
    if config.target_accuracy and not metric.is_accuracy:
        raise SetupError(f"--target-accuracy: the metric of this job is {metric.name}: give its value as --target")
    target = config.target_accuracy or config.target
    if target is not None and (fault := metric.fault(target)):
        raise SetupError(f"--target {target:g} is {fault}, as the metric {metric.name} has: give another target")
    return target


def model_card(config: Config, job: Job, built: BuiltNetwork, commit: str | None) -> dict[str, Any]:
    """What a user of the saved network must know, such as the scaling of its inputs, which is not in the network."""
    shapes = built.input_shapes or ()
    names = input_names(len(shapes))
    inputs: list[dict[str, Any]] = [{"name": name, "shape": shape} for name, shape in zip(names, shapes, strict=True)]
    if job.file.prepare is None and job.file.data is None:
        inputs[0] |= {"divide_by": WHITE, "resize": "bilinear"}
    return {
        "network": config.network if job.file.network is None else job.name,
        "dataset": config.dataset if job.file.data is None else job.name,
        "mode": config.mode,
        **({"input": inputs[0]} if len(inputs) == 1 else {"inputs": inputs}),
        "classes": job.classes,
        "commit": commit,
    }
