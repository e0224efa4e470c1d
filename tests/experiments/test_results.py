"""results/: what its pages show is made again from the raw data that are checked in there."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import markdown
from experiments.reproduction import reproduce, reproduction, reproduction_figures
from experiments.reproduction.reproduction_parts import SCALES
from experiments.study import comparison, comparison_tables, write_fair
from experiments.study import write_comparison as command
from scripts.run_lines import RUNS_FILE

RESULTS = Path(__file__).resolve().parents[2] / "results"
COMPARISONS = ("comparison-mlp", "comparison-mlp-0.87", "comparison-mlp-0.87-tuned", "comparison-mlp-early")
COMPARISONS += (
    "first-table",
    "real-comparison-mlp",
    "variant-momentum",
    "variant-slow-link",
    "variant-slow-link-plain",
    "wbsp-time",
)
FAIR = ("comparison",)
OTHERS = {"real-slowness", "real-vs-virtual", "real-vs-virtual-mlp"}  # whose raw lines are of another form


def test_every_comparison_is_tested():
    assert {path.parent.name for path in RESULTS.glob(f"*/{RUNS_FILE}")} == {*COMPARISONS, *FAIR, *OTHERS}


@pytest.mark.parametrize("name", COMPARISONS)
def test_what_the_page_of_a_comparison_shows_is_made_again_from_its_runs(name):
    its = comparison.Comparison(comparison.read(RESULTS / name))
    target, page = command.target_of(its), (RESULTS / name / "README.md").read_text()
    again = f"run .venv/bin/python experiments/study/write_comparison.py results/{name}"
    assert page == markdown.updated(page, markdown.TABLES, command.part_of_page(its, target)), again
    details = comparison_tables.details(its, command.TARGETS, target)
    assert (RESULTS / name / "details.md").read_text() == details, again
    assert all((RESULTS / name / figure).exists() for figure in command.figures(its))


@pytest.mark.parametrize("name", FAIR)
def test_what_the_page_shows_of_searched_rows_is_made_again_from_their_runs(name):
    fair = write_fair.Fair(comparison.Comparison(comparison.read(RESULTS / name)))
    page = (RESULTS / name / "README.md").read_text()
    again = f"run .venv/bin/python experiments/study/write_fair.py results/{name}"
    assert page == markdown.updated(page, markdown.TABLES, write_fair.part_of_page(fair)), again
    assert (RESULTS / name / "details.md").read_text() == write_fair.details(fair), again


@pytest.mark.parametrize("scale", SCALES)
def test_what_the_page_shows_of_the_published_experiments_is_made_again_from_their_runs(scale):
    folder = RESULTS / "reproduction" / scale
    rows, page = reproduce.in_order(reproduction.read(folder), SCALES[scale]), (folder / "README.md").read_text()
    again = f"run scripts/reproduce.sh --{scale} --tables --folder results/reproduction/{scale}"
    assert page == markdown.updated(page, markdown.TABLES, reproduce.part_of_page(rows)), again
    assert all((folder / f"{figure}.png").exists() for figure in reproduction_figures.drawn(rows))
