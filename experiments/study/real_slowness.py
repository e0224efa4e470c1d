"""Workers that are slow because of a CPU quota, beside workers whose steps are padded by sleeping to the same time.

    .venv/bin/python experiments/study/real_slowness.py results/real-slowness --seeds 0..6   # again to go on
    .venv/bin/python experiments/study/real_slowness.py results/real-slowness --table        # of the runs that are done

LeNet-5 on two fast and two slow workers, by scripts/local_cluster.sh, in turns. The fast ones are padded in both kinds.
`real`: the slow workers are asked for the fast ones' speed, but have a quota of --share of a core in each 100 ms (as
docker run --cpus), for all that the process does, from its start on: steps, exchanges, questions, logs. A step needs 8
to 12 ms of CPU, so with 5 ms a period none ends in the period in which it began; a step of mlp, 2 ms, would. `padded`:
they sleep until a step has taken the mean time of one under the quota, which a short run of each algorithm measures.
The process that evaluates is a fast worker's child and has no quota: the fastest worker evaluates, by a test step.

The quota is that of a control group (version 1, tested; version 2, not tested); where none can be made, or with
--signals, SIGSTOP and SIGCONT let the process run for that share of each 100 ms. The rest of the job is in a group with
a greater weight than other processes, so that these disturb it less. A run is a line of FOLDER/runs.jsonl, and is not
made again; Ctrl-C ends it, and the groups are removed. The tables go to FOLDER/README.md.
"""

from __future__ import annotations

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import start  # first: what it does is for the other imports too

import argparse
import contextlib
import dataclasses
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from algorithms import ENTRIES
from experiments import markdown
from experiments.study.comparison import REPORT, RunLine, Workload
from experiments.study.real_vs_virtual import FLAGS
from experiments.study.study_run import Task, measured
from flag_parser import FlagParser
from flag_values import above_zero, accuracy, at_least, below_one, seeds
from report import metrics, statistics
from report.metrics import Device
from scripts import run_lines
from scripts.launch.job_options import names
from scripts.run_lines import IID
from scripts.run_process import Processes, exit_code_of, make
from utils import EXIT_BUG, EXIT_OK, setup_logging

MEASURED, PADDED, REAL = "measured", "padded", "real"  # the first is REAL, for the step time alone
NETWORK = "lenet"
ROWS = ("esync", "esync-outer", "sync", "async", "wbsp-pcc")
CLUSTER = "two-fast-two-slow"
FAST_S, SLOW = 0.06, ("cpu2", "cpu3")
PERIOD_S, MEASURED_S = 0.1, 15.0
LOOK_S = 0.02  # between two looks for a worker's process
# Files of a control group by version: its weight beside other processes (16 times theirs), its quota.
GROUPS = {
    Path("/sys/fs/cgroup/cpu"): {"cpu.shares": "16384", "cpu.cfs_period_us": "{1}", "cpu.cfs_quota_us": "{0}"},
    Path("/sys/fs/cgroup"): {"cpu.weight": "1600", "cpu.max": "{0} {1}"},
}
Pace = tuple[float, float, float]  # mean, and the 5th and 95th percentile of the rounds


@dataclass(frozen=True, kw_only=True)
class SlowRun(RunLine):
    """One run.

    Attributes:
        kind: MEASURED, PADDED or REAL.
        share: of a core, that each slow worker has.
        by: what slows the slow workers.
        rounds_per_s: mean of the workers; this and samples_per_s without the last round, which waits for the evaluator.
        slow_step_s, slow_exchange_s, fast_exchange_s: seconds of a step, and of a round's push and pull with its waits.
        cores: CPU time of all processes over the time of the whole run, with its start.
    """

    kind: str
    share: float
    by: str = ""
    rounds_per_s: float = 0.0
    slow_step_s: Pace = (0.0, 0.0, 0.0)
    slow_exchange_s: Pace = (0.0, 0.0, 0.0)
    fast_exchange_s: Pace = (0.0, 0.0, 0.0)
    cores: float = 0.0

    @property
    def key(self) -> tuple[Any, ...]:
        return (*super().key, self.kind)


# --------------------------------------------------------------------------------------------------- slow processes


