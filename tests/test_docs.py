"""What is told in README, docs/ and CONTRIBUTING is there: links, files, flags, and commands that the programs take."""

from __future__ import annotations

import argparse
import functools
import importlib
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

import simulate
from experiments.reproduction import reproduce
from experiments.study import study
from experiments.switch_point import find_switch_point
from flag_parser import FlagParser
from scripts import advise, demo, flags, sweep, why
from scripts.launch import cluster, local_cluster, mpi, slurm
from trainer import command_line
from trainer.simulation import cluster_file

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ROOT / "scripts" / "clusters" / "README.md",
    ROOT / "experiments" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "results").rglob("README.md")),
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
EXAMPLE = re.findall(r"^```\w+ (\S+)$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)  # files that it makes
USERS = ("my_job.py", "mine.py")  # job files of the reader
THEIRS = ("runcifar10gpu.py",)  # of other programs
HISTORY = ("CHANGELOG.md",)  # tells of files that are gone
FOLDERS = (
    *("esync", "examples", "experiments", "docs", "models"),
    *("report", "scripts", "SimpleStateServer", "tests", "trainer"),
)
GONE = r"git show (\w+):([\w./-]+)"  # a file that was measured with, in the last commit that has it
FILE = r"(?<![\w/.{}*-])[\w-]+(?:[/.][\w-]+)*\.(?:py|sh|toml|yaml|svg|in)\b"


def anchors(page: Path) -> set[str]:
    """What a link to a heading of the page can be, as GitHub makes it."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_leads_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in HISTORY], ids=lambda page: page.stem)
def test_every_file_of_the_project_that_is_named_exists(page):
    names = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*")}
    for word in {*re.findall(FILE, re.sub(GONE, "", page.read_text()))} - {*EXAMPLE, *USERS, *THEIRS}:
        assert (ROOT / word).exists() or (page.parent / word).exists() or word in names, word


def test_every_file_that_is_gone_is_in_the_commit_that_the_page_names():
    if subprocess.run(["git", "cat-file", "-e", "HEAD~50"], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("no history of the repository: git fetch --unshallow")
    gone = {":".join(found) for page in PAGES for found in re.findall(GONE, page.read_text())}
    assert gone
    for name in sorted(gone):
        assert subprocess.run(["git", "cat-file", "-e", name], cwd=ROOT, check=False).returncode == 0, name


def test_every_page_can_be_reached_from_readme():
    linked = set(re.findall(r"\((docs/[\w-]+\.md)\)", (ROOT / "README.md").read_text()))
    assert linked == {str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")}


def test_the_table_of_flags_is_up_to_date():
    assert flags.PAGE.read_text() == flags.updated(flags.PAGE.read_text()), "run .venv/bin/python -m scripts.flags"


# ---------------------------------------------------------------------------------------------------- commands


# The shell reads the pages: it knows quotes, variables, loops and `;`. Programs only write what they are called with.
SCRIPTS = [f"scripts/{path.name}" for path in (ROOT / "scripts").glob("*.sh")]
CALLED = (*SCRIPTS, ".venv/bin/python", "../.venv/bin/python", "docker")
PRELUDE = """
PATH=
exec 3>calls
called() { printf -v words '%s\\037' "$@"; printf '%s\\036' "$words" >&3; }
for name in cd exec exit kill trap; do eval "$name() { :; }"; done
function nohup { "$@"; }
function id { echo 1000; }
function .venv/bin/mpiexec { shift 2; "$@"; }
"""
IN_IMAGE = {"worker": "scripts/worker.sh", "scheduler": "scripts/scheduler.sh", "server": "scripts/server.sh"}
IN_IMAGE |= {"state-server": "scripts/state_server.sh"}


def calls_of(page: Path, folder: Path) -> Iterator[list[str]]:
    """The words of each call of a program in the page's blocks of code that are indented."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    blocks = [dedent(block) for block in re.findall(r"(?:^    .+\n)+", text, re.MULTILINE)]
    script = [PRELUDE, *(f'function {name} {{ called {name} "$@"; }}' for name in CALLED)]
    for block in blocks:  # one that holds output too may be no program as a whole
        lines = block.replace("\\\n", " ").splitlines()
        script += [f"eval {shlex.quote(block)} || {{", *(f"eval {shlex.quote(line)}" for line in lines), ":; }"]
    command = ["bash", "-c", "\n".join([*script, "wait"]), page.name]
    subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
    for call in (folder / "calls").read_text().split("\036")[:-1]:
        yield call.split("\037")[:-1]


def named(call: list[str]) -> tuple[str, list[str]]:
    """The program of a call as the tests below name it, and its arguments."""
    program, *rest = call
    if program == "docker":
        behind = rest[rest.index("esync") + 1 :] if "run" in rest else []
        if behind and behind[0] in IN_IMAGE:
            return IN_IMAGE[behind[0]], behind[1:]
        return (".venv/bin/python main.py", behind) if behind else ("docker", rest)
    if program in SCRIPTS:
        return program, rest
    size = 2 if rest[0] == "-m" else 1
    return " ".join([".venv/bin/python", *rest[:size]]), rest[size:]


@functools.cache
def commands() -> dict[str, list[str]]:
    """The arguments of all calls, by program."""
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "logs").mkdir()
        for page in PAGES:
            for call in calls_of(page, Path(folder)):
                program, arguments = named(call)
                found.setdefault(program, []).append(shlex.join(arguments))
    return found


def known(program: str) -> list[str]:
    # Without those of the algorithm that CONTRIBUTING adds.
    found = [each for each in sorted({*commands()[program]}) if not re.search(r"sign-sgd|easgd", each)]
    assert found, program
    return found


