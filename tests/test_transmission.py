"""What ESync tells the state server of its transmission time, measured on a store that is as slow as it is told."""

import time

import pytest
from test_local_steps import a_context, batch  # noqa: F401

from trainer.engine import mx
from trainer.esync import TIMED_EVERY, TIMED_ROUNDS_AT_START, ESyncTrainer


class SlowTransport:
    """A link on which each pull takes so many seconds."""

    pull_s = 0.0

    def sums(self):
        return self

    def finish_sum(self, arrays, timed):
        return self.pull_s if timed else None


class Told:
    """Queries that keep what is reported."""

    waits = True

    def report(self, round_, step_s, transmission_s, accuracy):
        self.transmission_s = transmission_s


@pytest.fixture
def trainer(batch):  # noqa: F811
    return ESyncTrainer(a_context(batch, transport=SlowTransport(), state_server=object()), 0.01, 1.0, Told())


def transmission_after(trainer, tmp_path, *pulls, round_s=0.0):
    """What is reported in the round behind some whose pulls took so many seconds."""
    trainer.measure = trainer.open_measure(tmp_path)
    for pull_s in pulls:
        trainer.rounds += 1
        trainer.begin_round()
        time.sleep(round_s)
        trainer.transport.pull_s = pull_s
        trainer.take_sum([mx.nd.zeros((1,))])
    trainer.begin_round()
    return trainer._queries.transmission_s


def test_a_packet_that_was_lost_once_makes_no_straggler(trainer, tmp_path):
    assert 0.001 <= transmission_after(trainer, tmp_path, 0.001, 0.001, 0.3) < 0.1


def test_a_link_that_stays_slow_shows_after_three_rounds(trainer, tmp_path):
    pulls = [0.0] * TIMED_ROUNDS_AT_START + [0.05, 0.05, 0.05]
    assert transmission_after(trainer, tmp_path, *pulls, round_s=0.6) >= 0.05


def test_where_timing_is_dear_only_some_rounds_are_timed(trainer, tmp_path):
    # The link takes as long as the rest of a round, so the rounds between two timed ones keep their overlap.
    before = transmission_after(trainer, tmp_path, *[0.02] * TIMED_ROUNDS_AT_START)
    between = [0.1] * (TIMED_EVERY - TIMED_ROUNDS_AT_START - 1)
    assert transmission_after(trainer, tmp_path, *between) == before
