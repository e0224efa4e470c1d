"""Simulates a measured job in virtual time, as it was and with one thing changed.

The cluster is the measured one (report/measured.py): each worker's step times with their spread and its slow periods,
the time of an exchange as latency, evaluations. The trainers are those of the job, without gradients (simulate.py
-n none), or with them where accuracies are asked for. Only `simulate` needs MXNet.
"""

from __future__ import annotations

import csv
import dataclasses
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from algorithms import TransportKind
from config import AUTO, FIELDS, NO_NETWORK, Config
from report import job_logs, measured, metrics
from report.job_logs import WorkerLog
from report.measured import MUCH_SLOWER, Measured, Speed
from trainer import straggler_trace
from trainer.emulation import Slowdown
from trainer.runtime.environment import set_unless_given
from trainer.simulation.cluster_file import ClusterProfile, Worker
from trainer.simulation.virtual_job import HOST, VirtualJob
from utils import SetupError

MAX_STEPS = 2500  # of all workers in one simulation: about 2 s
MOST_OFF = 0.1  # relative error of the samples/s of the job as it was above which no change is told
MIN_STEPS = 20  # of the slowest worker, if the job has as many
MAX_CALIBRATIONS = 3
NEAR = 0.02  # relative error at which a simulated exchange counts as the measured one
SAME_BATCHES = 0.02  # relative difference allowed between the samples of a step and -b


@dataclass(frozen=True)
class WorkerModel:
    """A worker of the virtual cluster, and its slow periods."""

    worker: Worker
    slow: tuple[Slowdown, ...] = ()

    @property
    def mean_step_s(self) -> float:
        """Without slow periods."""
        return measured.mean_of(self.worker.step_time_s, self.worker.step_spread)

    def changed(self, **columns: Any) -> WorkerModel:
        """The same with other values in some columns of a cluster file."""
        return dataclasses.replace(self, worker=dataclasses.replace(self.worker, **columns))


@dataclass(frozen=True)
class ClusterModel:
    """The virtual cluster."""

    workers: tuple[WorkerModel, ...]  # by rank
    server_mbit_s: float  # bandwidth of the parameter server's link
    evaluation_s: float  # seconds of one evaluation


@dataclass(frozen=True)
class MeasuredJob:
    """What all simulations of a job have in common."""

    config: Config  # the job's
    measured: Measured
    network_is_given: bool  # by a cluster file; otherwise latencies are fitted to the measured exchanges
    model_bytes: float  # of an exchange in each direction; 0: not in the logs
    simulated_s: float  # virtual seconds of a simulation without gradients


NO_STRAGGLER, NO_NETWORK_TIME, NO_EVALUATION, WITHOUT = "no straggler", "ideal network", "no evaluation", "without"


@dataclass(frozen=True)
class WhatIf:
    """One change of the cluster."""

    kind: str  # one of the four above
    name: str
    cluster: ClusterModel
    keeps_updates: bool = False  # the weights after each round stay the same
    removes: tuple[int, ...] = ()  # ranks of the workers that are left out


@dataclass(frozen=True)
class Simulation:
    """The outcome of one simulation."""

    measured: Measured
    curve: metrics.Curve


@dataclass(frozen=True)
class Comparison:
    """The outcomes of all simulations of a job."""

    job: MeasuredJob
    cluster: ClusterModel  # calibrated
    simulated: float  # samples/s of the job as it was, simulated
    # Of each change, its samples/s over `simulated`; none where that is more than MOST_OFF off the measured ones
    gains: Sequence[tuple[WhatIf, float]]


def compare(
    job: MeasuredJob,
    cluster: ClusterModel,
    left_out: Sequence[Sequence[int]],
    progress: Callable[[str], None] = lambda name: None,
) -> Comparison:
    """Simulates the job as it was, and with each change; `progress` gets the name of each simulation at its start."""
    progress("the job as it was")
    cluster, baseline = calibrated(job, cluster)
    simulated, gains = baseline.measured.samples_s, []
    is_near = abs(simulated / job.measured.samples_s - 1) <= MOST_OFF
    for change in changes(job, cluster, left_out) if is_near else ():
        progress(change.name)
        gains.append((change, simulate(job, change.cluster).measured.samples_s / simulated))
    return Comparison(job, cluster, simulated, gains)


# ------------------------------------------------------------------------------------------- the job as it was


