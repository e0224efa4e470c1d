"""Who takes part may change between two rounds: shares, number of workers and this worker's samples follow."""

from __future__ import annotations

import numpy as np
import pytest
from contexts import by_flags, context_of
from memory_cluster import batch, dense
from ready import FEED, ready

from esync.progress import Limits
from trainer.datasets.batches import EndlessBatches
from trainer.datasets.samples import Samples
from trainer.datasets.sources import Arrays
from trainer.loop import Loop
from trainer.membership import Membership, of_parts

ETA = 0.5


def changes(*rounds: Membership):
    """Answers with one membership after the other; before the first round, and in it, with the first."""
    answers = iter([rounds[0], *rounds])
    return lambda: next(answers)


def test_shares_and_weight_are_of_the_samples_that_workers_hold() -> None:
    other, membership = of_parts([np.arange(3), np.arange(3, 4)])
    assert (membership.share, membership.weight) == (0.25, 0.5)
    assert Membership(1, 4).share == 0.25 and Membership(1, 4).weight == 1.0
    assert other.partition_sha256["all by rank"] == membership.partition_sha256["all by rank"]
    assert other.partition_sha256["this worker"] != membership.partition_sha256["this worker"]


@pytest.mark.parametrize("again", [False, True])
def test_a_worker_draws_from_the_samples_of_the_round_and_goes_on_in_its_epoch_where_they_are_the_same(
    tmp_path, again
) -> None:
    """Three rounds of one sample; the second round's part is another one, or the first's once more."""
    first, second = np.array([0, 1, 2]), np.array([3])
    parts = [first, first, first] if again else [first, second, first]
    samples = Samples(np.zeros((4, 1, 2, 2), np.uint8), np.array([0, 1, 0, 1], np.uint8))
    epochs: list[list[int]] = []

    class Noted(EndlessBatches):
        def draw_from(self, indices: np.ndarray) -> None:
            epochs.append(indices.tolist())
            super().draw_from(indices)

    context = context_of(
        network=dense(),
        batches=Noted(Arrays(*samples), FEED, first, 1, 0),
        warm_up_batch=ready(batch(0)),
        membership=changes(*(of_parts([part])[0] for part in parts)),
        limits=Limits(3),
    )
    Loop(by_flags("local", learning_rate=ETA)(context)).run(lambda: tmp_path)
    # A new epoch begins with the job, and where the samples are others.
    assert epochs == ([[0, 1, 2]] if again else [[0, 1, 2], [3], [0, 1, 2]])


def test_batches_that_repeat_samples_are_told_by_one_worker_of_each_host():
    places = ("cpu0 on host a", "cpu1 on host a", "cpu2 on host a", "cpu on host b")
    parts = [np.arange(8), *[np.arange(7)] * 3]
    told = [each.repeating(8) for each in of_parts(parts, places)]
    assert [bool(line) for line in told] == [False, True, False, True]
    assert "a batch has 8 samples (-b), and 3 of 4 worker(s) have fewer, 7 at least: their batches repeat" in told[1]
    assert [bool(each.repeating(9)) for each in of_parts(parts)] == [True, False, False, False]  # places are not known
    assert not any(each.repeating(7) for each in of_parts(parts)) and not Membership().repeating(64)
