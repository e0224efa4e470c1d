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


def test_a_worker_cut_off_from_the_parameter_server_ends_the_job_though_both_reach_the_scheduler(
    net: Network, tmp_path: Path
) -> None:
    with job(net, tmp_path) as running:
        net.hosts[2].drop_from(net.hosts[1])
        codes = {role: process.wait(DEADLINE_S) for role, process in running.items()}
    assert codes == dict.fromkeys(ROLES, EXIT_PEER_LOST)
    why = "no connection for 8 s with server (host "
    for role in ROLES:
        (line,) = [line for line in (tmp_path / f"{role}.log").read_text().splitlines() if "error: " in line]
        assert f"error: {why}" in line if role == "worker" else "error: worker 0 (cpu on" in line and why in line


def test_a_host_whose_cable_is_out_is_named_by_the_others_and_its_own_process_ends_too(
    net: Network, tmp_path: Path
) -> None:
    with job(net, tmp_path) as running:
        net.hosts[2].unplug()
        codes = {role: process.wait(DEADLINE_S) for role, process in running.items()}
    assert codes == dict.fromkeys(ROLES, EXIT_PEER_LOST)
    for role in ROLES:
        (line,) = [line for line in (tmp_path / f"{role}.log").read_text().splitlines() if "error: " in line]
        name = f"the scheduler at {net.hosts[0].address}:9091" if role == "worker" else "worker 0 (cpu on"
        assert f"error: no sign of life from {name}" in line and "or its host or network is down" in line
