"""Workers that are slow because of a CPU quota, beside workers whose steps are padded by sleeping to the same time.

    .venv/bin/python experiments/study/real_slowness.py results/real-slowness --seeds 0..6   # again to go on
    .venv/bin/python experiments/study/real_slowness.py results/real-slowness --table        # of the runs that are done

LeNet-5 on two fast and two slow workers, by scripts/local_cluster.sh, in turns. The fast ones are padded in both kinds.
`real`: the slow workers are asked for the fast ones' speed, but have a quota of SHARE of a core in each 100 ms (as
docker run --cpus) for all that the process does, from its start on. A step needs 8 to 12 ms of CPU, so with 5 ms a
period none ends in the period in which it began; a step of mlp, 2 ms, would. `padded`: they sleep until a step has
taken the mean time of one in the `real` run of the same algorithm and seed.
The process that evaluates is a fast worker's child and has no quota: the fastest worker evaluates, by a test step.

The quota is that of a control group (version 1, tested; version 2, not tested), which needs root and a quiet machine. A
run is a line of FOLDER/runs.jsonl, made once; Ctrl-C ends it and removes the groups. FOLDER/README.md gets the tables.
"""

from __future__ import annotations

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import start  # first: what it does is for the other imports too

import argparse
import dataclasses
import itertools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from algorithms import ENTRIES
from experiments import markdown
from experiments.quotas import group, limited, remove
from experiments.study.comparison import REPORT, RunLine, measured, rate_of
from experiments.study.real_vs_virtual import FLAGS
from flag_parser import FlagParser
from flag_values import above_zero, seeds
from report import metrics, statistics
from report.metrics import Device
from report.tables import times_text
from scripts import run_lines
from scripts.run_process import Processes, at_signals, exit_code_of, make
from utils import EXIT_BUG, EXIT_OK, setup_logging

PADDED, REAL = "padded", "real"
NETWORK = "lenet"
ROWS = ("esync", "esync-outer", "sync", "async", "wbsp-pcc")
CLUSTER = "two-fast-two-slow"
FAST_S, SLOW = 0.06, (2, 3)
SHARE = 0.05  # of a core, for each slow worker
TARGET = 0.7  # of three evaluations in a row, the mean
Pace = tuple[float, float, float]  # mean, and the 5th and 95th percentile of the rounds


@dataclass(frozen=True, kw_only=True)
class SlowRun(RunLine):
    """One run.

    Attributes:
        kind: PADDED or REAL.
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


# ------------------------------------------------------------------------------------------------------------- runs


def pace(devices: Sequence[Device], of: Callable[[Device], Sequence[float]]) -> Pace:
    """The pace of all rounds but the last of some workers."""
    values = np.concatenate([np.asarray(of(device))[:-1] for device in devices])
    low, high = np.percentile(values, (5, 95))
    return (round(float(values.mean()), 4), round(float(low), 4), round(float(high), 4))


def step_s(device: Device) -> Sequence[float]:
    """Mean seconds of a step in each round, by what the worker computes and sleeps."""
    return [(one.computing_s or 0.0) / max(1, one.begun or 0) for one in device.rounds]


def exchange_s(device: Device) -> Sequence[float]:
    """Seconds of the exchange in each round."""
    return [one.aggregation_s for one in device.rounds]


def slowness(line: SlowRun, about: dict[str, Any], devices: metrics.Devices) -> dict[str, Any]:
    """The numbers of a line, from what its run has logged."""
    found = list(devices.values())
    fast, slow = found[: -len(SLOW)], found[-len(SLOW) :]
    rounds = [(len(each.rounds) - 1) / each.rounds[-2].elapsed_s for each in found]
    samples = [sum(one.samples for one in each.rounds[:-1]) / each.rounds[-2].elapsed_s for each in found]
    return measured(line, about, devices) | {
        "samples_per_s": round(sum(samples), 1),
        "rounds_per_s": round(sum(rounds) / len(rounds), 3),
        "slow_step_s": pace(slow, step_s),
        "slow_exchange_s": pace(slow, exchange_s),
        "fast_exchange_s": pace(fast, exchange_s),
    }


def unmade(kind: str, entry: str, seed: int, steps_s: Sequence[float], seconds: float) -> SlowRun:
    """A run before it is made, with the workers' step times."""
    flags, times = FLAGS[entry].split(), ",".join(map(str, steps_s))
    command = ["scripts/local_cluster.sh", "-m", entry, "-n", NETWORK, "--workers", times, "--"]
    command += ["--seed", str(seed), *flags, "--eval-seconds", "1", "--evaluator", "1"]
    command += ["--max-seconds", f"{seconds:g}", "--log-form", "lines"]
    return SlowRun(
        kind=kind,
        share=SHARE,
        phase=REPORT,
        cluster=CLUSTER,
        network=NETWORK,
        entry=entry,
        trial=0,
        seed=seed,
        step_sizes={rate_of(entry): float(flags[1])},
        in_a_row=3,
        command=command,
        step_times_s=list(steps_s),
    )


