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
from state_server_process import clients, http_client, running_state_server

from trainer import command_line
from trainer.clock import RealClock
from trainer.coordinator.queries import Queries
from trainer.from_flags import limits
from trainer.progress import EVALUATING, TRAINING, Progress
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


def test_a_reset_says_what_the_page_calls_the_algorithm_and_when_the_job_will_end(recorder):
    recorder.client(title="WBSP with overlap", limits={"seconds": 60.0}).begin_job()
    recorder.client().begin_job(resumed=True)
    first, second = recorder.heard
    assert (first["title"], first["limits"], first["resumed"]) == ("WBSP with overlap", {"seconds": 60.0}, 0)
    assert "title" not in second
    assert "limits" not in second
    assert second["resumed"] == 1


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
    client.report(1, 0.5, 0.0)
    clock.now = 2.0
    made.add_step(64, 0.25)
    made.protocol = "ASP"
    client.query(1, 3, 0.25, 0.0)
    report, query = recorder.heard
    assert (report["elapsed"], report["total"]) == (1.5, {"steps": 2, "samples": 96, "computing": 0.75})
    assert (query["elapsed"], query["total"]) == (2.0, {"steps": 3, "samples": 160, "computing": 1.0})
    assert "way" not in report
    assert query["way"] == "ASP"


def test_before_training_begins_no_time_is_told(recorder):
    recorder.client().report(1, 0.5, 0.0)
    assert "elapsed" not in recorder.heard[0]


# ------------------------------------------------------------------------------------------ what it is doing


def test_an_evaluation_is_told_in_the_round_that_was_told_last_and_ends_with_the_next_report(recorder):
    made = progress()
    client = joined(recorder, made)
    client.report(1, 0.5, 0.0)
    client.query(1, 1, 0.5, 0.0)
    made.activity = EVALUATING
    client.tell_doing()
    recorder.wait_for(3)
    made.activity = TRAINING
    client.report(2, 0.5, 0.0)
    told = [(message["msg_type"], message["status"]["round"], message.get("doing")) for message in recorder.heard]
    assert told == [
        ("REPORT", 1, "training"),
        ("QUERY", 1, None),
        ("REPORT", 1, "evaluating"),
        ("REPORT", 2, "training"),
    ]


@pytest.mark.parametrize("is_there", [True, False], ids=["frozen", "absent"])
def test_a_state_server_that_does_not_answer_does_not_hold_up_an_evaluation(recorder, is_there):
    made = progress()
    client = joined(recorder, made)
    client.report(1, 0.5, 0.0)
    recorder.vanish(client, is_there)
    began = time.monotonic()
    for _ in range(3):
        client.tell_doing()
    assert time.monotonic() - began < AT_ONCE_S
    recorder.is_awake.set()
    client._asker.wait_until_idle(SOON_S)


def test_a_question_from_beside_the_training_does_not_hide_an_evaluation(recorder):
    made = progress()
    client = joined(recorder, made)
    made.activity = EVALUATING
    client.query(1, 1, 0.5, 0.0)  # the server takes who asks for one who trains
    assert recorder.wait_for(2)[-1]["doing"] == "evaluating"


def test_who_leaves_says_so_once_with_the_accuracy_that_no_report_has_told(recorder):
    made = progress(Clock(9.0), evaluates=True)
    client = joined(recorder, made)
    made.measured(3, 0.25)
    client.report(4, 0.5, 0.0)
    made.measured(4, 0.5)
    client.leave()
    last = recorder.heard[-1]
    assert (last["msg_type"], last["status"]["round"], last["doing"]) == ("REPORT", 4, "ended")
    assert last["accuracies"] == [[3, 9.0, 0.25], [4, 9.0, 0.5]]


def test_that_a_worker_has_left_is_not_overtaken_by_what_it_did_before(recorder):
    made = progress()
    client = joined(recorder, made)
    client.report(1, 0.5, 0.0)
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
    client.report(1, 0.5, 0.0)
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
        client.report(1, 0.5, 0.0)
    for round_ in (2, 3):
        clock.now = float(round_)
        made[0].measured(round_ - 1, round_ / 10)
        clients_[0].report(round_, 0.5, 0.0)
    clients_[1].report(2, 0.5, 0.0)
    before = len(recorder.heard)
    recorder.answer = lambda message: response(server="bbbbbbbb")
    for client in clients_:
        assert client.query(3, 1, 0.5, 0.0) is True
        client.query(3, 2, 0.5, 0.0)
    told = [(each["sender"][:8], each["msg_type"], each.get("accuracies")) for each in recorder.heard[before:]]
    assert told == [
        ("worker-0", "QUERY", None),
        ("worker-0", "REPORT", [[1, 2.0, 0.2], [2, 3.0, 0.3]]),
        ("worker-0", "QUERY", None),
        ("worker-1", "QUERY", None),
        ("worker-1", "REPORT", None),
        ("worker-1", "QUERY", None),
    ]
    assert recorder.heard[before + 1]["status"]["local_iteration"] == 1


