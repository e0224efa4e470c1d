"""README's picture, table and rule are what the comparison's runs say, and README is short."""

from __future__ import annotations

import re

import pytest
from matplotlib.figure import Figure

from experiments import markdown
from experiments.study import comparison, landscape
from experiments.study.comparison import Comparison
from experiments.study.comparison_tables import Fair
from scripts import run_lines
from scripts.launch.roles import ROOT

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def fair() -> Fair:
    return Fair(Comparison(comparison.read(landscape.FOLDER)))


def test_readme_has_at_most_900_words() -> None:
    assert len(README.split()) <= 900


def test_the_table_is_made_of_the_runs(fair: Fair) -> None:
    assert markdown.updated(README, landscape.PART, landscape.table(fair)) == README


def test_the_picture_has_six_bars_with_intervals_for_each_cluster(fair: Fair) -> None:
    figure = Figure()
    landscape.draw(figure, [*landscape.DRAWN], fair)
    for axes, cluster in zip(figure.axes, landscape.DRAWN, strict=True):
        job = landscape.job_of(cluster)
        wide = [bar.get_width() for bar in axes.patches]  # type: ignore[attr-defined]
        assert wide == [min(fair.middle(job, row), fair.limit_s(job)) for row in landscape.ROWS]
        assert len(axes.lines) == len(landscape.ROWS) == 6


def test_the_rule_has_the_numbers_of_the_comparison(fair: Fair) -> None:
    jobs = [job for job in fair.made.workloads if job.split == run_lines.IID and "esync-outer" in fair.rows(job)]
    best = {job: row for job in jobs if (row := fair.fastest_k(job))}
    gains = {job: fair.gain(job, "esync-outer", row) for job, row in best.items()}
    assert all(round(gain.low, 2) <= 1.0 for gain in gains.values())  # nowhere shown to be ahead
    ratios = {job: round(fair.ceiling(job), 1) for job in gains}
    assert {*ratios.values()} - {1.0, 1.1, 1.2, 1.3} == {1.9, 2.7}
    for ratio, text in ((1.3, "3.5"), (2.7, "1.5")):
        of_it = [gain for job, gain in gains.items() if ratio - 1 < ratios[job] <= ratio]
        assert f"{1 / min(gain.value for gain in of_it):.1f}" == text
        assert re.search(rf"or up to\s+{text}\s+times as\s+fast", README)
    few = [job for job, ratio in ratios.items() if ratio > 1.3 and "esync-outer-k" in fair.rows(job)]
    assert {best[job] for job in few} == {"esync-outer-k"}
    runs = [run for job in few for run in fair.made.runs(comparison.REPORT, job, best[job])]
    assert {run.parameters["fastest"] for run in runs} == {2, 3, 4}
