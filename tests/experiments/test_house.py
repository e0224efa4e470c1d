"""experiments/house.py measures the code; the aims that are reached stay reached."""

from __future__ import annotations

import pytest

from experiments import house

PRODUCT, EXPERIMENTS, TESTS = 39_175, 7_456, 39_763


@pytest.fixture(scope="module")
def found():
    return {name: value for name, (value, _) in house.measured().items()}


def number(text):
    return int(text.split(":")[0].split(";")[0].replace(",", ""))


def test_the_code_does_not_grow(found):
    assert number(found["product: lines of code / docstrings / others"]) <= PRODUCT
    assert number(found["experiments: the same"]) <= EXPERIMENTS
    assert number(found["tests: lines"]) <= TESTS


def test_no_line_is_longer_than_120_characters(found):
    assert number(found["longest line"]) <= 120


def test_a_round_and_an_import_are_measured(found):
    assert number(found["files of trainer/ that a round of SSGD enters"]) > 5
    assert number(found["importing the standalone trainer: modules, lines"].split(", ")[1]) > 1000


def test_the_table_has_a_row_for_each_measure_with_its_aim(found, monkeypatch, capsys):
    monkeypatch.setattr(house, "measured", lambda: {"files": ("3", "2"), "longest line": ("119", "120")})
    house.main([])
    assert capsys.readouterr().out.splitlines()[2:] == ["| files | 3 | 2 |", "| longest line | 119 | 120 |"]
