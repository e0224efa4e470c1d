"""A worker's questions to its state server: waiting for the answer, and training on meanwhile.

Most of it in virtual time, against a coordinator whose answers come when the test says; the rest against a real server.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
from typing import Any

import pytest
import requests
from cluster_processes import free_ports, wait_for
from hypothesis import given, strategies as st
from state_server_process import clients, http_client, query, report, running_state_server

from esync.clock import Clock, RealClock
from esync.http import HttpLink
from esync.queries import AWAY_S, FORWARD_SHARE, MAX_UNDER_WAY, Queries, worthwhile_wait
from trainer.simulation.virtual_clock import VirtualClock
from utils import JobError, PeerLost, SetupError

READY, NOT_READY = True, False


class Client:
    """Answers each question after so long, as it is told.

    Attributes:
        answers: (seconds, answer) of the questions to come, the last of them for ever; an exception is raised.
        away: (moment, moment) between which it answers nothing.
        heard: (moment, what) of all that was said.
    """

    away = (math.inf, math.inf)

    def __init__(self, clock: Clock, *answers: tuple[float, bool | Exception], round_trip_s: float = 0.0) -> None:
        self._clock = clock
        self._answers = list(answers)
        self.round_trip_s = round_trip_s
        self.heard: list[tuple[float, Any]] = []
        self.waits = True
        self.is_refused = False

    def note(self, round_: int, steps: int, step_s: float, transmission_s: float, asks: bool = False) -> dict[str, Any]:
        told = ("query" if asks else "report", round_, steps, step_s)
        return {"msg_type": told[0].upper(), "status": {"round": round_}, "told": told}

    def send(self, message: dict[str, Any], patience_s: float) -> dict[str, str]:
        self.heard.append((self._clock.now(), message["told"]))
        return {"action": "SYNC" if self._answer(patience_s) else "TRAIN"}

    def stop_waiting(self) -> None:
        self.waits = False

    def _answer(self, patience_s: float) -> bool:
        if self.away[0] <= (now := self._clock.now()) < self.away[1]:
            self._clock.sleep(self.away[1] - now if patience_s else 1.0)
            if not patience_s:
                raise PeerLost("does not answer")
        seconds, answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        self._clock.sleep(seconds)
        if isinstance(answer, Exception):
            raise answer
        return answer


def questions(client: Client) -> list[int]:
    """The local steps that were asked about."""
    return [what[2] for _, what in client.heard if what[0] == "query"]


# ------------------------------------------------------------------------------------------------ in virtual time


@pytest.mark.parametrize("answer", [READY, NOT_READY])
def test_with_waiting_the_answer_is_there_when_the_question_has_been_asked(answer, clock) -> None:
    queries = Queries(Client(clock, (2.0, answer)), clock, waits=True)
    assert queries.ask(1, 1, 0.01, 0.0) is answer
    assert clock.now() == 2.0


def test_without_waiting_the_answer_comes_later_and_stays(clock) -> None:
    queries = Queries(Client(clock, (2.0, READY), round_trip_s=2.0), clock, waits=False)
    assert queries.ask(1, 4, 0.01, 0.0) is False
    assert clock.now() == 0.0
    clock.sleep(1.9)
    assert queries.is_ready(1) is False
    clock.sleep(0.2)
    assert queries.is_ready(1) is True
    assert queries.ask(1, 5, 0.01, 0.0) is True
    assert queries.is_ready(2) is False
    queries.close()


def test_an_answer_that_is_worth_a_wait_ends_the_wait(clock) -> None:
    """A straggler of one step a round would wait for twice the usual round trip."""
    queries = Queries(Client(clock, (0.35, READY), round_trip_s=0.3), clock, waits=False)
    assert queries.ask(1, 1, 1.0, 0.0) is True
    assert clock.now() == pytest.approx(0.35)


def test_the_computing_time_that_is_told_contains_a_round_trip_where_nobody_waits_for_it(clock) -> None:
    for waits in (True, False):
        client = Client(clock, (0.0, NOT_READY), round_trip_s=0.25)
        queries = Queries(client, clock, waits=waits)
        queries.report(1, 0.0, 0.0)  # nothing was measured yet
        queries.report(2, 0.5, 0.0)
        queries.ask(2, 1, 0.5, 0.0)
        queries.close()
        delay_s = 0.5 if waits else 0.75
        assert [what[-1] for _, what in client.heard] == [0.0, delay_s, delay_s]


def test_answers_of_an_earlier_round_do_not_end_a_later_one(clock) -> None:
    queries = Queries(Client(clock, (2.0, READY), round_trip_s=2.0), clock, waits=False)
    queries.ask(1, 4, 0.01, 0.0)
    queries.report(2, 0.01, 0.0)
    queries.close()
    assert queries.is_ready(1) is True
    assert queries.is_ready(2) is False


def test_before_the_first_round_nobody_is_ready(clock) -> None:
    queries = Queries(Client(clock, (0.0, READY)), clock, waits=False)
    assert queries.is_ready(0) is False  # else the warm-up would be given up


def test_only_so_many_questions_are_under_way_and_the_next_one_says_what_was_left_out(clock) -> None:
    client = Client(clock, (10.0, NOT_READY), round_trip_s=10.0)
    queries = Queries(client, clock, waits=False)
    queries._steps_before = 1000  # this round is far from its end
    for steps in range(1, 31):
        queries.ask(1, steps, 0.1, 0.0)
        clock.sleep(0.1)
    assert questions(client) == list(range(1, MAX_UNDER_WAY + 1))
    clock.sleep(7.0)  # the first answer has come
    queries.ask(1, 100, 0.1, 0.0)
    clock.sleep(0.0)
    queries.close()
    assert questions(client)[MAX_UNDER_WAY:] == [100]


@pytest.mark.parametrize("waits", [True, False])
def test_a_failure_under_way_reaches_the_training_thread(waits, clock) -> None:
    client = Client(clock, (1.0, JobError("it is refused")), round_trip_s=1.0)
    queries = Queries(client, clock, waits=waits)
    with pytest.raises(JobError, match="it is refused"):
        for steps in range(1, 10):
            queries.ask(1, steps, 0.5, 0.0)
            clock.sleep(0.5)
    assert clock.now() <= 1.5
    with pytest.raises(JobError, match="it is refused"):
        queries.report(2, 0.5, 0.0)
    if waits:
        with pytest.raises(JobError, match="it is refused"):
            Queries(client, clock, waits=True).report(1, 0.5, 0.0)
    queries.close()  # what comes too late to be of use is of no use


def rounds_of_three_steps(client: Client, queries: Queries, clock: VirtualClock, until_s: float) -> list[float]:
    """The moments at which a worker of 0.1 s a step ends its rounds; all take part in an aggregation of 0.05 s."""
    ends: list[float] = []
    for round_ in itertools.count(2):
        queries.report(round_, 0.1, 0.0)
        steps, is_ready = 0, False
        while not is_ready:
            clock.sleep(0.1)
            steps += 1
            is_ready = queries.ask(round_, steps, 0.1, 0.0)
        ends.append(round(clock.now(), 6))
        clock.sleep(0.05)
        if clock.now() > until_s:
            queries.close()
            return ends
    raise AssertionError


@pytest.mark.parametrize("waits", [True, False])
def test_while_the_state_server_is_away_rounds_go_on_with_the_steps_of_the_last_one_that_it_ended(waits, clock) -> None:
    """It says at once that three steps are a round, in rounds 2 and 3; then it is silent for 60 s, and comes back."""
    client = Client(clock, *([(0.0, NOT_READY)] * 3 + [(0.0, READY)]) * 2, (0.0, READY))
    client.away = (0.7, 60.7)
    ends = rounds_of_three_steps(client, Queries(client, clock, waits), clock, until_s=70.0)
    gaps = [round(later - earlier, 6) for earlier, later in itertools.pairwise(ends)]
    assert gaps[1] == (1.35 if waits else 1.05)  # it notices
    assert {*gaps[2:160]} == {0.35}
    assert gaps[-1] == 0.15  # it says READY after each step now
    # Nothing was sent meanwhile; the first answer is followed by what was done.
    assert not [what for moment, what in client.heard if 3.0 < moment < 60.7]
    moment, (kind, round_, *_) = next(one for one in client.heard if one[0] >= 60.7)
    assert (moment, kind, round_) == (60.7, "report", pytest.approx(172, abs=3))


def test_a_short_round_before_is_no_reason_to_go_on_alone_before_the_server_has_been_silent_for_long(clock) -> None:
    queries = Queries(Client(clock, (60.0, NOT_READY), round_trip_s=0.2), clock, waits=False)
    queries._steps_before = 2
    for steps in itertools.count(1):
        clock.sleep(0.1)
        if queries.ask(2, steps, 0.1, 0.0):
            break
    assert steps == 5  # the first question was at 0.1 s, and the state server is late from 0.5 s on
    assert clock.now() == pytest.approx(0.1 + AWAY_S)
    queries.close()


def test_the_first_answer_after_a_silence_ends_the_way_alone_though_earlier_questions_are_open(clock) -> None:
    late = [(60.0, NOT_READY), *[(5.0, NOT_READY)] * 4]  # of the questions from 0.1 to 0.5 s
    client = Client(clock, *late, (0.2, NOT_READY), round_trip_s=0.2)
    queries, alone = Queries(client, clock, waits=False), []
    queries._steps_before = 4
    for steps in range(1, 101):
        clock.sleep(0.1)
        if queries.ask(2, steps, 0.1, 0.0):
            alone.append(round(clock.now(), 6))
    assert alone[0] == pytest.approx(0.1 + AWAY_S)
    assert alone[-1] == pytest.approx(5.1, abs=0.11)
    queries.close()


def test_where_the_server_takes_none_of_a_workers_messages_it_goes_on_alone(clock) -> None:
    client = Client(clock, (0.0, NOT_READY))
    queries = Queries(client, clock, waits=True)
    queries._steps_before = 2
    client.is_refused = True
    assert [queries.ask(2, steps, 0.1, 0.0) for steps in (1, 2)] == [False, True]
    client.is_refused = False
    assert queries.ask(3, 1, 0.1, 0.0) is False


# ---------------------------------------------------------------------------------------------- a real state server


@pytest.fixture(scope="module")
def server():
    with running_state_server() as running:
        yield running


def test_a_server_that_was_frozen_hears_at_once_of_the_rounds_that_it_has_missed(server, monkeypatch) -> None:
    monkeypatch.setattr("esync.queries.AWAY_S", 0.3)
    (alone,) = clients(server, 1)
    queries = Queries(alone, RealClock(), waits=False)

    def go_through(*rounds: int) -> None:
        for round_ in rounds:
            queries.report(round_, 0.01, 0.0)
            assert any(queries.ask(round_, steps, 0.01, 0.0) for steps in range(1, 10**6))

    def told() -> int:
        return requests.get(f"{server.url}/status.json", timeout=10).json()["round"]

    go_through(1, 2, 3)
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        go_through(*range(4, 40))
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    wait_for(lambda: told() == 39, "the round that was noted last")
    go_through(40, 41)
    wait_for(lambda: told() == 41, "a round with an answer")
    queries.close()


def test_an_address_where_nobody_answers_is_named():
    (port,) = free_ports(1)
    client = http_client(port)
    client.join("job", 0, 1)
    with pytest.raises(SetupError, match=f"http://127.0.0.1:{port} .Connection refused"):
        HttpLink("127.0.0.1", str(port), RealClock()).is_published()
    with pytest.raises(PeerLost, match=f"http://127.0.0.1:{port} does not answer"):
        report(client, 1, 0.5, 0.0, patience_s=0.2)


def test_a_token_is_sent_where_the_server_wants_one(monkeypatch):
    with running_state_server(ESYNC_TOKEN="secret") as guarded:
        with pytest.raises(JobError, match="401"):
            report(*clients(guarded, 1), 1, 0.1, 0.0)
        monkeypatch.setenv("ESYNC_TOKEN", "secret")
        (alone,) = clients(guarded, 1)
        assert query(alone, 1, 1, 0.1, 0.0) is True


@given(st.floats(0.001, 100), st.floats(0, 10), st.integers(2, 1000))
def test_waiting_never_costs_more_than_the_longest_pass(step_s, round_trip_s, steps):
    if worthwhile_wait(step_s, round_trip_s, steps):
        assert (steps - 1) * round_trip_s <= (1 - FORWARD_SHARE) * step_s * 1.001


@pytest.mark.parametrize(
    ("step_s", "round_trip_s", "steps_per_round", "least_s"),
    [
        (3.5, 0.002, 1, 0.002),  # a straggler
        (0.03, 0.1, 117, None),  # a fast worker far away
        # Passes of 1 and 2 s. An answer after 0.9 s is acted upon at 1 s, one after 1.1 s at 3 s.
        (3.0, 0.9, 2, None),  # would cost 0.9 s and save 0.1 s
        (3.0, 1.1, 2, 0.0),  # would cost 1.1 s and save 1.9 s
        (3.0, 1.1, 3, None),  # would cost 2.2 s
        (0.0, 1.0, 1, None),  # before the first step
    ],
)
def test_a_wait_is_worthwhile_where_it_costs_less_than_the_rest_of_the_pass(
    step_s, round_trip_s, steps_per_round, least_s
):
    wait_s = worthwhile_wait(step_s, round_trip_s, steps_per_round)
    assert wait_s == 0.0 if least_s is None else wait_s > least_s
