"""The version stands in one file and is told wherever users look for it; the state server's: test_state_server.py."""

from __future__ import annotations

import logging
import os
import re
import subprocess
from pathlib import Path

import pytest

from algorithms import ALGORITHMS
from trainer import version
from trainer.command_line import parse
from trainer.run_logs.run_folder import RunFolder
from utils import EXIT_OK, read_json, version_number

ROOT = Path(__file__).resolve().parents[1]
ENTRY = r"^## (\d+\.\d+\.\d+) - \d{4}-\d\d-\d\d(?: \([0-9a-f]{7}\))?$"


def test_the_changelog_begins_with_the_version_and_each_is_newer_than_the_next():
    text = (ROOT / "CHANGELOG.md").read_text()
    found = re.findall(ENTRY, text, re.MULTILINE)
    assert found[0] == version_number()
    assert len(found) == text.count("\n## ") - text.count("\n## Unreleased\n")
    versions = [tuple(map(int, each.split("."))) for each in found]
    assert versions == sorted(set(versions), reverse=True)


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


def test_the_program_tells_its_version(capsys):
    with pytest.raises(SystemExit) as exit_:
        parse(["-m", "sync", "--version"])
    assert exit_.value.code == EXIT_OK
    assert capsys.readouterr().out == f"ESync on MXNet {version_number()}\n"


def test_a_run_logs_the_version(tmp_path):
    RunFolder(parse(["-ld", str(tmp_path), "-c", "1"])).describe({})
    assert read_json(tmp_path / "cpu" / "run.json")["versions"]["esync"] == version_number()


def test_the_hash_of_the_program_leaves_out_none_of_its_files():
    assert [each for each in version._PROGRAM if not any(version.ROOT.glob(each))] == []


@pytest.mark.parametrize("is_others", [False, True])
def test_a_run_knows_its_commit_also_in_another_users_checkout(tmp_path, monkeypatch, is_others):
    if is_others and os.getuid() != 0:
        pytest.skip("only root can give files away: run as root")
    made = "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m a && git rev-parse HEAD"
    head = subprocess.run(made, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()
    for path in [tmp_path, *tmp_path.rglob("*")] if is_others else []:
        os.chown(path, 65534, 65534)
    monkeypatch.setattr(version, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "of-the-caller"))
    assert version.commit.__wrapped__() == head


@pytest.mark.parametrize(("path", "why"), [(None, "not a git repository"), ("", "No such file or directory: 'git'")])
def test_a_commit_that_git_does_not_tell_is_a_line_in_the_log(tmp_path, monkeypatch, caplog, path, why):
    caplog.set_level(logging.INFO)
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(version, "ROOT", tmp_path)
    if path is not None:
        monkeypatch.setenv("PATH", path)
    assert version.commit.__wrapped__() is None
    (line,) = caplog.messages
    assert line.startswith("run.json will not have the commit: ") and why in line