def group(name: str, share: float | None = None) -> Path | None:
    """Makes a control group with a quota (None: without one); returns its folder, or None where none can be made."""
    quota = -1 if share is None else round(share * PERIOD_S * 1e6)
    for mount, files in GROUPS.items():
        folder = mount / f"esync-{os.getpid()}-{name}"
        try:
            folder.mkdir()
            for file, value in files.items():
                text = value.format(quota, round(PERIOD_S * 1e6)).replace("-1 ", "max ")
                with (folder / file).open("r+") as setting:  # which exists in a control group alone
                    setting.write(text)
            return folder
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
    return None


def remove(folder: Path) -> None:
    """Removes a control group, whose processes have ended or are about to."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(LOOK_S)
    logging.warning("warning: %s cannot be removed: it has processes", folder)


@contextlib.contextmanager
def with_more_weight() -> Iterator[None]:
    """This process and its children go before others, where a control group can be made."""
    if (folder := group("job")) is None:
        yield
        return
    try:
        (folder / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (folder.parent / "cgroup.procs").write_text(str(os.getpid()))
        remove(folder)


def workers(below: Path) -> Iterator[tuple[str, int]]:
    """Device and process of the workers whose logs are below a folder."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if "--device-name" in words and any(word.startswith(f"{below}/") for word in words):
                yield words[words.index("--device-name") + 1], int(path.parent.name)


class Slowed:
    """Inside, the workers of these devices have a share of a core as soon as their processes run.

    Attributes:
        by: what slows them, by device.
    """

    def __init__(self, below: Path, devices: Collection[str], share: float, signals: bool) -> None:
        self._below, self._devices, self._share, self._signals = below, devices, share, signals
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._look)]
        self._groups: list[Path] = []
        self.by: dict[str, str] = {}

    def __enter__(self) -> Slowed:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        for folder in self._groups:
            remove(folder)

    def _look(self) -> None:
        while len(self.by) < len(self._devices) and not self._over.wait(LOOK_S):
            for device, pid in workers(self._below):
                if device in self._devices and device not in self.by:
                    self.by[device] = self._slow(device, pid)

    def _slow(self, device: str, pid: int) -> str:
        folder = None if self._signals else group(device, self._share)
        if folder is not None:
            self._groups.append(folder)
            (folder / "cgroup.procs").write_text(str(pid))
            return f"quota, {folder.parent}"
        self._threads.append(threading.Thread(target=self._pulse, args=(os.pidfd_open(pid),)))
        self._threads[-1].start()
        return "SIGSTOP"

    def _pulse(self, process: int) -> None:
        try:
            while not self._over.is_set():
                signal.pidfd_send_signal(process, signal.SIGSTOP)
                self._over.wait((1 - self._share) * PERIOD_S)
                signal.pidfd_send_signal(process, signal.SIGCONT)
                self._over.wait(self._share * PERIOD_S)
        except ProcessLookupError:  # it has ended
            pass
        finally:
            os.close(process)


# ------------------------------------------------------------------------------------------------------------- runs


def pace(devices: Sequence[Device], of: Callable[[Device], Sequence[float]]) -> Pace:
    """The pace of all rounds but the last of some workers."""
    values = np.concatenate([np.asarray(of(device))[:-1] for device in devices])
    low, high = np.percentile(values, (5, 95))
    return (round(float(values.mean()), 4), round(float(low), 4), round(float(high), 4))


def step_s(device: Device) -> Sequence[float]:
    """Mean seconds of a step in each round, by what the worker computes and sleeps."""
    assert device.computing_time_list and device.steps_list
    return [
        seconds / max(1, steps) for seconds, steps in zip(device.computing_time_list, device.steps_list, strict=True)
    ]


def slowness(line: SlowRun, about: dict[str, Any], devices: metrics.Devices) -> dict[str, Any]:
    """The numbers of a line, from what its run has logged."""
    found = list(devices.values())
    fast, slow = found[: -len(SLOW)], found[-len(SLOW) :]
    rounds = [(len(each.num_samples_list) - 1) / each.elapsed_time_list[-2] for each in found]
    samples = [sum(each.num_samples_list[:-1]) / each.elapsed_time_list[-2] for each in found]
    return measured(line, about, devices) | {
        "samples_per_s": round(sum(samples), 1),
        "rounds_per_s": round(sum(rounds) / len(rounds), 3),
        "slow_step_s": pace(slow, step_s),
        "slow_exchange_s": pace(slow, lambda device: device.aggregate_time_list),
        "fast_exchange_s": pace(fast, lambda device: device.aggregate_time_list),
    }


