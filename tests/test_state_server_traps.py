"""Nobody stops the production server: whatever strangers send, or do not send, the workers are answered.

The attacks are those of benchmarks/traps.py, where a job trains beside them.
"""

import contextlib
import threading
import time

import pytest
import requests
from state_server_process import clients, running_state_server

from benchmarks import attacks, process_stat
from benchmarks.attacks import Target

SERVE = ("serve",)
SOON_S = 1.0  # generous for an answer that takes a millisecond: these machines are shared
DEADLINE_S = 15.0


@pytest.fixture(scope="module")
def server():
    process_stat.allow_many_files()
    with running_state_server(command=SERVE) as running:
        yield running


@contextlib.contextmanager
def under(attack, server, source=attacks.STRANGER):
    """Lets an attack go on beside the block; yields its target. Afterwards `outcome` has what the attack tells."""
    target = Target(server.port, source=source)
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
    longest = 0.0
    for _ in range(5):
        begin = time.monotonic()
        assert requests.get(f"{server.url}/healthz", timeout=DEADLINE_S).status_code == 200
        longest = max(longest, time.monotonic() - begin)
    begin = time.monotonic()
    (alone,) = clients(server, 1)
    assert alone.query(1, 1, 0.1, 0.0) is True
    longest = max(longest, time.monotonic() - begin)
    assert longest < SOON_S


@pytest.mark.parametrize(
    "attack",
    [
        attacks.half_bodies(1),  # one byte longer than is allowed
        attacks.half_bodies(1, length=100),
        attacks.half_bodies(300),
        attacks.half_bodies(300, length=100),
        attacks.half_heads(300),
        attacks.idle_connections(300),
    ],
    ids=["a half body", "a small half body", "300 half bodies", "300 small half bodies", "300 half heads", "300 idle"],
)
def test_connections_that_do_not_go_on_stop_nobody(server, attack):
    with under(attack, server) as target:
        assert target.in_place.wait(DEADLINE_S)
        assert_workers_are_answered(server)


def test_a_body_that_is_too_long_is_refused_before_it_has_come(server):
    before = process_stat.resident_mb(server.process.pid)
    with under(attacks.upload, server) as target:
        assert_workers_are_answered(server)
        give_up = time.monotonic() + DEADLINE_S
        while not target.outcome:
            assert time.monotonic() < give_up, "1 GB is still being taken"
            target.over.wait(0.01)
    taken_mb = float(target.outcome[0].split()[0])
    assert taken_mb < 50, target.outcome  # what buffers hold
    assert process_stat.resident_mb(server.process.pid) < before + 50


def test_thousands_of_names_of_which_one_is_double_cost_little(server):
    (alone,) = clients(server, 1)
    target = Target(server.port)
    begin = time.monotonic()
    told = attacks.double_names(5)(target)
    assert told.startswith("400 x5;")
    assert time.monotonic() - begin < 5 * 0.5
    assert alone.query(1, 1, 0.1, 0.0) is True


def test_a_running_job_outlives_random_requests(server):
    fast, slow = clients(server, 2)
    assert fast.query(1, 1, 0.1, 0.0) is False  # waits for the other one's step time
    told = attacks.random_requests(500, seed=7)(Target(server.port))
    assert "500 x" not in told  # the status, not the number of requests
    assert slow.query(1, 1, 5.0, 0.0) is True
    assert fast.query(1, 2, 0.1, 0.0) is True
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize(
    "attack",
    [attacks.other_jobs(100), attacks.empty_init, attacks.stray_resets, attacks.cross_site],
    ids=["100 other jobs", "an /init/", "stray /reset/s", "a page's POSTs"],
)
def test_a_running_job_outlives_what_others_send(server, attack):
    fast, slow = clients(server, 2)
    assert fast.query(1, 1, 0.1, 0.0) is False
    attack(Target(server.port))
    assert slow.query(1, 1, 5.0, 0.0) is True
    assert fast.query(1, 2, 0.1, 0.0) is True
    fast.report(2, 0.1, 0.0, None)


def test_a_page_elsewhere_is_refused(server):
    assert attacks.cross_site(Target(server.port)) == "/message/ 403 x2, /init/ 403 x2, /message/ 400 x1"
