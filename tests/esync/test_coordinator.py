"""A worker and its state server, over HTTP and in one process: the client cannot tell which, and nothing differs."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from cluster_processes import ROOT, free_ports
from state_server_process import query, report, running_state_server

from esync.client import StateClient
from esync.clock import Clock, RealClock
from esync.http import HttpLink
from esync.progress import Progress
from esync.protocol import Link
from server.jobs import MAX_JOBS
from server.status import status
from trainer.simulation.in_process import InProcessServer
from trainer.simulation.virtual_clock import VirtualClock
from utils import JobError, PeerLost


class OverHttp:
    """A state server process."""

    clock = RealClock()

    def __init__(self) -> None:
        (self._port,) = free_ports(1)
        self._process = contextlib.ExitStack()
        self.start()

    def link(self) -> Link:
        return HttpLink("127.0.0.1", str(self._port), self.clock)

    def status(self, job: str) -> dict[str, Any]:
        return requests.get(f"http://127.0.0.1:{self._port}/jobs/{job}/status.json", timeout=10).json()

    def start(self) -> None:
        self._process.enter_context(running_state_server(self._port, command=("serve",)))

    def end(self) -> None:
        self._process.close()


class InProcess:
    """A state server in this process, in virtual time."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self._server = InProcessServer(self.clock)

    def link(self) -> Link:
        return self._server.link(round_trip_s=0.01)

    def status(self, job: str) -> dict[str, Any]:
        jobs = self._server.handlers.jobs
        return status(jobs.get(job), jobs, self.clock.now())

    def start(self) -> None:
        self._server.restart()
        self._server.is_away = False

    def end(self) -> None:
        self._server.is_away = True


@pytest.fixture(scope="module")
def over_http() -> Iterator[OverHttp]:
    way = OverHttp()
    yield way
    way.end()


@pytest.fixture(params=[RealClock, VirtualClock], ids=["http", "in process"])
def clock(request: pytest.FixtureRequest) -> Clock:
    return request.param()


@pytest.fixture
def way(clock: Clock, request: pytest.FixtureRequest) -> OverHttp | InProcess:
    return InProcess(clock) if isinstance(clock, VirtualClock) else request.getfixturevalue("over_http")


JOBS = (f"job-{number}" for number in itertools.count())


def workers(way: OverHttp | InProcess, count: int, job: str = "", **options: Any) -> list[StateClient]:
    """So many workers of a job that has begun."""
    job = job or next(JOBS)
    made = [StateClient(way.link(), way.clock, "journal", 0.5, **options) for _ in range(count)]
    for rank, client in enumerate(made):
        client.join(job, rank, count)
    return made


def test_a_fast_worker_trains_until_the_straggler_has_done_its_step(way):
    fast, slow = workers(way, 2)
    for client in (fast, slow):
        report(client, 1, 0.0, 0.0)
    assert query(fast, 1, 1, 0.1, 0.0) is False
    assert query(slow, 1, 1, 5.0, 0.0) is True
    assert query(fast, 1, 2, 0.1, 0.0) is True
    assert query(fast, 1, 2, 0.1, 0.0) is True  # what is asked twice is answered twice
    assert fast.round_trip_s > 0


def test_a_late_question_of_a_round_that_is_over_is_harmless(way):
    alone, _ = workers(way, 2)
    for round_ in (1, 2, 3):
        report(alone, round_, 0.1, 0.0)
    assert query(alone, 2, 3, 0.1, 0.0) is False


def test_what_is_told_in_the_background_shows_on_the_page(way):
    job = next(JOBS)
    (alone,) = workers(way, 1, job, batch_size=64)
    alone.tell(1, 3, 0.25, 0.0)
    way.clock.sleep(0.5)
    (row,) = way.status(job)["workers"]
    assert (row["round"], row["local_steps"], row["step_time_s"]) == (1, 3, 0.25)


