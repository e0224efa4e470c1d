"""The production server answers its workers, whatever other clients send or leave unsent."""

import contextlib
import select
import socket
import threading
import time

import attacks
import pytest
import requests
from attacks import Target
from state_server_process import clients, query, report, running_state_server

from experiments.fault_drill.drilled_job import kib
from utils import allow_open_files

SERVE = ("serve",)
SOON_S = 5.0  # generous for an answer that takes a millisecond: these machines are shared
DEADLINE_S = 15.0


@pytest.fixture(scope="module")
def server():
    allow_open_files(2000)  # of the attackers
    with running_state_server(command=SERVE) as running:
        yield running


@contextlib.contextmanager
def under(attack, server):
    """Lets an attack go on beside the block; yields its target. Afterwards `outcome` has what the attack tells."""
    target = Target(server.port)
    target.outcome = []
    attacker = threading.Thread(target=lambda: target.outcome.append(attack(target)))
    attacker.start()
    try:
        yield target
    finally:
        target.over.set()
        attacker.join(DEADLINE_S)
    assert target.outcome, "the attack did not end"


def assert_workers_are_answered(server):
    """A new worker begins a job, asks and is answered; all of it soon, on new connections too."""
    for _ in range(5):
        begin = time.monotonic()
        assert requests.get(f"{server.url}/healthz", timeout=DEADLINE_S).status_code == 200
        assert time.monotonic() - begin < SOON_S
    begin = time.monotonic()
    assert_job_goes_on(clients(server, 1))
    assert time.monotonic() - begin < SOON_S


def assert_job_goes_on(its_clients):
    """A fast worker goes on once the slow ones have told their step times."""
    fast, *slow = its_clients
    assert all(query(client, 1, 1, 5.0, 0.0) for client in slow)
    assert query(fast, 1, 1 + len(slow), 0.1, 0.0) is True


@pytest.mark.parametrize(
    "attack",
    [
        attacks.half_bodies(1),  # one byte longer than is allowed
        attacks.half_bodies(1, length=100),
        attacks.half_bodies(300),
        attacks.half_bodies(300, length=100),
        attacks.crowd(300, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "),
        attacks.crowd(300, b""),
    ],
    ids=["a half body", "a small half body", "300 half bodies", "300 small half bodies", "300 half heads", "300 idle"],
)
def test_connections_that_do_not_go_on_stop_nobody(server, attack):
    with under(attack, server) as target:
        assert target.in_place.wait(DEADLINE_S)
        assert_workers_are_answered(server)


@pytest.fixture(scope="module")
def hasty_server():
    """With bounds that a test can reach."""
    hasty = (*SERVE, "--request-timeout", "0.2", "--max-connections-per-address", "5")
    with running_state_server(command=hasty) as running:
        yield running


@pytest.mark.parametrize("beginning", [b"", b"POST /message/ HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n"])
def test_a_request_that_comes_a_byte_at_a_time_is_given_up(hasty_server, beginning):
    with requests.Session() as idle:
        assert idle.get(f"{hasty_server.url}/healthz", timeout=DEADLINE_S).status_code == 200
        begin = time.monotonic()
        with Target(hasty_server.port).connect() as connection, contextlib.suppress(ConnectionResetError):
            connection.sendall(beginning or b"GET /")
            while not select.select([connection], [], [], 0.02)[0]:
                assert time.monotonic() - begin < DEADLINE_S
                connection.sendall(b"x")
        assert time.monotonic() - begin < 9  # the default time-out is 10 s
        assert idle.get(f"{hasty_server.url}/healthz", timeout=DEADLINE_S).status_code == 200


def test_of_too_many_connections_the_one_that_was_silent_for_longest_goes(hasty_server):
    with contextlib.ExitStack() as stack:
        first, *others = (stack.enter_context(Target(hasty_server.port).connect()) for _ in range(5))
        request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        for speaks in (first, *others, first):  # so all are there, and the second one was silent for longest
            speaks.sendall(request)
            assert speaks.recv(4096).startswith(b"HTTP/1.1 200 ")
        sixth = stack.enter_context(Target(hasty_server.port).connect())
        assert others[0].recv(4096) == b""
        for alive in (first, *others[1:], sixth):
            alive.sendall(request)
            assert alive.recv(4096).startswith(b"HTTP/1.1 200 ")
        elsewhere = stack.enter_context(Target(hasty_server.port, source="127.0.0.3").connect())
        elsewhere.sendall(request)
        assert elsewhere.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_is_too_long_is_refused_before_it_has_come(server):
    before = kib(server.process.pid)
    with under(attacks.upload, server) as target:
        assert_workers_are_answered(server)
        give_up = time.monotonic() + DEADLINE_S
        while not target.outcome:
            assert time.monotonic() < give_up, "1 GB is still being taken"
            target.over.wait(0.01)
    assert target.outcome[0][0] < 50e6  # what buffers hold
    assert kib(server.process.pid) < before + 50_000


def test_thousands_of_names_of_which_one_is_double_cost_little(server):
    (alone,) = clients(server, 1)
    target = Target(server.port)
    begin = time.monotonic()
    assert [attacks.double_names(target) for _ in range(5)] == [400] * 5
    assert time.monotonic() - begin < 5 * 1.5
    assert query(alone, 1, 1, 0.1, 0.0) is True


def said_to(server, pieces):
    """Sends pieces of requests; returns all that is answered."""
    said = b""
    with Target(server.port).connect() as connection:
        for piece in pieces:
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # what came after a refusal was not read
            while some := connection.recv(65536):
                said += some
    return said


def test_a_head_is_bounded_and_a_body_beside_it_does_not_count(server):
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
    long = b"X-Long: " + b"y" * 20_000
    many = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 300) for number in range(60))
    target = b"GET /" + b"y" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    for request in (head + long + b"\r\n\r\n", head + many + b"\r\n", head + long * 20, target):
        assert said_to(server, [request]).startswith(b"HTTP/1.1 431 ")
        pieces = [request[at : at + 1000] for at in range(0, len(request), 1000)]
        assert said_to(server, pieces).startswith(b"HTTP/1.1 431 ")
    body = b"POST /message/ HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n" + b"{" * 60_000
    answers = said_to(server, [(body + head + b"\r\n") * 3])
    assert (answers.count(b"HTTP/1.1 400 "), answers.count(b"HTTP/1.1 200 ")) == (3, 3)


@pytest.mark.parametrize(
    ("attack", "told"),
    [
        (attacks.other_jobs(100), None),
        (attacks.empty_init, None),
        (attacks.stray_resets, None),
        (attacks.cross_site, [403, 403, 403, 403, 400]),
        (attacks.random_requests(500, seed=7), None),
    ],
    ids=["100 other jobs", "an /init/", "stray /reset/s", "a page's POSTs", "random requests"],
)
def test_a_running_job_outlives_what_others_send(server, attack, told):
    fast, slow = clients(server, 2)
    assert query(fast, 1, 1, 0.1, 0.0) is False  # waits for the other one's step time
    statuses = attack(Target(server.port))
    assert told in (None, statuses) and not {500, b"500"} & {*statuses}
    assert_job_goes_on((fast, slow))
    report(fast, 2, 0.1, 0.0)
    assert "Traceback" not in server.log.read_text()
