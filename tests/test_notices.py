"""What a state server is told that nobody needs: WBSP's and Sync-Switch's notices, for its page."""

from __future__ import annotations

import logging
import time

import pytest
import requests
from cluster_processes import free_ports, wait_for
from recording_state_server import recording, refusal, response
from state_server_process import running_state_server

from trainer.progress import Curve, Progress
from trainer.state_client import StateClient

SOON_S = 20.0
AT_ONCE_S = 0.5


@pytest.fixture
def recorder():
    with recording() as running:
        yield running


def evaluating_worker():
    made = Progress()
    made.curve = Curve()
    return made


def joined(recorder, progress=None):
    client = recorder.client()
    client.join("job", 0, 2, progress)
    return client


def told(client):
    client._notices.wait_until_idle(SOON_S)


def test_a_notice_says_where_the_worker_is_and_what_was_decided_on_it(recorder):
    client = joined(recorder)
    client.tell(7, 1, 0.5, 0.25, 0.75, ("TRAIN", "is a straggler"))
    told(client)
    (message,) = recorder.heard
    status = message["status"]
    assert (message["msg_type"], status["round"], status["local_iteration"]) == ("REPORT", 7, 1)
    assert (status["computation_time"], status["transmission_time"], message["accuracy"]) == (0.5, 0.25, 0.75)
    assert message["decision"] == {"action": "TRAIN", "reason": "is a straggler"}


def test_nobody_waits_for_an_answer_and_of_what_comes_meanwhile_only_the_newest_is_told(recorder):
    client = joined(recorder)
    recorder.is_awake.clear()
    began = time.monotonic()
    client.tell(1, 1, 0.5, 0.0)
    recorder.wait_for(1)
    for round_ in range(2, 9):
        client.tell(round_, 1, 0.5, 0.0)
    assert time.monotonic() - began < AT_ONCE_S
    recorder.is_awake.set()
    told(client)
    assert [message["status"]["round"] for message in recorder.heard] == [1, 8]


def test_an_accuracy_of_a_notice_that_was_left_out_is_told_with_the_next_one(recorder):
    client = joined(recorder)
    recorder.is_awake.clear()
    client.tell(1, 1, 0.5, 0.0)
    recorder.wait_for(1)
    client.tell(2, 0, 0.5, 0.0, 0.5)
    client.tell(2, 1, 0.5, 0.0)
    recorder.is_awake.set()
    told(client)
    assert [message.get("accuracy") for message in recorder.heard] == [None, 0.5]


def test_an_accuracy_that_was_not_heard_is_told_with_the_next_notice_that_is(recorder):
    client = joined(recorder)
    recorder.answer = lambda message: (503, {})
    client.tell(2, 0, 0.5, 0.0, 0.5)
    told(client)
    recorder.answer = lambda message: response()
    client._quiet_until = 0.0
    client.tell(3, 1, 0.5, 0.0)
    told(client)
    assert [message.get("accuracy") for message in recorder.heard] == [0.5, 0.5]


def test_a_server_that_does_not_know_the_job_is_told_of_it_and_all_accuracies(recorder):
    client = joined(recorder, evaluating_worker())
    client.tell(2, 0, 0.5, 0.0, 0.5)
    told(client)
    begun = []

    def restarted(message):
        if message["msg_type"] == "RESET":
            begun.append(message["resumed"])
        return response() if begun else refusal("unknown-job")

    recorder.answer = restarted
    client.tell(3, 0, 0.5, 0.0, 0.75)
    told(client)
    assert begun == [1]
    assert [point[2] for point in recorder.heard[-1]["accuracies"]] == [0.5, 0.75]
    client.tell(3, 1, 0.5, 0.0)
    told(client)
    assert "accuracies" not in recorder.heard[-1]


def test_a_server_that_comes_late_is_told_all():
    (port,) = free_ports(1)
    client = StateClient("127.0.0.1", str(port), "wbsp", 0.0)
    client.join("late", 0, 1, evaluating_worker())
    client.tell(5, 0, 0.5, 0.0, 0.25)
    told(client)
    with running_state_server(port) as server:
        client._quiet_until = 0.0
        client.tell(6, 1, 0.5, 0.0, decision=("TRAIN", "by the test"))
        told(client)
        page = requests.get(f"{server.url}/status.json", timeout=10).json()
    assert (page["job"], page["round"]) == ("late", 6)
    assert [point[1:] for point in page["accuracies"]] == [[0.25, 4]]


@pytest.mark.parametrize("is_there", [True, False], ids=["frozen", "absent"])
def test_training_does_not_notice_a_server_that_is_away(recorder, is_there):
    client = joined(recorder)
    if is_there:
        recorder.is_awake.clear()
    else:
        (port,) = free_ports(1)
        client._link.address = f"http://127.0.0.1:{port}"
    began = time.monotonic()
    for round_ in range(1, 200):
        client.tell(round_, 1, 0.001, 0.0)
    assert time.monotonic() - began < AT_ONCE_S
    wait_for(lambda: client._quiet_until, "the pause", SOON_S)  # nor is it called again and again
    recorder.is_awake.set()


def test_where_nobody_answers_when_the_job_begins_one_line_says_that_there_is_no_page(caplog):
    (port,) = free_ports(1)
    client = StateClient("127.0.0.1", str(port), "wbsp", 0.0)
    client.join("job", 0, 1)
    with caplog.at_level(logging.WARNING):
        client.announce(resumed=False)
    (record,) = caplog.records
    assert f"no status page of this job: the state server at http://127.0.0.1:{port} does not answer" in record.message


def test_where_a_state_server_answers_the_job_begins_there_without_a_word(recorder, caplog):
    client = joined(recorder)
    client.announce(resumed=True)
    assert [(message["msg_type"], message["resumed"]) for message in recorder.heard] == [("RESET", 1)]
    assert not caplog.records
