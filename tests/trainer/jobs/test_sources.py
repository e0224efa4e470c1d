"""The files of a job file: what it imports from its folder, the hash of all, and what can never be imported."""

from __future__ import annotations

import pytest
from cluster_processes import ROOT

import simulate
from scripts.launch import job_options, local_cluster
from scripts.launch.roles import build
from trainer.command_line import parse
from trainer.jobs.sources import OWN_MODULES, content_hash, sources
from utils import SetupError


@pytest.fixture
def job(tmp_path):
    """Writes a job file, and more files by their paths; returns the former's path."""

    def write(content="", **others):
        for name, text in {"job.py": content, **others.get("beside", {})}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path / "job.py"

    return write


def complaint(path):
    """The line about a job file, without its folder."""
    with pytest.raises(SetupError) as error:
        sources(path)
    (line,) = str(error.value).splitlines()
    return line.replace(f"{path.parent}/", "")


def test_a_job_file_and_what_it_imports_from_its_folder_are_found_wherever_the_import_is(job):
    beside = {
        "helper.py": "def later():\n    from layers.deep import conv",
        "layers/__init__.py": "from . import deep",
        "layers/deep/conv.py": "import job, third",
        "layers/deep/broken.py": "no Python",
        "third.py": "",
        "plain/part.py": "",
        "not_imported.py": "",
        "layers.py": "behind the package of its name",
        "mxnet/setup.py": "print('a folder that gives way to the installed package')",
    }
    path = job(
        "import numpy, mxnet\ntry:\n    import helper as h, nowhere\nexcept ImportError:\n    import plain.part",
        beside=beside,
    )
    found = sources(path)
    assert [*found] == [
        *("helper.py", "job.py", "layers/__init__.py", "layers/deep/broken.py", "layers/deep/conv.py"),
        *("plain/part.py", "third.py"),
    ]
    assert found["layers/deep/conv.py"] == b"import job, third"


def test_the_hash_is_of_names_and_contents_wherever_the_folder_is(job, tmp_path):
    beside = {"helper.py": "x = 1", "other.py": "y = 1"}
    before = content_hash(str(job("import helper", beside=beside)))
    assert len(before) == 16 and content_hash("") == "none"
    (tmp_path / "other.py").write_text("y = 2")  # it is not imported
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("job.py", "helper.py"):
        (elsewhere / name).write_bytes((tmp_path / name).read_bytes())
    assert content_hash(str(tmp_path / "job.py")) == content_hash(str(elsewhere / "job.py")) == before
    (elsewhere / "helper.py").write_text("x = 2")
    assert content_hash(str(elsewhere / "job.py")) != before


@pytest.mark.parametrize(
    ("module", "owner"),
    [
        ("utils.py", "a module of this program"),
        ("models/__init__.py", "a module of this program"),
        ("scripts/tool.py", "a module of this program"),
        ("server.py", "a module of this program"),
        ("random.py", "a module of Python's standard library"),
        ("numpy/__init__.py", "an installed package"),
    ],
)
def test_a_module_that_would_not_be_found_in_the_folder_is_refused(module, owner, job):
    name = module.split("/")[0].removesuffix(".py")
    shown = name if "/" in module else module
    path = job("import helper", beside={"helper.py": f"from {name} import something", module: ""})
    assert complaint(path) == f"{shown} has the name of {owner}: rename it, and its import in helper.py"
    path.write_text("import math")  # the module is not imported
    assert [*sources(path)] == ["job.py"]


def test_a_job_file_in_the_programs_own_folder_imports_its_own_modules_alone(monkeypatch, job):
    path = job("import helper, config", beside={"helper.py": "", "config.py": ""})
    monkeypatch.setattr("trainer.jobs.sources.ROOT", path.parent)
    assert complaint(path).startswith("job.py imports config, a module of this program: put the job file and its own")
    path.write_text("import helper")
    assert [*sources(path)] == ["helper.py", "job.py"]


def test_the_programs_top_level_modules_are_known():
    folders = (ROOT, ROOT / "SimpleStateServer")
    files = {path.stem for folder in folders for path in folder.glob("*.py")}
    packages = {path.parent.name for folder in folders for path in folder.glob("*/__init__.py")}
    assert sorted(files | packages | {"SimpleStateServer", "scripts"}) == [*OWN_MODULES]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("x = 1\ny = = 2", "job.py, line 2: invalid syntax: y = = 2"),
        ("x = (3", "job.py, line 1: invalid syntax: '(' was never closed"),
        (b"\0\1binary", "job.py"),
        (b'x = "\xe4"', "job.py, line 1: invalid syntax: (unicode error) 'utf-8' codec can't decode byte 0xe4"),
        ("# coding: klingon", "job.py, line 1: invalid syntax: unknown encoding: klingon"),
        ("+".join("1" * 100_000), "job.py: invalid syntax: "),
        ("import helper", "helper.py, line 1: invalid syntax: unexpected indent"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_one_line(content, said, job):
    assert complaint(job(content, beside={"helper.py": "  x = 1"})).startswith(said)


@pytest.mark.parametrize("content", ["", b"\xef\xbb\xbfimport math", b'# coding: latin-1\nx = "\xe4"', 'x = "\\d"'])
def test_whatever_python_reads_is_read(content, job, recwarn):
    assert [*sources(job(content))] == ["job.py"]
    assert not recwarn.list


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    assert complaint(tmp_path / "job.py") == "job file job.py: No such file or directory"
    (tmp_path / "job.py").mkdir()
    assert complaint(tmp_path / "job.py") == "job file job.py: Is a directory"


@pytest.mark.parametrize(
    ("content", "is_ignored"),
    [
        ("def network(): pass", True),
        ("from helper import network", True),
        ("import helper\nnetwork, data = helper.network, helper.data", True),
        ("import helper as network", True),
        ("", False),
        ("network = None", False),
        ("def data(folder):\n    network = 1\nprint(network)", False),
        ("if len('a') > 1:\n    def network(): pass", False),  # perhaps
        ("def network(:", False),  # told elsewhere
    ],
)
def test_a_network_beside_that_of_the_file_is_one_line_of_every_program_and_the_launchers_workers_get_none(
    job, capsys, caplog, content, is_ignored
):
    path, told = str(job(content)), []
    line = "-n mlp does nothing: job.py has a network of its own, and its logs have the file's name"
    assert parse(["-m", "local", "-n", "mlp", "--job", path], told.append).network == "mlp"
    assert told == [line] * is_ignored
    assert parse(["-m", "local", "--job", path], pytest.fail)
    if "(:" in content:
        return
    job_options._once.cache_clear()
    for flags, shown in ((["-n", "mlp"], f"warning: {line}\n" * is_ignored), ([], "")):
        placed = local_cluster.place(local_cluster.parse(["-m", "sync", *flags, "--workers", "1,1", "--job", path]))
        assert capsys.readouterr().out == shown
        assert sum("-n" in role.command for role in build(*placed)) == (0 if is_ignored else 2)
    words = ["-m", "sync,local", "-n", "mlp", "--max-rounds", "1", "--log-base", path, "--job", path]
    simulate._warn.cache_clear()
    simulate.parse(words)
    assert [record.message for record in caplog.records] == [f"warning: {line}"] * is_ignored
