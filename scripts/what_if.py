"""A job again in virtual time, with the times that its logs tell, and with something changed: what would that give?

The cluster is the one that was measured (report/measured.py): each worker's step times with their spread, and when it
was slower for a while; what an exchange takes, as latency; evaluations. The trainers are those of the job, without
gradients (simulate.py -n none), or with them where accuracies are asked for. Only running it needs MXNet.
"""

from __future__ import annotations

import csv
import dataclasses
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from algorithms import Algorithm, TransportKind
from config import AUTO, FIELDS, NO_NETWORK, Config
from report import job_logs, measured, metrics
from report.job_logs import WorkerLog
from report.measured import MUCH_SLOWER, Measured, Speed
from trainer import straggler_trace
from trainer.runtime.environment import set_unless_given
from trainer.simulation.cluster_file import SimulatedCluster, Worker
from trainer.simulation.virtual_job import HOST, VirtualJob
from trainer.straggler_trace import Slowdown
from utils import SetupError

MAX_STEPS = 2500  # of all workers in one simulation: about 2 s
MIN_STEPS = 20  # of the slowest, where the job has so many
MAX_CALIBRATIONS = 3
NEAR = 0.02  # an exchange that is so near to the measured one is right
SAME_BATCHES = 0.02  # by which samples a step may differ from -b


@dataclass(frozen=True)
class Row:
    """A worker of the virtual cluster, and when it is slower for a while."""

    worker: Worker
    slow: tuple[Slowdown, ...] = ()

    @property
    def mean_step_s(self) -> float:
        """Of its usual steps."""
        return measured.mean_of(self.worker.step_time_s, self.worker.step_spread)


@dataclass(frozen=True)
class Virtual:
    """A virtual cluster.

    Attributes:
        server_mbit_s: of the parameter server's own link.
        evaluation_s: of one evaluation.
    """

    rows: tuple[Row, ...]
    server_mbit_s: float
    evaluation_s: float


@dataclass(frozen=True)
class Job:
    """A measured job: what all of its simulations have in common.

    Attributes:
        config: as the job had it.
        is_known: somebody has said what the network is, so that it is not guessed.
        model_bytes: that travel in an exchange, each way; 0 where the logs do not say it.
        seconds: that it took.
        simulated_s: virtual ones of a simulation without gradients.
    """

    config: Config
    measured: Measured
    waits: bool
    is_known: bool
    model_bytes: float
    seconds: float
    simulated_s: float


@dataclass(frozen=True)
class Change:
    """Something that could have been otherwise.

    Attributes:
        keeps_updates: the weights after a round stay what they were.
        removes: ranks of the workers that are left out.
        kind: of KINDS.
    """

    kind: str
    name: str
    cluster: Virtual
    keeps_updates: bool = False
    removes: tuple[int, ...] = ()


NO_STRAGGLER, NO_NETWORK_TIME, NO_EVALUATION, WITHOUT = "no straggler", "ideal network", "no evaluation", "without"


# ------------------------------------------------------------------------------------------- the job as it was


def job_of(logs: Sequence[WorkerLog], network: SimulatedCluster | None) -> tuple[Job, Virtual]:
    """The job that has left these logs, and the cluster that it had.

    Args:
        network: takes the place of the network that the logs suggest; its step times do not count.

    Raises:
        SetupError: the logs do not tell enough of it.
    """
    config = _config(logs)
    algorithm = config.algorithm
    if not algorithm.is_distributed:
        raise SetupError(f"mode {config.mode} has one worker and no network: there is nothing to leave out")
    its = measured.measured(logs, algorithm.waits)
    for log, speed in zip(logs, its.speeds, strict=True):
        if not speed.steps:
            raise SetupError(f"{log.place} has no complete step: the job was too short for a what-if")
        if abs(speed.samples_per_step / config.batch_size - 1) > SAME_BATCHES:
            raise SetupError(
                f"{log.place} took {speed.samples_per_step:.1f} samples a step, not the {config.batch_size} of -b: the "
                "logs do not say what its steps would take with other batches, so there is no what-if"
            )
    if network is not None and len(network.workers) != len(logs):
        raise SetupError(
            f"the cluster has {len(network.workers)} row(s), the job had {len(logs)} workers: give one each"
        )
    rows = [_row(speed) for speed in its.speeds]
    if network is not None:
        rows = [_with_network_of(own, row) for own, row in zip(rows, network.workers, strict=True)]
    steps_s = sum(speed.steps for speed in its.speeds) / its.seconds
    slowest_s = max(row.mean_step_s for row in rows)
    simulated_s = min(its.seconds, max(MAX_STEPS / steps_s, MIN_STEPS * slowest_s))
    server_mbit_s = (
        network.server_bandwidth_mbit_s if network is not None else SimulatedCluster(()).server_bandwidth_mbit_s
    )
    model_bytes = float(logs[0].run.get("parameter_bytes") or 0)
    job = Job(config, its, algorithm.waits, network is not None, model_bytes, its.seconds, simulated_s)
    return job, Virtual(tuple(rows), server_mbit_s, its.evaluation_s)


