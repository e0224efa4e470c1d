"""Builds the learning task and the run settings from the flags, for real and for virtual workers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import models
from config import SGD, Config
from rates import parse_schedule
from trainer.collectives.compression import Compression
from trainer.context import LearningTask, RunSettings
from trainer.datasets.augment import CropAndFlip
from trainer.datasets.batches import EndlessBatches
from trainer.datasets.samples import WHITE, Dataset, Samples
from trainer.device import DeviceFeed, Evaluator
from trainer.engine import mx
from trainer.evaluation import initial_parameters
from trainer.evaluation.saved_model import INPUT_NAME
from trainer.membership import Membership
from trainer.metric import ACCURACY, Metric
from trainer.steps import Rule
from trainer.stop import Limits
from utils import SetupError

TELL_EVERY_S = 1.0  # between console lines of a standalone job, whose rounds are single steps


def build_network(
    config: Config, dataset: Dataset, device: mx.Context, log: Callable[[str], None] = logging.info
) -> Any:
    """The network with its initial parameters.

    Args:
        log: gets a line about those of --init-from.

    Raises:
        SetupError: --init-from names no parameters that fit.
    """
    network = models.build(config.network, _image_shape(config, dataset), dataset.classes, device, config.seed)
    if config.init_from:
        log(initial_parameters.load(network, Path(config.init_from)))
    return network


def learning_task(config: Config, dataset: Dataset, network: Any, device: mx.Context, mine: Membership) -> LearningTask:
    """The network and the batches of this worker's partition."""
    input_size = models.REGISTRY[config.network].input_size
    # All ranks have the same initial weights, but each has its own dropout masks and order of samples.
    mx.random.seed(config.seed + 1 + mine.rank)
    feed = DeviceFeed(device, input_size)
    seed = (config.seed, mine.rank)
    indices = np.arange(len(dataset.train.labels)) if mine.partition is None else mine.partition
    augment = CropAndFlip(seed) if config.augment else None
    return LearningTask(
        network=network,
        feed=feed,
        batches=EndlessBatches(dataset.train, indices, config.batch_size, seed, augment),
        warm_up_batch=Samples(*(part[: config.batch_size] for part in dataset.train)),
        classes=dataset.classes,
        evaluate=Evaluator(network, dataset.test, feed, config.batch_size),
    )


def run_settings(config: Config, metric: Metric = ACCURACY, **others: Any) -> RunSettings:
    """The run's settings; `others` are fields that no flag decides.

    Args:
        metric: of the learning task.

    Raises:
        SetupError: the target is none of the metric.
    """
    return RunSettings(
        rule=Rule(
            None if config.optimizer == SGD else config.optimizer,
            config.momentum,
            config.weight_decay,
            config.batch_size,
            parse_schedule(config.lr_schedule),
        ),
        compression=Compression(config.compression, config.compression_threshold),
        limits=Limits(config.max_rounds, config.max_seconds, target_of(config, metric), metric),
        eval_every=config.eval_duration,
        eval_every_s=config.eval_seconds,
        max_bad_steps=config.max_bad_steps,
        logs_lines=config.logs_lines,
        tell_every_s=0.0 if config.algorithm.is_distributed else TELL_EVERY_S,
        **others,
    )


def target_of(config: Config, metric: Metric) -> float | None:
    """The metric's value that ends the job; None where none does.

    Raises:
        SetupError: the flag is for another metric, or the metric has no such value.
    """
    if config.target_accuracy and not metric.is_accuracy:
        raise SetupError(f"--target-accuracy: the metric of this job is {metric.name}: give its value as --target")
    target = config.target_accuracy or config.target
    if target is not None and (fault := metric.fault(target)):
        raise SetupError(f"--target {target:g} is {fault}, as the metric {metric.name} has: give another target")
    return target


def model_card(config: Config, dataset: Dataset, commit: str | None) -> dict[str, Any]:
    """What a user of the saved network must know, such as DeviceFeed's scaling, which is not in the network."""
    shape = _image_shape(config, dataset)
    return {
        "network": config.network,
        "dataset": config.dataset,
        "mode": config.mode,
        "input": {"name": INPUT_NAME, "shape": shape, "divide_by": WHITE, "resize": "bilinear"},
        "classes": dataset.classes,
        "commit": commit,
    }


def _image_shape(config: Config, dataset: Dataset) -> tuple[int, int, int]:
    channels, height, width = dataset.train.images.shape[1:]
    input_size = models.REGISTRY[config.network].input_size
    return channels, input_size or height, input_size or width