def job_of(logs: Sequence[WorkerLog], network: ClusterProfile | None) -> tuple[MeasuredJob, ClusterModel]:
    """The job and the cluster that these logs describe. `network` replaces the network that the logs suggest; its step
    times are ignored. Raises SetupError if the logs do not describe enough."""
    config = _config(logs)
    if not config.algorithm.is_distributed:
        raise SetupError(f"mode {config.mode} has one worker and no network: there is nothing to leave out")
    its = measured.measured(logs, config.algorithm.waits)
    for log, speed in zip(logs, its.speeds, strict=True):
        if not speed.steps:
            raise SetupError(f"{log.name} has no complete step: the job was too short for a what-if")
        if abs(speed.samples_per_step / config.batch_size - 1) > SAME_BATCHES:
            raise SetupError(
                f"{log.name} took {speed.samples_per_step:.1f} samples a step, not the {config.batch_size} of -b: the "
                "logs do not say what its steps would take with other batches, so there is no what-if"
            )
    if network is not None and len(network.workers) != len(logs):
        raise SetupError(
            f"the cluster has {len(network.workers)} row(s), the job had {len(logs)} workers: give one each"
        )
    workers = [_model(speed) for speed in its.speeds]
    if network is not None:
        workers = [_with_network_of(own, row) for own, row in zip(workers, network.workers, strict=True)]
    steps_s = sum(speed.steps for speed in its.speeds) / its.seconds
    slowest_s = max(worker.mean_step_s for worker in workers)
    simulated_s = min(its.seconds, max(MAX_STEPS / steps_s, MIN_STEPS * slowest_s))
    server_mbit_s = (network or ClusterProfile(())).server_bandwidth_mbit_s
    model_bytes = float(logs[0].run.get("parameter_bytes") or 0)
    job = MeasuredJob(config, its, network is not None, model_bytes, simulated_s)
    return job, ClusterModel(tuple(workers), server_mbit_s, its.evaluation_s)


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
    if known.get("collective", "ps") != "ps":  # the name of --exchange in version 0.6.0
        values["exchange"] = known["collective"]
    if not str(values.get("job", "")).endswith(".py"):  # --job-name had this name
        values.pop("job", None)
    return Config(**values)


def _model(speed: Speed) -> WorkerModel:
    worker = Worker(
        step_time_s=speed.step_s,
        step_spread=speed.spread,
        latency_s=speed.exchange_s / 2,
        state_server_round_trip_s=speed.round_trip_s,
    )
    return WorkerModel(worker, speed.slow)


NETWORK = ("bandwidth_mbit_s", "latency_s", "state_server_round_trip_s")  # columns of a cluster file


def _with_network_of(model: WorkerModel, other: Worker) -> WorkerModel:
    return model.changed(**{name: getattr(other, name) for name in NETWORK})


# ---------------------------------------------------------------------------------------------------- what if


def changes(job: MeasuredJob, cluster: ClusterModel, left_out: Sequence[Sequence[int]]) -> list[WhatIf]:
    """All changes; `left_out` holds sets of ranks, each of which is left out once."""
    # In these algorithms a round is the same work whatever the times are, and each update has all workers' work in it.
    algorithm = job.config.algorithm
    same = algorithm.transport is TransportKind.SUM and algorithm.rule is None
    found = []
    for ranks in left_out:
        rest = tuple(worker for rank, worker in enumerate(cluster.workers) if rank not in ranks)
        if rest:
            name = f"without worker{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
            found.append(WhatIf(WITHOUT, name, dataclasses.replace(cluster, workers=rest), removes=tuple(ranks)))
    ideal = tuple(_with_network_of(worker, Worker(step_time_s=0)) for worker in cluster.workers)
    without_network = ClusterModel(ideal, ClusterProfile(()).server_bandwidth_mbit_s, cluster.evaluation_s)
    found.append(WhatIf(NO_NETWORK_TIME, "with an ideal network", without_network, same))
    median = median_rank(cluster)
    even = tuple(_no_slower(worker, cluster.workers[median]) for worker in cluster.workers)
    name = f"no worker slower than the median one, worker {median}"
    found.append(WhatIf(NO_STRAGGLER, name, dataclasses.replace(cluster, workers=even), same))
    if cluster.evaluation_s:
        not_evaluated = dataclasses.replace(cluster, evaluation_s=0.0)
        found.append(WhatIf(NO_EVALUATION, "evaluations in no time", not_evaluated, same))
    return found


