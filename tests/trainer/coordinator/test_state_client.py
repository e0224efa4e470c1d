"""What a worker tells its state server, and what it does when that is away, new, or refuses: looked at on the wire."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from cluster_processes import free_ports
from recording_state_server import recording, refusal, response, rounds_that_skip
from state_server_process import clients, http_client, query, report, running_state_server

from esync.clock import RealClock
from esync.progress import EVALUATING, TRAINING, Progress
from esync.queries import Queries
from trainer import command_line
from trainer.from_flags import limits
from utils import JobError

AT_ONCE_S = 3.0  # the training thread does not wait; far below the 10 s that a try to reach the server may take
SOON_S = 9.0  # far below the patience of a worker


@pytest.fixture
def recorder():
    with recording() as running:
        yield running


class Clock:
    """Seconds since the job began, as told."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


def progress(clock=None, evaluates=False, steps=()):
    made = Progress()
    made.begin(clock or Clock(), evaluates)
    for samples, step_s in steps:
        made.add_step(samples, step_s)
    return made


def blocking(client):
    return Queries(client, RealClock(), waits=True)


def non_blocking(client):
    return Queries(client, RealClock(), waits=False)


def joined(recorder, made, rank=0, **options):
    client = recorder.client(rank, **options)
    client.join("job", rank, 2, made)
    return client


# ----------------------------------------------------------------------------------------------- what is told


def test_the_settings_say_what_the_page_calls_the_algorithm_and_when_the_job_will_end(recorder):
    report(recorder.client(title="WBSP with overlap", limits={"seconds": 60.0, "target": 0.5}), 1, 0.5, 0.0)
    report(recorder.client(), 1, 0.5, 0.0)
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


def test_every_message_says_how_long_the_job_lasts_and_what_the_worker_has_done_in_it(recorder):
    clock = Clock(1.5)
    made = progress(clock, steps=[(64, 0.25), (32, 0.5)])
    client = joined(recorder, made)
    report(client, 1, 0.5, 0.0)
    clock.now = 2.0
    made.add_step(64, 0.25)
    made.protocol = "ASP"
    query(client, 1, 3, 0.25, 0.0)
    first, second = recorder.heard
    assert (first["elapsed"], first["total"]) == (1.5, {"steps": 2, "samples": 96, "computing": 0.75})
    assert (second["elapsed"], second["total"]) == (2.0, {"steps": 3, "samples": 160, "computing": 1.0})
    assert "way" not in first
    assert second["way"] == "ASP"


def test_before_training_begins_no_time_is_told(recorder):
    report(recorder.client(), 1, 0.5, 0.0)
    assert "elapsed" not in recorder.heard[0]


# ------------------------------------------------------------------------------------------ what it is doing


def test_an_evaluation_is_told_in_the_round_that_was_told_last_and_ends_with_the_next_report(recorder):
    made = progress()
    client = joined(recorder, made)
    report(client, 1, 0.5, 0.0)
    query(client, 1, 1, 0.5, 0.0)
    made.activity = EVALUATING
    client.tell_doing()
    recorder.wait_for(3)
    made.activity = TRAINING
    report(client, 2, 0.5, 0.0)
    told = [(message["msg_type"], message["status"]["round"], message.get("doing")) for message in recorder.heard]
    assert told == [
        ("REPORT", 1, "training"),
        ("QUERY", 1, "training"),
        ("REPORT", 1, "evaluating"),
        ("REPORT", 2, "training"),
    ]


@pytest.mark.parametrize("is_there", [True, False], ids=["frozen", "absent"])
def test_a_state_server_that_does_not_answer_does_not_hold_up_an_evaluation(recorder, is_there):
    made = progress()
    client = joined(recorder, made)
    report(client, 1, 0.5, 0.0)
    recorder.vanish(client, is_there)
    began = time.monotonic()
    for _ in range(3):
        client.tell_doing()
    assert time.monotonic() - began < AT_ONCE_S
    recorder.is_awake.set()
    client._notices.wait_until_idle(SOON_S)


