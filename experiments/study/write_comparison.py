#!/usr/bin/env python3
"""Writes a comparison's tables and figures from its raw runs (experiments/study/study.py makes them).

    .venv/bin/python experiments/study/write_comparison.py results/comparison

The tables go between the marks of README.md, what the search chose to details.md; a figure of each job that has enough
rows, and crossing.png (.pdf for a paper) where several clusters differ in the slow half's speed alone.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import start  # first: what it does is for the other imports too

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from experiments import markdown
from experiments.study import comparison
from experiments.study.comparison import REPORT, ROWS, Comparison, Workload
from experiments.study.comparison_figures import ahead_at, crossing_jobs, draw_crossing, draw_job
from experiments.study.comparison_tables import CEILING, Fair, gain_text, notes, numbers_table, page
from flag_parser import FlagParser
from report.figure_set import NamedFigure, save_figures
from report.style import COLUMN, style
from scripts import run_lines
from summary import run_tool
from utils import write_atomically

CROSSING = Workload("half", run_lines.IID, "mlp")
CROSSING_ROWS = ("esync", "esync-outer", "fastest-sync", "fastest-outer", "async-local", "decoupled", "alone")
DRAWN = 6  # rows in a figure of a job: more cannot be told apart
ALWAYS_DRAWN = ("esync", "sync", "alone")


def drawn(fair: Fair, job: Workload) -> list[str]:
    """The rows of a job's figure: those that the reader looks for, the best on the fastest machines, and the best."""
    rows = fair.rows(job)
    wanted = [entry for entry in ALWAYS_DRAWN if entry in rows]
    best = fair.fastest_k(job)
    for entry in [*([best] if best else []), *sorted(rows, key=lambda each: fair.middle(job, each))]:
        if entry not in wanted and len(wanted) < DRAWN:
            wanted.append(entry)
    return [entry for entry in ROWS if entry in wanted]


def crossing_text(fair: Fair) -> str:
    """The crossing's figure and numbers; empty where fewer than two of its clusters were run."""
    jobs = crossing_jobs(fair, CROSSING)
    if len(jobs) < 2:
        return ""
    rows = [["times as fast as the best row on the fastest", *(f"{share:g} %" for share in jobs), "ahead at"]]
    for baseline, words in ((None, ""), ("alone", ", of alone")):
        for entry in CROSSING_ROWS:
            cells = [gain_text(fair, job, entry, baseline or fair.fastest_k(job)) for job in jobs.values()]
            ahead = ", ".join(f"{share:g}" for share in ahead_at(fair, jobs, entry, baseline))
            if any(cells):
                rows.append([ROWS[entry].title + words, *cells, f"{ahead} %" if ahead else "nowhere"])
    rows.append([CEILING, *(f"{fair.ceiling(job):.2f}" for job in jobs.values()), ""])
    picture = "![seconds to the target over the slow half's share of speed](crossing.png)"
    words = "The crossing: by the slow half's speed in percent of the fast half's; `ahead at`: the whole interval is."
    return "\n\n".join([words, picture, markdown.table(rows)])


def whole_jobs(fair: Fair) -> list[Workload]:
    """The jobs that are not of the crossing alone: others, and those that made the runs of further rows themselves."""
    crossing = crossing_jobs(fair, CROSSING).values()
    more = {line.workload for line in fair.made.lines if line.phase == REPORT and line.entry not in CROSSING_ROWS}
    return [job for job in fair.its.workloads_of(REPORT) if job not in crossing or job in more]


def _name(job: Workload) -> str:
    return f"{job.cluster}-{job.split}-{job.network}"


def part_of_page(fair: Fair) -> str:
    """Tables, and links to the figures and to the details."""
    jobs = whole_jobs(fair)
    pictures = [f"![accuracy over time and times to the target, {', '.join(job)}]({_name(job)}.png)" for job in jobs]
    texts = [page(fair, jobs), crossing_text(fair), *pictures, "What the search chose: [details](details.md)."]
    return "\n\n".join(filter(None, texts))


def details(fair: Fair) -> str:
    """The page of what the search chose."""
    parts = ["# What the search chose", numbers_table(fair, fair.its.workloads_of(REPORT)), notes(fair)]
    return "\n\n".join(parts) + "\n"


def write(folder: Path) -> None:
    """Writes all of it. Raises SetupError if the runs cannot be read, or the page has no place for the tables."""
    fair = Fair(Comparison(comparison.read(folder)))
    markdown.write(folder / "README.md", part_of_page(fair))
    write_atomically(folder / "details.md", details(fair).encode())
    figures: list[NamedFigure] = [
        (_name(job), job, partial(draw_job, fair=fair, entries=drawn(fair, job))) for job in whole_jobs(fair)
    ]
    if len(crossing := crossing_jobs(fair, CROSSING)) > 1:
        figures.append(("crossing", crossing, partial(draw_crossing, fair=fair, entries=CROSSING_ROWS)))
    with style(COLUMN):
        save_figures(figures, folder, print)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses and writes; returns the exit code."""
    parser = FlagParser(doc=__doc__)
    parser.add_argument("folder", type=Path, help=f"holds {run_lines.RUNS_FILE}")
    given = parser.parse_args(arguments)
    return run_tool(lambda: write(given.folder))


if __name__ == "__main__":
    start.run(main)