def words(command: str) -> list[str]:
    return [str(ROOT / "examples" / "table.py") if Path(word).name in USERS else word for word in shlex.split(command)]


def asks_for_advice(given: list[str]) -> object:
    its, flags_of_job = advise.parse(given)
    job = dict.fromkeys(("job", "hosts")) | {"cluster": its.cluster and "demo"}
    its = argparse.Namespace(**{**vars(its), **job})
    return advise.Advised(its, "demo", flags_of_job).job("esync").config


def parameters_of_slurm(given: list[str]) -> tuple[str, ...]:
    return slurm.job_of(slurm.parse(given)).worker_arguments


# What takes the words of a program's commands.
PARSERS: dict[str, Callable[[list[str]], object]] = {
    ".venv/bin/python simulate.py": lambda given: simulate.parse(given)[1],
    "scripts/local_cluster.sh": local_cluster.parse,
    ".venv/bin/python main.py": lambda given: command_line.parse(given, pytest.fail),
    "scripts/worker.sh": lambda given: command_line.parse(given, pytest.fail),
    "scripts/mpi.sh": lambda given: mpi.parse(given, {}),
    "scripts/find_switch_point.sh": lambda given: find_switch_point.parse(given)[0].total_steps > 0,
    "scripts/demo.sh": demo.parse,
    "scripts/reproduce.sh": lambda given: reproduce.parse(given).parts,
    ".venv/bin/python experiments/study/study.py": lambda given: study.parse(given)[1].rows,
    "scripts/why.sh": lambda given: why.parse(given).network == "lenet",
    "scripts/sweep.sh": lambda given: sweep.tasks_of(*sweep.parse(given)),
    "scripts/advise.sh": asks_for_advice,
}


@pytest.mark.parametrize(
    ("program", "command"), [(program, command) for program in PARSERS for command in known(program)]
)
def test_a_command_is_one_that_its_program_takes(program, command):
    assert PARSERS[program](words(command))


@pytest.mark.parametrize("command", known("scripts/cluster.sh"))
def test_a_command_for_several_hosts_is_one_with_the_hosts_file_above_it(command, tmp_path, monkeypatch):
    lines = re.findall(r"^    (address,.*\n)((?:    .+\n)+)", (ROOT / "docs" / "hosts.md").read_text(), re.MULTILINE)
    (tmp_path / "hosts.csv").write_text("".join(dedent(part) for part in lines[0]))
    monkeypatch.chdir(tmp_path)
    assert cluster.parse(words(command))


@pytest.mark.parametrize("command", known("scripts/slurm.sh"))
def test_a_command_for_slurm_is_one_whose_batch_script_runs_that_job(command, capsys):
    assert slurm.main(["--dry-run", *words(command)]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert parameters_of_slurm(shlex.split(last)[2:]) == parameters_of_slurm(words(command))


PROGRAMS = {
    **{name: name.split()[1][:-3].replace("/", ".") for name in commands() if " experiments/" in name},
    **{name: name.split()[2] for name in commands() if " -m experiments." in name},
    ".venv/bin/python draw.py": "draw",
    ".venv/bin/python summary.py": "summary",
    "scripts/fault_drill.sh": "experiments.fault_drill.fault_drill",
    "scripts/saved_model.sh": "scripts.saved_model",
}


class Parsed(Exception):
    """The flags are such as the program takes."""


@pytest.mark.parametrize(
    ("module", "command"), [(module, command) for program, module in PROGRAMS.items() for command in known(program)]
)
def test_a_command_of_another_program_has_flags_that_it_takes(module, command, monkeypatch):
    def parse_args(parser, arguments=None, namespace=None):
        parser.exit = parser.error = pytest.fail
        parse(parser, arguments, namespace)
        raise Parsed

    parse = FlagParser.parse_args
    monkeypatch.setattr(FlagParser, "parse_args", parse_args)
    with pytest.raises(Parsed):
        importlib.import_module(module).main(words(command))


WITHOUT = ("get_data", "scheduler", "server", "setup", "state_server", "test")  # arguments
OF_HUB = ("-m wbsp", "-m sync --exchange hub", "-m async --exchange hub")
# Not of this project.
OTHERS = {"docker", *(f".venv/bin/python {name}" for name in ("-m pip", "-m pytest", "manage.py"))}


def test_every_program_of_the_pages_is_asked_above_and_scripts_without_arguments_get_none():
    scripts = {f"scripts/{name}.sh" for name in ("cluster", "slurm", *WITHOUT)}
    assert commands().keys() <= {*PARSERS, *PROGRAMS, *OTHERS, *scripts, ".venv/bin/python -m scripts.flags"}
    for name in WITHOUT:
        assert {"--test", "--torch", *OF_HUB} >= {*commands().get(f"scripts/{name}.sh", [])} - {""}, name


def test_the_shell_finds_loops_variables_and_what_other_programs_start():
    assert any("--exchange mpi" in each for each in commands()[".venv/bin/python main.py"])
    assert sum("wbsp-h3" in each for each in commands()["scripts/local_cluster.sh"]) == 2  # in a loop
    assert any("cpu2" in each for each in commands()["scripts/worker.sh"])  # in a container
    assert not any("$" in each for found in commands().values() for each in found)


def test_every_ready_made_cluster_that_is_named_exists():
    named = {name for page in PAGES for name in re.findall(r"--cluster ([\w-]+)(?![\w./])", page.read_text())}
    for name in named - {"FILE", "NAME"}:
        cluster_file.read(cluster_file.find(name))
