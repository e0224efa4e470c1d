"""The version stands in one file and is told wherever users look for it; the state server's: test_state_server.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from algorithms import ALGORITHMS
from trainer.command_line import parse
from trainer.run_logs.run_folder import RunFolder
from utils import EXIT_OK, read_json, version_number

ROOT = Path(__file__).resolve().parents[1]
ENTRY = r"^## (\d+\.\d+\.\d+) - \d{4}-\d\d-\d\d(?: \([0-9a-f]{7}\))?$"


def test_the_changelog_begins_with_the_version():
    versions = re.findall(ENTRY, (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == version_number()


def test_the_citation_has_the_version_and_the_licence():
    fields = dict(re.findall(r"^([\w-]+): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    assert fields["version"] == version_number()
    licence = (ROOT / "LICENSE").read_text()
    assert licence.startswith(f"{fields['license']} License\n")


def test_the_citation_names_the_authors_of_the_licence_and_the_paper_of_esync():
    text = (ROOT / "CITATION.cff").read_text()
    [authors] = re.findall(r"^Copyright \(c\) \d+ (.+)$", (ROOT / "LICENSE").read_text(), re.MULTILINE)
    assert f'\nauthors:\n  - name: "{authors}"\n' in text
    [doi] = re.findall(r"^    doi: (.+)$", text, re.MULTILINE)
    assert ALGORITHMS["esync"].paper.endswith(f", doi:{doi}")


def test_every_version_of_the_changelog_is_newer_than_the_next():
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = [tuple(map(int, found.split("."))) for found in re.findall(ENTRY, text, re.MULTILINE)]
    assert len(versions) == text.count("\n## ") - text.count("\n## Unreleased\n")
    assert versions == sorted(set(versions), reverse=True)


def test_the_program_tells_its_version(capsys):
    with pytest.raises(SystemExit) as exit_:
        parse(["-m", "sync", "--version"])
    assert exit_.value.code == EXIT_OK
    assert capsys.readouterr().out == f"ESync on MXNet {version_number()}\n"


def test_a_run_logs_the_version(tmp_path):
    RunFolder(parse(["-ld", str(tmp_path), "-c", "1"])).describe({})
    assert read_json(tmp_path / "cpu" / "run.json")["versions"]["esync"] == version_number()
