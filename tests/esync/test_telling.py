"""What a worker tells the state server beside its training, of which only the newest matters: in virtual time."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from run_all import run_all
from state_server_process import report

from esync.client import NOTICE_REST_S, StateClient
from esync.progress import Progress
from esync.protocol import Message, Reply, Timeouts
from esync.queries import Queries
from trainer.simulation.in_process import InProcessServer
from trainer.simulation.virtual_clock import VirtualClock

ROUND_TRIP_S = 1.0


class Cluster:
    """A worker of a job of one, and its state server a second away.

    Attributes:
        said: (moment, message) of all that was sent.
        refusal: what is answered in place of the server's word.
    """

    address = "the server of the test"

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.server = InProcessServer(clock)
        self.said: list[tuple[float, Message]] = []
        self.refusal: Reply | None = None
        self._link = self.server.link(ROUND_TRIP_S)
        self.round_trip_s = self._link.round_trip_s
        self.client = StateClient(self, clock, "sync-switch-none", 0.0)
        self.progress = Progress()
        self.progress.begin(clock.now, evaluates=True)
        self.client.join("job", 0, 1, self.progress)
        report(self.client, 1, 0.5, 0.0)
        self.said.clear()

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        self.said.append((self.clock.now(), message))
        return self.refusal or self._link.send(message, timeouts)

    def tell(self, round_: int, steps: int = 1, then_s: float = 5.0) -> None:
        """Tells, which takes no time of the training; then time passes."""
        begin = self.clock.now()
        self.client.tell(round_, steps, 0.5, 0.0)
        assert self.clock.now() == begin
        self.clock.sleep(then_s)

    def told(self) -> list[tuple[int, Any]]:
        """Round and accuracy of each REPORT; all accuracies, where it tells these."""
        return [
            (message["status"]["round"], message.get("accuracy") or self._all(message))
            for _, message in self.said
            if message["msg_type"] == "REPORT"
        ]

    def _all(self, message: Message) -> list[float] | None:
        return [point[2] for point in message["accuracies"]] if "accuracies" in message else message.get("accuracy")

    @property
    def job(self) -> Any:
        """What the server knows of it."""
        return self.server.handlers.jobs.latest

    def curve(self) -> dict[int, float]:
        return {point.round: point.value for point in self.job.curve.points}


@pytest.fixture
def cluster(clock: VirtualClock) -> Cluster:
    made: list[Cluster] = []
    run_all(clock, [lambda: made.append(Cluster(clock))])
    return made[0]


def test_of_what_is_told_while_a_message_is_under_way_only_the_newest_is_sent(cluster) -> None:
    for round_ in (2, 3, 4):
        cluster.tell(round_, then_s=0.1)
    cluster.clock.sleep(5.0)
    assert cluster.told() == [(2, None), (4, None)]
    assert cluster.said[1][0] - cluster.said[0][0] == pytest.approx(ROUND_TRIP_S + NOTICE_REST_S)


@pytest.mark.parametrize("accuracy", [0.0, 0.5])
def test_accuracies_are_told_with_the_newest_even_if_they_came_with_an_older_one(accuracy, cluster) -> None:
    cluster.tell(2, then_s=0.1)
    cluster.progress.measured(2, accuracy)
    cluster.tell(3, then_s=0.0)
    cluster.tell(4)
    cluster.tell(5)
    assert cluster.told() == [(2, None), (4, accuracy), (5, None)]
    for round_ in (6, 7):
        cluster.progress.measured(round_, 0.75)
    cluster.tell(8)
    assert cluster.curve() == {2: accuracy, 6: 0.75, 7: 0.75}


def test_while_the_server_is_away_training_goes_on_and_an_accuracy_is_told_when_it_is_back(caplog, cluster) -> None:
    caplog.set_level(logging.INFO)
    cluster.server.is_away = True
    cluster.progress.measured(1, 0.25)
    for round_ in (2, 3, 4):
        cluster.tell(round_)
    assert cluster.told() == [(2, 0.25), (3, [0.25]), (4, [0.25])]  # once each
    cluster.server.is_away = False
    for round_ in (5, 6, 7):
        cluster.tell(round_)
    assert cluster.told()[3:] == [(5, [0.25]), (6, None), (7, None)]
    assert cluster.curve() == {1: 0.25}
    words = [record.message for record in caplog.records if Cluster.address in record.message]
    assert [word.partition(Cluster.address)[2] for word in words] == [
        " does not answer (it is away); training goes on without it",
        " hears this worker again",
    ]


def test_a_newer_accuracy_takes_the_place_of_one_that_was_not_heard(cluster) -> None:
    cluster.server.is_away = True
    cluster.progress.measured(1, 0.25)
    cluster.tell(2, then_s=0.1)  # it is under way, in vain
    cluster.progress.measured(2, 0.5)
    cluster.tell(3, then_s=0.0)
    cluster.clock.sleep(0.5)
    cluster.server.is_away = False
    cluster.clock.sleep(5.0)
    assert cluster.told() == [(2, 0.25), (3, [0.25, 0.5])]


def test_a_server_that_was_restarted_gets_the_job_and_the_curve_with_what_is_told(cluster) -> None:
    for round_, accuracy in ((2, 0.25), (3, 0.5)):
        cluster.progress.measured(round_ - 1, accuracy)
        cluster.tell(round_)
    cluster.server.restart()
    for step in (1, 2):  # the first answer names another process
        cluster.tell(4, step)
    assert cluster.told()[2:] == [(4, None), (4, [0.25, 0.5])]
    assert cluster.curve() == {1: 0.25, 2: 0.5}
    assert cluster.job.settings.resumed and not cluster.job.history_lost


def test_a_notice_says_where_the_worker_is_and_what_was_decided_on_it(cluster) -> None:
    cluster.client.tell(7, 1, 0.5, 0.25, ("TRAIN", "is a straggler"))
    cluster.clock.sleep(5.0)
    ((_, message),) = cluster.said
    status, expected = message["status"], {"round": 7, "local_iteration": 1, "computation_time": 0.5}
    assert {**status, **expected, "transmission_time": 0.25} == status
    assert (message["msg_type"], message["settings"]["resumed"]) == ("REPORT", 1)
    assert message["decision"] == {"action": "TRAIN", "reason": "is a straggler"}


def test_where_nobody_answers_when_the_job_begins_one_line_of_rank_0_says_so(cluster, caplog) -> None:
    cluster.server.is_away = True
    for rank in (0, 1):
        cluster.client = StateClient(cluster, cluster.clock, "wbsp", 0.0)
        cluster.client.join("another", rank, 2)
        for round_ in (1, 2):
            cluster.tell(round_)
    (line,) = caplog.messages
    assert line.startswith(f"the state server at {Cluster.address} does not answer")


def test_who_leaves_does_so_in_the_newest_generation(cluster) -> None:
    cluster.client.join("job", 0, 1, cluster.progress, generation=2)  # the others are lost at the end
    cluster.client.leave()
    assert (cluster.job.settings.generation, cluster.job.ended is None) == (2, False)


@pytest.mark.parametrize("tell", [StateClient.tell_doing, lambda client: client.tell(1, 1, 0.5, 0.0)])
def test_who_leaves_says_so_once_with_what_no_report_has_told_and_is_not_overtaken(tell, cluster) -> None:
    cluster.progress.measured(1, 0.25)
    tell(cluster.client)
    cluster.progress.measured(2, 0.5)
    cluster.client.leave()
    assert [message["doing"] for _, message in cluster.said] == ["training", "ended"]
    assert cluster.job.ended is not None and cluster.curve() == {1: 0.25, 2: 0.5}


def test_who_leaves_tells_a_server_that_did_not_hear_the_last_notice(cluster) -> None:
    cluster.server.is_away = True
    cluster.tell(2)
    cluster.server.is_away = False
    cluster.progress.measured(2, 0.25)
    cluster.client.leave(2)
    assert cluster.job.ended is not None and cluster.curve() == {2: 0.25}


@pytest.mark.parametrize("refusal", [None, Reply(404, {}, "no /message/ here")], ids=["away", "another server"])
def test_who_leaves_while_the_server_is_away_does_not_take_that_for_an_answer(refusal, caplog, cluster) -> None:
    caplog.set_level(logging.INFO)
    cluster.server.is_away = refusal is None
    cluster.refusal = refusal
    cluster.tell(2)
    cluster.tell(3, then_s=0.0)
    cluster.client.leave()
    assert not any("hears" in record.message for record in caplog.records)


def test_what_belongs_to_an_earlier_generation_does_not_count_in_the_next_one(cluster) -> None:
    """A worker that evaluated was frozen in round 5; it wakes up among others in round 52."""
    clock = cluster.clock
    client = StateClient(cluster, clock, "journal", 0.5)
    progress = Progress()
    progress.begin(clock.now, evaluates=True)
    client.join("survives", 0, 1, progress)
    queries = Queries(client, clock, waits=False)
    queries.report(5, 0.5, 0.0)
    clock.sleep(2 * ROUND_TRIP_S)
    queries.report(5, 0.5, 0.0)  # it is still to be sent when the others have gone on
    other = StateClient(cluster.server.link(), clock, "journal", 0.5)
    other.join("survives", 1, 2, generation=2)
    report(other, 52, 0.5, 0.0)
    client.join("survives", 0, 2, progress, generation=2)
    client.tell_doing()
    clock.sleep(2 * ROUND_TRIP_S)
    queries.report(52, 0.5, 0.0)
    clock.sleep(2 * ROUND_TRIP_S)
    queries.report(53, 0.5, 0.0)  # raises what was refused
    told = [(message["settings"]["generation"], message["status"]["round"]) for _, message in cluster.said]
    assert told[:4] == [(1, 5), (1, 5), (1, 5), (2, 52)]
    assert not client.is_refused
    assert [row.round for row in cluster.server.handlers.jobs.get("survives").rows] == [52, 52]
    client.stop_waiting()
