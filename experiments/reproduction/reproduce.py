"""The published experiments again, in virtual time (simulate.py), and tables of their numbers beside the published.

--quick takes minutes on two cores, with a small network in place of ResNet-18; --two-hours some 20 minutes of a core a
seed: the small network for the published two hours, for the final accuracies; --full takes hours; --mean-loss some
three hours of a core: ResNet-18, with the published step size taken as that of the mean of a batch's losses, which
contradicts the published code. Each run is a line of FOLDER/runs.jsonl. A run that stands there, of the same command
and this version of the program, is not made again, so the same command continues after Ctrl-C. At the end it prints the
tables, writes them into FOLDER/README.md, between the lines `<!-- tables -->` and `<!-- end of tables -->`, and draws
the five figures of the preprint's cluster.

With the name of a claim of README.md, results/README.md or results/published.md (--list shows them) it makes the
claim's runs again, and prints their numbers beside those of the page.
Exit codes: 0 done, 1 some runs failed or a claim does not agree, 2 something to put right, 130 stopped.
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from config import NO_NETWORK
from experiments import markdown
from experiments.claims import again, claims as all_claims
from experiments.reproduction import reproduction, reproduction_figures
from experiments.reproduction.reproduction import Row
from experiments.reproduction.reproduction_parts import PARTS, SCALES, Scale, with_seed
from flag_parser import FlagParser
from flag_values import at_least, several
from scripts import get_data, run_lines
from scripts.launch import job_options
from scripts.launch.console import console
from scripts.launch.roles import ROOT
from scripts.run_lines import Progress, duration_text
from scripts.run_process import Processes, at_signals, exit_code_of, make
from trainer import version
from utils import EXIT_BUG, EXIT_OK, SetupError, setup_logging, usable_cores

LOGS = ROOT / "logs" / "reproduction"
SIZES = {
    "quick": "minutes (the default)",
    "full": "hours",
    "mean-loss": "the step size as of the mean loss",
    "two-hours": "the small network, as long as published",
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; a bad value ends the process with exit code 2."""
    form = job_options.HelpFormatter
    parser = FlagParser("scripts/reproduce.sh", description=__doc__, formatter_class=form)
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help="only make this one again; --list shows them")
    size = parser.add_mutually_exclusive_group()
    for name, words in SIZES.items():
        size.add_argument(f"--{name}", dest="scale", action="store_const", const=name, help=words)
    parser.add_argument(
        "--parts",
        type=job_options.names(tuple(PARTS)),
        help="which experiments, with commas (all; of --mean-loss and --two-hours training)",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only the runs whose line of --list has it")
    parser.add_argument(
        "--seeds", type=several(at_least(0), "seeds with commas"), default=(0,), help="of the runs that train"
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="only list all claims, with minutes and disk space; of a size its runs, and which are done",
    )
    parser.add_argument("--tables", action="store_true", help="only the tables and figures of what is done")
    parser.add_argument("--folder", type=Path, help="of the results (logs/reproduction/SIZE)")
    parser.add_argument("--jobs", type=at_least(1), default=len(usable_cores()), help="runs at the same time")
    given = parser.parse_args(arguments)
    of_runs = [name for name in ("scale", "parts", "only", "tables", "folder") if getattr(given, name)]
    given.of_claims = bool(given.claims) or (given.list and not of_runs)
    if given.claims and (of_runs or given.list or given.seeds != (0,)):
        parser.error("a claim is made again as it was: of the options it takes --jobs alone")
    given.scale = given.scale or "quick"
    given.folder = given.folder or LOGS / given.scale
    given.parts = given.parts or SCALES[given.scale].parts
    if not jobs_of(SCALES[given.scale], given.parts, given.only, given.seeds):
        parser.error(f"--only {given.only!r}: no run of {', '.join(given.parts)} has it; see --list")
    return given


def jobs_of(scale: Scale, parts: Sequence[str], only: str = "", seeds: Sequence[int] = (0,)) -> list[Row]:
    """The runs of some parts whose names have a text. Only those that train are made with each seed."""
    every = (job for part in parts for job in PARTS[part](scale))
    seeded = (
        with_seed(job, seed)
        for job in every
        for seed in (dict.fromkeys(seeds) if job.network != NO_NETWORK else (job.seed,))
    )
    return [job for job in seeded if only in named(job)]


class Reproduction:
    """Makes runs that are missing."""

    def __init__(self, folder: Path, processes: Processes, at_once: int) -> None:
        self._folder, self._processes, self._at_once = folder, processes, at_once
        there = (folder / run_lines.RUNS_FILE).exists()
        self.rows = {row.key: row for row in (reproduction.read(folder) if there else ())}
        self._program = version.files_hash()

    def is_done(self, job: Row) -> bool:
        """Whether this version of the program has made it, by this very command, without a failure."""
        row = self.rows.get(job.key)
        return bool(row and not row.failed and (tuple(row.command), row.program) == (job.command, self._program))

    def do(self, jobs: Sequence[Row]) -> int:
        """Returns how many have failed.

        Raises:
            KeyboardInterrupt: it was stopped.
        """
        to_do = [job for job in jobs if not self.is_done(job)]
        if len(to_do) < len(jobs):
            logging.info("%d of %d runs are done already", len(jobs) - len(to_do), len(jobs))
        progress, failed = Progress(len(to_do)), 0
        for _, row in run_lines.made(to_do, self._make, self._at_once, self._folder):
            self.rows[row.key] = row
            failed += bool(row.failed)
            logging.info("%s", progress.ended(said(row)))
        if self._processes.stopped:
            raise KeyboardInterrupt
        return failed

    def _make(self, job: Row) -> Row | None:
        return make(self._processes, job, reproduction.measured)


def named(row: Row) -> str:
    """The run in words."""
    return " ".join(filter(None, (row.part, row.name, row.case, row.split, f"seed {row.seed}" if row.seed else "")))


def said(row: Row) -> str:
    """A run and its result, for the progress."""
    came = row.failed or ("diverged" if row.diverged else f"{row.samples_per_s:.0f} samples/s")
    accuracy = "" if row.last is None else f", accuracy {row.last:.3f}"
    return f"{named(row)}: {came}{accuracy}"


def part_of_page(rows: Sequence[Row]) -> str:
    """Tables and figures of the folder's page."""
    figures = [f"![{words}]({name}.png)" for name, words in reproduction_figures.drawn(rows).items()]
    return "\n\n".join([reproduction.tables(rows), *figures])


def show(given: argparse.Namespace) -> None:
    """Prints the tables, draws the figures and writes the page.

    Raises:
        SetupError: there are no runs, or the page has no place for the tables.
    """
    rows = in_order(reproduction.read(given.folder), SCALES[given.scale])
    console("\n" + reproduction.tables(rows) + "\n")
    reproduction_figures.draw(rows, given.folder, console)
    markdown.write(given.folder / "README.md", part_of_page(rows))


def in_order(rows: Sequence[Row], scale: Scale) -> list[Row]:
    """The rows in the order of the parts; runs of no part come last."""
    places = {job.experiment: place for place, job in enumerate(jobs_of(scale, tuple(PARTS)))}
    return sorted(rows, key=lambda row: (places.get(row.experiment, len(places)), row.seed))


def of_claims(given: argparse.Namespace, processes: Processes) -> int:
    """Shows all claims, or makes some again; returns the exit code."""
    known = all_claims.read()
    if given.list:
        for line in again.listed(known):
            console(line)
        return EXIT_OK
    its = again.Again(known, processes, LOGS / "claims", given.jobs, console)
    chosen = [known.named(name) for name in dict.fromkeys(given.claims)]
    for claim in chosen:
        if not known.has_runs(claim):
            raise SetupError(f"{claim.name}: nothing was run for it alone, so there is nothing to run again")
    get_data.get(ROOT / "data" / "fashion-mnist", get_data.CHECKSUMS, get_data.SOURCES, console)
    with at_signals(processes.stop):
        agreed = [its.make(claim) for claim in chosen]
    return EXIT_OK if all(agreed) else EXIT_BUG


def main(arguments: Sequence[str]) -> int:
    """Parses and makes the missing runs; returns the exit code."""
    given = parse(arguments)
    setup_logging("reproduce")
    return exit_code_of(lambda: _do(given))


def _do(given: argparse.Namespace) -> int:
    processes = Processes(LOGS / "runs" / ("claims" if given.of_claims else given.scale))
    if given.of_claims:
        return of_claims(given, processes)
    its = Reproduction(given.folder, processes, given.jobs)
    jobs = jobs_of(SCALES[given.scale], given.parts, given.only, given.seeds)
    if given.list:
        for job in jobs:
            console(f"{'done' if its.is_done(job) else '    '} {named(job)}")
        return EXIT_OK
    failed = 0
    if not given.tables:
        get_data.get(ROOT / "data" / "fashion-mnist", get_data.CHECKSUMS, get_data.SOURCES, console)
        given.folder.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        with at_signals(processes.stop):
            failed = its.do(jobs)
        logging.info("took %s", duration_text(time.monotonic() - begin))
    show(given)
    return EXIT_BUG if failed else EXIT_OK


if __name__ == "__main__":
    start.run(lambda: main(sys.argv[1:]))
