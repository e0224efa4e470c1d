"""From flags to a finished run: builds what a trainer needs, checks all of it first, and trains."""

import contextlib
import functools
import logging
import math
import os
import pkgutil
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from config import MPI, NO, Config
from esync.clock import Clock, RealClock
from esync.http import HttpLink
from esync.measure import Measure
from esync.protocol import Link
from server.setups import DATA, FROZEN, JOB, PROGRAM
from trainer import step_size, straggler_trace, version
from trainer.command_line import check_job, job_setup
from trainer.context import Context, Peers
from trainer.coordinator.published import checked
from trainer.emulation import NETWORK, Slowdown, Speed
from trainer.evaluation import initial_parameters
from trainer.evaluation.evaluating import Choice
from trainer.evaluation.evaluator_process import EvaluatorProcess
from trainer.evaluation.saved_model import ModelSaver
from trainer.from_flags import client_of, learning_task, model_card, run_settings, target_of
from trainer.hub import hub_link
from trainer.jobs.job import job_of
from trainer.jobs.network import build
from trainer.jobs.sources import content_hash
from trainer.jobs.user_errors import users_errors
from trainer.loop import Loop
from trainer.membership import Company, How, Membership, lost_of, of_all, without
from trainer.network import JobNetwork, sha256
from trainer.rendezvous import mpi_job, peers, roles
from trainer.rendezvous.cluster import ClusterSpec
from trainer.rendezvous.rendezvous_client import LAST_GATHER
from trainer.rendezvous.rendezvous_info import RendezvousInfo
from trainer.run_logs.pace import Pacing
from trainer.run_logs.run_folder import RunFolder
from trainer.runtime import library
from trainer.runtime.stop_signals import SignalWatch
from trainer.survival import trainer_state
from trainer.survival.checkpoint_manager import CheckpointManager, check_folder, checkpoints_of
from trainer.survival.recovery import Survivors
from trainer.trainer import Trainer
from utils import EXIT_OK, Incomplete, JobOver, SetupError, die_where_a_thread_does, setup_logging, tell_launcher


def run(config: Config, cluster: ClusterSpec | None, signals: SignalWatch) -> int:
    """Trains as a worker of `cluster`, or of mpiexec's, or alone; returns the exit code. Everything that can be wrong
    on this machine is checked before the worker joins the cluster, and nothing of an earlier run is overwritten before
    training begins. Raises SetupError if a device, a file, a folder, the state server or MXNet's distributed kvstore is
    not there, PeerLost if another process of the job is gone."""
    die_where_a_thread_does()
    beside = EvaluatorProcess() if config.evaluates_beside and config.evaluate != NO else None
    if config.transport == MPI:
        config, cluster = mpi_job.begin(config)
    elif cluster is not None and not config.device_name and (number := os.environ.get("DMLC_TASK_ID", "")).isdecimal():
        # dmlc's launcher starts all workers by one command, and each needs a log folder.
        config = config.but(device_name=f"{config.device}-{number}")
    with roles.tells_errors(cluster, config):
        if cluster is not None:
            if cluster.has_scheduler:
                library.check_kvstore(library.has_kvstore())
            roles.check_address(cluster)
            check_job(config, cluster.num_servers, cluster.num_workers)
        trace = trace_of(config)
        job = job_of(config)
        built = build(config, job)
        target_of(config, built.metric)
        partitioned_by = job.partitioned_by(config)
        clock = RealClock()
        link = _state_server(config, clock, cluster.num_workers if cluster else 1)
        folder = RunFolder(config)
        unwritable = check_folder(config) if config.ckpt_frequency else ""
        data_hash = job.content_hash() if cluster is not None or config.ckpt_frequency else ""
        setup = _setup(config, built.network, data_hash) if cluster is not None else {}
    with contextlib.nullcontext() if cluster is None else _joined(config, cluster, setup, link) as joined:
        if unwritable and joined and joined.generations:
            if joined.generations.taken.start.generation == 1:  # the job begins
                raise SetupError(unwritable)
            logging.warning("warning: %s", unwritable)
        membership = _membership(config, partitioned_by, joined)
        task = learning_task(config, job, built, membership())
        settings = run_settings(
            config,
            task.metric,
            clock=clock,
            stop_requested=lambda: signals.requested and not config.leave,
            speed=Speed(config.min_step_time, config.sample_time, trace=trace),
            evaluator=beside,
            saver=ModelSaver(folder.path, built.network, model_card(config, job, built, folder.commit), task.metric),
            pacing=_pacing(config, joined),
            checkpoints=_checkpoints(config, joined, data_hash),
        )
        changes = joined.changes if joined and config.leaves_out else dict

        def lost() -> frozenset[int]:
            return lost_of(changes())

        others = Peers(
            membership,
            joined.transport if joined else None,
            client_of(config, link, clock, platform.node(), lambda: signals.requested, lost),
            company=partial(Survivors, joined) if joined and joined.generations else Company,
            changes=changes,
            job_age_s=joined.job_age_s if joined else lambda: None,
            leaves=lambda: bool(signals.requested and config.leave),
            is_evaluator=_evaluator(config, joined),
            gather=joined.gather if joined else lambda label, mine: [mine],
            hub=joined.hub if joined else None,
            watch=partial(_watch, config, joined) if joined and not job.file.train else lambda measure: None,
        )
        context = Context(config, task, others, settings)
        train(context, folder, signals.be_patient, members=membership().members or None)
        signals.on_first = "this worker is done and waits for the others, so signal one of those"
    if folder.missing:  # the others do not need this worker any more
        raise Incomplete(folder.missing)
    if config.leaves_out:
        raise JobOver("this worker is done")
    return EXIT_OK