def test_a_question_from_beside_the_training_does_not_hide_an_evaluation(recorder):
    made = progress()
    client = joined(recorder, made)
    made.activity = EVALUATING
    query(client, 1, 1, 0.5, 0.0)  # the server takes who asks for one who trains
    assert recorder.wait_for(2)[-1]["doing"] == "evaluating"


def test_who_leaves_says_so_once_with_the_accuracy_that_no_report_has_told(recorder):
    made = progress(Clock(9.0), evaluates=True)
    client = joined(recorder, made)
    made.measured(3, 0.25)
    report(client, 4, 0.5, 0.0)
    made.measured(4, 0.5)
    client.leave()
    last = recorder.heard[-1]
    assert (last["msg_type"], last["status"]["round"], last["doing"]) == ("REPORT", 4, "ended")
    assert last["accuracies"] == [[3, 9.0, 0.25], [4, 9.0, 0.5]]


def test_that_a_worker_has_left_is_not_overtaken_by_what_it_did_before(recorder):
    made = progress()
    client = joined(recorder, made)
    report(client, 1, 0.5, 0.0)
    over = threading.Event()

    def answer(message):
        if message["doing"] == "evaluating":
            over.wait(SOON_S)
        return response()

    recorder.answer = answer
    made.activity = EVALUATING
    client.tell_doing()
    recorder.wait_for(2)
    slow_answer = threading.Timer(0.1, over.set)
    slow_answer.start()
    client.leave()
    assert recorder.heard[-1]["doing"] == "ended"
    assert over.is_set()
    slow_answer.join()


@pytest.mark.parametrize("is_there", [True, False], ids=["frozen", "absent"])
def test_a_state_server_that_is_away_does_not_hold_up_the_end(recorder, is_there):
    client = joined(recorder, progress())
    report(client, 1, 0.5, 0.0)
    asks = non_blocking(client)
    recorder.vanish(client, is_there)
    if not is_there:
        asks.ask(1, 1, 0.5, 0.0)
    began = time.monotonic()
    asks.close()
    client.leave()
    assert time.monotonic() - began < SOON_S


# ------------------------------------------------------------------------------- a server that was restarted


def test_a_server_that_was_restarted_is_told_all_by_who_evaluates(recorder):
    clock = Clock()
    made = [progress(clock, evaluates=rank == 0) for rank in range(2)]
    clients_ = [joined(recorder, its, rank) for rank, its in enumerate(made)]
    for client in clients_:
        report(client, 1, 0.5, 0.0)
    for round_ in (2, 3):
        clock.now = float(round_)
        made[0].measured(round_ - 1, round_ / 10)
        report(clients_[0], round_, 0.5, 0.0)
    report(clients_[1], 2, 0.5, 0.0)
    before = len(recorder.heard)
    recorder.answer = lambda message: response(server="bbbbbbbb")
    for client in clients_:
        assert query(client, 3, 1, 0.5, 0.0) is True
        query(client, 3, 2, 0.5, 0.0)
    told = [(each["sender"][:8], each["msg_type"], each.get("accuracies")) for each in recorder.heard[before:]]
    assert told == [
        ("worker-0", "QUERY", None),
        ("worker-0", "QUERY", [[1, 2.0, 0.2], [2, 3.0, 0.3]]),
        ("worker-1", "QUERY", None),
        ("worker-1", "QUERY", None),
    ]


def test_a_server_that_did_not_answer_is_told_all_with_the_next_try(recorder):
    made = progress(Clock(9.0), evaluates=True)
    client = joined(recorder, made)
    report(client, 1, 0.5, 0.0)
    made.measured(1, 0.5)
    answers = iter([(503, {})])
    recorder.answer = lambda message: next(answers, response())
    query(client, 1, 1, 0.5, 0.0)
    query(client, 1, 2, 0.5, 0.0)
    told = [(message.get("accuracy"), message.get("accuracies")) for message in recorder.heard]
    assert told == [(None, []), (0.5, None), (None, [[1, 9.0, 0.5]]), (None, None)]


