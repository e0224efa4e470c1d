"""What ESync tells the state server of its transmission time, on a link that is as slow as it is told, time by hand."""

import numpy as np
import pytest
from one_worker import HandClock, a_context, some_batch

from trainer.algorithms import esync
from trainer.algorithms.esync import TIMED_EVERY, TIMED_ROUNDS_AT_START
from trainer.survival import trainer_state


class SlowTransport:
    """A link on which each pull takes so many seconds."""

    pull_s = 0.0

    def __init__(self, clock):
        self._clock = clock

    def sums(self, as_halves):
        return self

    def finish_sum(self, arrays, timed):
        self._clock.sleep(self.pull_s)
        return self.pull_s if timed else None


class Told:
    """Queries that keep what is reported."""

    waits = True

    def report(self, round_, step_s, transmission_s):
        self.transmission_s = transmission_s


@pytest.fixture
def trainer(monkeypatch):
    clock = HandClock()
    context = a_context(some_batch(), clock=clock, transport=SlowTransport(clock), state_server=object())
    monkeypatch.setattr(esync, "Queries", lambda state, clock, waits: Told())
    return esync.ESyncTrainer(context, esync.Settings(local_lr=0.01))


def transmission_after(trainer, tmp_path, *pulls, round_s=0.0):
    """What is reported in the round behind some whose pulls took so many seconds."""
    trainer.measure = trainer_state.open_measure(trainer, tmp_path)
    for pull_s in pulls:
        trainer.rounds += 1
        trainer.begin_round()
        trainer.clock.sleep(round_s)
        trainer.transport.pull_s = pull_s
        trainer.take_sum([np.zeros(1, np.float32)])
    trainer.begin_round()
    return trainer._queries.transmission_s


def test_a_packet_that_was_lost_once_makes_no_straggler(trainer, tmp_path):
    assert transmission_after(trainer, tmp_path, 1, 1, 300) == 1


def test_a_link_that_stays_slow_shows_after_three_rounds(trainer, tmp_path):
    pulls = [0] * TIMED_ROUNDS_AT_START
    assert transmission_after(trainer, tmp_path, *pulls, 5, 5, round_s=60) == 0
    assert transmission_after(trainer, tmp_path, 5, round_s=60) == 5


def test_where_timing_is_dear_only_some_rounds_are_timed(trainer, tmp_path):
    # The link takes as long as the rest of a round, so the rounds between two timed ones keep their overlap.
    assert (
        transmission_after(trainer, tmp_path, *range(1, TIMED_ROUNDS_AT_START + 1)) == 2
    )  # the median: all were timed
    between = [10] * (TIMED_EVERY - TIMED_ROUNDS_AT_START - 1)
    assert transmission_after(trainer, tmp_path, *between) == 2
    assert transmission_after(trainer, tmp_path, 10) == 2  # the lower median of 1, 2, 3 and 10
    assert transmission_after(trainer, tmp_path, *between, *[10] * (TIMED_ROUNDS_AT_START + 1)) == 3
