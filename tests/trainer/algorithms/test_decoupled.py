"""The workers of the quorum merge, in virtual time: when they upload, and what they go on from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from contexts import by_flags
from memory_cluster import ZERO, Trained, Worker, after_steps, batch, dense, normalised, train

from algorithms import TransportKind
from config import Config
from trainer.algorithms.decoupled import Inbox, mean_of
from trainer.command_line import check_job, parse
from utils import SetupError

ETA = 0.5


def trained(
    rounds: int,
    quorum: int,
    grace_s: float | None,
    steps_s: Sequence[float],
    samples: Sequence[int] = (),
    killed: dict[int, int] | None = None,
    network: Callable[[], Any] = dense,
) -> Trained:
    """Rounds of two steps, eps = 0.7, beta = 0.9."""
    counts = samples or [1] * len(steps_s)
    workers = [Worker([batch(rank)], step_s, samples=counts[rank]) for rank, step_s in enumerate(steps_s)]
    flags = {"quorum": quorum, "grace": "auto" if grace_s is None else grace_s, "local_lr": ETA, "sync_every": 2}
    config = Config(mode="decoupled", global_lr=0.7, outer_momentum=0.9, **flags)
    return train(TransportKind.HUB, workers, by_flags("decoupled"), rounds, network, killed=killed, config=config)


def local(weight: np.ndarray, rank: int) -> np.ndarray:
    """The weights of this worker after the two steps of a round."""
    return after_steps(weight, rank, rank, eta=ETA)


def test_a_worker_takes_a_release_with_its_next_upload_and_goes_on_from_its_own_weights_before() -> None:
    """Steps of 1 and 2.5 s, K = 2 (all): uploads at 2, 4 and at 5 s, which merges; worker 0 takes that at 6 s. Worker 0
    has three of four samples, so its updates count 1.5 times."""
    done = trained(3, 2, None, (1.0, 2.5), samples=(3, 1))
    second = local(local(ZERO, 0), 0)
    # 5 s: worker 0 is in with two uploads of 2 steps, S = T = 4, weight 4; worker 1 with one, weight 2.
    velocity = (4 * 1.5 * second + 2 * 0.5 * local(ZERO, 1)) / 6
    release = 0.7 * (velocity + 0.9 * velocity)
    np.testing.assert_allclose(done.weights(0), release, rtol=1e-4)
    # 10 s: worker 0's third update is of the steps from `second`; worker 1's of those from the release.
    own = local(release, 1)
    delta = (2 * 1.5 * (local(second, 0) - second) + 2 * 0.5 * (own - release)) / 4
    release2 = release + 0.7 * (delta + 0.9 * (0.9 * velocity + delta))
    # 15 s: worker 0 has ended, so worker 1 alone is no quorum: it keeps its own steps.
    np.testing.assert_allclose(done.weights(1), local(release2, 1), rtol=1e-3)
    told = [
        [(round_, steps, decision and decision[0]) for round_, steps, *_, decision in page.told] for page in done.pages
    ]
    assert told[0] == [(1, 0, None), (1, 2, "TRAIN"), (1, 4, "TRAIN"), (2, 0, "TRAIN")]
    assert told[1] == [(1, 0, None), (2, 0, "SYNC"), (3, 0, "SYNC"), (3, 2, "TRAIN")]


def test_an_update_weighs_as_its_samples_times_its_samples_a_step() -> None:
    """S = 12 in T = 6 steps: 24; S = 10 in T = 2: 50; an empty inbox and one without a sample: nothing."""
    first, second, empty, bad = (Inbox() for _ in range(4))
    first.add([np.array([1.0]), np.array([7.0])], 1, 4, 2)
    first.add([np.array([2.0]), np.array([3.0])], 1, 8, 4)  # updates add up; of statistics the newest counts
    second.add([np.array([11.0]), np.array([40.0])], 1, 10, 2)
    bad.add([np.array([1e9]), np.array([1e9])], 1, 0, 2)
    assert (first.weight, second.weight, empty.weight, bad.weight) == (24.0, 50.0, 0.0, 0.0)
    means = mean_of([empty, first, bad, second])
    assert means == [pytest.approx((24 * 3 + 50 * 11) / 74), pytest.approx((24 * 3 + 50 * 40) / 74)]


@pytest.mark.parametrize("killed", [{}, {2: 0}])
def test_no_worker_waits_for_another_one_that_is_slow_or_lost(killed: dict[int, int]) -> None:
    """Worker 2 would upload after 20 s."""
    done = trained(4, 2, 0.0, (1.0, 1.0, 10.0), killed=killed)
    begun_s = 3 * 10.0  # three test steps of the slowest
    assert [done.ended_s[rank] - begun_s for rank in (0, 1)] == [4 * 2 * 1.0] * 2
    assert done.pages[0].told[-1][0] >= 4  # three releases and more without worker 2


def test_running_statistics_are_the_mean_of_the_workers_and_no_momentum_acts_on_them() -> None:
    done = trained(1, 2, 0.0, (1.0, 2.5), network=normalised)
    means = [0.75 * (batch(rank).images / 255).mean() for rank in (0, 1)]  # 0.5 * old + 0.5 * batch's, twice
    running = done.trainers[1].parameters.statistics()[0][0]
    assert running == pytest.approx(sum(means) / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("-m decoupled --grace soon", "'soon' is not a number of seconds below 1000000000, such"),
        ("-m decoupled --grace -1", "'-1' is not a number of seconds below 1000000000, such"),
        ("-m decoupled --grace nan", "'nan' is not a number of seconds below 1000000000, such"),
        ("-m decoupled --grace 1000000000", "'1000000000' is not a number of seconds below 1000000000, such"),
        ("-m decoupled --quorum -1", "-1 is out of range; give 0 or more"),
        ("-m wbsp --quorum 2", "--quorum 2 belongs to mode decoupled, not to wbsp"),
        ("-m decoupled --outer-nesterov 1", "--outer-nesterov 1 belongs to mode esync or local-sgd, not to decoupled"),
    ],
)
def test_a_bad_flag_is_one_line(flags: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(flags.split())
    assert (ended.value.code, why in capsys.readouterr().err) == (2, True)


def test_a_quorum_of_more_than_all_workers_is_refused() -> None:
    check_job(parse(["-m", "decoupled", "--quorum", "3"]), num_servers=1, num_workers=3)
    with pytest.raises(SetupError, match=r"--quorum 4 is more than the 3 worker\(s\) of this job"):
        check_job(parse(["-m", "decoupled", "--quorum", "4"]), num_servers=1, num_workers=3)