def test_a_server_that_does_not_know_the_job_gets_it_before_the_message(recorder):
    client = joined(recorder, progress(evaluates=True))
    client.report(1, 0.5, 0.0)
    knows_it = threading.Event()

    def forgetful(message):
        if message["msg_type"] == "RESET":
            knows_it.set()
        return response() if knows_it.is_set() else refusal("unknown-job")

    recorder.answer = forgetful
    client.query(1, 1, 0.5, 0.0)
    told = [(message["msg_type"], message.get("resumed"), message.get("accuracies")) for message in recorder.heard[1:]]
    # Perhaps the same process, which has made room: the accuracies are lost all the same. There are none so far.
    assert told == [("QUERY", None, None), ("RESET", 1, None), ("QUERY", None, None), ("REPORT", None, [])]


def test_an_older_server_that_does_not_name_itself_is_told_nothing_more():
    with recording(lambda message: response(server=None)) as recorder:
        client = joined(recorder, progress(evaluates=True))
        client.report(1, 0.5, 0.0)
        client.query(1, 1, 0.5, 0.0)
    assert len(recorder.heard) == 2


def test_a_real_server_that_was_restarted_has_the_curve_and_the_totals_again():
    (port,) = free_ports(1)
    made = [progress(Clock(100.0), evaluates=rank == 0, steps=[(64, 0.5)] * 7) for rank in range(2)]
    with running_state_server(port) as server:
        workers = clients(server, 2)
        for rank, client in enumerate(workers):
            client.join(client.job, rank, 2, made[rank])
            client.report(1, 0.5, 0.0)
        for round_ in (2, 3, 4):
            made[0].measured(round_ - 1, round_ / 10)
            workers[0].report(round_, 0.5, 0.0)
    with running_state_server(port) as server:
        assert workers[1].query(1, 1, 0.5, 0.0) in (True, False)
        assert workers[0].query(4, 1, 0.5, 0.0) in (True, False)
        status = requests.get(f"{server.url}/status.json", timeout=10).json()
    assert [point[1:] for point in status["accuracies"]] == [[0.2, 1], [0.3, 2], [0.4, 3]]
    assert status["samples"] == 2 * 7 * 64


# ------------------------------------------------------------------------------------------------ who refuses


@pytest.mark.parametrize("code", ["round-ahead", "job-settings"])
def test_a_refusal_ends_the_worker_with_the_servers_words(recorder, code):
    recorder.answer = lambda message: refusal(code, "there are 64 jobs")
    client = recorder.client()
    with pytest.raises(JobError, match=rf"{recorder.port} refuses this RESET \({code}\): there are 64 jobs"):
        client.begin_job()


@pytest.mark.parametrize("code", ["stale", "other-sender"])
def test_a_worker_whose_newest_message_is_refused_says_so_once_and_goes_on(recorder, caplog, code):
    client = recorder.client(1)
    client.report(20, 0.5, 0.0)
    recorder.answer = lambda message: refusal(code, "worker 1 is in round 420 already, this is of round 21")
    client.report(21, 0.5, 0.0)
    assert client.query(21, 1, 0.5, 0.0) is False and client.is_refused
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.endswith(
        "takes none: worker 1 is in round 420 already, this is of round 21; the others go on without this worker, or "
        "another program speaks for it, which ESYNC_TOKEN prevents"
    )
    client.query(20, 9, 0.5, 0.0)  # one that was overtaken says nothing
    recorder.answer = lambda message: response("TRAIN")
    client.query(21, 2, 0.5, 0.0)
    assert not client.is_refused


def test_a_job_for_which_there_is_no_room_yet_waits_for_some(recorder):
    answers = iter([refusal("too-many-jobs", "64 jobs are at work")] * 2)
    recorder.answer = lambda message: next(answers, response())
    recorder.client().begin_job()
    assert [message["msg_type"] for message in recorder.heard] == ["RESET"] * 3


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
