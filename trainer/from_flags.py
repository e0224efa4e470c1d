"""Builds the learning task, the run settings and the state server's client from the flags, for all workers."""

import math
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from algorithms import ENTRIES, RELEASE
from config import FP16, SGD, Config
from esync.client import NOTICE_REST_S, PAGE_REST_S, StateClient
from esync.clock import Clock
from esync.metric import ACCURACY, Metric
from esync.progress import Limits
from esync.protocol import Link, NoLink
from flag_values import parse_schedule
from trainer.context import LearningTask, RunSettings
from trainer.datasets.samples import WHITE
from trainer.evaluation.saved_model import input_names
from trainer.jobs.job import Job
from trainer.jobs.network import BuiltNetwork, evaluator_of
from trainer.jobs.own_loop import OwnLoop
from trainer.membership import Membership
from trainer.steps import Rule
from utils import SetupError

TELL_EVERY_S = 1.0  # between console lines of a standalone job, whose rounds are single steps


def learning_task(config: Config, job: Job, built: BuiltNetwork, mine: Membership) -> LearningTask:
    """The network and the batches of this worker's partition."""
    feed = built.network.feed(job.prepare)
    batches = job.batches(feed, config, mine.rank, mine.num_workers, mine.partition)
    raw = job.first(config.batch_size, config.seed) if job.train is not None else None
    return LearningTask(
        network=built.network,
        batches=batches,
        warm_up_batch=next(batches) if raw is None else feed(raw),
        loss=built.loss,
        passes=partial(OwnLoop, job.file.train, built.network) if job.file.train is not None else None,
        classes=built.classes,
        evaluate=None if job.test is None else evaluator_of(config, job, built),
        metric=built.metric,
    )


def run_settings(config: Config, metric: Metric = ACCURACY, **others: Any) -> RunSettings:
    """The run's settings; `others` are fields that no flag decides. `metric` is that of the learning task. Raises
    SetupError if the target is none of the metric."""
    its = config.settings
    return RunSettings(
        rule=Rule(
            None if its.optimizer == SGD else its.optimizer,
            its.momentum,
            its.weight_decay,
            config.batch_size,
            parse_schedule(its.lr_schedule),
            its.clip_norm,
        ),
        as_halves=config.compression == FP16,
        limits=Limits(
            config.max_rounds, config.max_seconds, target_of(config, metric), metric, config.target_evaluations
        ),
        eval_every=config.eval_duration,
        eval_every_s=config.eval_seconds,
        max_bad_steps=config.max_bad_steps,
        logs_lines=config.logs_lines,
        tell_every_s=math.inf if config.quiet else 0.0 if config.algorithm.is_distributed else TELL_EVERY_S,
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
        "job": str(Path(config.job).absolute()) if config.job else "",
        "mode": config.mode,
        **({"input": inputs[0]} if len(inputs) == 1 else {"inputs": inputs}),
        "classes": job.classes,
        "commit": commit,
    }


def client_of(
    config: Config,
    link: Link | None,
    clock: Clock,
    host_name: str,
    stop_requested: Callable[[], bool],
    lost: Callable[[], Collection[int]] = tuple,
) -> StateClient | None:
    """A worker's client by the flags; None in a mode without a rule that tells no state server. Other arguments as in
    StateClient."""
    if not (config.tells_state_server or config.algorithm.has_state_server):
        return None
    return StateClient(
        link if link is not None and config.tells_state_server else NoLink(),
        clock,
        config.rule,
        config.settings.epsilon,
        host_name=host_name,
        device=config.device,
        batch_size=config.batch_size,
        title=ENTRIES[config.entry].title,
        limits=limits(config),
        stop_requested=stop_requested,
        shares_batch=config.algorithm.shares_batch,
        anchor=config.settings.anchor,
        notice_rest_s=NOTICE_REST_S if config.algorithm.has_state_server else PAGE_REST_S,
        lost=lost,
    )


def limits(config: Config) -> dict[str, float]:
    """The job's limits in the state server's rounds and the logs' seconds; missing ones are left out. Where the rounds
    there are releases, no flag limits them. Sync-Switch's steps are rounds under BSP alone."""
    rounds, its = [0 if RELEASE in config.algorithm.events else config.max_rounds], config.settings
    rounds += [] if "0" in its.switch_order else [sum(its.train_steps)]
    found = {"rounds": min(filter(None, rounds), default=0), "seconds": config.max_seconds}
    target = config.target_accuracy or config.target
    return {name: value for name, value in found.items() if value} | ({} if target is None else {"target": target})
