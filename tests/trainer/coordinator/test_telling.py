"""What a worker tells the state server beside its training, of which only the newest matters: in virtual time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from run_all import run_all
from state_server_process import report

from esync.asker import NOTICE_REST_S
from esync.client import StateClient
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

    def check(self) -> None:
        pass

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        self.said.append((self.clock.now(), message))
        return self.refusal or self._link.send(message, timeouts)

    def told(self) -> list[tuple[int, Any]]:
        """Round and accuracy of each REPORT; all accuracies, where it tells these."""
        return [
            (message["status"]["round"], message.get("accuracy") or self._all(message))
            for _, message in self.said
            if message["msg_type"] == "REPORT"
        ]

    def _all(self, message: Message) -> list[float] | None:
        return [point[2] for point in message["accuracies"]] if "accuracies" in message else message.get("accuracy")

    def curve(self) -> dict[int, float]:
        """What the server knows of it."""
        job = self.server.handlers.jobs.latest
        assert job is not None
        return {point.round: point.value for point in job.curve.points}


def with_a_cluster(work: Callable[[Cluster], None]) -> None:
    clock = VirtualClock()
    run_all(clock, [lambda: work(Cluster(clock))])


def test_telling_takes_no_time_of_the_training() -> None:
    def work(cluster: Cluster) -> None:
        begin = cluster.clock.now()
        for round_ in range(2, 10):
            cluster.client.tell(round_, 1, 0.5, 0.0)
        assert cluster.clock.now() == begin

    with_a_cluster(work)


def test_of_what_is_told_while_a_message_is_under_way_only_the_newest_is_sent() -> None:
    def work(cluster: Cluster) -> None:
        for round_ in (2, 3, 4):
            cluster.client.tell(round_, 1, 0.5, 0.0)
            cluster.clock.sleep(0.1)
        cluster.clock.sleep(5.0)
        assert cluster.told() == [(2, None), (4, None)]
        assert cluster.said[1][0] - cluster.said[0][0] == pytest.approx(ROUND_TRIP_S + NOTICE_REST_S)

    with_a_cluster(work)


@pytest.mark.parametrize("accuracy", [0.0, 0.5])
def test_an_accuracy_is_told_with_the_newest_even_if_it_came_with_an_older_one(accuracy: float) -> None:
    def work(cluster: Cluster) -> None:
        cluster.client.tell(2, 1, 0.5, 0.0)
        cluster.clock.sleep(0.1)
        cluster.progress.measured(2, accuracy)
        cluster.client.tell(3, 1, 0.5, 0.0)
        cluster.client.tell(4, 1, 0.5, 0.0)
        cluster.clock.sleep(5.0)
        cluster.client.tell(5, 1, 0.5, 0.0)
        cluster.clock.sleep(5.0)
        assert cluster.told() == [(2, None), (4, accuracy), (5, None)]
        assert cluster.curve() == {2: accuracy}

    with_a_cluster(work)


def test_accuracies_that_came_between_two_messages_are_all_told_with_the_rounds_of_their_models() -> None:
    def work(cluster: Cluster) -> None:
        cluster.client.tell(6, 1, 0.5, 0.0)
        for round_, accuracy in ((2, 0.25), (5, 0.5), (7, 0.75)):
            cluster.progress.measured(round_, accuracy)
        cluster.client.tell(8, 1, 0.5, 0.0)
        cluster.clock.sleep(5.0)
        assert cluster.curve() == {2: 0.25, 5: 0.5, 7: 0.75}

    with_a_cluster(work)


def test_while_the_server_is_away_training_goes_on_and_an_accuracy_is_told_when_it_is_back(caplog) -> None:
    caplog.set_level(logging.INFO)

    def work(cluster: Cluster) -> None:
        cluster.server.is_away = True
        cluster.progress.measured(1, 0.25)
        cluster.client.tell(2, 1, 0.5, 0.0)
        for round_ in (3, 4):
            cluster.clock.sleep(5.0)
            cluster.client.tell(round_, 1, 0.5, 0.0)
        cluster.clock.sleep(5.0)
        assert cluster.told() == [(2, 0.25), (3, [0.25]), (4, [0.25])]  # once each
        cluster.server.is_away = False
        cluster.client.tell(5, 1, 0.5, 0.0)
        cluster.clock.sleep(5.0)
        cluster.client.tell(6, 1, 0.5, 0.0)
        cluster.clock.sleep(5.0)
        assert cluster.told()[3:] == [(5, [0.25]), (6, None)]
        assert cluster.curve() == {1: 0.25}

    with_a_cluster(work)
    words = [record.message for record in caplog.records if Cluster.address in record.message]
    assert [word.partition(Cluster.address)[2] for word in words] == [
        " does not answer (it is away); training goes on without it",
        " hears this worker again",
    ]


def test_a_newer_accuracy_takes_the_place_of_one_that_was_not_heard() -> None:
    def work(cluster: Cluster) -> None:
        cluster.server.is_away = True
        cluster.progress.measured(1, 0.25)
        cluster.client.tell(2, 1, 0.5, 0.0)
        cluster.clock.sleep(0.1)  # it is under way, in vain
        cluster.progress.measured(2, 0.5)
        cluster.client.tell(3, 1, 0.5, 0.0)
        cluster.clock.sleep(0.5)
        cluster.server.is_away = False
        cluster.clock.sleep(5.0)
        assert cluster.told() == [(2, 0.25), (3, [0.25, 0.5])]

    with_a_cluster(work)


def test_a_server_that_was_restarted_gets_the_job_and_the_curve_with_what_is_told() -> None:
    def work(cluster: Cluster) -> None:
        for round_, accuracy in ((2, 0.25), (3, 0.5)):
            cluster.progress.measured(round_ - 1, accuracy)
            cluster.client.tell(round_, 1, 0.5, 0.0)
            cluster.clock.sleep(5.0)
        cluster.server.restart()
        for step in (1, 2):  # the first answer names another process
            cluster.client.tell(4, step, 0.5, 0.0)
            cluster.clock.sleep(5.0)
        assert cluster.told()[2:] == [(4, None), (4, [0.25, 0.5])]
        assert cluster.curve() == {1: 0.25, 2: 0.5}
        job = cluster.server.handlers.jobs.latest
        assert job is not None and job.settings.resumed and not job.history_lost

    with_a_cluster(work)


def test_who_leaves_is_not_overtaken_by_what_was_told_before() -> None:
    def work(cluster: Cluster) -> None:
        cluster.progress.measured(1, 0.25)
        cluster.client.tell(2, 1, 0.5, 0.0)
        cluster.client.leave()
        assert [message["doing"] for _, message in cluster.said] == ["training", "ended"]
        job = cluster.server.handlers.jobs.latest
        assert job is not None and job.ended is not None
        assert cluster.curve() == {1: 0.25}

    with_a_cluster(work)


def test_who_leaves_does_so_in_the_newest_generation() -> None:
    def work(cluster: Cluster) -> None:
        cluster.client.join("job", 0, 1, cluster.progress, generation=2)  # the others are lost at the end
        cluster.client.leave()
        job = cluster.server.handlers.jobs.latest
        assert job is not None and (job.settings.generation, job.ended is None) == (2, False)

    with_a_cluster(work)


def test_who_leaves_tells_a_server_that_did_not_hear_the_last_notice() -> None:
    def work(cluster: Cluster) -> None:
        cluster.server.is_away = True
        cluster.client.tell(2, 1, 0.5, 0.0)
        cluster.clock.sleep(5.0)
        cluster.server.is_away = False
        cluster.progress.measured(2, 0.25)
        cluster.client.leave(2)
        job = cluster.server.handlers.jobs.latest
        assert job is not None and job.ended is not None
        assert cluster.curve() == {2: 0.25}

    with_a_cluster(work)


@pytest.mark.parametrize("refusal", [None, Reply(404, {}, "no /message/ here")], ids=["away", "another server"])
def test_who_leaves_while_the_server_is_away_does_not_take_that_for_an_answer(refusal, caplog) -> None:
    caplog.set_level(logging.INFO)

    def work(cluster: Cluster) -> None:
        cluster.server.is_away = refusal is None
        cluster.refusal = refusal
        cluster.client.tell(2, 1, 0.5, 0.0)
        cluster.clock.sleep(5.0)
        cluster.client.tell(3, 1, 0.5, 0.0)
        cluster.client.leave()

    with_a_cluster(work)
    assert not any("hears" in record.message for record in caplog.records)


def test_what_belongs_to_an_earlier_generation_does_not_count_in_the_next_one() -> None:
    """A worker that evaluated was frozen in round 5; it wakes up among others in round 52."""

    def work(cluster: Cluster) -> None:
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
        job = cluster.server.handlers.jobs.get("survives")
        assert job is not None and [row.round for row in job.rows] == [52, 52]
        client.stop_waiting()

    with_a_cluster(work)
