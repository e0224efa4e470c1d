"""The state server under its production server: the same answers, and nobody stalls the others."""

import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from cluster_processes import ROOT
from state_server_process import SERVER_FOLDER, clients, running_state_server

from trainer.clock import RealClock
from trainer.coordinator.queries import Queries

SERVE = ("serve",)


@pytest.fixture(scope="module")
def server():
    with running_state_server(command=SERVE) as running:
        yield running


def test_a_round_of_messages(server):
    fast, slow = (Queries(client, RealClock(), waits=True) for client in clients(server, 2))
    for queries in (fast, slow):
        queries.report(1, 0.0, 0.0, None)
    assert fast.ask(1, 1, 0.1, 0.0) is False
    assert slow.ask(1, 1, 5.0, 0.0) is True
    assert fast.ask(1, 2, 0.1, 0.0) is True


def test_a_round_of_the_published_protocol(server):
    def post(path, **fields):
        return requests.post(f"{server.url}{path}", data=fields, timeout=10)

    assert post("/init/", num_workers=1, epsilon=0.5).status_code == 200
    assert post("/apply/", r=0, k=0, c=0.1, te=1.0).json() == {"ready": 0}
    assert post("/apply/", r=0, k=1, c=0.1, te=1.0).json() == {"ready": 1}
    assert post("/reset/", r=0, t=2, te=1.0).status_code == 200
    assert requests.get(server.url, timeout=10).json()["t"] == 2
    refused = requests.get(f"{server.url}/init/", timeout=10)
    assert (refused.status_code, refused.headers["Allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("body", "status"), [(b"{", 400), (b'{"msg_type": "QUERY"}', 400), (b"x" * 100_000, 413), (b"\xff", 400)]
)
def test_bad_input_is_answered_in_json_without_a_trace(server, body, status):
    answer = requests.post(f"{server.url}/message/", data=body, timeout=10)
    assert answer.status_code == status
    assert "error" in answer.json()
    assert "Traceback" not in answer.text


def test_thirty_two_workers_at_once_get_their_own_answers(server):
    made = clients(server, 32)

    def work(client):
        return [client.query(1, steps, 0.1, 0.0) for steps in range(1, 21)]

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(work, made))
    assert all(len(worker) == 20 for worker in answers)


def test_clients_that_send_half_a_body_do_not_stall_the_others(server):
    half = b"POST /message/ HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    stalled = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    try:
        for connection in stalled:
            connection.sendall(half)
        (alone,) = clients(server, 1)
        assert alone.query(1, 1, 0.1, 0.0) is True
    finally:
        for connection in stalled:
            connection.close()


def test_half_a_form_is_no_form(server):
    (alone,) = clients(server, 1)
    head = b"POST /init/ HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + b"Content-Length: 99\r\n\r\nnum_workers=1")
    assert alone.query(1, 1, 0.1, 0.0) is True  # the job is still there
    assert requests.get(server.url, timeout=10).json()["job"] == alone._job


def test_a_token_is_asked_for():
    with running_state_server(command=SERVE, ESYNC_TOKEN="secret") as guarded:
        answer = requests.post(f"{guarded.url}/init/", data={"num_workers": 1}, timeout=10)
        assert answer.status_code == 401


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_and_quietly(number):
    with running_state_server(command=SERVE) as running:
        running.process.send_signal(number)
        assert running.process.wait(10) == 0
        assert len(running.log.read_text().splitlines()) == 1  # where it listened


def test_a_port_in_use_is_one_line(server):
    for command in (
        [sys.executable, "manage.py", "serve", f"127.0.0.1:{server.port}"],
        [sys.executable, "manage.py", "serve", "nowhere"],
    ):
        finished = subprocess.run(command, cwd=SERVER_FOLDER, capture_output=True, text=True, timeout=30, check=False)
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
