"""Simulates a measured job in virtual time, as it was and with one thing changed. Only `simulate` needs numpy.

The cluster is the measured one (report/measured.py): each worker's step times with their spread and its slow periods,
the time of an exchange as latency, evaluations. The trainers are those of the job, without gradients.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from algorithms import TransportKind
from config import AUTO, FIELDS, NO_NETWORK, Config
from report import job_logs
from report.job_logs import WorkerLog
from report.measured import Measured, Speed, mean_of, measured
from trainer import straggler_trace
from trainer.runtime.environment import set_unless_given
from trainer.simulation.cluster_file import ClusterProfile, Worker
from trainer.simulation.virtual_job import HOST, VirtualJob
from utils import SetupError

MAX_STEPS, MIN_STEPS = 2500, 20  # of all workers in a simulation, about 2 s; of the slowest, if the job has as many
MOST_OFF = 0.1  # relative error of the simulated samples/s of the job as it was above which no change is told
MAX_CALIBRATIONS, NEAR = 3, 0.02  # relative error at which a simulated exchange counts as the measured one
SAME_BATCHES = 0.02  # relative difference allowed between the samples of a step and -b
_OF_THE_REAL_JOB = ("resume", "checkpoint", "ckpt_frequency", "straggler_trace", "evaluator", "on_worker_death")


@dataclass(frozen=True)
class Change:
    """One change of a job."""

    name: str
    job: VirtualJob
    told: str  # what held the job up, should this gain most: a sentence up to the gain; empty: it does not say
    keeps_updates: bool = False  # the weights after each round stay the same


def job_of(logs: Sequence[WorkerLog], folder: Path) -> tuple[VirtualJob, Measured]:
    """The job that these logs describe, and its speed. Slow periods become files in `folder`. Raises SetupError if the
    logs do not describe enough."""
    config = _config(logs)
    its = measured(logs, config.algorithm.waits)
    for log, speed in zip(logs, its.speeds, strict=True):
        if abs(speed.samples_per_step / config.batch_size - 1) > SAME_BATCHES:
            raise SetupError(
                f"{log.name} took {speed.samples_per_step:.1f} samples a step, not the {config.batch_size} of -b: the "
                "logs do not say what its steps would take with other batches, so there is no what-if"
            )
    steps_s = sum(speed.steps for speed in its.speeds) / its.seconds
    longest_s = max(mean_of(speed.step_s, speed.spread) for speed in its.speeds)
    seconds = min(its.seconds, max(MAX_STEPS / steps_s, MIN_STEPS * longest_s))
    share = seconds / its.seconds  # of the job: each phase and slow period is shortened to the same one
    rows = []
    for rank, speed in enumerate(its.speeds):
        slow = [replace(each, start_s=share * each.start_s, duration_s=share * each.duration_s) for each in speed.slow]
        trace = straggler_trace.write(folder / f"trace-{rank}.csv", slow) if slow else None
        row = Worker(speed.step_s, trace, step_spread=speed.spread, latency_s=speed.exchange_s / 2)
        rows.append(replace(row, state_server_round_trip_s=speed.round_trip_s))
    own: dict[str, Any] = {
        **{name: FIELDS[name].default for name in _OF_THE_REAL_JOB},
        **{"job": "", "network": NO_NETWORK, "log_form": "lines", "evaluate": AUTO, "target": None, "max_rounds": 0},
        **{"max_seconds": seconds, "target_accuracy": 0.0, "query_delay": 0.0},  # a round trip includes the delay
        "train_steps": tuple(max(1, round(share * steps)) for steps in config.settings.train_steps),
    }
    if config.evaluates_beside and its.evaluations:  # not always when one was due
        own["eval_seconds"] = its.seconds / its.evaluations
    size, cluster = float(logs[0].run.get("parameter_bytes") or 0), ClusterProfile(tuple(rows))
    return VirtualJob(config.but(**own), cluster, "what-if", size, its.evaluation_s), its


def _config(logs: Sequence[WorkerLog]) -> Config:
    flags = next((log.run["config"] for log in logs if isinstance(log.run.get("config"), dict)), None)
    if flags is None:
        raise SetupError("no run.json says with which flags the job ran, as in published logs: there is no what-if")
    if (numbers := {log.run.get("num_workers", len(logs)) for log in logs}) != {len(logs)}:
        told = f"the job had {', '.join(map(str, numbers))} workers, the logs are of {len(logs)}"
        raise SetupError(f"{told}: copy those of all hosts there, and remove what other runs left")
    if flags.get("collective", "ps") != "ps":  # the name of --exchange in version 0.6.0
        flags = {**flags, "exchange": flags["collective"]}
    known: dict[str, Any] = {name: flags[name] for name in FIELDS if name in flags and name != "job"}
    return Config(**known | {name: tuple(value) for name, value in known.items() if isinstance(value, list)})


def _mean_step_s(row: Worker) -> float:
    """Without slow periods."""
    return mean_of(row.step_time_s, row.step_spread)


def usual_step_s(speeds: Sequence[Speed]) -> float:
    """The median worker's mean step, over the whole job."""
    return statistics.median_low(speed.mean_step_s for speed in speeds)


