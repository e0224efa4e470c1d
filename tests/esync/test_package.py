"""What `pip install .` installs: the client, with the state server beside it, and nothing else."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cluster_processes import ROOT, free_ports, wait_for

from esync.clock import RealClock
from esync.http import HttpLink
from esync.protocol import PATIENT

SOURCES = ROOT / "esync"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    copied = folder / "project"
    copied.mkdir()
    for name in ("pyproject.toml", "VERSION", "LICENSE", "docs", "esync", "SimpleStateServer"):
        (copied / name).symlink_to(ROOT / name)
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, copied]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    """Its files."""
    return zipfile.ZipFile(wheel).namelist()


def test_the_wheel_has_one_name_of_its_own(names):
    """A user's modules may be named `server` or `config`."""
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"esync"}


def test_the_wheel_has_all_that_the_state_server_is(names):
    there = [path for path in (ROOT / "SimpleStateServer").rglob("*.*") if path.suffix != ".pyc"]
    assert {f"esync/{path.relative_to(ROOT)}" for path in there} <= {*names}
    assert {f"esync/{path.name}" for path in SOURCES.glob("*.py")} <= {*names}


def test_the_wheels_state_server_serves_beside_no_clone(wheel, tmp_path):
    """Its journals are in the folder in which it is started."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    port = free_ports(1)[0]
    server = subprocess.Popen(
        [sys.executable, "-m", "esync", "serve", f"127.0.0.1:{port}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        stderr=subprocess.STDOUT,
        stdout=(tmp_path / "out").open("w"),
    )
    try:
        wait_for(lambda: "state server at" in (tmp_path / "out").read_text(), "the state server")
        assert (link := HttpLink("127.0.0.1", str(port), RealClock())).is_published() is False
        join = {"msg_type": "JOIN", "sender": "a", "job": "ring", "num_workers": 1, "min_workers": 1}
        assert link.send({**join, "address": "10.0.0.1", "port": 9000}, PATIENT).said["action"] == "START"
        assert (tmp_path / "logs" / ".journal" / str(port) / "ring.json").exists()
    finally:
        server.terminate()
        server.wait(30)
    assert not [*(tmp_path / "site").rglob("logs")]


def test_the_package_imports_nothing_but_itself_and_what_it_names():
    allowed = {*sys.stdlib_module_names, "esync", "torch"}
    for path in SOURCES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= allowed, path


def test_the_package_is_imported_without_pytorch_and_without_this_projects_modules(tmp_path):
    (tmp_path / "esync").symlink_to(SOURCES)
    code = "import sys, esync; print(sorted({'torch', 'mxnet', 'numpy', 'utils', 'config', 'server'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_serve_says_what_is_missing(tmp_path):
    """In a Python without Django; the state server's own tests start it with."""
    (tmp_path / "esync").symlink_to(SOURCES)
    code = "import runpy, sys; sys.path.insert(0, '.'); sys.argv = ['', 'serve']; runpy.run_module('esync')"
    words = [sys.executable, "-I", "-S", "-c", code.replace("('esync')", "('esync', run_name='__main__')")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: the state server needs django, httptools, msgspec, prometheus_client, uvloop: install esync with its "
        "extra [server]: pip install '.[server]' in a clone\n"
    )
