"""From flags to a finished run: builds what a trainer needs, checks all of it first, and trains."""

from __future__ import annotations

import logging
import pkgutil
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import models
from algorithms import ENTRIES
from config import AUTO, YES, Config, check_job, job_setup
from trainer import data, roles, state_job, straggler_trace
from trainer.base import DeviceFeed, Evaluator, Job, Trainer
from trainer.checkpoint import CheckpointFile
from trainer.cluster import Cluster
from trainer.data import sha256
from trainer.engine import check_kvstore, device_context, has_kvstore, mx
from trainer.evaluating import Candidate, evaluating_rank
from trainer.run_folder import RunFolder
from trainer.saved_model import INPUT_NAME, ModelSaver
from trainer.setups import DATA
from trainer.site import Site
from trainer.state_client import StateClient
from trainer.stop import Limits, SignalWatch
from utils import EXIT_OK, SetupError, setup_logging

TELL_EVERY_S = 1.0  # of a device alone, whose rounds are single steps: a line for each would tell nobody anything


@dataclass(frozen=True)
class Workplace:
    """What a worker has on its own machine, found and checked before it joins the others."""

    context: mx.Context
    dataset: data.Dataset
    folder: RunFolder
    state: StateClient | None  # where the mode has a state server
    trace: tuple[straggler_trace.Slowdown, ...]
    signals: SignalWatch


def run(config: Config, cluster: Cluster | None, signals: SignalWatch) -> int:
    """Trains as a worker of `cluster`, or alone; returns the exit code.

    Everything that can be wrong on this machine is checked before the worker joins the cluster, and nothing of an
    earlier run is overwritten before training begins.

    Raises:
        SetupError: a device, a file, a folder, the state server or MXNet's distributed kvstore is not there.
        PeerLost: another process of the job is gone.
    """
    if cluster is not None:
        check_kvstore(has_kvstore())
        roles.check_address(cluster)
        check_job(config, cluster.num_servers, cluster.num_workers)
        checkpoint = CheckpointFile.of_job(config, cluster.num_workers)
        if config.resume and checkpoint.path.exists():  # rank 0 needs it, and who that will be is not known yet
            checkpoint.check()
    place = _workplace(config, signals)
    if cluster is None:
        return _train(config, None, None, place)
    if any(config.ckpt_steps):
        checkpoint.check_folder()
    setup = {**job_setup(config), DATA: data.content_hash(place.dataset)}
    with roles.joined(cluster, config.algorithm.transport, config.start_timeout, config.device, setup) as joined:
        setup_logging(f"worker {joined.transport.rank} {config.device}")
        return _train(config, cluster, joined, place)


def _workplace(config: Config, signals: SignalWatch) -> Workplace:
    context = device_context(bool(config.cpu), config.gpu)
    trace = straggler_trace.read(Path(config.straggler_trace)) if config.straggler_trace else ()
    if not config.algorithm.is_distributed and any(entry.kind == straggler_trace.NETWORK for entry in trace):
        raise SetupError(
            f"straggler trace {config.straggler_trace} has entries of kind {straggler_trace.NETWORK}, and mode "
            f"{config.mode} exchanges nothing: leave them out, or choose another mode"
        )
    dataset = data.load(config.dataset, config.data_dir)
    total = len(dataset.train.labels)
    if config.batch_size > total:
        raise SetupError(f"batch size {config.batch_size} exceeds the {total} training samples: choose a smaller -b")
    state = None
    if config.algorithm.has_state_server:
        state = StateClient(
            config.state_server_ip,
            config.state_server_port,
            config.rule,
            config.epsilon,
            host_name=platform.node(),
            device=config.device,
            batch_size=config.batch_size,
            delay_s=config.query_delay,
            title=ENTRIES[config.entry].title,
            limits=state_job.limits(config),
            stop_requested=lambda: signals.requested,
        )
        if config.algorithm.needs_state_server:
            state.check()
    return Workplace(context, dataset, RunFolder(config), state, trace, signals)