def test_a_server_that_does_not_name_itself_is_told_the_curve_once():
    with recording(lambda message: response(server=None)) as recorder:
        client = joined(recorder, progress(evaluates=True))
        report(client, 1, 0.5, 0.0)
        query(client, 1, 1, 0.5, 0.0)
    assert [message.get("accuracies") for message in recorder.heard] == [[], None]


def test_a_real_server_that_was_restarted_has_the_curve_and_the_totals_again():
    (port,) = free_ports(1)
    made = [progress(Clock(100.0), evaluates=rank == 0, steps=[(64, 0.5)] * 7) for rank in range(2)]
    with running_state_server(port) as server:
        workers = clients(server, 2)
        for rank, client in enumerate(workers):
            client.join(client.job, rank, 2, made[rank])
            report(client, 1, 0.5, 0.0)
        for round_ in (2, 3, 4):
            made[0].measured(round_ - 1, round_ / 10)
            report(workers[0], round_, 0.5, 0.0)
    with running_state_server(port) as server:
        assert query(workers[1], 1, 1, 0.5, 0.0) in (True, False)
        for step in (1, 2):  # the first answer names another process
            assert query(workers[0], 4, step, 0.5, 0.0) in (True, False)
        status = requests.get(f"{server.url}/status.json", timeout=10).json()
    assert [point[1:] for point in status["accuracies"]] == [[0.2, 1], [0.3, 2], [0.4, 3]]
    assert status["samples"] == 2 * 7 * 64


# ------------------------------------------------------------------------------------------------ who refuses


@pytest.mark.parametrize("code", ["round-ahead", "job-settings"])
def test_a_refusal_ends_the_worker_with_the_servers_words(recorder, code):
    recorder.answer = lambda message: refusal(code, "there are 64 jobs")
    client = recorder.client()
    with pytest.raises(JobError, match=rf"{recorder.port} refuses this REPORT \({code}\): there are 64 jobs"):
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


def test_a_job_for_which_there_is_no_room_yet_waits_for_some(recorder):
    answers = iter([refusal("too-many-jobs", "64 jobs are at work")] * 2)
    recorder.answer = lambda message: next(answers, response())
    report(recorder.client(), 1, 0.5, 0.0)
    assert [message["msg_type"] for message in recorder.heard] == ["REPORT"] * 3


# --------------------------------------------------------------------------------- a signal while it is away


@pytest.mark.parametrize("queries", [blocking, non_blocking])
def test_a_first_signal_is_heard_while_the_state_server_is_away(queries):
    (port,) = free_ports(1)
    stop = threading.Event()
    client = http_client(port, stop_requested=stop.is_set)
    client.join("job", 0, 2)
    asks = non_blocking(client)
    with ThreadPoolExecutor(1) as training:
        ready = training.submit(lambda: next(steps for steps in range(1, 10**6) if asks.ask(1, steps, 0.001, 0.0)))
        signal = threading.Timer(0.2, stop.set)
        signal.start()
        assert ready.result(SOON_S) >= 1  # the worker aggregates what it has
        asks.report(2, 0.001, 0.0)  # and goes on to its end
        asks.close()
        signal.join()


# ------------------------------------------------------------------------------------- rounds go up by one


@pytest.mark.parametrize("queries", [blocking, non_blocking])
def test_no_message_is_of_a_round_beyond_the_next_however_they_overtake_each_other(queries):
    random_ = random.Random(7)
    lock = threading.Lock()

    def late(message):
        with lock:
            delay_s, steps = random_.uniform(0, 0.01), message["status"]["local_iteration"]
        time.sleep(delay_s)  # the network's doing, not a wait of the test
        return response("SYNC" if steps >= 3 else "TRAIN")

    with recording(late) as recorder:
        asks = queries(recorder.client())
        for round_ in range(1, 16):
            asks.report(round_, 0.001, 0.0)
            steps = 1
            while not asks.ask(round_, steps, 0.001, 0.0):
                steps += 1
        asks.close()
    assert rounds_that_skip(recorder.heard) == []
    assert max(message["status"]["round"] for message in recorder.heard) == 15
