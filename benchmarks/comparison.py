#!/usr/bin/env python3
"""Writes a comparison's tables and its performance profile from the raw runs that are kept in a folder.

    .venv/bin/python benchmarks/comparison.py results/comparison --page results/README.md

FOLDER/details.md has a table for each job, FOLDER/profile.png (profile-untuned.png) the profiles. On the page the part
between `<!-- comparison FOLDER -->` and `<!-- end of comparison FOLDER -->`, with the folder as seen from the page, is
written anew. The same runs give the same files. Exit codes: 0 done, 2 something to put right.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from algorithms import ENTRIES  # noqa: E402
from draw import STYLE  # noqa: E402
from report import comparison, comparison_tables, pages, run_lines  # noqa: E402
from report.comparison import REPORT, TUNING, UNTUNED, Comparison  # noqa: E402
from report.figures import draw_profiles  # noqa: E402
from report.tables import accuracy_text  # noqa: E402
from summary import run_tool  # noqa: E402
from trainer.flag_values import accuracy, several  # noqa: E402
from utils import write_atomically  # noqa: E402

TARGETS = (0.80, 0.85, 0.87)
TARGET = 0.85  # by which step sizes are chosen, and which the page shows unless all runs go on to a greater one
MARK = "comparison"  # of the part of a page, before the folder
FIGURES = {REPORT: "profile.png", UNTUNED: "profile-untuned.png"}


def target_of(its: Comparison) -> float:
    """The accuracy that the page shows the times to: TARGET, or what all runs on the test set go on to beyond it."""
    ends = [run_lines.value_in(line.command, "target_accuracy") for line in its.lines if line.phase != TUNING]
    return max(TARGET, min((float(end or TARGET) for end in ends), default=TARGET))


def part_of_page(its: Comparison, folder: str, target: float) -> str:
    """Tables, and links to the figures and to the details."""
    drawn = [name for phase, name in FIGURES.items() if _has_profile(its, phase)]
    links = [f"![performance profiles]({folder}/{name})" for name in drawn]
    return "\n\n".join([comparison_tables.page(its, target), *links, f"Each job: [details]({folder}/details.md)."])


def _has_profile(its: Comparison, phase: str) -> bool:
    """Of a single job a profile says no more than the table."""
    return len(comparison_tables.complete_jobs(its, phase)) > 1


def write(folder: Path, page: Path | None, targets: tuple[float, ...], target: float | None) -> None:
    """Writes all of it.

    Raises:
        SetupError: the runs cannot be read, or the page has no place for the tables.
    """
    its = Comparison(comparison.read(folder))
    target = target_of(its) if target is None else target
    if page is not None:
        name = os.path.relpath(folder, page.parent)
        write_atomically(
            page, pages.updated(page.read_text(), f"{MARK} {name}", part_of_page(its, name, target)).encode()
        )
    write_atomically(folder / "details.md", comparison_tables.details(its, targets, target).encode())
    for phase, name in FIGURES.items():
        path = folder / name
        if not _has_profile(its, phase):
            path.unlink(missing_ok=True)
            continue
        standings = comparison_tables.standings(its, phase, target)
        ratios = {ENTRIES[entry]: standing.ratios for entry, standing in standings.items()}
        jobs = len(comparison_tables.complete_jobs(its, phase))
        with mpl.rc_context(STYLE):  # before the figure is made: its layout belongs to the style
            figure = Figure()
            draw_profiles(figure, ratios, f"{jobs} jobs, time to test accuracy {accuracy_text(target)}")
            figure.savefig(path)
        print(path)
    print(folder / "details.md")


def main(arguments: list[str] | None = None) -> int:
    """Parses and writes; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help=f"holds {run_lines.RUNS_FILE}")
    parser.add_argument("--page", type=Path, help="Markdown page to write the tables into")
    parser.add_argument(
        "--target",
        type=accuracy,
        help=f"accuracy that the page shows (the least at which runs on the test set end, and at least {TARGET})",
    )
    parser.add_argument(
        "--targets", type=several(accuracy, "accuracies with commas"), default=TARGETS, help="those of the details"
    )
    given = parser.parse_args(arguments)
    return run_tool(lambda: write(given.folder, given.page, given.targets, given.target))


if __name__ == "__main__":
    sys.exit(main())
