"""`--exchange mpi`: jobs that mpiexec starts. Skipped where mpi4py (requirements-mpi.txt) is not installed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_data
from cluster_processes import DEADLINE_S, begun, children, wait_for

import simulate
from trainer.collectives import mpi
from trainer.run_logs.rounds import iter_files
from utils import RUN_FILE, SetupError, read_json

MPIEXEC = Path(sys.executable).parent / "mpiexec"  # the wheel's
IS_THERE = importlib.util.find_spec("mpi4py") is not None and MPIEXEC.exists()
needs_mpi = pytest.mark.skipif(not IS_THERE, reason="no MPI: .venv/bin/pip install -r requirements-mpi.txt")
RANK_1 = b"OMPI_COMM_WORLD_RANK=1\0"
# As root it wants to be asked twice.
VARIABLES = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    """Three workers that train a small network on a few images."""
    tiny_data.write_mnist(folder / "data" / "mnist")
    command = [MPIEXEC, "--map-by", ":OVERSUBSCRIBE", "-n", "3", sys.executable, "main.py", "--exchange", "mpi"]
    known = ["-c", "1", "-n", "mlp", "--dataset", "mnist", "-dd", str(folder / "data"), "-ld", str(folder), "-b", "8"]
    return begun(*command, *known, *flags, **VARIABLES)


def descendants(parent: int) -> Iterator[int]:
    """Processes that a process has started, and those that these have."""
    for child in children(parent):
        yield child
        yield from descendants(child)


@needs_mpi
@pytest.mark.cluster
def test_mpi_sums_for_local_sgd(tmp_path: Path) -> None:
    output, _ = (job := start(tmp_path, "-m", "local-sgd", "--max-rounds", "4", "-e", "2")).communicate(
        timeout=DEADLINE_S
    )
    assert job.returncode == 0, output
    runs = [read_json(tmp_path / f"cpu{rank}" / RUN_FILE) for rank in range(3)]
    assert [(run["rank"], run["num_workers"], run["ended"]) for run in runs] == [
        (rank, 3, "4 rounds done") for rank in range(3)
    ]
    assert len({run["final_weights_sha256"] for run in runs}) == 1
    assert runs[0]["final_weights_sha256"] != runs[0]["initial_weights_sha256"]


@needs_mpi
@pytest.mark.cluster
def test_mpiexec_ends_the_others_when_one_is_killed(tmp_path: Path) -> None:
    job = start(tmp_path, "-m", "sync", "--min-step-time", "0.02", "-e", "1000")
    try:
        wait_for(lambda: (tmp_path / "cpu1").exists() and len(list(iter_files(tmp_path / "cpu1"))) > 2, "round 3")
        (victim,) = (pid for pid in descendants(job.pid) if RANK_1 in Path(f"/proc/{pid}/environ").read_bytes())
        os.kill(victim, signal.SIGKILL)
        output, _ = job.communicate(timeout=DEADLINE_S)
        assert job.returncode != 0, output
    finally:
        job.kill()
        job.communicate()


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is not None, reason="a test of what is said without MPI")
def test_without_mpi4py_a_line_says_how_to_get_it() -> None:
    with pytest.raises(SetupError, match=r"--exchange mpi needs mpi4py .* -m pip install -r requirements-mpi\.txt"):
        mpi.world()


def test_a_virtual_cluster_has_no_mpi(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        simulate.parse(["--cluster", "nine-ways", "-m", "sync", "--exchange", "mpi"])
    assert "--exchange means nothing to simulate.py: how MPI sums is its own matter" in capsys.readouterr().err
