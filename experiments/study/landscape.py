"""README's picture and table: seconds to a target of few rows on few clusters, from the comparison.

.venv/bin/python -m experiments.study.landscape
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure

from experiments import markdown
from experiments.study import comparison
from experiments.study.comparison import Comparison, Workload
from experiments.study.comparison_figures import entry_of
from experiments.study.comparison_tables import ALONE, Fair
from flag_parser import FlagParser
from report import statistics
from report.figure_set import save_figures
from report.style import PAGE, note_below, style
from scripts import run_lines
from scripts.launch.roles import ROOT
from summary import run_tool

FOLDER, PART = ROOT / "results" / "comparison", "landscape"
DRAWN = {"nine-ways": "one of four 10 times slower", "harmonic": "the k-th of eight k times slower"}
TOLD = DRAWN | {
    "half": "half of eight 3 times slower",
    "slow-link": "one of four behind a slow link",
    "mixed-links": "eight of unlike speed, behind unlike links",
    "paper": "GPUs and CPUs, 45 MB an exchange",
}
ROWS = ("esync-outer", "esync-outer-k", "fastest-outer", "esync", "sync", ALONE)


def job_of(cluster: str) -> Workload:
    """The job of README: i.i.d. data, mlp."""
    return Workload(cluster, run_lines.IID, "mlp")


def draw(figure: Figure, clusters: Sequence[str], fair: Fair) -> None:
    """A bar is the median of the seeds, a line its interval; a row that misses the target gets a bar up to the limit,
    which is hollow."""
    for cluster, axes in zip(clusters, figure.subplots(1, len(clusters), sharey=True), strict=True):
        job = job_of(cluster)
        for place, name in enumerate(ROWS):
            seconds, colour = [*fair.counted(job, name).values()], entry_of(name).look.colour
            its, is_missed = statistics.median(seconds), fair.has_missed(job, name)
            face = "none" if is_missed else colour
            axes.barh(place, its.value, color=face, edgecolor=colour, height=0.7)
            axes.plot([its.low, its.high], [place, place], color="black", linewidth=1.0)
        axes.set_xlabel(f"time (s) to test accuracy {fair.target(job):g}")
        axes.set_title(f"{cluster}: {DRAWN[cluster]}", fontsize="small")
        axes.set_ylim(len(ROWS) - 0.5, -0.5)
        axes.set_yticks(range(len(ROWS)), [entry_of(name).title for name in ROWS])
    figure.set_figheight(2.2)
    note_below(
        figure,
        "mlp on Fashion-MNIST; medians of seven seeds (harmonic: 17) and their intervals; hollow: some runs missed it.",
    )


def table(fair: Fair) -> str:
    """A row a cluster: medians of seconds to the target."""
    rows = [
        ["machines (cluster), A / B", "`esync-outer` on all", "best algorithm on K of them", "SSGD (`sync`) on all"]
    ]
    for cluster, words in TOLD.items():
        job = job_of(cluster)
        few = [row for row in (fair.fastest_k(job), ALONE) if row]
        best = min(few, key=lambda row: fair.middle(job, row))
        rows.append(
            [
                f"{words} (`{cluster}`), {fair.ceiling(job):.1f}",
                *(_cell(fair, job, name) for name in ("esync-outer", best, "sync")),
            ]
        )
    return markdown.table(rows)


def _cell(fair: Fair, job: Workload, name: str) -> str:
    if not fair.has_missed(job, name):
        return f"{fair.middle(job, name):.0f} s"
    return f"over {fair.middle(job, name):.0f} s" if fair.middle(job, name) < fair.limit_s(job) else "missed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes both; returns the exit code."""
    FlagParser("python -m experiments.study.landscape", doc=__doc__).parse_args(arguments)

    def write() -> None:
        fair = Fair(Comparison(comparison.read(FOLDER)))
        markdown.write(ROOT / "README.md", table(fair), PART)
        with style(PAGE):
            save_figures([(PART, [*DRAWN], partial(draw, fair=fair))], FOLDER, print)

    return run_tool(write)


if __name__ == "__main__":
    start.run(main)