def train(
    context: Context,
    folder: RunFolder,
    begins: Callable[[], None],  # called when all workers are there and training begins
    **more: Any,  # facts of the run, for the folder
) -> dict[str, Any]:
    """Trains with what is in the context, and writes the log folder; returns what it has written of the run. Raises
    JobOver if this worker has left alone, so that a hub's job must take it for lost."""
    config, membership = context.config, context.peers.membership()
    own = f"{config.algorithm.module}:{config.algorithm.trainer}"
    make = pkgutil.resolve_name("trainer.hub.probe:ProbeTrainer" if config.probe else own)
    trainer: Trainer = make(context, config.settings)
    loop = Loop(trainer)
    facts: dict[str, Any] = {
        "rank": membership.rank,
        "num_workers": membership.num_workers,
        "parameter_bytes": trainer.parameters.num_bytes(),
        "partition_sha256": membership.partition_sha256,
        "metric": context.task.metric.about(),
        **more,
    }
    logging.info(
        "%s, %s, %d bytes of parameters, rank %d of %d, %d samples",
        config.mode, config.run_name, facts["parameter_bytes"],
        membership.rank, membership.num_workers, membership.num_samples,
    )  # fmt: skip
    if context.task.classes or config.job:
        logging.info("%s", step_size.describe(config, membership.num_workers))
    if told := membership.repeating(max(config.batch_sizes)):
        logging.warning("warning: %s", told)

    def open_log() -> Path:
        is_new = trainer_state.is_new(trainer)
        path = folder.open(trainer.begin.elapsed_s if trainer.begin.how is How.JOINS else None, is_new)
        logging.info("training begins")
        tell_launcher({"begun": True})
        begins()
        context.run.board = folder.board()
        # Every worker has rank 0's by now, or those of the checkpoint that it goes on from.
        facts.update(trainer_state.about_run(trainer), initial_weights_sha256=trainer.parameters.sha256())
        with contextlib.nullcontext() if is_new else contextlib.suppress(SetupError):  # the disk may get room again
            folder.describe(facts)
        return path

    def place() -> str:
        return f"worker {membership.rank}, round {trainer.rounds}, step {trainer.steps + 1}"

    with users_errors(Path(config.job) if config.job else None, place=place):
        reason = loop.run(open_log)
    facts["final_weights_sha256"] = trainer.parameters.sha256()
    missing = [trainer.measure.unwritten(), context.run.saver.unwritten if context.run.saver else ""]
    try:
        folder.describe(facts, ended=reason)
    except SetupError as error:
        missing.append(str(error))
    if any(missing):
        folder.missing = f"the job is done, but not all of it is in {folder.path}: {'; '.join(filter(None, missing))}"
    logging.info("ended after round %d: %s; logs in %s", trainer.rounds, reason, folder.path)
    tell_launcher({"ended": reason})
    for line in context.run.pacing.at_the_end() if context.run.pacing is not None else ():
        logging.warning("warning: %s", line)
    if trainer.has_left and not config.survives:
        raise JobOver("asked to leave")
    return facts