def _train(config: Config, cluster: Cluster | None, joined: roles.Joined | None, place: Workplace) -> int:
    transport = joined.transport if joined else None
    rank, num_workers = (transport.rank, transport.num_workers) if transport else (0, 1)
    labels = place.dataset.train.labels
    parts = [
        data.partition(labels, worker, num_workers, bool(config.split_by_class), config.seed)
        for worker in range(num_workers)
    ]
    indices = parts[rank]
    job = _job(config, place, indices, rank, num_workers, joined)
    build = pkgutil.resolve_name(config.algorithm.trainer)
    trainer: Trainer = build(Site(config, job, cluster, transport, place.state))
    parameter_bytes = trainer.parameters.num_bytes()
    logging.info(
        "%s, %s, %d bytes of parameters, rank %d of %d, %d samples",
        config.mode, config.network, parameter_bytes, rank, num_workers, len(indices),
    )  # fmt: skip

    facts: dict[str, Any] = {
        "rank": rank,
        "num_workers": num_workers,
        "members": joined.members if joined else None,
        "parameter_bytes": parameter_bytes,
        "partition_sha256": {"this worker": sha256([indices]), "all by rank": sha256(parts)},
    }

    def open_log() -> Path:
        path = place.folder.open()
        place.signals.be_patient()
        # Every worker has rank 0's by now, or those of the checkpoint that it goes on from.
        facts["initial_weights_sha256"] = sha256(weight.asnumpy() for weight in trainer.parameters.weights)
        place.folder.describe(facts)
        return path

    reason = trainer.run(open_log)
    place.folder.describe(facts, ended=reason)
    logging.info("ended after round %d: %s; logs in %s", trainer.rounds, reason, place.folder.path)
    place.signals.on_first = "this worker is done and waits for the others, so signal one of those"
    return EXIT_OK


def _job(
    config: Config, place: Workplace, indices: np.ndarray, rank: int, num_workers: int, joined: roles.Joined | None
) -> Job:
    context, dataset = place.context, place.dataset
    channels, height, width = dataset.train.images.shape[1:]
    input_size = models.REGISTRY[config.network].input_size
    image_shape = (channels, input_size or height, input_size or width)
    network = models.build(config.network, image_shape, context, config.seed)
    # Same initial weights everywhere, but every rank its own dropout masks and its own order of samples.
    mx.random.seed(config.seed + 1 + rank)
    feed = DeviceFeed(context, input_size)
    members = (joined.members if joined else None) or []
    return Job(
        network=network,
        feed=feed,
        batches=data.EndlessBatches(dataset.train, indices, config.batch_size, seed=(config.seed, rank)),
        warm_up_batch=data.Samples(*(part[: config.batch_size] for part in dataset.train)),
        evaluate=Evaluator(network, dataset.test, feed, config.batch_size),
        eval_every=config.eval_duration,
        eval_every_s=config.eval_seconds,
        limits=Limits(config.max_rounds, config.max_seconds, config.target_accuracy),
        stop_requested=lambda: place.signals.requested,
        rank=rank,
        num_workers=num_workers,
        weight=num_workers * len(indices) / len(dataset.train.labels),
        min_step_time_s=config.min_step_time,
        trace=place.trace,
        is_evaluator=lambda step_s: _is_evaluator(config, rank, step_s, joined),
        saver=ModelSaver(place.folder.path, network, _about(config, image_shape, place.folder.commit)),
        logs_lines=config.logs_lines,
        tell_every_s=0.0 if config.algorithm.is_distributed else TELL_EVERY_S,
        places=tuple(f"{member['device']} on host {member['host']}" for member in members),
    )


def _is_evaluator(config: Config, rank: int, step_s: float, joined: roles.Joined | None) -> bool:
    """Whether this worker evaluates. All workers of a job call it once.

    Raises:
        SetupError: no worker may, and the job is to end at an accuracy.
    """
    answers = joined.membership.gather("evaluator", Candidate(config.evaluate, step_s)) if joined else None
    if answers is None:  # alone, or nobody can be asked: a plain MXNet program takes part
        if joined:
            logging.warning("the workers cannot be compared: of those with --evaluate auto rank 0 evaluates")
        return config.evaluate == YES or (config.evaluate == AUTO and rank == 0)
    chosen = evaluating_rank([Candidate(*answer) for answer in answers])
    if chosen is None and config.target_accuracy:
        raise SetupError("--target-accuracy needs a worker that evaluates, and all have --evaluate no")
    if chosen is None:
        logging.warning("no worker evaluates: all have --evaluate no")
    elif chosen == rank:
        logging.info("evaluates the global model: a test step took %.3g s", step_s)
    return chosen == rank


def _about(config: Config, image_shape: tuple[int, ...], commit: str | None) -> dict[str, Any]:
    """What a user of the saved network must know; what DeviceFeed does to an image is not in the network."""
    return {
        "network": config.network,
        "dataset": config.dataset,
        "mode": config.mode,
        "input": {"name": INPUT_NAME, "shape": image_shape, "divide_by": data.WHITE, "resize": "bilinear"},
        "classes": models.NUM_CLASSES,
        "commit": commit,
    }
