"""What a trainer works with, whatever the algorithm: flags, network, data, the others and the way to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import models
from config import Config
from trainer.clock import Clock, RealClock
from trainer.collectives import compression
from trainer.collectives.compression import AS_IT_IS, Compression
from trainer.coordinator.client import StateClient
from trainer.datasets.augment import CropAndFlip
from trainer.datasets.loading import WHITE, Batches, EndlessBatches
from trainer.datasets.samples import Dataset, Samples
from trainer.device import DeviceFeed, Evaluator, Passes
from trainer.engine import mx
from trainer.evaluation.evaluator_process import EvaluatorProcess
from trainer.evaluation.saved_model import INPUT_NAME, ModelSaver
from trainer.membership import Membership
from trainer.recovering import Recovers
from trainer.run_logs.earlier_runs import NEWEST
from trainer.run_logs.pace import Pacing
from trainer.run_logs.run_folder import RunFolder
from trainer.steps import PLAIN, Rule
from trainer.stop import Limits
from trainer.straggler_trace import Slowdown
from trainer.survival.checkpoint_manager import CheckpointManager
from trainer.transport.protocol import Transport

TELL_EVERY_S = 1.0  # of a device alone, whose rounds are single steps: a line for each would tell nobody anything


@dataclass
class Context:
    """One worker's. An algorithm's module has a function `build(context)`, which algorithms.py names."""

    network: Any
    feed: Callable[[Samples], tuple[Any, Any]]  # brings a batch to the form that the passes take
    batches: Batches
    warm_up_batch: Samples  # any samples: nothing is learnt from them
    passes: Passes | None = None  # the network's own, where no others are given
    config: Config = field(default_factory=Config)
    classes: int = 0  # that the network tells apart; 0: it computes nothing
    rule: Rule = PLAIN  # of the steps that the flags ask for, without their size
    membership: Callable[[], Membership] = Membership  # asked at the start of each round
    transport: Transport | None = None  # of a distributed algorithm
    recovery: Callable[[Any], Recovers] | None = None  # of a job that goes on when a worker is lost
    lost: Callable[[], frozenset[int]] = frozenset  # ranks without which a job with a parameter server goes on
    compression: Compression = AS_IT_IS  # of what the workers sum
    num_servers: int = 0  # parameter servers of the job
    state_server: StateClient | None = None  # of an algorithm that speaks to one
    clock: Clock = field(default_factory=RealClock)
    limits: Limits = field(default_factory=Limits)
    stop_requested: Callable[[], bool] = lambda: False  # a signal came
    leaves: Callable[[], bool] = lambda: False  # this worker was asked to leave, while the others go on
    evaluate: Callable[[], float | None] | None = None  # None: it only takes time
    eval_every: int = 1  # rounds
    eval_every_s: float = 0.0  # in place of `eval_every` where it is not 0
    # Told the seconds of a test step, says whether this worker is the one that evaluates. Asked by all workers.
    is_evaluator: Callable[[float], bool] = lambda step_s: True
    evaluator: Callable[[], EvaluatorProcess] | None = None  # starts the process that evaluates in place of this worker
    saver: ModelSaver | None = None  # where the worker that evaluates keeps the network
    max_bad_steps: int = 0  # in a row, behind which the job ends; 0: nobody looks
    min_step_time_s: float = 0.0
    sample_time_s: float = 0.0  # that each sample of a step adds to its shortest time
    pace: Callable[[], float] = lambda: 1.0  # factor on both, drawn for each step
    pacing: Pacing | None = None  # whether that is kept; None in virtual time, where it always is
    trace: tuple[Slowdown, ...] = ()  # of an emulated transient straggler
    checkpoints: CheckpointManager | None = None
    logs_lines: bool = False  # rounds are lines of one file, not files
    tell_every_s: float = 0.0  # on the console; rounds with an evaluation are told in any case

    @property
    def shared(self) -> Transport:
        """The way to the other workers, of a distributed algorithm."""
        assert self.transport is not None
        return self.transport

    @property
    def state(self) -> StateClient:
        """The state server's client, of an algorithm that speaks to one."""
        assert self.state_server is not None
        return self.state_server

    @classmethod
    def from_config(
        cls,
        config: Config,
        dataset: Dataset,
        device: mx.Context,
        membership: Callable[[], Membership],
        folder: RunFolder,
        **others: Any,
    ) -> Context:
        """What the flags say; the same for a process of a cluster and for a worker of a virtual one.

        Args:
            membership: whose partition the batches come from.
            folder: of the logs and the saved network.
            others: fields that are no matter of flags.
        """
        mine = membership()
        channels, height, width = dataset.train.images.shape[1:]
        input_size = models.REGISTRY[config.network].input_size
        image_shape = (channels, input_size or height, input_size or width)
        network = models.build(config.network, image_shape, dataset.classes, device, config.seed)
        # Same initial weights everywhere, but every rank its own dropout masks and its own order of samples.
        mx.random.seed(config.seed + 1 + mine.rank)
        feed = DeviceFeed(device, input_size)
        seed = (config.seed, mine.rank)
        indices = np.arange(len(dataset.train.labels)) if mine.partition is None else mine.partition
        return cls(
            network=network,
            feed=feed,
            batches=EndlessBatches(
                dataset.train, indices, config.batch_size, seed, CropAndFlip(seed) if config.augment else None
            ),
            warm_up_batch=Samples(*(part[: config.batch_size] for part in dataset.train)),
            config=config,
            classes=dataset.classes,
            rule=Rule.from_config(config),
            membership=membership,
            compression=compression.of_config(config),
            limits=Limits(config.max_rounds, config.max_seconds, config.target_accuracy),
            evaluate=Evaluator(network, dataset.test, feed, config.batch_size),
            eval_every=config.eval_duration,
            eval_every_s=config.eval_seconds,
            evaluator=partial(EvaluatorProcess, config, folder.path / f"{NEWEST}.json") if config.evaluator else None,
            saver=ModelSaver(folder.path, network, _about(config, image_shape, dataset.classes, folder.commit)),
            max_bad_steps=config.max_bad_steps,
            min_step_time_s=config.min_step_time,
            sample_time_s=config.sample_time,
            logs_lines=config.logs_lines,
            tell_every_s=0.0 if config.algorithm.is_distributed else TELL_EVERY_S,
            **others,
        )


def _about(config: Config, image_shape: tuple[int, ...], classes: int, commit: str | None) -> dict[str, Any]:
    """What a user of the saved network must know; what DeviceFeed does to an image is not in the network."""
    return {
        "network": config.network,
        "dataset": config.dataset,
        "mode": config.mode,
        "input": {"name": INPUT_NAME, "shape": image_shape, "divide_by": WHITE, "resize": "bilinear"},
        "classes": classes,
        "commit": commit,
    }