def unmade(kind: str, entry: str, seed: int, share: float, steps_s: Sequence[float], more: Sequence[str]) -> SlowRun:
    """A run before it is made, with the workers' step times."""
    flags = FLAGS[entry].split()
    size = float(flags[1])
    task = Task(REPORT, Workload(CLUSTER, IID, NETWORK), entry, 0, seed, size, in_a_row=3)
    times = ",".join(map(str, steps_s))
    command = ["scripts/local_cluster.sh", "-m", entry, "-n", NETWORK, "--workers", times, "--"]
    command += ["--seed", str(seed), *flags, *more, "--log-form", "lines"]
    known = dataclasses.asdict(task.line(command=command, step_times_s=list(steps_s)))
    return SlowRun(**known, kind=kind, share=share)


@dataclass
class Study:
    """Makes the runs that are missing."""

    given: argparse.Namespace
    processes: Processes

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.given.budget
        self.lines = read(self.given.folder)

    def do(self) -> int:
        """Returns how many runs have failed."""
        given, failed = self.given, 0
        more = ["--eval-seconds", f"{given.eval_seconds:g}", "--evaluator", "1", "--max-seconds"]
        equal_s, limit = [FAST_S] * 4, f"{given.seconds:g}"
        for seed in given.seeds:
            for entry in given.entries:
                first = self._line(MEASURED, entry, 0, equal_s, [*more, f"{MEASURED_S:g}"])
                if first is None or first.failed:
                    failed += first is not None
                    continue
                slow_s = [round(first.slow_step_s[0], 3)] * 2
                steps_s = {PADDED: [FAST_S] * 2 + slow_s, REAL: equal_s}
                for kind in (PADDED, REAL) if seed % 2 == 0 else (REAL, PADDED):
                    line = self._line(kind, entry, seed, steps_s[kind], [*more, limit])
                    failed += bool(line and line.failed)
        return failed

    def _line(self, kind: str, entry: str, seed: int, steps_s: Sequence[float], more: Sequence[str]) -> SlowRun | None:
        """The run, made if it is missing; None where there is no time left, or it was stopped."""
        line = unmade(kind, entry, seed, self.given.share, steps_s, more)
        for there in self.lines:
            same = (there.key, list(there.command), there.share) == (line.key, line.command, line.share)
            if same and not there.failed:
                return there
        if self.processes.stopped or time.monotonic() > self._until:
            return None
        devices = () if kind == PADDED else SLOW
        began, before_s = time.monotonic(), cpu_s()
        with Slowed(self.processes.work, devices, line.share, self.given.signals) as slowed:
            made = make(self.processes, line, slowness)
        if made is None:
            return None
        cores = round((cpu_s() - before_s) / (time.monotonic() - began), 2)
        by = "padding" if kind == PADDED else "; ".join(sorted(set(slowed.by.values())))
        if len(slowed.by) < len(devices) and not made.failed:
            made = dataclasses.replace(made, failed="the processes of its slow workers were not found")
        made = dataclasses.replace(made, cores=cores, by=by)
        run_lines.append(self.given.folder, made)
        self.lines = [*(each for each in self.lines if each.key != made.key), made]
        said = made.failed or f"{made.seconds_to(self.given.target):.1f} s, a slow step {made.slow_step_s[0]:.3f} s"
        logging.info("%s, seed %d, %s: %s; %.2f cores", entry, seed, kind, said, cores)
        return made


