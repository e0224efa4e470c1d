"""LB-BSP's rule: how a round's samples are shared out, when the sizes change, and what the workers are told."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from scripted_job import ScriptedJob

from server.messages import Query, Report, Response, Settings, Status
from server.policies import POLICIES
from server.policies.lb_bsp import DEAD_BAND, in_proportion
from server.state import Table
from server.wire import understand

NINE_WAYS_S = (0.04, 0.04, 0.04, 0.4)  # of 64 samples


@pytest.mark.parametrize(
    ("total", "speeds", "sizes"),
    [
        (256, [10, 10, 10, 1], (83, 83, 82, 8)),  # 82.58 each and 8.26: two remainders of .58 are rounded up
        (12, [1, 3, 2], (2, 6, 4)),
        (7, [1, 1, 1], (3, 2, 2)),
        (8, [1000, 1, 1, 1], (5, 1, 1, 1)),  # nobody gets nothing
        (9, [50, 6, 1], (7, 1, 1)),  # 0.16 for the last; of the eight that are left 0.86 for the one before
        (3, [9, 1, 1], (1, 1, 1)),
        (5, [2], (5,)),
    ],
)
def test_sizes_are_in_proportion_to_the_speeds(total: int, speeds: list[int], sizes: tuple[int, ...]) -> None:
    assert in_proportion(total, speeds) == sizes


some_speeds = st.lists(st.integers(1, 100) | st.integers(1, 2**80), min_size=1, max_size=12)


@given(speeds=some_speeds, more=st.integers(0, 3000))
def test_whatever_the_speeds_all_samples_are_shared_out_and_the_faster_gets_no_less(
    speeds: list[int], more: int
) -> None:
    total = len(speeds) + more
    sizes = in_proportion(total, speeds)
    assert sum(sizes) == total
    assert min(sizes) >= 1
    by_speed = sorted(range(len(speeds)), key=lambda rank: (-speeds[rank], rank))
    assert [sizes[rank] for rank in by_speed] == sorted(sizes, reverse=True)
    assert in_proportion(total, speeds) == sizes
    if min(speeds) * total >= sum(speeds):  # each has a part of one sample or more
        for speed, size in zip(speeds, sizes, strict=True):
            assert abs(size * sum(speeds) - total * speed) < sum(speeds)


class Job(ScriptedJob):
    """Workers that do as they are told: each round's batches are as large as the answers of the one before said.

    Attributes:
        sizes: of the next round, by rank.
    """

    def __init__(self, num_workers: int = 4, batch_size: int | None = 64, policy: str = "lb-bsp", **more: bool) -> None:
        super().__init__(num_workers, policy, batch_size=batch_size, **more)
        self.sizes: list[int | None] = [64] * num_workers
        self.round = 0

    def step(self, sample_times_s: Sequence[float]) -> list[int | None]:
        """One round; returns the sizes of the next one. Those who end first ask first."""
        self.round += 1
        took_s = [size * each for size, each in zip(self.sizes, sample_times_s, strict=True)]
        for rank in sorted(range(len(took_s)), key=took_s.__getitem__):
            told = Status(rank, 1, self.round, took_s[rank])
            message = Query(f"worker-{rank}", self.id, told, samples=self.sizes[rank])
            self.sizes[rank] = self.handlers.query(message, 10.0 * self.round + took_s[rank]).batch_size
        return list(self.sizes)


def by_sample(*step_times_s: float) -> list[float]:
    return [step_s / 64 for step_s in step_times_s]


NINE_WAYS = by_sample(*NINE_WAYS_S)


@pytest.mark.parametrize("tests_a_step", [False, True])
def test_a_decision_holds_from_the_next_round_on_and_all_of_a_round_are_told_the_same(tests_a_step: bool) -> None:
    """In the first round the first worker that asks knows no other speed than its own, unless a test step was told."""
    job = Job()
    if tests_a_step:
        for rank, step_s in enumerate(NINE_WAYS_S):
            job.handlers.report(Report(f"worker-{rank}", job.id, Status(rank, 0, 1, step_s), samples=64), 1.0)
    assert job.step(NINE_WAYS) == ([83, 83, 82, 8] if tests_a_step else [64] * 4)
    assert job.step(NINE_WAYS) == job.step(NINE_WAYS) == [83, 83, 82, 8]


def test_noise_moves_nothing_and_a_lasting_change_does() -> None:
    job = Job()
    noise = (1.0, 1.03, 0.97, 1.02, 0.98, 1.0, 1.03)
    for round_ in range(30):
        job.step([each * noise[(round_ + 3 * rank) % 7] for rank, each in enumerate(by_sample(0.1, 0.1, 0.1, 0.1))])
        assert job.sizes == [64] * 4
    after = [job.step(by_sample(0.1, 0.1, 0.1, 1.0)) for _ in range(8)]
    changed = next(number for number, sizes in enumerate(after) if sizes != [64] * 4)
    assert changed <= 3  # three of the last five times show it
    assert after[changed:] == [[83, 83, 82, 8]] * (8 - changed)


@pytest.mark.parametrize(("slower", "sizes"), [(1.04, [50, 50]), (1.13, [53, 47])])
def test_the_sizes_change_where_the_round_gets_shorter_by_more_than_the_dead_band(
    slower: float, sizes: list[int]
) -> None:
    """A step of 50 samples that takes 1 + x in place of 1 s: half of x is gained."""
    assert (slower - 1) / 2 / slower < DEAD_BAND or sizes != [50, 50]
    job = Job(2, batch_size=50)
    job.sizes = [50, 50]
    for _ in range(4):
        job.step([0.02, 0.02 * slower])
    assert job.sizes == sizes


def test_where_a_step_costs_something_beside_its_samples_all_end_together_in_the_end() -> None:
    """0.1 s and 0.001 s a sample; the second worker 0.1 s and 0.003 s: b and 0.25 b are not the answer."""
    job = Job(2, batch_size=100)
    job.sizes = [100, 100]
    for _ in range(40):
        job.step([0.1 / (job.sizes[0] or 1) + 0.001, 0.1 / (job.sizes[1] or 1) + 0.003])
    steps_s = 0.1 + 0.001 * (job.sizes[0] or 0), 0.1 + 0.003 * (job.sizes[1] or 0)
    assert sum(size or 0 for size in job.sizes) == 200
    assert max(steps_s) / min(steps_s) < 1.1
    assert job.sizes[1] == pytest.approx(50, abs=3)


def test_a_job_that_was_taken_over_is_told_no_size_before_all_speeds_are_known() -> None:
    job = Job(3, resumed=True)
    assert job.step(by_sample(0.1, 0.1, 0.2)) == [None, None, None]
    job.sizes = [70, 60, 62]  # what they had, and have still
    assert job.step(by_sample(0.1, 0.1, 0.2)) == [77, 77, 38]


def test_who_asks_for_ever_new_rounds_alone_makes_nobody_look_at_all_workers() -> None:
    looked: list[int] = []
    policy = replace(POLICIES["lb-bsp"], share_out=lambda table: looked.append(round_) or table.batch_sizes)
    table = Table(Settings(1000, "lb-bsp", batch_size=64), policy)
    for round_ in range(1, 3001):
        table.share_out(round_)
    assert looked == [1, 1001, 2001]


def test_the_page_says_who_has_how_many_samples_and_why() -> None:
    job = Job()
    for _ in range(2):
        job.step(NINE_WAYS)
    workers = job.status(21.0)["workers"]
    assert [(worker["mark"], worker["action"]) for worker in workers] == [*[("", "SYNC")] * 3, ("slowest", "SYNC")]
    assert workers[3]["reason"] == "8 of 256 samples: 160 samples/s, the mean is 1240"


def test_a_reset_may_say_how_large_batches_are_at_first() -> None:
    about = {"msg_type": "RESET", "sender": "w", "job": "a", "num_workers": 2, "policy": "lb-bsp"}
    for more in ({"batch_size": 64}, {}):
        assert understand({**about, **more}).settings.batch_size == more.get("batch_size")  # type: ignore[union-attr]


def test_only_a_rule_that_decides_on_batch_sizes_sends_one() -> None:
    sized, plain = (Response("w", "a", "why", batch_size=size).to_wire("s") for size in (83, None))
    assert (sized["batch_size"], "batch_size" in plain) == (83, False)
    for job in (Job(2, batch_size=None), Job(2, policy="sync-switch-none")):
        assert job.step([0.1, 0.1]) == [None, None]
