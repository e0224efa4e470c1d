"""results/: what its README shows is what draw.py makes of the summaries that are checked in there."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from textwrap import indent

import pytest

import draw
from benchmarks import comparison as command
from benchmarks import compression
from report import comparison, comparison_tables, pages, reproduction
from scripts import reproduce, reproduction_figures
from scripts.reproduction_parts import SCALES

RESULTS = Path(__file__).resolve().parents[1] / "results"
# A figure, and below it the table that draw.py printed with it.
SHOWN = re.findall(
    r"^!\[.*?\]\((\S+)/(\S+)\.png\)\n\n((?:    .+\n)+)", (RESULTS / "README.md").read_text(), re.MULTILINE
)


def test_there_are_tables_to_compare():
    assert [folder for folder, _, _ in SHOWN] == ["demo", "nine-ways", "non-iid"]


@pytest.mark.parametrize(("folder", "figure", "table"), SHOWN, ids=[folder for folder, _, _ in SHOWN])
def test_a_table_of_the_results_is_made_again_from_its_summaries(folder, figure, table, tmp_path, capsys):
    (target,) = re.findall(r" s to ([\d.]+) ", table)
    assert draw.main(["-b", str(RESULTS / folder), "-n", "lenet", "-o", str(tmp_path), "--target", target]) == 0
    assert table in indent(capsys.readouterr().out, "    ")
    assert (tmp_path / f"{figure}.png").exists()


def test_the_table_that_nine_ways_keeps_is_the_one_that_is_shown():
    (shown,) = (table for folder, _, table in SHOWN if folder == "nine-ways")
    assert shown in indent((RESULTS / "nine-ways" / "table.txt").read_text(), "    ")


def test_what_the_page_shows_of_a_comparison_is_made_again_from_its_runs():
    page = (RESULTS / "README.md").read_text()
    for name in pages.parts(page, command.MARK):
        its = comparison.Comparison(comparison.read(RESULTS / name))
        target = command.target_of(its)
        part = command.part_of_page(its, name, target)
        assert page == pages.updated(page, f"{command.MARK} {name}", part), (
            f"run benchmarks/comparison.py results/{name} --page ..."
        )
        details = comparison_tables.details(its, command.TARGETS, target)
        assert (RESULTS / name / "details.md").read_text() == details


def test_what_the_page_shows_of_the_published_experiments_is_made_again_from_their_runs():
    page = (RESULTS / "README.md").read_text()
    for name in pages.parts(page, reproduce.MARK):
        rows = reproduce.in_order(reproduction.read(RESULTS / name), SCALES[Path(name).name])
        part = reproduce.part_of_page(rows, name)
        again = f"run scripts/reproduce.sh --tables --folder results/{name} --page results/README.md"
        assert page == pages.updated(page, f"{reproduce.MARK} {name}", part), again
        assert all((RESULTS / name / f"{figure}.png").exists() for figure in reproduction_figures.drawn(rows))


def test_the_table_of_compression_is_made_of_its_runs():
    rows = compression.table(json.loads((RESULTS / "compression.json").read_text()))
    assert "\n".join(rows) in (RESULTS / "README.md").read_text()


@pytest.mark.parametrize("raw", sorted((RESULTS / "collectives").glob("[is]*-*.json")), ids=lambda path: path.stem)
def test_the_times_of_sums_that_are_shown_are_the_medians_of_those_measured(raw):
    page = (RESULTS / "README.md").read_text()
    for number, ways in json.loads(raw.read_text())["milliseconds_by_workers"].items():
        medians = {name: statistics.median(times) for name, times in ways.items()}
        cells = [f"{median:.3g} ({median / medians['kvstore']:.2f})" for median in medians.values()]
        assert f"| {number} | {' | '.join(cells)} |" in page