def _config(logs: Sequence[WorkerLog]) -> Config:
    known = next((log.run["config"] for log in logs if isinstance(log.run.get("config"), dict)), None)
    if known is None:
        raise SetupError(
            "no run.json says with which flags the job ran (the published program writes none): no what-if"
        )
    num_workers = {log.run.get("num_workers", len(logs)) for log in logs}
    if num_workers != {len(logs)}:
        raise SetupError(
            f"the job had {', '.join(map(str, num_workers))} workers, the logs are of {len(logs)}: copy those of all "
            "hosts there, and remove what other runs left"
        )
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in known.items() if name in FIELDS
    }
    return Config(**values)


def _row(speed: Speed) -> Row:
    worker = Worker(
        step_time_s=speed.step_s,
        step_spread=speed.spread,
        latency_s=speed.exchange_s / 2,
        state_server_round_trip_s=speed.round_trip_s,
    )
    return Row(worker, speed.slow)


NETWORK = ("bandwidth_mbit_s", "latency_s", "state_server_round_trip_s")  # columns of a cluster file


def _with_network_of(row: Row, other: Worker) -> Row:
    return dataclasses.replace(
        row, worker=dataclasses.replace(row.worker, **{name: getattr(other, name) for name in NETWORK})
    )


# ---------------------------------------------------------------------------------------------------- what if


def changes(cluster: Virtual, algorithm: Algorithm, left_out: Sequence[Sequence[int]]) -> list[Change]:
    """Each thing that could have been otherwise.

    Args:
        left_out: sets of workers, each of which is left out once.
    """
    # Where a round is the same work whatever the times are, and each update has all workers' work in it.
    same = algorithm.transport is TransportKind.SUM and algorithm.rule is None
    rows, found = cluster.rows, []
    for ranks in left_out:
        kept = tuple(row for rank, row in enumerate(rows) if rank not in ranks)
        if kept:
            name = f"without worker{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
            found.append(Change(WITHOUT, name, dataclasses.replace(cluster, rows=kept), removes=tuple(ranks)))
    ideal = tuple(_with_network_of(row, Worker(step_time_s=0)) for row in rows)
    without_network = dataclasses.replace(
        cluster, rows=ideal, server_mbit_s=SimulatedCluster(()).server_bandwidth_mbit_s
    )
    found.append(Change(NO_NETWORK_TIME, "with an ideal network", without_network, same))
    even = tuple(_no_slower(row, rows[median_rank(cluster)]) for row in rows)
    name = f"no worker slower than the median one, worker {median_rank(cluster)}"
    found.append(Change(NO_STRAGGLER, name, dataclasses.replace(cluster, rows=even), same))
    if cluster.evaluation_s:
        found.append(
            Change(NO_EVALUATION, "evaluations in no time", dataclasses.replace(cluster, evaluation_s=0.0), same)
        )
    return found