def trace_of(config: Config) -> tuple[Slowdown, ...]:
    """The straggler trace that the flags name. Raises SetupError if it cannot be read, or the mode has no use for
    it."""
    trace = straggler_trace.read(Path(config.straggler_trace)) if config.straggler_trace else ()
    if not config.algorithm.is_distributed and any(entry.kind == NETWORK for entry in trace):
        raise SetupError(
            f"straggler trace {config.straggler_trace} has entries of kind {NETWORK}, and mode "
            f"{config.mode} exchanges nothing: leave them out, or choose another mode"
        )
    return trace


def _state_server(config: Config, clock: Clock, num_workers: int) -> Link | None:
    """The way to the state server, where the job has one; it answers, where nothing goes on without it."""
    if not (config.tells_state_server or config.needs_state_server):
        return None
    link = HttpLink(config.state_server_ip, config.state_server_port, clock, config.query_delay)
    return checked(link, clock, config, num_workers) if config.needs_state_server else link


def _setup(config: Config, network: JobNetwork, data_hash: str) -> dict[str, str]:
    """What all workers compare. The files' paths may differ between hosts."""
    return {
        **job_setup(config),
        DATA: data_hash,
        "--init-from": initial_parameters.content_hash(config.init_from),
        JOB: content_hash(config.job),
        FROZEN: sha256(network.frozen) if network.frozen else "none",
        PROGRAM: version.files_hash(),
    }


@contextlib.contextmanager
def _joined(
    config: Config, cluster: ClusterSpec, setup: Mapping[str, str], link: Link | None
) -> Iterator[RendezvousInfo]:
    if cluster.has_scheduler:
        others = roles.join(cluster, config.algorithm.transport, config.start_timeout, config.device, setup)
    elif cluster.has_hub:
        others = hub_link.join(cluster, config, setup)
    elif config.transport == MPI:
        others = mpi_job.join(config, setup)
    else:
        assert link is not None
        others = peers.join(config, cluster, setup, link)
    with others as joined:
        setup_logging(f"worker {joined.place.rank} {config.device}")
        tell_launcher({"rank": joined.place.rank})
        yield joined


def _membership(config: Config, labels: Any, joined: RendezvousInfo | None) -> Callable[[], Membership]:
    """The workers that have joined, from the first round to the last, or as long as none is lost and none comes."""
    if joined and (generations := joined.generations):

        @functools.lru_cache(maxsize=1)
        def of_generation(number: int) -> Membership:
            start = generations.taken.start
            return of_all(labels, len(start.members), config, start.places)[start.rank]

        return lambda: of_generation(generations.taken.start.generation)
    rank, num_workers = (joined.place.rank, joined.place.num_workers) if joined else (0, 1)
    membership = of_all(labels, num_workers, config, joined.places if joined else ())[rank]
    if joined is None or not config.leaves_out:
        return lambda: membership

    @functools.lru_cache(maxsize=1)
    def without_those(lost: frozenset[int]) -> Membership:
        return without(lost, membership, labels, config) if lost else membership

    return lambda: without_those(lost_of(joined.changes()))


def _checkpoints(config: Config, joined: RendezvousInfo | None, data_hash: str) -> CheckpointManager | None:
    """This worker's checkpoints, where there are any."""
    if joined is None:
        return checkpoints_of(config, data_hash, 0, 1, lambda mine: [mine])
    rank, num_workers = joined.place.rank, joined.place.num_workers

    def gather(mine: list[int]) -> list[list[int]]:
        found = joined.gather("checkpoints", mine)
        if found is None:  # a plain MXNet program takes part, and keeps none
            raise SetupError("--resume: a plain MXNet program takes part in this job, and cannot go on: leave it out")
        return found

    return checkpoints_of(config, data_hash, rank, num_workers, gather)


def _pacing(config: Config, joined: RendezvousInfo | None) -> Pacing:
    """Checks whether this worker keeps its pace. A GPU's steps need no core."""
    busy = time.process_time if config.cpu else lambda: 0.0
    return Pacing(platform.node(), lambda mine: joined.gather(LAST_GATHER, mine) if joined else None, busy)


def _watch(config: Config, joined: RendezvousInfo, measure: Measure) -> None:
    """Has the training watched, but where the user's own loop, or an emulated straggler, takes any time."""
    if not config.straggler_trace:
        joined.training.standing = partial(measure.standing, first_s=config.start_timeout or math.inf)


def _evaluator(config: Config, joined: RendezvousInfo | None) -> Callable[[float], bool]:
    """Decides whether this worker evaluates."""
    if joined is None:
        return lambda step_s: config.evaluate != NO
    return Choice(config, lambda: joined.place.rank, partial(joined.gather, "evaluator"), joined.changes)
