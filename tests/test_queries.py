"""A worker's questions to a real state server: waiting for the answer, and training on meanwhile."""

import itertools
import signal
import threading
import time

import pytest
from cluster_processes import free_ports, wait_for
from hypothesis import given
from hypothesis import strategies as st
from state_server_process import clients, running_state_server

from trainer.queries import FORWARD_SHARE, SILENCE_S, BlockingQueries, NonBlockingQueries, worthwhile_wait
from trainer.state_client import StateClient
from utils import JobError, PeerLost, SetupError


@pytest.fixture(scope="module")
def server():
    with running_state_server() as running:
        yield running


def test_a_fast_worker_trains_until_the_straggler_has_done_its_step(server):
    fast, slow = map(BlockingQueries, clients(server, 2))
    for queries in (fast, slow):
        queries.report(1, 0.0, 0.0, None)
    assert fast.ask(1, 1, 0.1, 0.0) is False
    assert fast.ask(1, 2, 0.1, 0.0) is False
    assert slow.ask(1, 1, 5.0, 0.0) is True
    assert fast.ask(1, 3, 0.1, 0.0) is True


def test_without_waiting_the_answer_comes_later_and_stays(server):
    # A round trip of 0.2 s against steps of 0.01 s: no answer can be there when `ask` returns.
    fast, slow = clients(server, 2, delay_s=0.2)
    queries = NonBlockingQueries(fast)
    queries.report(1, 0.0, 0.0, 0.5)
    assert queries.ask(1, 1, 0.01, 0.0) is False
    steps = itertools.count(1)
    wait_for(lambda: slow.query(1, next(steps), 5.0, 0.0), "the straggler's READY")
    queries.ask(1, 2, 0.01, 0.0)
    wait_for(lambda: queries.is_ready(1), "READY")
    assert queries.ask(1, 3, 0.01, 0.0) is True
    assert queries.is_ready(2) is False
    queries.close()


def test_answers_of_an_earlier_round_do_not_end_a_later_one(server):
    alone, _ = clients(server, 2, delay_s=0.1)
    queries = NonBlockingQueries(alone, max_under_way=2)
    for steps in range(1, 20):
        queries.ask(1, steps, 0.001, 0.0)  # more than can be under way at once
    queries.report(2, 0.001, 0.0, None)
    queries.close()
    assert queries.is_ready(2) is False


def test_before_the_first_round_nobody_is_ready(server):
    (alone,) = clients(server, 1)
    queries = NonBlockingQueries(alone)
    assert queries.is_ready(0) is False  # else the warm-up would be given up
    queries.close()


def test_a_question_that_arrives_after_its_round_is_harmless(server):
    alone, _ = clients(server, 2)
    for round_ in (1, 2, 3):
        alone.report(round_, 0.1, 0.0, None)
    assert alone.query(2, 3, 0.1, 0.0) is False


def test_a_failure_under_way_reaches_the_training_thread():
    (port,) = free_ports(1)
    client = StateClient("127.0.0.1", str(port), "journal", 0.5, patience_s=0.1)
    client.join("job", 0, 1)
    queries = NonBlockingQueries(client)
    queries.ask(1, 1, 0.1, 0.0)

    def failed():
        try:
            queries.ask(1, 2, 0.1, 0.0)
        except PeerLost as error:
            return f"http://127.0.0.1:{port}" in str(error)
        return False

    wait_for(failed, "the failure")
    queries.close()


def test_while_the_state_server_is_away_a_worker_does_not_train_on_for_ever():
    with running_state_server() as server:
        fast, _ = clients(server, 2)
        queries, steps, over = NonBlockingQueries(fast), itertools.count(1), threading.Event()
        done = 0

        def train():
            nonlocal done
            while not over.is_set():
                done = next(steps)
                queries.ask(1, done, 0.001, 0.0)
                time.sleep(0.001)

        thread = threading.Thread(target=train)
        thread.start()

        def stands_still():
            before = done
            time.sleep(3 * SILENCE_S)
            return done == before

        try:
            wait_for(lambda: done > 20, "20 steps")
            server.process.send_signal(signal.SIGSTOP)
            wait_for(stands_still, "the end of the steps without an answer", deadline_s=10)
            when_away = done
            server.process.send_signal(signal.SIGCONT)
            wait_for(lambda: done > when_away + 20, "20 more steps")
        finally:
            server.process.send_signal(signal.SIGCONT)
            over.set()
            thread.join()
            queries.close()


def test_nobody_waits_for_the_answer_to_a_question_that_is_over(server):
    (alone,) = clients(server, 1)
    queries = NonBlockingQueries(alone)
    queries._submit(lambda: time.sleep(0.3))  # the last one under way, counted as answered before it is seen as over
    queries._silent_since -= 10
    waits = threading.Thread(target=queries._wait_while_away, daemon=True)
    waits.start()
    waits.join(10)
    assert not waits.is_alive()
    queries.close()


def test_another_job_on_the_same_server_does_not_matter(server):
    first, _ = clients(server, 2)
    clients(server, 2)
    assert first.query(1, 1, 0.1, 0.0) is False


def test_an_address_where_nobody_answers_is_named():
    (port,) = free_ports(1)
    client = StateClient("127.0.0.1", str(port), "journal", 0.5, patience_s=0.2)
    with pytest.raises(SetupError, match=f"http://127.0.0.1:{port} .Connection refused"):
        client.check()
    with pytest.raises(PeerLost, match=f"http://127.0.0.1:{port} does not answer"):
        client.begin_job()


def test_a_token_is_sent_where_the_server_wants_one(monkeypatch):
    with running_state_server(ESYNC_TOKEN="secret") as guarded:
        with pytest.raises(JobError, match="401"):
            clients(guarded, 1)
        monkeypatch.setenv("ESYNC_TOKEN", "secret")
        (alone,) = clients(guarded, 1)
        assert alone.query(1, 1, 0.1, 0.0) is True


def test_a_straggler_waits_for_its_answer_and_a_fast_worker_far_away_does_not():
    assert worthwhile_wait(step_s=3.5, round_trip_s=0.002, steps_per_round=1) > 0.002
    assert worthwhile_wait(step_s=0.03, round_trip_s=0.1, steps_per_round=117) == 0.0


@given(st.floats(0.001, 100), st.floats(0, 10), st.integers(2, 1000))
def test_waiting_never_costs_more_than_the_longest_pass(step_s, round_trip_s, steps):
    if worthwhile_wait(step_s, round_trip_s, steps):
        assert (steps - 1) * round_trip_s <= (1 - FORWARD_SHARE) * step_s * 1.001


def test_the_wait_is_compared_with_the_rest_of_the_pass_that_would_run():
    # Passes of 1 and 2 s. An answer after 0.9 s is acted upon at 1 s, one after 1.1 s at 3 s.
    assert worthwhile_wait(3.0, 0.9, steps_per_round=2) == 0.0  # would cost 0.9 s and save 0.1 s
    assert worthwhile_wait(3.0, 1.1, steps_per_round=2) > 0.0  # would cost 1.1 s and save 1.9 s
    assert worthwhile_wait(3.0, 1.1, steps_per_round=3) == 0.0  # would cost 2.2 s


def test_before_the_first_step_there_is_nothing_to_wait_for():
    assert worthwhile_wait(0.0, 1.0, 1) == 0.0
