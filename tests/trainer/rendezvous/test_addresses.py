"""Hosts and cards of a job, of both families."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest
from cluster_processes import ROOT, free_ports, needs_ipv6

from trainer.rendezvous import addresses
from utils import EXIT_SETUP, SetupError


@pytest.mark.parametrize("host", ["::1", "[::1]", "fe80::1%lo", "::ffff:127.0.0.1"])
def test_mxnet_gets_no_ipv6_address(host):
    with pytest.raises(SetupError, match=r"^DMLC_NODE_HOST='.*' is IPv6, .* IPv4 alone: give .*--exchange ring"):
        addresses.check_ipv4("DMLC_NODE_HOST", host)


@pytest.mark.parametrize("host", [".a", "a" * 70, "no-such-host.invalid", "[10.0.0.1]"])
def test_a_name_that_no_host_has_is_one_line(host):
    with pytest.raises(SetupError, match="cannot be resolved"):
        addresses.check_ipv4("DMLC_PS_ROOT_URI", host)
    with pytest.raises(SetupError, match="there is no route to"):
        addresses.address_towards(host, 1)
    with pytest.raises(SetupError):
        addresses.listen(host, None, "choose another")


@needs_ipv6
def test_the_way_to_a_host_has_an_address_of_the_same_family_and_ipv4_where_both_lead_there():
    assert [addresses.address_towards(host, 1) for host in ("::1", "127.0.0.1", "localhost")] == [
        "::1", "127.0.0.1", "127.0.0.1",
    ]  # fmt: skip
    assert addresses.own_address("fd00::9", {"DMLC_INTERFACE": "lo"}) == "::1"
    assert addresses.own_address("10.0.0.9", {"DMLC_INTERFACE": "lo"}) == "127.0.0.1"
    with addresses.listen("::1", None, "") as listener:
        port = listener.getsockname()[1]
        socket.create_connection(("::1", port), 1).close()
        with pytest.raises(SetupError, match=f"port {port} is in use at ::1"):
            addresses.listen("::1", port, "choose another")


@pytest.mark.cluster
def test_every_process_of_a_job_with_an_ipv6_scheduler_ends_soon_and_says_what_to_do(tmp_path):
    job = {"DMLC_PS_ROOT_URI": "::1", "DMLC_PS_ROOT_PORT": str(free_ports(1)[0]), "OMP_NUM_THREADS": "1"}
    job |= {"DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": "1"}
    flags = {"worker": ["-m", "sync", "-n", "mlp", "-c", "1", "-ld", str(tmp_path), "-dd", str(tmp_path)]}
    begin = time.monotonic()
    processes = [
        subprocess.Popen(
            [sys.executable, "main.py", *flags.get(role, [])],
            cwd=ROOT,
            env=os.environ | job | {"DMLC_ROLE": role},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for role in ("scheduler", "server", "worker")
    ]
    for process in processes:
        _, said = process.communicate(timeout=60)
        assert process.returncode == EXIT_SETUP
        (line,) = said.splitlines()
        assert "DMLC_PS_ROOT_URI='::1' is IPv6" in line and "give an IPv4 address" in line
    assert time.monotonic() - begin < 15


def test_a_port_that_is_none_is_named():
    with pytest.raises(SetupError, match=r"^PORT='65536' is not a port: give a number from 1 to 65535, or unset it"):
        addresses.chosen_port({"PORT": "65536"})


def test_a_chosen_port_is_kept_for_who_is_told_it():
    (port,) = free_ports(1)
    with socket.socket() as chooser, pytest.raises(OSError, match="in use"):
        chooser.bind(("127.0.0.1", port))  # as another process that chooses one does
    for _ in range(2):  # also after the one before has ended
        with addresses.listen("127.0.0.1", port, ""), socket.create_connection(("127.0.0.1", port)):
            pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