def median_rank(cluster: Virtual) -> int:
    """The worker with the median step; with an even number of workers the faster one of the two in the middle."""
    ranks = sorted(range(len(cluster.rows)), key=lambda rank: cluster.rows[rank].mean_step_s)
    return ranks[(len(ranks) - 1) // 2]


def stragglers(speeds: Sequence[Speed]) -> tuple[int, ...]:
    """Whose steps take much longer than the median worker's, over all of the job."""
    median_s = statistics.median_low(speed.mean_step_s for speed in speeds)
    return tuple(rank for rank, speed in enumerate(speeds) if speed.mean_step_s > MUCH_SLOWER * median_s)


def slowest(speeds: Sequence[Speed], number: int) -> list[int]:
    """So many workers, those of the longest steps and exchanges, by rank."""
    ranks = sorted(range(len(speeds)), key=lambda rank: speeds[rank].mean_step_s + speeds[rank].exchange_s)
    return sorted(ranks[-number:])


def _no_slower(row: Row, median: Row) -> Row:
    if row.mean_step_s <= median.mean_step_s:
        return dataclasses.replace(row, slow=())
    faster = dataclasses.replace(
        row.worker, step_time_s=median.worker.step_time_s, step_spread=median.worker.step_spread
    )
    return Row(faster)


# -------------------------------------------------------------------------------------------------- simulation


@dataclass(frozen=True)
class Outcome:
    """What a simulation gave."""

    measured: Measured
    curve: metrics.Curve


def calibrated(job: Job, cluster: Virtual) -> tuple[Virtual, Outcome]:
    """The cluster with latencies that make exchanges as long as they were measured, and what it does.

    How many ways through the network an exchange is, is a matter of the algorithm; so it is tried. A network that
    somebody has told is left as it is.
    """
    outcome = simulate(job, cluster)
    for _ in range(0 if job.is_known else MAX_CALIBRATIONS):
        wanted = [speed.exchange_s for speed in job.measured.speeds]
        got = [speed.exchange_s for speed in outcome.measured.speeds]
        slack_s = NEAR * min(row.mean_step_s for row in cluster.rows)
        if all(abs(here - there) <= NEAR * here + slack_s for here, there in zip(wanted, got, strict=True)):
            break
        factors = [here / there if there > 0 else 1.0 for here, there in zip(wanted, got, strict=True)]
        rows = [_with_latency(*pair) for pair in zip(cluster.rows, factors, strict=True)]
        cluster = dataclasses.replace(cluster, rows=tuple(rows))
        outcome = simulate(job, cluster)
    return cluster, outcome


def _with_latency(row: Row, factor: float) -> Row:
    return dataclasses.replace(row, worker=dataclasses.replace(row.worker, latency_s=factor * row.worker.latency_s))


def simulate(job: Job, cluster: Virtual, **training: Any) -> Outcome:
    """Runs it.

    Args:
        training: flags of a run with gradients, such as its target_accuracy; without them there are none.

    Raises:
        SetupError: the flags, the cluster or the data are no job.
    """
    # As in simulate.py: one operation at a time, on one core. MXNet reads it when it is imported.
    set_unless_given("MXNET_ENGINE_TYPE", "NaiveEngine")
    set_unless_given("OMP_NUM_THREADS", "1")
    from trainer.simulation import virtual_cluster

    seconds = job.seconds if training else job.simulated_s
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [
            _worker(row, seconds / job.seconds, folder / f"trace-{rank}.csv") for rank, row in enumerate(cluster.rows)
        ]
        config = _virtual_config(job, seconds, folder / HOST, training)
        given = SimulatedCluster(tuple(rows), cluster.server_mbit_s)
        virtual_cluster.run(VirtualJob(config, given, "what-if", job.model_bytes, cluster.evaluation_s))
        folders = [folder / HOST / f"cpu{rank}" for rank in range(len(rows))]
        logs = job_logs.read(folders, lambda text: None)
    return Outcome(measured.measured(logs, job.waits), job_logs.curve_of(logs))


_OF_THE_REAL_JOB = ("resume", "checkpoint", "ckpt_frequency", "straggler_trace", "evaluator", "on_worker_death")


def _virtual_config(job: Job, seconds: float, folder: Path, training: dict[str, Any]) -> Config:
    """The job's flags, without those of real devices, of data and of other ends than time."""
    share = seconds / job.seconds
    own: dict[str, Any] = {
        "network": NO_NETWORK,
        "log_dir": str(folder),
        "log_form": "lines",
        "evaluate": AUTO,
        "max_rounds": 0,
        "max_seconds": seconds,
        "target_accuracy": 0.0,
        # Phases of a part of the job are the same part of the job's.
        "train_steps": tuple(max(1, round(share * steps)) for steps in job.config.train_steps),
        **{name: FIELDS[name].default for name in _OF_THE_REAL_JOB},
    }
    if not job.is_known:  # it is in what questions took
        own["query_delay"] = 0.0
    return dataclasses.replace(job.config, **own | training)


def _worker(row: Row, share: float, path: Path) -> Worker:
    """A row of a cluster file. Of a part of the job, its transient slowness is the same part of the job's."""
    if not row.slow:
        return row.worker
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow((*straggler_trace.COLUMNS, straggler_trace.KIND))
        lines.writerows((share * each.start_s, share * each.duration_s, each.extra_s, each.kind) for each in row.slow)
    return dataclasses.replace(row.worker, straggler_trace=path)
