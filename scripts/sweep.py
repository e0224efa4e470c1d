"""Makes a grid of runs, on real processes or in virtual time, and one table and one figure of all of them.

    scripts/sweep.sh --modes esync,sync --seeds 0..4 -l 0.001,0.003 --on virtual --cluster demo -n mlp --max-seconds 30

Each mode is run with each seed and each value of the other flags. These are main.py's; one with several values, with
commas, is a dimension of the grid, in the modes in which it counts. All other words go to the back end: simulate.py
(--on virtual), scripts/local_cluster.sh (--on local, one run at a time) or scripts/slurm.sh (--on slurm, a Slurm job a
run). Each run is a log tree of its own, LOG_BASE/POINT/seed-N, for draw.py -b LOG_BASE/POINT, and a line of
LOG_BASE/runs.jsonl. The same command makes the missing runs, those of this version of the program; Ctrl-C ends the runs
under way with their rounds. At the end come LOG_BASE/sweep.md, sweep.csv and sweep.png.
Exit codes: 0 all done, 1 some runs failed, 2 something to put right, 130 stopped.
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import itertools
import logging
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import simulate
import summary
from algorithms import ENTRIES, OWNERS
from config import FIELDS, modes_of, names_of, one_of
from flag_parser import FlagParser
from flag_values import above_zero, at_least, seeds
from report import metrics
from scripts import run_lines
from scripts.launch import job_options, local_cluster, slurm
from scripts.run_lines import RUNS_FILE, Progress, duration_text, value_in
from scripts.run_process import Processes, at_signals, curve_of, exit_code_of, result
from scripts.sweep_report import SweepLine, write
from trainer import version
from utils import EXIT_BUG, EXIT_OK, SetupError, setup_logging, usable_cores

LOCAL, VIRTUAL, SLURM = BACK_ENDS = "local", "virtual", "slurm"
PROGRAMS = {LOCAL: ("scripts/local_cluster.sh",), SLURM: ("scripts/slurm.sh", "--wait")}
FASTEST = "--fastest"  # an option of theirs, which may have several values
# Fields of Config that scripts/local_cluster.sh takes as options of its own, before `--`.
LAUNCHER_OPTIONS = ("network", "job", "exchange", "data_dir", "page")
NETWORK_WITHOUT_N = "lenet"  # as in the launchers
OWN = {"mode": "--modes", "seed": "--seeds"}  # fields that the sweep sets
START_S = 10.0  # of a job of real processes, beside its training: for the first estimate


# -------------------------------------------------------------------------------------------------------- the grid


@dataclass(frozen=True)
class Point:
    """One job of a sweep, which runs with several seeds."""

    mode: str
    # The flags that have several values in the sweep, as the user names them, each with this point's
    values: tuple[tuple[str, str], ...]
    options: tuple[str, ...]  # of the back end, such as `--cluster demo`
    flags: Mapping[str, tuple[str, ...]]  # all of main.py's: of each field the words behind its flag

    @property
    def name(self) -> str:
        """Its folder."""
        return "-".join([self.mode, *(re.sub(r"[^A-Za-z0-9.]+", "-", f"{f.lstrip('-')} {v}") for f, v in self.values)])

    def command(self, on: str, seed: int) -> list[str]:
        """The command of a run by simulate.py or a launcher, without a place for its logs."""
        flags = {**self.flags, "seed": (str(seed),)}
        if board := self.flags.get("tensorboard"):
            flags["tensorboard"] = (str(Path(board[0]).resolve() / self.name / f"seed-{seed}"),)
        words = {field: [names_of(field)[-1], *values] for field, values in flags.items()}
        if on == VIRTUAL:
            return ["simulate.py", "-m", self.mode, *self.options, *itertools.chain.from_iterable(words.values())]
        own = [word for field in LAUNCHER_OPTIONS for word in words.pop(field, ())]
        if words.pop("split_by_class", [""])[-1] == "1":
            own.append("--split-by-class")
        rest = itertools.chain.from_iterable(words.values())
        return [*PROGRAMS[on], "-m", self.mode, *self.options, *own, "--", *rest]


def mode_folder(words: Sequence[str], base: Path) -> str:
    """NETWORK/MODE, where a command files its run in a log tree; checks its flags as the run will. Raises SetupError if
    they are wrong; of wrong values the parser ends the process with exit code 2."""
    program, *own = words
    cut = own.index("--") if "--" in own else len(own)
    arguments = [*own[:cut], "--log-base", str(base), *own[cut:]]
    if program == "simulate.py":
        _, (run,) = simulate.parse(arguments)
        return str(Path(run.job.config.log_dir).parent.relative_to(base))
    if program != "scripts/slurm.sh":
        return str(local_cluster.parse(arguments).mode_folder)
    request = slurm.parse(arguments)
    if request.is_array:
        raise SetupError("--array: a sweep makes the jobs of all seeds: leave it out, and give --seeds")
    return str(slurm.job_of(request).mode_folder)


def split_flags(words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, list[tuple[str, ...]]]]:
    """The options that are the back end's own, and by field of Config the values that its flag is to take in turn.
    Raises SetupError if a flag is one that the sweep sets."""
    fields = {name: field for field in FIELDS for name in names_of(field)}
    fields |= {its.formerly: field for field, its in FIELDS.items() if its.formerly}
    left, options, found = [word for word in words if word != "--"], [], dict[str, list[tuple[str, ...]]]()
    while left:
        word = left.pop(0)
        flag, is_joined, joined = word.partition("=")
        field = fields.get(flag)
        if field is None:
            options.append(word)
            continue
        if field in OWN:
            raise SetupError(f"{flag} is set by the sweep: give {OWN[field]}")
        taken = [joined] if is_joined else []
        most = {"+": len(left), "?": 1, None: 1}[FIELDS[field].arguments.get("nargs")]
        while not is_joined and len(taken) < most and left and not re.match("-+[A-Za-z]", left[0]):
            taken.append(left.pop(0))
        found[field] = [(each,) for each in _alternatives(field, taken[0])] if len(taken) == 1 else [tuple(taken)]
    return tuple(options), found


def _alternatives(field: str, text: str) -> list[str]:
    """The values of a list with commas; a text that is itself a value of the flag is one."""
    arguments: Mapping[str, Any] = FIELDS[field].arguments

    def is_value(each: str) -> bool:
        try:
            value = arguments["type"](each)
        except (ValueError, argparse.ArgumentTypeError):
            return False
        return "choices" not in arguments or value in arguments["choices"]

    parts = [*dict.fromkeys(text.split(","))]
    return parts if not is_value(text) and all(map(is_value, parts)) else [text]


def _modes_of(field: str) -> tuple[str, ...]:
    """As `modes_of`; --page is left out where the workers ask the state server."""
    return tuple(mode for mode in modes_of(field) if field != "page" or not OWNERS[mode].needs_state_server)


def counts(field: str, mode: str) -> bool:
    """Whether a flag does something in a mode: one that needs the flag of a preset belongs to that preset alone."""
    if OWNERS[mode].name not in _modes_of(field):
        return False
    needs = FIELDS[field].needs
    having = [name for name, entry in ENTRIES.items() if needs in entry.values or field in entry.given]
    return not having or mode in having


def points(modes: Sequence[str], words: Sequence[str]) -> list[Point]:
    """The points of a sweep, each with the flags that count in its mode.

    `words`: the back end's options and main.py's flags, of which some have several values, with commas. Raises
    SetupError if a flag counts in none of the modes, or two points would have the same folder.
    """
    options, flags = split_flags(words)
    if "network" not in flags and "job" not in flags:
        flags = {"network": [(NETWORK_WITHOUT_N,)], **flags}
    for field in flags:
        if not any(counts(field, mode) for mode in modes):
            raise SetupError(
                f"{names_of(field)[0]} does nothing in mode {one_of(modes)}: it counts in mode "
                f"{one_of(_modes_of(field))}; leave it out, or add a mode (--modes)"
            )
    own = FlagParser(add_help=False)
    own.add_argument(FASTEST, default="")
    fastest, others = own.parse_known_args(options)
    numbers = [*filter(None, fastest.fastest.split(","))]
    found = []
    for mode in modes:
        its = {field: values for field, values in flags.items() if counts(field, mode)}
        takes = [[FASTEST, k] for k in numbers if ENTRIES[mode].workers.takes_number] or [[]]
        for on, chosen in itertools.product(takes, itertools.product(*its.values())):
            of_point = dict(zip(its, chosen, strict=True))
            values = [(names_of(field)[0], of_point[field][0]) for field in its if len(its[field]) > 1]
            values = [(FASTEST, on[1]), *values] if len(takes) > 1 else values
            found.append(Point(mode, tuple(values), (*others, *on), of_point))
    names = [point.name for point in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SetupError(f"two points of the sweep would have the folder {twice[0]}: leave one of their values out")
    return found


# -------------------------------------------------------------------------------------------------------- the runs


@dataclass(frozen=True)
class Task:
    """One run of a sweep."""

    line: SweepLine  # without its results
    base: Path  # its log tree
    folder: str  # of its mode there

    def __str__(self) -> str:
        return f"{self.line.title}, seed {self.line.seed}"


class Sweep:
    """Makes the runs of a sweep that are missing."""

    def __init__(self, folder: Path, tasks: Sequence[Task], processes: Processes, at_once: int) -> None:
        self._folder, self._tasks, self._processes, self._at_once = folder, tasks, processes, at_once
        there = run_lines.read(folder, SweepLine, "scripts/sweep.sh") if (folder / RUNS_FILE).exists() else []
        self._program = version.files_hash()
        self._lines = {line.key: line for line in there}
        if others := {line.network for line in there} - {task.line.network for task in tasks}:
            raise SetupError(f"{folder} has the sweep of {', '.join(sorted(others))}: give this one a --run NAME")

    def lines(self) -> list[SweepLine]:
        """The runs of this sweep that were made, also those that failed."""
        return [self._lines[task.line.key] for task in self._tasks if task.line.key in self._lines]

    def to_do(self) -> list[Task]:
        """The runs that this version of the program has not made by this very command, and those that failed."""
        return [task for task in self._tasks if not self._is_done(task)]

    def _is_done(self, task: Task) -> bool:
        line = self._lines.get(task.line.key)
        made = (task.line.command, self._program)
        return line is not None and not line.failed and (line.command, line.program) == made

    def estimate(self) -> str:
        """How long the missing runs will take, in words."""
        took_s: dict[str, list[float]] = {}
        for line in self._lines.values():
            if not line.failed:
                took_s.setdefault(line.entry, []).append(line.took_s)
        to_do = [task.line for task in self.to_do()]
        each_s = [statistics.fmean(took_s.get(line.entry) or [_limit_s(line.command)]) for line in to_do]
        if not all(each_s):
            return "the first run that ends tells how long they take"
        return f"about {duration_text(sum(each_s) / self._at_once)}"

    def do(self) -> int:
        """Returns how many runs have failed. Raises KeyboardInterrupt if it was stopped."""
        to_do = self.to_do()
        progress, failed = Progress(len(self._tasks)), []
        progress.done = len(self._tasks) - len(to_do)
        for task, line in run_lines.made(to_do, self._make, self._at_once, self._folder):
            self._lines[line.key] = line
            logging.info("%s", progress.ended(f"{task}: {line.said}"))
            if line.failed:
                failed.append(f"{task} failed: {line.failed}; what it printed is in {task.base}")
        for text in failed:
            logging.error("%s", text)
        if self._processes.stopped:
            raise KeyboardInterrupt
        return len(failed)

    def _make(self, task: Task) -> SweepLine | None:
        begin = time.monotonic()
        ended = self._processes.do(task.line.command, task.folder, task.base)
        if ended is None or (line := result(task.line, ended, _measured)) is None:
            return None
        if line.has_model:
            mode = metrics.MODES[Path(task.folder).name]
            summary.write_summary(task.base / task.folder / mode.file_name, ended.read()[1])
        return replace(line, took_s=round(time.monotonic() - begin, 1))


def _limit_s(command: Sequence[str]) -> float:
    """Seconds that a run of real processes takes at most; 0 where that is not known."""
    seconds = float(value_in(command, "max_seconds") or 0)
    return seconds + START_S if seconds and command[0] != "simulate.py" else 0.0


def _measured(line: SweepLine, about: Mapping[str, Any], devices: metrics.Devices) -> dict[str, Any]:
    """The numbers of a line, from what its run has logged."""
    evaluator = metrics.evaluating_device(devices, lambda text: None)
    return {
        "metric": evaluator.metric.about() if evaluator else {},
        "evaluator": "; ".join(evaluator.moved) if evaluator else "",
        "curve": curve_of(devices),
        "seconds": round(metrics.duration(devices.values()), 3),
        "samples_per_s": round(metrics.throughput(devices.values()), 2),
    }


# ---------------------------------------------------------------------------------------------------- command line


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The sweep's own options, and all other words; a bad value ends the process with exit code 2."""
    parser = FlagParser("scripts/sweep.sh", description=__doc__, formatter_class=job_options.HelpFormatter)
    parser.add_argument("--modes", type=job_options.names(ENTRIES), default="esync", help=f"of {', '.join(ENTRIES)}")
    parser.add_argument("--seeds", type=seeds, default="0", help="such as 0,1,2 or 0..4")
    parser.add_argument(
        "--on", choices=BACK_ENDS, default=VIRTUAL, help="real processes here or in Slurm, or virtual time"
    )
    parser.add_argument("--jobs", type=at_least(1), help="runs at the same time, not with --on local (default: cores)")
    job_options.add_log_base(parser, Path("logs") / "sweep")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, and run nothing")
    parser.add_argument("--tune", type=above_zero, metavar="MINUTES", help=argparse.SUPPRESS)
    given, others = parser.parse_known_args(arguments)
    given.log_base = job_options.log_base(given).resolve()
    if given.on == LOCAL and (given.jobs or 1) > 1:
        parser.error(f"--jobs {given.jobs}: runs on real processes are measured, so each has the machine for itself")
    given.jobs = given.jobs or (1 if given.on == LOCAL else len(usable_cores()))
    return given, others