def cpu_s() -> float:
    """CPU seconds of all children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read(folder: Path) -> list[SlowRun]:
    """The runs of a folder; none where it has no file of them."""
    there = (folder / run_lines.RUNS_FILE).exists()
    return run_lines.read(folder, SlowRun, "experiments/study/real_slowness.py") if there else []


# ----------------------------------------------------------------------------------------------------------- tables


def estimate(values: Sequence[float]) -> str:
    """The median, with its interval where there are enough runs."""
    found = statistics.median(values)
    text = statistics.estimate_text(found)
    return text if len(values) >= statistics.FEWEST_RUNS else text.partition(" (")[0]


def ratio(padded: Sequence[float], real: Sequence[float]) -> str:
    """Real over padded, of each seed; `-`: both have not reached the target with one."""
    both = list(zip(padded, real, strict=True))
    return "-" if any(np.isinf(pair).all() for pair in both) else estimate([there / here for here, there in both])


def tables(lines: Sequence[SlowRun], target: float) -> str:
    """What the runs have reached, and what differs between padded and real slowness; of the seeds that have both."""
    numbers: dict[str, Callable[[SlowRun], float]] = {
        f"s to {target:g}": lambda line: line.seconds_to(target),
        "rounds/s": lambda line: line.rounds_per_s,
        "samples/s": lambda line: line.samples_per_s,
    }
    paces = ("slow_step_s", "slow_exchange_s", "fast_exchange_s")
    reached = [["", "seeds", *(word for name in numbers for word in (f"{name}: {PADDED}", REAL, "ratio"))]]
    differs = [["", *(word for name in paces for word in (f"{name[:-2].replace('_', ' ')}, s: {PADDED}", REAL))]]
    differs[0] += [f"cores: {PADDED}", REAL]
    sound = {(line.kind, line.entry, line.seed): line for line in lines if not line.failed}
    for entry in ENTRIES:
        its = [line for line in sound.values() if (line.kind, line.entry) == (PADDED, entry)]
        pairs = [(line, real) for line in its if (real := sound.get((REAL, entry, line.seed)))]
        if not pairs:
            continue
        kinds = list(zip(*pairs, strict=True))
        row = [ENTRIES[entry].title, str(len(pairs))]
        for of in numbers.values():
            here, there = ([of(line) for line in kind] for kind in kinds)
            row += [estimate(here), estimate(there), ratio(here, there)]
        reached.append(row)
        middles = [np.median([getattr(line, name) for line in kind], axis=0) for name in paces for kind in kinds]
        cores = [f"{np.median([line.cores for line in kind]):.2f}" for kind in kinds]
        ranges = [f"{mean:.3f} ({low:.3f} to {high:.3f})" for mean, low, high in middles]
        differs.append([ENTRIES[entry].title, *ranges, *cores])
    return f"{markdown.table(reached)}\n\n{markdown.table(differs)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the missing runs, until the budget is spent, and the tables; returns the exit code."""
    parser = FlagParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the results")
    parser.add_argument("--entries", type=names(ROWS), default=ROWS, help="the algorithms")
    parser.add_argument("--seeds", type=seeds, default=tuple(range(7)), help="such as 0,1,2 or 0..6")
    parser.add_argument("--share", type=below_one, default=0.05, help="of a core, for each slow worker")
    parser.add_argument("--seconds", type=above_zero, default=40.0, help="of each run")
    parser.add_argument("--eval-seconds", type=at_least(0.1, float), default=1.0, help="between two evaluations")
    parser.add_argument("--target", type=accuracy, default=0.7, help="of three evaluations in a row, the mean")
    parser.add_argument("--signals", action="store_true", help="slow the workers by SIGSTOP and SIGCONT")
    parser.add_argument("--budget", type=above_zero, default=float("inf"), help="seconds after which no run is begun")
    parser.add_argument("--table", action="store_true", help="only the tables of the runs that are done")
    given = parser.parse_args(arguments)
    return exit_code_of(lambda: _do(given))


def _do(given: argparse.Namespace) -> int:
    setup_logging("study")
    given.folder.mkdir(parents=True, exist_ok=True)
    study = Study(given, Processes((Path("logs") / "real-slowness" / given.folder.name).resolve()))
    failed = 0
    if not given.table:
        with study.processes.stopped_by_signals(), with_more_weight():
            failed = study.do()
    part = tables(study.lines, given.target)
    print(part)
    markdown.write(given.folder / "README.md", part)
    if study.processes.stopped:
        raise KeyboardInterrupt
    return EXIT_BUG if failed else EXIT_OK


if __name__ == "__main__":
    start.run(main)
