"""The one table: it fits the flags, the trainers, the state server's policies and README, and a row can be added."""

from __future__ import annotations

import ast
import itertools
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from few_images import few_images
from server.policies import POLICIES

from algorithms import (
    DISTRIBUTED_FLAGS,
    ENTRIES,
    EVENTS,
    OWNERS,
    STATE_SERVER_FLAGS,
    SUM_FLAGS,
    TABLE,
    Algorithm,
    Workers,
    entry_name,
    folder_name,
    modes_of,
)
from config import FIELDS, MODES, Config, preset_flags
from scripts.launch import local_cluster
from trainer.command_line import parse

ROOT = Path(__file__).resolve().parents[1]
PROJECT = (
    *("algorithms.py", "config.py", "draw.py", "flag_values.py", "main.py", "rates.py", "summary.py", "utils.py"),
    *("README.md", "VERSION", "pyproject.toml", "models", "report", "scripts", "trainer", "tests", "SimpleStateServer"),
)
TIMEOUT_S = 180.0


def test_the_table_and_the_flags_need_the_standard_library_alone():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from trainer import command_line; command_line.parse(['-m', 'sync-switch'])"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, ROOT], check=False, capture_output=True, text=True)
    assert done.stderr == ""


def test_no_two_entries_share_a_name_or_a_file_and_events_have_one_look():
    entries = [entry for row in TABLE for entry in (row, *row.presets)]
    assert len({entry.name for entry in entries}) == len({entry.stem for entry in entries}) == len(entries)
    assert [kind for row in TABLE for kind in row.events if EVENTS[kind.name] != kind] == []


def test_the_flags_of_the_table_are_fields_of_the_configuration():
    named = {flag for row in TABLE for flag in row.all_flags}
    assert named | {*DISTRIBUTED_FLAGS, *STATE_SERVER_FLAGS, *SUM_FLAGS} <= set(FIELDS)


def test_a_flag_that_the_table_does_not_name_counts_in_every_mode():
    assert modes_of("batch_size") == MODES
    assert modes_of("staleness") == ("ssp",)
    assert modes_of("query_delay") == ("esync", "lb-bsp", "wbsp", "sync-switch")
    assert set(MODES) - set(modes_of("split_by_class")) == {"local"}
    assert not {"async", "ssp", "wbsp", "sync-switch", "local"} & set(modes_of("collective"))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_what_a_row_names_is_there(row):
    for dotted, signature in ((row.trainer, ["context"]), (row.check, ["config", "num_workers"])):
        if dotted:
            module, function = dotted.split(":")
            tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
            [found] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
            assert [argument.arg for argument in found.args.args] == signature


@pytest.mark.parametrize("row", [row for row in TABLE if row.has_state_server], ids=lambda row: row.name)
def test_every_rule_is_a_policy_of_the_state_server(row):
    assert set(rules(row)) <= set(POLICIES)


def rules(row: Algorithm) -> Iterator[str]:
    """All that a row's rule can be."""
    fields = [field for _, field, _, _ in string.Formatter().parse(row.rule) if field]
    for values in itertools.product(*(FIELDS[field].metadata["arguments"]["choices"] for field in fields)):
        yield Config(mode=row.name, **dict(zip(fields, values, strict=True))).rule


@pytest.mark.parametrize("name", ENTRIES)
def test_a_job_is_filed_under_the_name_that_it_was_started_by(name):
    mode = OWNERS[name].name
    config = parse(["-m", mode, *preset_flags(name)], pytest.fail)
    flags_say = name if ENTRIES[name].workers is Workers.ALL else mode
    assert entry_name(mode, vars(config)) == flags_say
    assert config.mode_folder == Path(config.network) / flags_say
    assert local_cluster.parse(["-m", name]).mode_folder == Path("lenet") / name


@pytest.mark.parametrize(
    ("who", "step_times_s", "places"),
    [
        (Workers.ALL, (0.4, 0.1), (0, 1)),
        (Workers.FASTEST, (0.3, 0.1, 0.2), (1,)),
        (Workers.FASTEST, (0.2, 0.1, 0.1), (1,)),
        (Workers.BUT_SLOWEST, (0.3, 0.4, 0.2), (0, 2)),
        (Workers.BUT_SLOWEST, (0.4, 0.1, 0.4), (0, 1)),
        (Workers.BUT_SLOWEST, (0.1,), ()),
    ],
)
def test_of_equally_fast_workers_the_first_is_the_fastest_and_the_last_the_slowest(who, step_times_s, places):
    assert who.among(step_times_s) == places


def test_a_job_on_classes_of_its_own_has_a_folder_of_its_own():
    assert folder_name("esync", False) == "esync"
    assert folder_name("wbsp-pcc", True) == "wbsp-pcc-niid"


# ------------------------------------------------------------------------------------------------------- README


README = (ROOT / "README.md").read_text()