def tasks_of(given: argparse.Namespace, others: Sequence[str]) -> list[Task]:
    """The runs, all points with the first seed first. Raises SetupError if their flags are wrong."""
    found = []
    for seed, point in itertools.product(given.seeds, points(given.modes, others)):
        base = given.log_base / point.name / f"seed-{seed}"
        command = point.command(given.on, seed)
        folder = mode_folder(command, base)
        about: dict[str, Any] = {"entry": point.mode, "network": Path(folder).parent.name, "command": command}
        line = SweepLine(**about, seed=seed, point=point.name, values=dict(point.values))
        found.append(Task(line, base, folder))
    return found


def target_of(others: Sequence[str]) -> float | None:
    """The target at which the runs end, and whose time the table has."""
    flags = split_flags(others)[1]
    values = flags.get("target") or flags.get("target_accuracy", [])
    return float(values[0][0]) if len(values) == 1 else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses and makes the missing runs; returns the exit code."""
    return exit_code_of(lambda: _do(arguments))


def _do(arguments: Sequence[str] | None) -> int:
    setup_logging("sweep")
    given, others = parse(arguments)
    if given.tune:
        raise SetupError("--tune: scripts/advise.sh --cluster FILE --target-accuracy X finds it (docs/advise.md)")
    processes = Processes(given.log_base)
    with at_signals(processes.stop):
        tasks = tasks_of(given, others)
        its = Sweep(given.log_base, tasks, processes, given.jobs)
        missing = its.to_do()
        size = f"{len(tasks) // len(given.seeds)} point(s), {len(given.seeds)} seed(s), {len(tasks)} run(s)"
        logging.info("%s, %d done already; %s; in %s", size, len(tasks) - len(missing), its.estimate(), given.log_base)
        if given.dry_run:
            for task in tasks:
                print(f"{'    ' if task in missing else 'done'} {task}: {' '.join(task.line.command)}")
            return EXIT_OK
        with job_options.claimed(given.log_base):
            failed = its.do()
        write(given.log_base, its.lines(), target_of(others), print)
        return EXIT_BUG if failed else EXIT_OK


if __name__ == "__main__":
    start.run(main)