@dataclass
class Study:
    """Makes the runs that are missing."""

    given: argparse.Namespace
    processes: Processes
    failed: int = 0

    def __post_init__(self) -> None:
        self.lines = read(self.given.folder)

    def do(self) -> None:
        """Makes them, until a signal comes."""
        for seed, entry in itertools.product(self.given.seeds, ROWS):
            real = self._line(unmade(REAL, entry, seed, [FAST_S] * 4, self.given.seconds))
            if real and not real.failed:
                steps_s = [FAST_S] * 2 + [round(real.slow_step_s[0], 3)] * 2
                self._line(unmade(PADDED, entry, seed, steps_s, self.given.seconds))

    def _line(self, line: SlowRun) -> SlowRun | None:
        """The run, made if it is missing; None where it was stopped."""
        for there in self.lines:
            same = (there.key, list(there.command), there.share) == (line.key, line.command, line.share)
            if same and not there.failed:
                return there
        slow = () if line.kind == PADDED else SLOW
        before = os.times()
        with limited(dict.fromkeys(slow, line.share)) as groups:
            made = make(self.processes, line, slowness)
        if made is None:
            return None
        used_s = np.subtract(os.times(), before)  # user's and system's; of children, with theirs; elapsed
        cores = round(float(sum(used_s[2:4]) / used_s[4]), 2)
        by = "; ".join(sorted({f"quota, {folder.parent}" for folder in groups.values()})) or "padding"
        lost = "the processes of its slow workers were not found" if len(groups) < len(slow) else ""
        made = dataclasses.replace(made, cores=cores, by=by, failed=made.failed or lost)
        run_lines.append(self.given.folder, made)
        self.lines = [*(each for each in self.lines if each.key != made.key), made]
        self.failed += bool(made.failed)
        said = made.failed or f"{made.seconds_to(TARGET):.1f} s, a slow step {made.slow_step_s[0]:.3f} s"
        logging.info("%s, seed %d, %s: %s; %.2f cores", made.entry, made.seed, made.kind, said, cores)
        return made


def read(folder: Path) -> list[SlowRun]:
    """The runs of a folder; none where it has no file of them."""
    there = (folder / run_lines.RUNS_FILE).exists()
    return run_lines.read(folder, SlowRun, "experiments/study/real_slowness.py") if there else []


# ----------------------------------------------------------------------------------------------------------- tables


def ratio(padded: Sequence[float], real: Sequence[float]) -> str:
    """Real over padded, of each seed; `-`: both have not reached the target with one."""
    found = statistics.times_as_fast(real, padded)
    return statistics.estimate_text(found) if found else statistics.NOT_REACHED


NUMBERS: dict[str, Callable[[SlowRun], float]] = {
    f"s to {TARGET:g}": lambda line: line.seconds_to(TARGET),
    "rounds/s": lambda line: line.rounds_per_s,
    "samples/s": lambda line: line.samples_per_s,
}


def pairs(lines: Sequence[SlowRun], entry: str) -> list[tuple[SlowRun, SlowRun]]:
    """The padded and the real run of each seed that has both."""
    sound = [line for line in lines if line.entry == entry and not line.failed]
    padded, real = ({line.seed: line for line in sound if line.kind == kind} for kind in (PADDED, REAL))
    return [(padded[seed], real[seed]) for seed in padded if seed in real]


def tables(lines: Sequence[SlowRun]) -> str:
    """What the runs have reached, and what differs between padded and real slowness; of the seeds that have both."""
    paces = ("slow_step_s", "slow_exchange_s", "fast_exchange_s")
    reached = [["", "seeds", *(word for name in NUMBERS for word in (f"{name}: {PADDED}", REAL, "ratio"))]]
    differs = [["", *(word for name in paces for word in (f"{name[:-2].replace('_', ' ')}, s: {PADDED}", REAL))]]
    differs[0] += [f"cores: {PADDED}", REAL]
    for entry in ENTRIES:
        if not (its := pairs(lines, entry)):
            continue
        kinds = list(zip(*its, strict=True))
        values = [[[of(line) for line in kind] for kind in kinds] for of in NUMBERS.values()]
        cells = [cell for both in values for cell in (*map(times_text, both), ratio(*both))]
        reached.append([ENTRIES[entry].title, str(len(its)), *cells])
        middles = [np.median([getattr(line, name) for line in kind], axis=0) for name in paces for kind in kinds]
        cores = [f"{np.median([line.cores for line in kind]):.2f}" for kind in kinds]
        ranges = [f"{mean:.3f} ({low:.3f} to {high:.3f})" for mean, low, high in middles]
        differs.append([ENTRIES[entry].title, *ranges, *cores])
    return f"{markdown.table(reached)}\n\n{markdown.table(differs)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the missing runs and the tables; returns the exit code."""
    parser = FlagParser(doc=__doc__)
    parser.add_argument("folder", type=Path, help="of the results")
    parser.add_argument("--seeds", type=seeds, default=tuple(range(7)), help="such as 0,1,2 or 0..6")
    parser.add_argument("--seconds", type=above_zero, default=40.0, help="of each run")
    parser.add_argument("--table", action="store_true", help="only the tables of the runs that are done")
    given = parser.parse_args(arguments)
    return exit_code_of(lambda: _do(given))


def _do(given: argparse.Namespace) -> int:
    setup_logging("study")
    given.folder.mkdir(parents=True, exist_ok=True)
    study = Study(given, Processes((Path("logs") / "real-slowness" / given.folder.name).resolve()))
    if not given.table:
        remove(group("test", SHARE))  # before a job is started
        with at_signals(study.processes.stop):
            study.do()
    part = tables(study.lines)
    print(part)
    markdown.write(given.folder / "README.md", part)
    if study.processes.stopped:
        raise KeyboardInterrupt
    return EXIT_BUG if study.failed else EXIT_OK


if __name__ == "__main__":
    start.run(main)
