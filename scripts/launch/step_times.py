"""How long a step of a job takes on each of its workers, where --fastest has to know: a short job of standalone workers
tells, before the job itself begins."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from config import FIELDS, Config, names_of
from scripts.launch.hosts_file import HostWorker
from scripts.launch.roles import JobSpec
from trainer.run_logs.rounds import read_rounds
from utils import SetupError, write_atomically

STEPS, FIRST = 20, 5  # of these the first ones do not count: MXNet chooses its operators
FOLDER, FILE = ".step-times", "step-times.csv"
AS_IN_JOB = ("dataset", "batch_size", "augment", "optimizer", "momentum", "weight_decay", "clip_norm", "seed")


def timing_of(job: JobSpec, given: Config) -> JobSpec:
    """The short job: each worker of a job by itself. `given` are the flags of a worker of the job."""
    own = {"max_rounds": STEPS, "eval_duration": 10**6, "evaluator": 0, "log_form": "lines", "learning_rate": 1e-9}
    return dataclasses.replace(
        job,
        mode="local",
        entry="",
        number=None,
        log_base=job.log_base / FOLDER,
        run=f"{job.run}{FOLDER}",
        worker_arguments=words_of(given, own),
        exchange="",
        split_by_class=False,
        page=False,
        num_servers=1,
    )


def words_of(given: Config, own: Mapping[str, object]) -> tuple[str, ...]:
    """The flags of a short job whose steps are those of the job with the flags `given`; `own` ones by field."""
    values = given.values_by_name()
    flags = {**{name: value for name in AS_IN_JOB if (value := values[name]) != FIELDS[name].default}, **own}
    return tuple(str(word) for name, value in flags.items() for word in (names_of(name)[-1], value))


def read(log_folder: Path, workers: Sequence[HostWorker]) -> dict[HostWorker, float]:
    """Seconds of a step by worker: the mean of those that count, since a quota of a processor stops some for long.
    Raises SetupError if a worker has logged none."""
    found = {}
    for worker in workers:
        folder = log_folder / worker.host / worker.folder
        rounds = read_rounds(folder, lambda text: None) if folder.exists() else []
        steps_s = [one.computing_s or 0.0 for one in rounds]
        if len(steps_s) <= FIRST:
            raise SetupError(f"a step of {worker.name} was not timed: see the logs in {log_folder}")
        found[worker] = statistics.fmean(steps_s[FIRST:])
    return found


def keep(log_base: Path, times_s: Mapping[HostWorker, float]) -> Path:
    """Writes the step times beside the job's logs; returns the file's path."""
    lines = [f"{worker.host},{worker.folder},{seconds:.6g}" for worker, seconds in times_s.items()]
    write_atomically(path := log_base / FILE, "\n".join(["host,device,step_time_s", *lines, ""]).encode())
    return path
