"""The reported runs of a comparison again, on real processes: their times, and whether the order is the same.

    .venv/bin/python experiments/study/real_comparison.py results/comparison results/real-comparison --jobs 3
    .venv/bin/python experiments/study/real_comparison.py results/comparison results/real-comparison --table

Each run of the first folder with `mlp` on `nine-ways`, i.i.d. (experiments/study/study.py made it in virtual time, with
the numbers that were chosen by tuning), is made by scripts/local_cluster.sh with the same flags and seed; a process
beside the workers evaluates, so that training waits for none. A run is a line of the second folder, and is not made
again until it has other flags; Ctrl-C ends it, and the same command continues. All algorithms with the first seed come
first. They leave the cores idle: --jobs 2 makes two at a time.
Prints, for each algorithm, the median seconds to the target of both kinds, and how much slower real workers are; the
table goes to README.md of the second folder too, between the marks of `real and virtual`.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import start  # first: what it does is for the other imports too

import argparse
import dataclasses
import math
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from algorithms import ENTRIES
from experiments import markdown
from experiments.study import comparison
from experiments.study.comparison import REPORT, RunLine, measured
from flag_parser import FlagParser
from report.statistics import number_text
from scripts import run_lines
from scripts.launch import job_options, local_cluster
from scripts.run_lines import IID, unmade
from scripts.run_process import Processes, at_signals, exit_code_of, make
from utils import EXIT_OK, setup_logging

MARK = "real and virtual"  # of the table on the page
CLUSTER, NETWORK, TARGET = "nine-ways", "mlp", 0.85


def real_command(virtual: Sequence[str]) -> list[str]:
    """The command of scripts/local_cluster.sh for a command of simulate.py: options that are the launcher's come before
    `--`, wherever they stand."""
    parser = FlagParser()
    job_options.add_mode(parser)
    local_cluster.add_job(parser)
    ours: list[str] = []
    mains: list[str] = []
    side = mains
    for word in virtual[1:]:
        if re.match("--?[a-z]", word):
            side = ours if word.partition("=")[0] in parser.flags else mains
        if word != "--":
            side.append(word)
    return ["scripts/local_cluster.sh", *ours, "--", *mains, "--evaluator", "1"]


def pairs(virtual: Sequence[RunLine], real: Sequence[RunLine]) -> list[tuple[RunLine, RunLine]]:
    """The real runs, each with its virtual one; a run with other flags is another run."""
    there = {line.key: line for line in virtual}
    return [
        (line, there[line.key])
        for line in real
        if line.key in there and list(line.command) == real_command(there[line.key].command)
    ]


def table(virtual: Sequence[RunLine], real: Sequence[RunLine]) -> str:
    """A row an algorithm, the fastest real one first, beside the virtual runs with the same seeds. `-`: the target
    was not reached."""
    rows = [["", f"s to {TARGET:g}: real", "virtual", "ratio", "samples/s: ratio", "place: real", "virtual"]]
    both, medians = pairs(virtual, real), []
    for entry in ENTRIES:
        its = [(here, there) for here, there in both if here.entry == entry]
        if its:
            here_s, there_s = ([line.seconds_to(TARGET) for line in kind] for kind in zip(*its, strict=True))
            speeds = [here.samples_per_s / there.samples_per_s for here, there in its if there.samples_per_s]
            speed = statistics.median(speeds or [0.0])  # none: each has failed
            medians.append((statistics.median(here_s), statistics.median(there_s), speed, entry, here_s))
    in_theory = sorted(there_s for _, there_s, *_ in medians)
    for place, (here_s, there_s, speed, entry, each_s) in enumerate(sorted(medians), start=1):
        ratio = f"{here_s / there_s:.2f}" if max(here_s, there_s) < math.inf else "-"
        middle, least, greatest = (number_text(s, 1) for s in (here_s, min(each_s), max(each_s)))
        spread = "-" if least == "-" else f"{middle} ({least} to {greatest})"
        places = (
            f"{each}" if s < math.inf else "-" for each, s in ((place, here_s), (in_theory.index(there_s) + 1, there_s))
        )
        rows.append([ENTRIES[entry].title, spread, number_text(there_s, 1), ratio, f"{speed:.2f}", *places])
    return markdown.table(rows)


def reported(folder: Path, entries: Sequence[str]) -> list[RunLine]:
    """The runs of a comparison that are to be made on real processes."""
    return [
        line
        for line in comparison.read(folder)
        if line.phase == REPORT and line.workload == (CLUSTER, IID, NETWORK) and line.entry in entries
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the missing runs and prints the table; returns the exit code."""
    parser = FlagParser(doc=__doc__)
    parser.add_argument("virtual", type=Path, help="folder of the comparison")
    parser.add_argument("real", type=Path, help="folder of what is made")
    parser.add_argument("--entries", type=job_options.names(ENTRIES), default=tuple(ENTRIES), help="the algorithms")
    parser.add_argument("--table", action="store_true", help="only the table of the runs that are done")
    parser.add_argument("--jobs", type=int, default=1, help="side by side")
    given = parser.parse_args(arguments)
    return exit_code_of(lambda: _do(given))


def _do(given: argparse.Namespace) -> int:
    setup_logging("study")
    lines = reported(given.virtual, given.entries)
    given.real.mkdir(parents=True, exist_ok=True)
    done = comparison.read(given.real) if (given.real / run_lines.RUNS_FILE).exists() else []
    processes = Processes(Path("logs") / "real-comparison" / given.real.name)

    def real(virtual: RunLine) -> RunLine | None:
        return make(processes, dataclasses.replace(unmade(virtual), command=real_command(virtual.command)), measured)

    known = {line.key for line, _ in pairs(lines, done)}
    todo = [] if given.table else sorted((line for line in lines if line.key not in known), key=lambda line: line.seed)
    with at_signals(processes.stop):
        for virtual, line in run_lines.made(todo, real, given.jobs, given.real):
            done.append(line)
            both = line.seconds_to(TARGET), virtual.seconds_to(TARGET)
            said = line.failed or "{:.1f} s, {:.1f} virtual".format(*both)
            print(f"{line.entry}, seed {line.seed}: {said}", flush=True)
    part = table(lines, done)
    print(part)
    markdown.write(given.real / "README.md", part, MARK)
    if processes.stopped:
        raise KeyboardInterrupt
    return EXIT_OK


if __name__ == "__main__":
    start.run(main)
