"""The state server in its one loop, with a worker's own client; how it starts and ends."""

import signal
import socket
import subprocess
import sys

import pytest
import requests
from cluster_processes import ROOT
from state_server_process import SERVER_FOLDER, clients, query, running_state_server

from trainer.clock import RealClock
from trainer.coordinator.queries import Queries

SERVE = ("serve",)


def test_a_round_of_messages(state_server):
    fast, slow = (Queries(client, RealClock(), waits=True) for client in clients(state_server, 2))
    for queries in (fast, slow):
        queries.report(1, 0.0, 0.0)
    assert fast.ask(1, 1, 0.1, 0.0) is False
    assert slow.ask(1, 1, 5.0, 0.0) is True
    assert fast.ask(1, 2, 0.1, 0.0) is True


def test_half_a_form_is_no_form(state_server):
    (alone,) = clients(state_server, 1)
    head = b"POST /init/ HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    with socket.create_connection(("127.0.0.1", state_server.port)) as connection:
        connection.sendall(head + b"Content-Length: 99\r\n\r\nnum_workers=1")
    assert query(alone, 1, 1, 0.1, 0.0) is True  # the job is still there
    assert requests.get(state_server.url, timeout=10).json()["job"] == alone.job


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_and_quietly(number):
    with running_state_server(command=SERVE) as running:
        running.process.send_signal(number)
        assert running.process.wait(10) == 0
        assert len(running.log.read_text().splitlines()) == 1  # where it listened


def test_a_port_in_use_is_one_line(state_server):
    command = [sys.executable, "manage.py", "serve", f"127.0.0.1:{state_server.port}"]
    finished = subprocess.run(command, cwd=SERVER_FOLDER, capture_output=True, text=True, timeout=30)
    assert finished.returncode == 2
    (line,) = finished.stderr.strip().splitlines()
    assert line.startswith("error: ")


def test_the_launch_script_starts_it(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finished = subprocess.run(
            [str(ROOT / "scripts" / "state_server.sh")],
            env={"PATH": "/usr/bin:/bin", "VENV": sys.prefix, "STATE_SERVER_PORT": str(taken.getsockname()[1])},
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert finished.returncode == 2
    assert "STATE_SERVER_PORT" in finished.stderr
