"""A job on MXNet's kvstore whose processes are on three hosts, and a link between two of them that is cut."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_processes import DEADLINE_S, ROOT, wait_for
from few_images import on_few_images
from namespaces import Network, network

from utils import EXIT_PEER_LOST

pytestmark = pytest.mark.cluster
ROLES = ("scheduler", "server", "worker")  # each on a host of its own


@pytest.fixture
def net(tmp_path: Path, namespaces_can_be_made: None) -> Iterator[Network]:
    with network(tmp_path / "hosts", len(ROLES)) as made:
        yield made


@contextlib.contextmanager
def job(net: Network, folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Its processes by role; the worker trains until it is ended."""
    environment = os.environ | {
        "DMLC_PS_ROOT_URI": net.hosts[0].address, "DMLC_PS_ROOT_PORT": "9091", "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    flags = ["-m", "sync", "-c", "1", "-n", "mlp", "-ld", str(folder / "logs"), "--min-step-time", "0.05"]
    with contextlib.ExitStack() as stack:
        running = {}
        for host, role in zip(net.hosts, ROLES, strict=True):
            words = [*flags, *on_few_images()] if role == "worker" else []
            output = stack.enter_context((folder / f"{role}.log").open("wb"))
            running[role] = subprocess.Popen(
                host.command(sys.executable, ROOT / "main.py", *words),
                cwd=ROOT, env=environment | {"DMLC_ROLE": role}, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            stack.callback(running[role].wait)
            stack.callback(running[role].kill)
        wait_for((folder / "logs" / "cpu" / "iter-3.txt").exists, "round 3")
        yield running


@pytest.mark.parametrize("is_unplugged", [False, True], ids=["from the parameter server alone", "from all"])
def test_a_worker_that_is_cut_off_ends_the_job_and_is_named(net: Network, tmp_path: Path, is_unplugged: bool) -> None:
    with job(net, tmp_path) as running:
        net.hosts[2].unplug() if is_unplugged else net.hosts[2].drop_from(net.hosts[1])
        codes = {role: process.wait(DEADLINE_S) for role, process in running.items()}
    assert codes == dict.fromkeys(ROLES, EXIT_PEER_LOST)
    for role in ROLES:
        (line,) = [line for line in (tmp_path / f"{role}.log").read_text().splitlines() if "error: " in line]
        name = f"the scheduler at {net.hosts[0].address}:9091" if is_unplugged and role == "worker" else "worker 0 (cpu"
        if is_unplugged:
            words = [f"no sign of life from {name}", "or its host or network is down"]
        else:  # both reach the scheduler
            words = [*([] if role == "worker" else [name]), "no connection for 8 s with server (host "]
        assert f"error: {words[0]}" in line and words[-1] in line
