"""results/: what its pages show is made again from the raw data that are checked in there, or stands there as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import indent

import pytest

import draw
from algorithms import ENTRIES
from experiments import markdown
from experiments.reproduction import reproduce, reproduction, reproduction_figures
from experiments.reproduction.reproduction_parts import SCALES
from experiments.study import comparison, real_comparison, real_slowness, real_vs_virtual, write_comparison
from report import device_json, metrics
from scripts.run_lines import RUNS_FILE

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
STUDIES = [*sorted(RESULTS.glob("*/README.md")), *sorted((RESULTS / "reproduction").glob("*/README.md"))]
# A command of draw.py on a page, and the table below that it prints.
COMMAND = r"draw\.py -b (\S+) -n lenet -o \S+(?: --target (\S+))?$"
TABLE = r"^(    mode [^\n]+\n(?:    [^\n]+\n)+)"
DRAWN = [found for page in STUDIES for found in re.findall(f"{COMMAND}.*?{TABLE}", page.read_text(), re.M | re.S)]
TEXTS = ("network", "questions", "slow-link", "state-server")  # what a program printed
SHOWN = [path for name in TEXTS for path in sorted((RESULTS / name).glob("*.txt"))]


def page_of(name: str) -> str:
    return (RESULTS / name / "README.md").read_text()


def real_and_virtual() -> str:
    reported = real_comparison.reported(RESULTS / "comparison", tuple(ENTRIES))
    return real_comparison.table(reported, comparison.read(RESULTS / "real-comparison"))


MADE = {
    "real-comparison": (real_comparison.MARK, real_and_virtual),
    "real-slowness": (markdown.TABLES, lambda: real_slowness.tables(real_slowness.read(RESULTS / "real-slowness"))),
    **{
        name: (markdown.TABLES, lambda name=name: real_vs_virtual.table(real_vs_virtual.read(RESULTS / name)))
        for name in ("real-vs-virtual", "real-vs-virtual-mlp")
    },
}


def test_the_runs_of_every_study_are_tested():
    assert {path.parent.name for path in RESULTS.glob(f"*/{RUNS_FILE}")} == {"comparison", *MADE}


@pytest.mark.parametrize("name", MADE)
def test_the_tables_of_a_page_are_made_again_from_its_raw_data(name):
    mark, part = MADE[name]
    page = page_of(name)
    assert page == markdown.updated(page, mark, part())


def test_what_the_page_of_the_comparison_shows_is_made_again_from_its_runs():
    fair = write_comparison.Fair(comparison.Comparison(comparison.read(RESULTS / "comparison")))
    page, again = page_of("comparison"), "run .venv/bin/python experiments/study/write_comparison.py results/comparison"
    assert page == markdown.updated(page, markdown.TABLES, write_comparison.part_of_page(fair)), again
    assert (RESULTS / "comparison" / "details.md").read_text() == write_comparison.details(fair), again


@pytest.mark.parametrize("scale", SCALES)
def test_what_the_page_shows_of_the_published_experiments_is_made_again_from_their_runs(scale):
    folder = RESULTS / "reproduction" / scale
    rows, page = reproduce.in_order(reproduction.read(folder), SCALES[scale]), (folder / "README.md").read_text()
    again = f"run scripts/reproduce.sh --{scale} --tables --folder results/reproduction/{scale}"
    assert page == markdown.updated(page, markdown.TABLES, reproduce.part_of_page(rows)), again
    assert all((folder / f"{figure}.png").exists() for figure in reproduction_figures.drawn(rows))


def test_there_are_tables_of_draw_to_compare():
    assert [base for base, _, _ in DRAWN] == [
        "results/demo",
        *(f"results/wbsp/{name}" for name in ("h1", "h2", "h3")),
    ]


@pytest.mark.parametrize(("base", "target", "table"), DRAWN, ids=[base for base, _, _ in DRAWN])
@pytest.mark.usefixtures("unpainted")
def test_a_table_that_draw_prints_is_made_again_from_the_summaries(base, target, table, tmp_path, capsys):
    more = ["--target", target] if target else []
    assert draw.main(["-b", str(ROOT / base), "-n", "lenet", "-o", str(tmp_path), *more]) == 0
    assert table in indent(capsys.readouterr().out, "    ")


@pytest.mark.parametrize("heterogeneity", ["h1", "h2", "h3"])
def test_the_computing_ratios_of_wbsp_are_those_of_its_summaries(heterogeneity):
    cells = []
    for mode, file in (("wbsp", "WBSP"), ("wbsp-pcc", "WBSP-PCC")):
        summary = RESULTS / "wbsp" / heterogeneity / "lenet" / mode / f"{file}.json"
        (devices,) = json.loads(summary.read_text()).values()
        ratios = [metrics.computing_ratio(device_json.read(device, "", pytest.fail)) for device in devices.values()]
        cells.append(" ".join(f"{ratio:.3f}" for ratio in ratios if ratio is not None))
    assert re.search(rf"^\| {heterogeneity.upper()}, .* \| {' . '.join(cells)} \|$", page_of("wbsp"), re.MULTILINE)


@pytest.mark.parametrize("text", SHOWN, ids=[f"{path.parent.name}/{path.name}" for path in SHOWN])
def test_a_text_that_a_program_printed_is_on_the_page_as_it_is(text):
    page = page_of(text.parent.name)
    assert text.read_text() in page or indent(text.read_text(), "    ") in page
