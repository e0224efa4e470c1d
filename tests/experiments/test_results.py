"""results/: what its pages show is made again from the raw data that are checked in there."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import markdown
from experiments.reproduction import reproduce, reproduction, reproduction_figures
from experiments.reproduction.reproduction_parts import SCALES
from experiments.study import comparison, write_comparison
from scripts.run_lines import RUNS_FILE

RESULTS = Path(__file__).resolve().parents[2] / "results"
COMPARISONS = ("comparison",)
OTHERS = {"real-comparison", "real-slowness", "real-vs-virtual", "real-vs-virtual-mlp"}  # of another form


def test_every_comparison_is_tested():
    assert {path.parent.name for path in RESULTS.glob(f"*/{RUNS_FILE}")} == {*COMPARISONS, *OTHERS}


@pytest.mark.parametrize("name", COMPARISONS)
def test_what_the_page_of_a_comparison_shows_is_made_again_from_its_runs(name):
    fair = write_comparison.Fair(comparison.Comparison(comparison.read(RESULTS / name)))
    page = (RESULTS / name / "README.md").read_text()
    again = f"run .venv/bin/python experiments/study/write_comparison.py results/{name}"
    assert page == markdown.updated(page, markdown.TABLES, write_comparison.part_of_page(fair)), again
    assert (RESULTS / name / "details.md").read_text() == write_comparison.details(fair), again


@pytest.mark.parametrize("scale", SCALES)
def test_what_the_page_shows_of_the_published_experiments_is_made_again_from_their_runs(scale):
    folder = RESULTS / "reproduction" / scale
    rows, page = reproduce.in_order(reproduction.read(folder), SCALES[scale]), (folder / "README.md").read_text()
    again = f"run scripts/reproduce.sh --{scale} --tables --folder results/reproduction/{scale}"
    assert page == markdown.updated(page, markdown.TABLES, reproduce.part_of_page(rows)), again
    assert all((folder / f"{figure}.png").exists() for figure in reproduction_figures.drawn(rows))
