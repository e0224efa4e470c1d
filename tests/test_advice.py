"""Sync-Switch's questions to the state server, with a client that answers when it is told to."""

from __future__ import annotations

import queue
import threading

import pytest

from trainer.coordinator.advice import Advice
from utils import PeerLost

LONG_S = 30.0  # nobody waits for so long; an answer ends the wait
NOT_AT_ALL = 0.0


class Client:
    """Writes down what it is asked, and keeps the asker waiting until an answer is given."""

    def __init__(self):
        self.heard = []
        self.most_under_way = 0
        self.under_way = 0
        self._asked = queue.Queue()
        self._answers = queue.Queue()

    def report(self, round_, step_s, transmission_s, accuracy, steps=0):
        self.heard.append(("report", round_, steps, step_s, transmission_s, accuracy))

    def query_why(self, round_, steps, step_s, transmission_s):
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.heard.append(("query", round_, steps, step_s, transmission_s))
        self._asked.put(round_)
        answer = self._answers.get(timeout=LONG_S)
        self.under_way -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer, f"answer to round {round_}"

    def stop_waiting(self):
        self.heard.append("stop waiting")

    def answer(self, answer):
        self._answers.put(answer)

    def wait_for_question(self):
        """Round of the next question that arrives."""
        return self._asked.get(timeout=LONG_S)


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def advice(client):
    advice = Advice(client)
    yield advice
    for _ in range(9):
        client.answer(True)  # whoever still waits
    advice.close()


def ask(advice, round_):
    advice.ask(round_, 0.2, 0.01)


def tell(advice, round_, accuracy=None):
    advice.tell(round_, 1, 0.2, 0.01, accuracy)


def test_before_the_first_question_all_are_in_step(advice):
    assert advice.in_step(NOT_AT_ALL) is True


def test_a_question_tells_of_one_step(advice, client):
    client.answer(True)
    ask(advice, 7)
    assert advice.in_step(LONG_S) is True
    assert client.heard == [("query", 7, 1, 0.2, 0.01)]


def test_what_is_told_is_no_question_and_changes_no_answer(advice, client):
    client.answer(False)
    ask(advice, 6)
    assert advice.in_step(LONG_S) is False
    tell(advice, 7)
    assert advice.in_step(LONG_S) is False
    assert client.heard[1:] == [("report", 7, 1, 0.2, 0.01, None)]
    assert advice.reason == "answer to round 6"


@pytest.mark.parametrize("accuracy", [0.0, 0.5])
def test_an_accuracy_that_comes_while_a_question_is_under_way_is_told_before_the_next(advice, client, accuracy):
    ask(advice, 6)
    client.wait_for_question()
    tell(advice, 7, accuracy)
    client.answer(True)
    advice.in_step(LONG_S)
    client.answer(True)
    ask(advice, 8)
    advice.in_step(LONG_S)
    assert client.heard[1:] == [("report", 8, 0, 0.2, 0.01, accuracy), ("query", 8, 1, 0.2, 0.01)]


def test_an_answer_that_comes_in_time_counts(advice, client):
    for round_, answer in enumerate([False, True, False, False, True], start=1):
        client.answer(answer)
        ask(advice, round_)
        assert advice.in_step(LONG_S) is answer


def test_the_reason_is_that_of_the_answer_that_counts(advice, client):
    assert advice.reason == ""
    client.answer(False)
    ask(advice, 1)
    advice.in_step(LONG_S)
    ask(advice, 2)
    advice.in_step(NOT_AT_ALL)
    assert advice.reason == "answer to round 1"


def test_the_wait_lasts_until_the_answer_comes(advice, client):
    ask(advice, 1)
    client.wait_for_question()
    answering = threading.Timer(0.01, client.answer, [False])
    answering.start()
    assert advice.in_step(LONG_S) is False
    answering.join()


@pytest.mark.parametrize("latest", [True, False])
def test_while_the_answer_is_late_the_one_before_counts(advice, client, latest):
    client.answer(latest)
    ask(advice, 1)
    assert advice.in_step(LONG_S) is latest
    ask(advice, 2)
    assert advice.in_step(NOT_AT_ALL) is latest
    assert advice.in_step(NOT_AT_ALL) is latest


def test_a_late_answer_counts_from_the_next_look_on(advice, client):
    ask(advice, 1)
    assert advice.in_step(NOT_AT_ALL) is True
    client.answer(False)
    assert advice.in_step(LONG_S) is False
    assert advice.in_step(NOT_AT_ALL) is False  # and stays, without another question
    assert len(client.heard) == 1


def test_a_step_that_ends_while_a_question_is_under_way_is_not_asked_about(advice, client):
    ask(advice, 1)
    assert client.wait_for_question() == 1
    ask(advice, 2)
    ask(advice, 3)
    client.answer(False)
    assert advice.in_step(LONG_S) is False
    client.answer(True)
    ask(advice, 4)
    assert client.wait_for_question() == 4
    assert advice.in_step(LONG_S) is True
    assert [heard[1] for heard in client.heard] == [1, 4]
    assert client.most_under_way == 1


def test_asking_does_not_wait(advice, client):
    ask(advice, 1)  # nobody answers
    ask(advice, 2)
    assert advice.in_step(NOT_AT_ALL) is True


def test_an_error_of_the_client_reaches_the_training_thread(advice, client):
    client.answer(PeerLost("the state server does not answer"))
    ask(advice, 1)
    with pytest.raises(PeerLost, match="does not answer"):
        advice.in_step(LONG_S)


def test_an_error_that_comes_late_is_not_lost(advice, client):
    ask(advice, 1)
    assert advice.in_step(NOT_AT_ALL) is True
    client.answer(PeerLost("the state server does not answer"))
    ask(advice, 2)
    with pytest.raises(PeerLost, match="does not answer"):
        advice.in_step(LONG_S)


def test_closing_waits_for_the_question_under_way(client):
    advice = Advice(client)
    ask(advice, 1)
    client.wait_for_question()
    answering = threading.Timer(0.01, client.answer, [True])
    answering.start()
    advice.close()
    assert client.under_way == 0
    assert client.heard[-1] == "stop waiting"  # no answer at all does not hold up the end
    answering.join()
