"""What a worker tells its state server, and what it does when that is away, new, or refuses: message by message, in
virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from recording_state_server import Answer, refusal, response, rounds_that_skip
from state_server_process import query, report

from esync.client import StateClient
from esync.progress import EVALUATING, TRAINING, Progress
from esync.protocol import BRIEF, PATIENT, Message, NoAnswer, Reply, Timeouts
from esync.queries import Queries
from trainer import command_line
from trainer.from_flags import limits
from trainer.simulation.virtual_clock import VirtualClock
from utils import JobError

AWAY = {
    "frozen": lambda clock, timeouts: clock.sleep(timeouts.answer_s),
    "absent": lambda clock, timeouts: None,
}


class Recorder:
    """Writes down what it hears, and answers as it is told; `away`: how long it takes not to answer."""

    address, round_trip_s = "the server of the test", 0.0
    away: Callable[[VirtualClock, Timeouts], None] | None = None

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.heard: list[Message] = []
        self.answer: Callable[[Message], Answer] = lambda message: response()

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        if self.away:
            self.away(self.clock, timeouts)
            raise NoAnswer("it is away")
        self.heard.append(message)
        return Reply(*self.answer(message))

    def client(self, rank: int = 0, made: Progress | None = None, **options: Any) -> StateClient:
        """Of a worker in a job of two."""
        client = StateClient(self, self.clock, "journal", 0.5, **options)
        client.join("job", rank, 2, made)
        return client


@pytest.fixture
def recorder(clock: VirtualClock) -> Recorder:
    return Recorder(clock)


def progress(clock: VirtualClock, evaluates: bool = False, *steps: tuple[int, float]) -> Progress:
    made = Progress()
    made.begin(clock.now, evaluates)
    for samples, step_s in steps:
        made.add_step(samples, step_s)
    return made


# ----------------------------------------------------------------------------------------------- what is told


def test_the_settings_say_what_the_page_calls_the_algorithm_and_when_the_job_will_end(recorder):
    report(recorder.client(title="WBSP with overlap", limits={"seconds": 60.0, "target": 0.5}), 1, 0.5, 0.0)
    report(recorder.client(), 1, 0.5, 0.0)
    assert "elapsed" not in recorder.heard[0]  # training has not begun
    first, second = (message["settings"] for message in recorder.heard)
    assert (first["title"], first["limits"]) == ("WBSP with overlap", {"seconds": 60.0, "accuracy": 0.5})
    assert second == {"policy": "journal", "epsilon": 0.5, "num_workers": 2, "generation": 1, "resumed": 0}


def test_the_job_is_new_until_a_message_was_sent_unless_its_first_round_is_a_later_one(recorder):
    client, resumed = recorder.client(), recorder.client(1)
    report(client, 1, 0.5, 0.0)
    query(client, 1, 1, 0.5, 0.0)
    report(resumed, 57, 0.5, 0.0)
    assert [message["settings"]["resumed"] for message in recorder.heard] == [0, 1, 1]


def test_a_message_tells_without_which_workers_the_others_go_on(recorder):
    lost = set()
    client = recorder.client(lost=lambda: lost)
    report(client, 1, 0.5, 0.0)
    lost |= {3, 2}
    query(client, 1, 1, 0.5, 0.0)
    assert [message.get("lost") for message in recorder.heard] == [None, [2, 3]]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("-m esync", {}),
        (
            "-m esync --max-rounds 7 --max-seconds 60 --target-accuracy 0.5",
            {"rounds": 7, "seconds": 60, "target": 0.5},
        ),
        ("-m wbsp --max-rounds 7 --max-seconds 60", {"seconds": 60}),  # rounds there are releases, the flag's are steps
        ("-m sync-switch --switch-order 10 --train-steps 40 760", {}),  # under ASP a worker does as many as it can
        ("-m sync-switch --switch-order 10 --train-steps 40 760 --max-rounds 7", {"rounds": 7}),
        ("-m sync-switch --switch-order 11 --train-steps 40 60", {"rounds": 100}),
        ("-m sync-switch --switch-order 1 --train-steps 40 --max-rounds 7", {"rounds": 7}),
    ],
)
def test_the_limits_of_a_job_are_those_that_its_rounds_and_its_clock_can_reach(flags, expected):
    assert limits(command_line.parse(flags.split())) == expected


def test_every_message_says_how_long_the_job_lasts_and_what_the_worker_has_done_in_it(recorder, clock):
    made = progress(clock, False, (64, 0.25), (32, 0.5))
    client = recorder.client(0, made)
    clock.sleep(1.5)
    report(client, 1, 0.5, 0.0)
    clock.sleep(0.5)
    made.add_step(64, 0.25)
    made.protocol = "ASP"
    query(client, 1, 3, 0.25, 0.0)
    first, second = recorder.heard
    assert (first["elapsed"], first["total"]) == (1.5, {"steps": 2, "samples": 96, "computing": 0.75})
    assert (second["elapsed"], second["total"]) == (2.0, {"steps": 3, "samples": 160, "computing": 1.0})
    assert "way" not in first
    assert second["way"] == "ASP"


# ------------------------------------------------------------------------------------------ what it is doing


def test_an_evaluation_is_told_in_the_round_that_was_told_last_and_ends_with_the_next_report(recorder):
    made = progress(recorder.clock)
    client = recorder.client(0, made)
    report(client, 1, 0.5, 0.0)
    query(client, 1, 1, 0.5, 0.0)
    made.activity = EVALUATING
    client.tell_doing()
    recorder.clock.sleep(1.0)
    made.activity = TRAINING
    report(client, 2, 0.5, 0.0)
    told = [(message["msg_type"], message["status"]["round"], message.get("doing")) for message in recorder.heard]
    assert told == [
        ("REPORT", 1, "training"),
        ("QUERY", 1, "training"),
        ("REPORT", 1, "evaluating"),
        ("REPORT", 2, "training"),
    ]


def test_a_question_from_beside_the_training_does_not_hide_an_evaluation(recorder):
    made = progress(recorder.clock)
    client = recorder.client(0, made)
    made.activity = EVALUATING
    query(client, 1, 1, 0.5, 0.0)  # the server takes who asks for one who trains
    recorder.clock.sleep(1.0)
    assert [message["doing"] for message in recorder.heard] == ["evaluating"] * 2


@pytest.mark.parametrize("away", AWAY)
def test_a_state_server_that_is_away_holds_up_no_evaluation_and_the_end_for_one_try(recorder, clock, away):
    client = recorder.client()
    report(client, 1, 0.5, 0.0)
    recorder.away = AWAY[away]
    asks = Queries(client, clock, waits=False)
    asks.ask(1, 1, 0.5, 0.0)
    begin_s = clock.now()
    for _ in range(3):
        client.tell_doing()
    assert clock.now() == begin_s
    asks.close()
    assert clock.now() <= begin_s + PATIENT.answer_s
    begin_s = clock.now()
    client.leave()
    assert clock.now() <= begin_s + 2 * BRIEF.answer_s


# ------------------------------------------------------------------------------- a server that was restarted


def test_a_server_that_does_not_name_itself_is_told_the_curve_once(recorder, clock):
    recorder.answer = lambda message: response(server=None)
    client = recorder.client(0, progress(clock, evaluates=True))
    report(client, 1, 0.5, 0.0)
    query(client, 1, 1, 0.5, 0.0)
    assert [message.get("accuracies") for message in recorder.heard] == [[], None]


# ------------------------------------------------------------------------------------------------ who refuses


@pytest.mark.parametrize("code", ["round-ahead", "job-settings"])
def test_a_refusal_ends_the_worker_with_the_servers_words(recorder, code):
    recorder.answer = lambda message: refusal(code, "there are 64 jobs")
    client = recorder.client()
    with pytest.raises(JobError, match=rf"{recorder.address} refuses this REPORT \({code}\): there are 64 jobs"):
        report(client, 1, 0.5, 0.0)


@pytest.mark.parametrize("code", ["stale", "other-sender"])
def test_a_worker_whose_newest_message_is_refused_says_so_once_and_goes_on(recorder, caplog, code):
    client = recorder.client(1)
    report(client, 20, 0.5, 0.0)
    recorder.answer = lambda message: refusal(code, "worker 1 is in round 420 already, this is of round 21")
    report(client, 21, 0.5, 0.0)
    assert query(client, 21, 1, 0.5, 0.0) is False and client.is_refused
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.endswith(
        "takes none: worker 1 is in round 420 already, this is of round 21; the others go on without this worker, or "
        "another program speaks for it, which ESYNC_TOKEN prevents"
    )
    query(client, 20, 9, 0.5, 0.0)  # one that was overtaken says nothing
    recorder.answer = lambda message: response("TRAIN")
    query(client, 21, 2, 0.5, 0.0)
    assert not client.is_refused


@pytest.mark.parametrize("waits", [True, False])
def test_a_first_signal_is_heard_while_the_state_server_is_away(recorder, clock, waits):
    recorder.away = AWAY["absent"]
    asks = Queries(recorder.client(stop_requested=lambda: clock.now() > 0.2), clock, waits)
    steps = 1
    while not asks.ask(1, steps, 0.001, 0.0):  # the worker aggregates what it has
        steps += 1
        clock.sleep(0.001)
    assert clock.now() < 1.0


@pytest.mark.parametrize("waits", [True, False])
def test_no_message_is_of_a_round_beyond_the_next_however_they_overtake_each_other(recorder, clock, waits):
    random_ = random.Random(7)

    def late(message: Message) -> Answer:
        clock.sleep(random_.uniform(0, 0.01))
        return response("SYNC" if message["status"]["local_iteration"] >= 3 else "TRAIN")

    recorder.answer = late
    asks = Queries(recorder.client(), clock, waits)
    for round_ in range(1, 16):
        asks.report(round_, 0.001, 0.0)
        steps = 1
        while not asks.ask(round_, steps, 0.001, 0.0):
            clock.sleep(0.001)
            steps += 1
    asks.close()
    assert rounds_that_skip(recorder.heard) == []
    assert max(message["status"]["round"] for message in recorder.heard) == 15
