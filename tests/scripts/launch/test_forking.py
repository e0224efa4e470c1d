"""Processes that are forked from one that has imported MXNet: what their launcher sees of them."""

from __future__ import annotations

import contextlib
import gc
import os
import pkgutil
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_processes import DEADLINE_S, MODULES, ROOT, children, end_of, running, wait_for
from few_images import few_images, on_few_images
from round_records import read_rounds

from scripts.launch import fork_server
from scripts.launch.forking import FORK_SERVER_LOG, ForkServer
from scripts.launch.process import Kind, Process, Role
from scripts.launch.roles import base_environment
from trainer import version
from utils import EXIT_OK, EXIT_SETUP


def test_what_is_forked_is_the_program_that_was_imported_whatever_becomes_of_its_files(monkeypatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(pkgutil, "resolve_name", imported.append)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    version.files_hash.cache_clear()
    fork_server.warm("", "", MODULES)
    assert "trainer.worker" in imported
    before = version.files_hash()
    monkeypatch.setattr(version, "_PROGRAM", ("utils.py",))  # the files are others now
    assert version.files_hash() == before != version.files_hash.__wrapped__()


LOCAL = ("-m", "local", "-n", "mlp", "-c", "1", "-e", "100000", "-ld")


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A server that has imported all it needs."""
    folder = tmp_path_factory.mktemp("server")
    its = ForkServer(("mnist", str(few_images()), MODULES), folder / FORK_SERVER_LOG)
    with contextlib.closing(its) as server:
        assert is_fresh(server, folder)  # while it imports
        wait_for(lambda: not is_fresh(server, folder), "its import")
        yield server
    assert running(folder) == []


def program(folder: Path, *arguments: str, **environment: str) -> Role:
    return Role(
        name="worker 0",
        kind=Kind.WORKER,
        command=[sys.executable, str(ROOT / "main.py"), *arguments],
        environment=base_environment(os.environ) | environment,
        folder=ROOT,
        log=folder / "worker0.log",
    )


def forked() -> list[int]:
    """Processes with the name that only a forked one has."""
    return [pid for pid in children(os.getpid()) if Path(f"/proc/{pid}/comm").read_text() == "worker 0\n"]


def is_fresh(server: ForkServer, folder: Path, **environment: str) -> bool:
    """Whether a process is started afresh now."""
    process = server.start(program(folder, "--version", **environment))
    is_forked = bool(forked())
    assert end_of(process) == EXIT_OK
    return not is_forked


def test_a_forked_process_trains_as_one_that_was_started_afresh(forks, tmp_path):
    hashes = []
    for name, start in (("forked", forks.start), ("fresh", Process)):
        flags = (*LOCAL, str(tmp_path / name), "--max-rounds", "3", *on_few_images())
        process = start(program(tmp_path, *flags, OMP_NUM_THREADS="1"))
        assert (name == "forked") == bool(forked())
        assert end_of(process) == EXIT_OK, (tmp_path / "worker0.log").read_text()
        assert process.status == {"begun": True, "trained": True, "ended": "3 rounds done"}
        (run,) = (tmp_path / name).rglob("run.json")
        assert [record["num_iters"] for record in read_rounds(run.parent, pytest.fail)] == [1, 2, 3]
        hashes.append(re.search(r'"final_weights_sha256": "(\w+)"', run.read_text())[1])
    assert hashes[0] == hashes[1]


def test_where_workers_wait_for_the_import_the_first_is_forked_and_a_scheduler_waits_for_nobody(tmp_path):
    its = ForkServer(("mnist", str(few_images()), MODULES), tmp_path / FORK_SERVER_LOG, DEADLINE_S)
    with contextlib.closing(its) as server:
        assert is_fresh(server, tmp_path, DMLC_ROLE="scheduler")
        assert not is_fresh(server, tmp_path, DMLC_ROLE="worker")


def test_what_a_library_of_the_job_prints_at_its_import_is_no_answer(tmp_path, monkeypatch):
    (tmp_path / "noisy_library.py").write_text("import os\nprint('hello')\nos.write(1, b'{\\n')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    its = ForkServer(("", "", f"{MODULES},noisy_library"), tmp_path / FORK_SERVER_LOG, DEADLINE_S)
    with contextlib.closing(its) as server:
        assert not is_fresh(server, tmp_path)
    assert "hello\n" in (tmp_path / FORK_SERVER_LOG).read_text()


def test_its_exit_code_and_its_log_are_its_own(forks, tmp_path):
    process = forks.start(program(tmp_path, "-m", "local", "-b", "many"))
    assert forked()
    assert end_of(process) == EXIT_SETUP
    assert "argument -b/--batch-size" in (tmp_path / "worker0.log").read_text()


def test_it_has_the_variables_that_it_is_given_and_no_others(forks, tmp_path):
    process = forks.start(program(tmp_path, "-m", "sync", DMLC_ROLE="worker", DMLC_NUM_WORKER="no number"))
    assert end_of(process) == EXIT_SETUP
    assert "DMLC_" in (tmp_path / "worker0.log").read_text()
    process = forks.start(program(tmp_path, "-m", "sync"))
    assert end_of(process) == EXIT_SETUP
    assert process.status["error"].startswith("error: mode sync needs a cluster")


def test_signals_reach_it_and_its_death_is_seen(forks, tmp_path):
    process = forks.start(program(tmp_path, *LOCAL, str(tmp_path), "--min-step-time", "0.01", *on_few_images()))
    wait_for(lambda: "| round " in (tmp_path / "worker0.log").read_text(), "some rounds", 30)
    process.send(signal.SIGTERM)
    assert end_of(process) == EXIT_OK
    process = forks.start(program(tmp_path, *LOCAL, str(tmp_path), "--min-step-time", "9", *on_few_images()))
    process.send(signal.SIGKILL)
    assert end_of(process) == -signal.SIGKILL


def test_where_the_server_has_died_processes_are_started_afresh_and_those_that_run_live_on(forks, tmp_path):
    process = forks.start(program(tmp_path, *LOCAL, str(tmp_path), "--max-rounds", "3", *on_few_images()))
    assert forked()
    os.kill(forks._server.pid, signal.SIGKILL)
    assert end_of(process) == EXIT_OK
    assert is_fresh(forks, tmp_path)
    wait_for(lambda: not is_fresh(forks, tmp_path), "the import of another one")
