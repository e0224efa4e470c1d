"""Notices over HTTP to a state server that is only told, for its page: by WBSP and Sync-Switch. More of what is told
beside the training is in test_telling.py, in virtual time."""

from __future__ import annotations

import logging
import time

import pytest
import requests
from cluster_processes import free_ports
from recording_state_server import recording
from state_server_process import http_client, running_state_server

from esync.progress import Curve, Progress

SOON_S = 20.0
AT_ONCE_S = 3.0  # far below the 10 s that a try to reach the server may take


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
    progress = evaluating_worker()
    client = joined(recorder, progress)
    progress.measured(6, 0.75)
    client.tell(7, 1, 0.5, 0.25, ("TRAIN", "is a straggler"))
    told(client)
    (message,) = recorder.heard
    status = message["status"]
    assert (message["msg_type"], status["round"], status["local_iteration"]) == ("REPORT", 7, 1)
    assert (status["computation_time"], status["transmission_time"], message["accuracies"]) == (
        0.5,
        0.25,
        [[6, 0.0, 0.75]],
    )
    assert message["decision"] == {"action": "TRAIN", "reason": "is a straggler"}


def test_a_server_that_comes_late_is_told_all():
    (port,) = free_ports(1)
    client = http_client(port, "wbsp")
    progress = evaluating_worker()
    client.join("late", 0, 1, progress)
    progress.measured(4, 0.25)
    client.tell(5, 0, 0.5, 0.0)
    told(client)
    with running_state_server(port) as server:
        client.tell(6, 1, 0.5, 0.0, decision=("TRAIN", "by the test"))
        told(client)
        page = requests.get(f"{server.url}/status.json", timeout=10).json()
    assert (page["job"], page["round"]) == ("late", 6)
    assert [point[1:] for point in page["accuracies"]] == [[0.25, 4]]


@pytest.mark.parametrize("is_there", [True, False], ids=["frozen", "absent"])
def test_training_does_not_notice_a_server_that_is_away(recorder, is_there):
    client = joined(recorder)
    recorder.vanish(client, is_there)
    began = time.monotonic()
    for round_ in range(1, 200):
        client.tell(round_, 1, 0.001, 0.0)
    assert time.monotonic() - began < AT_ONCE_S
    recorder.is_awake.set()
    told(client)  # what it says of the absent server must not be heard in the next test


def test_where_nobody_answers_when_the_job_begins_one_line_of_rank_0_says_so(caplog):
    (port,) = free_ports(1)
    with caplog.at_level(logging.WARNING):
        for rank in (0, 1):
            client = http_client(port, "wbsp")
            client.join("job", rank, 2)
            for round_ in (1, 2):
                client.tell(round_, 0, 0.5, 0.0)
                told(client)
    (record,) = caplog.records
    assert f"the state server at http://127.0.0.1:{port} does not answer" in record.message


def test_where_a_state_server_answers_the_job_begins_there_without_a_word(recorder, caplog):
    client = joined(recorder)
    for round_ in (7, 8):
        client.tell(round_, 0, 0.5, 0.0)
        told(client)
    assert [message["status"]["round"] for message in recorder.heard] == [7, 8]
    assert recorder.heard[0]["settings"]["resumed"] == 1
    assert not caplog.records