def readme_table() -> list[list[str]]:
    """The cells of README's table of algorithms, row by row."""
    lines = iter(README.splitlines())
    next(line for line in lines if line.startswith("| algorithm |"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), itertools.islice(lines, 1, None))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def linked(papers: str) -> str:
    """The papers of an entry as README shows them: one with a number is a link to it."""
    sites = {"arXiv": "https://arxiv.org/abs", "doi": "https://doi.org"}
    parts = re.findall(r"(.*?)(?:, (arXiv|doi):(\S+?))?(?:; |$)", papers)
    return "; ".join(f"[{text}]({sites[site]}/{number})" if site else text for text, site, number in parts if text)


def test_readme_has_the_table():
    told: list[str] = []
    for title, paper, file, start in readme_table():
        names = list(dict.fromkeys(re.findall(r"-m ([a-z-]+)", start)))
        told += names
        entry, row = ENTRIES[names[0]], OWNERS[names[0]]
        assert title.lower().startswith(entry.title.lower())
        assert paper == linked(entry.paper)
        assert (ROOT / file.strip("`")).is_file()
        if entry is row:
            assert file == f"`{row.trainer.split(':')[0].replace('.', '/')}.py`"
    assert told == list(ENTRIES)


def test_readme_says_what_an_algorithm_needs():
    text = " ".join(README.split())

    def titles(rows: list[Algorithm]) -> str:
        first, *others = (row.title for row in rows)
        return " and ".join([", ".join([first, *others[:-1]]), *others[-1:]])

    assert f"The state server decides for {titles([row for row in TABLE if row.needs_state_server])}, " in text
    assert f"and shows {titles([row for row in TABLE if row.page_only])} on its page." in text
    assert f". {titles([row for row in TABLE if row.one_server])} take exactly one parameter server;" in text
    alone = titles([row for row in TABLE if not row.is_distributed])
    assert f"; {alone.lower()} SGD takes no other process." in text


COMMANDS = [command for *_, start in readme_table() for command in re.findall(r"`(-m [^`]*)`", start)]


def test_readme_has_a_command_for_every_entry():
    assert [command.split()[1] for command in COMMANDS] == list(ENTRIES)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_readmes_table_are_jobs_of_their_mode(command):
    assert local_cluster.parse(shlex.split(command)).mode == command.split()[1]


# --------------------------------------------------------------------------------------- an eleventh algorithm


def example() -> dict[str, str]:
    """The worked example of CONTRIBUTING.md: what goes into which file."""
    blocks = re.findall(r"^```\w+ (\S+)\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)
    return dict(blocks)


def add_algorithm(project: Path) -> None:
    """Does what CONTRIBUTING.md says: one file, one row, one line of README."""
    before = {"algorithms.py": '    Algorithm(\n        name="local",', "README.md": "| standalone SGD |"}
    for name, text in example().items():
        path = project / name
        if name in before:
            assert path.read_text().count(before[name]) == 1
            text = path.read_text().replace(before[name], text + before[name])
        else:
            assert not path.exists()
        path.write_text(text)


@pytest.fixture(scope="module")
def project_with_eleven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("project")
    for name in PROJECT:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, project / name)
    add_algorithm(project)
    return project


def run(project: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *command], cwd=project, env=environment, timeout=TIMEOUT_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_an_eleventh_algorithm_takes_one_file_one_row_and_one_line_of_readme():
    assert list(example()) == ["trainer/algorithms/sign_sgd.py", "algorithms.py", "README.md"]
    assert example()["README.md"].count("\n") == 1


@pytest.mark.cluster
def test_an_eleventh_algorithm_trains_and_is_summed_up_and_drawn(project_with_eleven, tmp_path):
    job = ["--workers", "0,0", "--log-base", str(tmp_path), "--data-dir", str(few_images())]
    limits = ["--dataset", "mnist", "--max-rounds", "40", "-e", "40", "-b", "32", "-l", "0.0003"]
    said = run(
        project_with_eleven, "-m", "scripts.launch.local_cluster", "-m", "sign-sgd", "-n", "lenet", *job, "--", *limits
    )
    assert float(re.findall(r"round 40,.*accuracy ([\d.]+)", said)[0]) > 0.3  # ten classes: it has learnt
    tree = ["-b", str(tmp_path), "-n", "lenet"]
    assert "SignSGD.json: 2 device(s)" in run(project_with_eleven, "summary.py", *tree)
    assert "SignSGD " in run(project_with_eleven, "draw.py", *tree)
    assert (tmp_path / "lenet" / "figures" / "accuracy-iid.png").exists()


def test_an_eleventh_algorithm_takes_no_flag_of_another(project_with_eleven):
    code = "from trainer import command_line; command_line.parse(['-m', 'sign-sgd', '--staleness', '5'])"
    with pytest.raises(AssertionError, match="--staleness 5 belongs to mode ssp, not to sign-sgd: leave it out"):
        run(project_with_eleven, "-c", code)


def test_an_eleventh_algorithm_passes_what_holds_the_others(project_with_eleven):
    held = ["tests/test_algorithms.py", "tests/report/test_metrics.py", "tests/test_config.py"]
    assert " passed" in run(project_with_eleven, "-m", "pytest", "-k", "not eleventh", "-p", "no:cacheprovider", *held)