def median_rank(cluster: ClusterModel) -> int:
    """Rank of the worker with the median step; of an even number of workers the faster one of the two in the middle."""
    ranks = sorted(range(len(cluster.workers)), key=lambda rank: cluster.workers[rank].mean_step_s)
    return ranks[(len(ranks) - 1) // 2]


def stragglers(speeds: Sequence[Speed]) -> tuple[int, ...]:
    """Ranks of the workers whose mean step over the whole job is much longer than the median worker's."""
    median_s = statistics.median_low(speed.mean_step_s for speed in speeds)
    return tuple(rank for rank, speed in enumerate(speeds) if speed.mean_step_s > MUCH_SLOWER * median_s)


def slowest(speeds: Sequence[Speed], number: int) -> list[int]:
    """Ranks of the `number` workers with the longest steps and exchanges, in order."""
    ranks = sorted(range(len(speeds)), key=lambda rank: speeds[rank].mean_step_s + speeds[rank].exchange_s)
    return sorted(ranks[-number:])


def _no_slower(model: WorkerModel, median: WorkerModel) -> WorkerModel:
    if model.mean_step_s > median.mean_step_s:
        model = model.changed(step_time_s=median.worker.step_time_s, step_spread=median.worker.step_spread)
    return WorkerModel(model.worker)


# -------------------------------------------------------------------------------------------------- simulation


def calibrated(job: MeasuredJob, cluster: ClusterModel) -> tuple[ClusterModel, Simulation]:
    """The cluster with latencies at which simulated exchanges take as long as the measured ones, and its simulation.

    The algorithm determines how many latencies an exchange takes, so they are fitted. A network that was given stays.
    """
    outcome = simulate(job, cluster)
    for _ in range(0 if job.network_is_given else MAX_CALIBRATIONS):
        wanted = [speed.exchange_s for speed in job.measured.speeds]
        got = [speed.exchange_s for speed in outcome.measured.speeds]
        slack_s = NEAR * min(worker.mean_step_s for worker in cluster.workers)
        if all(abs(here - there) <= NEAR * here + slack_s for here, there in zip(wanted, got, strict=True)):
            break
        factors = [here / there if there > 0 else 1.0 for here, there in zip(wanted, got, strict=True)]
        workers = [
            worker.changed(latency_s=factor * worker.worker.latency_s)
            for worker, factor in zip(cluster.workers, factors, strict=True)
        ]
        cluster = dataclasses.replace(cluster, workers=tuple(workers))
        outcome = simulate(job, cluster)
    return cluster, outcome


def simulate(job: MeasuredJob, cluster: ClusterModel, **training: Any) -> Simulation:
    """Runs the job in virtual time. `training` has the flags of a run with gradients, such as its target; without any
    it computes no gradients. Raises SetupError if the flags, the cluster and the data do not fit together."""
    # As in simulate.py: one operation at a time, on one core. MXNet reads it when it is imported.
    set_unless_given("MXNET_ENGINE_TYPE", "NaiveEngine")
    set_unless_given("OMP_NUM_THREADS", "1")
    from trainer.simulation import virtual_cluster

    seconds = job.measured.seconds if training else job.simulated_s
    share = seconds / job.measured.seconds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workers = [_worker(model, share, folder / f"trace-{rank}.csv") for rank, model in enumerate(cluster.workers)]
        config = _virtual_config(job, seconds, folder / HOST, training)
        given = ClusterProfile(tuple(workers), cluster.server_mbit_s)
        virtual_cluster.run(VirtualJob(config, given, "what-if", job.model_bytes, cluster.evaluation_s))
        folders = [folder / HOST / f"cpu{rank}" for rank in range(len(workers))]
        logs = job_logs.read(folders, lambda text: None)
    return Simulation(measured.measured(logs, job.config.algorithm.waits), job_logs.evaluating(logs).curve)


_OF_THE_REAL_JOB = ("resume", "checkpoint", "ckpt_frequency", "straggler_trace", "evaluator", "on_worker_death")


def _virtual_config(job: MeasuredJob, seconds: float, folder: Path, training: dict[str, Any]) -> Config:
    """The job's flags, without those of real devices and of data, and with a time limit alone."""
    share = seconds / job.measured.seconds
    own: dict[str, Any] = {
        "job": job.config.job if training else "",
        "network": NO_NETWORK,
        "log_dir": str(folder),
        "log_form": "lines",
        "evaluate": AUTO,
        "max_rounds": 0,
        "max_seconds": seconds,
        "target_accuracy": 0.0,
        "target": None,
        # In a part of the job each phase is shortened to the same part.
        "train_steps": tuple(max(1, round(share * steps)) for steps in job.config.train_steps),
        **{name: FIELDS[name].default for name in _OF_THE_REAL_JOB},
    }
    if job.config.evaluates_beside and job.measured.evaluations and not training:  # not always when one was due
        own["eval_seconds"] = job.measured.seconds / job.measured.evaluations
    if not job.network_is_given:  # the measured round trips include it
        own["query_delay"] = 0.0
    return dataclasses.replace(job.config, **own | training)


def _worker(model: WorkerModel, share: float, path: Path) -> Worker:
    """A row of a cluster file. In a share of the job the slow periods are shortened to the same share."""
    if not model.slow:
        return model.worker
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow((*straggler_trace.COLUMNS, straggler_trace.KIND))
        lines.writerows((share * each.start_s, share * each.duration_s, each.extra_s, each.kind) for each in model.slow)
    return dataclasses.replace(model.worker, straggler_trace=path)