def changes(job: VirtualJob, its: Measured, left_out: Sequence[Sequence[int]]) -> Iterator[Change]:
    """All changes of a job of which `its` was measured; `left_out` holds sets of ranks, each of which is left out
    once."""
    # In these algorithms a round is the same work whatever the times are, and each update has all workers' work in it.
    same = job.config.algorithm.transport is TransportKind.SUM and job.config.algorithm.rule is None
    rows, usual_s = job.cluster.workers, usual_step_s(its.speeds)

    def of(workers: Iterable[Worker]) -> VirtualJob:
        return replace(job, cluster=ClusterProfile(tuple(workers)))

    for ranks in left_out:
        if rest := [row for rank, row in enumerate(rows) if rank not in ranks]:
            plural = "s" * (len(ranks) > 1)
            steps_s = ", ".join(f"{its.speeds[rank].mean_step_s:.3g} s" for rank in ranks)
            told = (
                f"Worker{plural} {' and '.join(map(str, ranks))} held the others up: with steps of {steps_s}, where "
                f"the median worker's take {usual_s:.3g} s; without, the job would do"
            )
            yield Change(f"without worker{plural} {', '.join(map(str, ranks))}", of(rest), told)
    ideal = of(replace(row, latency_s=0.0, state_server_round_trip_s=0.0) for row in rows)
    told = (
        f"The network held the job up: an exchange takes {max(speed.exchange_s for speed in its.speeds):.3g} s, the "
        f"median worker's step {usual_s:.3g} s; an ideal one would give"
    )
    yield Change("with an ideal network", ideal, told, same)
    median = sorted(range(len(rows)), key=lambda rank: _mean_step_s(rows[rank]))[(len(rows) - 1) // 2]
    steps = [min(row, rows[median], key=_mean_step_s) for row in rows]
    network = [{"latency_s": row.latency_s, "state_server_round_trip_s": row.state_server_round_trip_s} for row in rows]
    even = of(replace(step, straggler_trace=None, **links) for step, links in zip(steps, network, strict=True))
    yield Change(f"no worker slower than the median one, worker {median}", even, "", same)
    if job.evaluation_s:
        told = f"Evaluations of {its.evaluation_s:.3g} s each held the job up: in no time, they would give"
        yield Change("evaluations in no time", replace(job, evaluation_s=0.0), told, same)


def calibrated(job: VirtualJob, its: Measured) -> tuple[VirtualJob, Measured]:
    """The job with latencies at which simulated exchanges take as long as the measured ones, and its speed. The
    algorithm determines how many latencies an exchange takes, so they are fitted."""
    outcome = simulate(job)
    for _ in range(MAX_CALIBRATIONS):
        pairs = [(a.exchange_s, b.exchange_s) for a, b in zip(its.speeds, outcome.speeds, strict=True)]
        slack_s = NEAR * min(map(_mean_step_s, job.cluster.workers))
        if all(abs(wanted - got) <= NEAR * wanted + slack_s for wanted, got in pairs):
            break
        rows = zip(job.cluster.workers, pairs, strict=True)
        workers = [replace(row, latency_s=row.latency_s * (a / b if b > 0 else 1.0)) for row, (a, b) in rows]
        job = replace(job, cluster=ClusterProfile(tuple(workers)))
        outcome = simulate(job)
    return job, outcome


def simulate(job: VirtualJob) -> Measured:
    """The speed of the job in virtual time. Raises SetupError if the flags and the cluster do not fit together."""
    # As in simulate.py: one operation at a time, on one core. MXNet reads it when it is imported.
    set_unless_given("MXNET_ENGINE_TYPE", "NaiveEngine")
    set_unless_given("OMP_NUM_THREADS", "1")
    from trainer.simulation import virtual_cluster

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, HOST)
        virtual_cluster.VirtualRun(replace(job, config=job.config.but(log_dir=str(folder)))).run()
        return measured(job_logs.read(folder.glob("cpu*"), lambda text: None), job.config.algorithm.waits)