def test_who_leaves_ends_the_job_with_the_last_accuracy(way):
    job, progress = next(JOBS), Progress()
    progress.begin(lambda: 9.0, evaluates=True)
    (alone,) = workers(way, 1, job)
    alone.join(job, 0, 1, progress)
    report(alone, 1, 0.5, 0.0)
    progress.measured(1, 0.75)
    alone.leave()
    shown = way.status(job)
    assert shown["state"] == "ended"
    assert [point[1:] for point in shown["accuracies"]] == [[0.75, 1]]


def test_a_server_that_was_restarted_is_told_of_the_job_and_of_all_that_it_has_lost(way):
    job, progress = next(JOBS), Progress()
    progress.begin(lambda: 9.0, evaluates=True)
    progress.add_step(64, 0.5)
    fast, slow = workers(way, 2, job)
    fast.join(job, 0, 2, progress)
    report(fast, 1, 0.1, 0.0)
    progress.measured(1, 0.5)
    report(fast, 2, 0.1, 0.0)
    way.end()
    way.start()
    assert query(slow, 2, 1, 5.0, 0.0) is True
    for _ in range(2):  # the first answer may name another process
        assert query(fast, 2, 7, 0.1, 0.0) is True
    shown = way.status(job)
    assert [point[1:] for point in shown["accuracies"]] == [[0.5, 1]]
    assert shown["samples"] == 64


def test_other_settings_are_refused_with_the_servers_words(way):
    job = next(JOBS)
    first, _ = workers(way, 2, job)
    other = StateClient(way.link(), way.clock, "preprint", 0.5)
    other.join(job, 0, 2)
    report(first, 1, 0.1, 0.0)
    with pytest.raises(JobError, match=r"refuses this REPORT \(job-settings\): .*policy=journal"):
        report(other, 1, 0.1, 0.0)
    report(first, 3, 0.1, 0.0)  # of whatever round


def test_what_is_no_message_is_refused_at_once(way):
    (alone,) = workers(way, 1)
    with pytest.raises(JobError, match=r"answered 400: .*computation_time"):
        query(alone, 1, 1, -1.0, 0.0)


def test_a_job_for_which_there_is_no_room_waits_until_another_has_ended(way):
    way.end()
    way.start()
    others = [workers(way, 1)[0] for _ in range(MAX_JOBS)]
    for other in others:
        report(other, 1, 0.1, 0.0)
    with pytest.raises(PeerLost, match=rf"has no room: {MAX_JOBS} jobs .* are at work.*; tried for 0.1 s"):
        report(*workers(way, 1, patience_s=0.1), 1, 0.1, 0.0)
    leaving = way.clock.start(lambda: (way.clock.sleep(0.2), others[0].leave()), "one job ends")
    report(workers(way, 1)[0], 1, 0.1, 0.0)
    leaving.result()
    for other in others[1:]:
        other.leave()


def test_a_server_that_is_away_is_asked_again_until_it_is_back(way):
    (alone,) = workers(way, 1)
    way.end()
    back = way.clock.start(lambda: (way.clock.sleep(0.3), way.start()), "the server comes back")
    assert query(alone, 1, 1, 0.1, 0.0) is True
    back.result()


@pytest.mark.parametrize("clock", [VirtualClock], indirect=True)
def test_in_virtual_time_patience_ends_to_the_second(way) -> None:
    (alone,) = workers(way, 1, patience_s=60.0)
    way.end()
    begin = way.clock.now()
    with pytest.raises(PeerLost, match=r"this process does not answer \(it is away\); tried for 60 s"):
        query(alone, 1, 1, 0.1, 0.0)
    assert 59.0 <= way.clock.now() - begin <= 60.0


def test_neither_django_nor_an_http_library_comes_with_a_state_server_in_process() -> None:
    program = (
        "import sys, trainer.simulation.in_process; "
        "print({'django', 'prometheus_client', 'httptools', 'requests', 'mxnet'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"
