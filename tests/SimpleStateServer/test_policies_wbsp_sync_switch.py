"""WBSP's rule and Sync-Switch's three, on tables small enough to work out by hand and through messages."""

import pytest
from scripted_job import ScriptedJob, table_of

from server.errors import BadMessage
from server.policies import POLICIES
from server.policies.sync_switch import MARGIN
from server.row import STEP_TIME_WINDOW, Action, Row
from server.wire import understand

TRAIN, SYNC = Action.TRAIN, Action.SYNC
SYNC_SWITCH = ("sync-switch-none", "sync-switch-greedy", "sync-switch-elastic")


def answers(policy: str, *rows: Row) -> list[Action]:
    """What each worker would be told."""
    decisions = [POLICIES[policy].decide(table_of(policy, *rows), rank, 0.0) for rank in range(len(rows))]
    assert all(decision.reason for decision in decisions)
    return [decision.action for decision in decisions]


def reason(policy: str, rank: int, *rows: Row) -> str:
    """Why worker `rank` is told what it is."""
    return POLICIES[policy].decide(table_of(policy, *rows), rank, 0.0).reason


def job_of(policy: str, num_workers: int) -> ScriptedJob:
    return ScriptedJob(num_workers, policy, transmission_time=0.0)


def worker(
    rank: int, uploads: int, seconds: float, round: int = 1, action: Action | None = None, m: float = 0.0
) -> Row:
    return Row(rank, round=round, local_iteration=uploads, step_times=(seconds,), action=action, transmission_time=m)


BY_HAND = {
    "the slowest alone releases": (
        [worker(0, 4, 1.0), worker(1, 1, 4.0), worker(2, 2, 2.0)], [TRAIN, SYNC, TRAIN]
    ),
    "none does before an upload": ([worker(0, 1, 1.0), worker(1, 0, 4.0)], [TRAIN, TRAIN]),
    "nor after the round before": ([worker(0, 1, 1.0), worker(1, 0, 4.0, action=TRAIN)], [TRAIN, TRAIN]),
    "the slowest has the longest way": ([worker(0, 1, 1.0, m=3.5), worker(1, 1, 4.0)], [SYNC, TRAIN]),
    "the next to ask does when the slowest has uploaded and was not the slowest then": (
        [worker(0, 1, 1.0), worker(1, 1, 1.1, action=TRAIN)], [SYNC, SYNC]
    ),
    "one release is not made twice: it was told to": (
        [worker(0, 5, 1.0), worker(1, 1, 4.0, action=SYNC)], [TRAIN, SYNC]
    ),
    "it has it": ([worker(0, 5, 1.0), worker(1, 1, 4.0, round=2, action=TRAIN)], [TRAIN, SYNC]),
    "who has a release that the slowest has not trains": (
        [worker(0, 1, 1.0, round=3), worker(1, 1, 4.0, round=2, action=TRAIN)], [TRAIN, SYNC]
    ),
    "a worker whose step time is not known is waited for": ([worker(0, 1, 1.0), Row(1)], [TRAIN, TRAIN]),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "told"), BY_HAND.values(), ids=BY_HAND)
def test_wbsp_by_hand(rows: list[Row], told: list[Action]) -> None:
    assert answers("wbsp", *rows) == told


def test_through_messages_the_slowest_releases_after_each_of_its_uploads() -> None:
    job = job_of("wbsp", 2)
    for round in (1, 2, 3):
        begin = 4.0 * round
        job.all_report(round, begin)
        assert [job.query(0, round, steps, 1.0, begin + steps) for steps in (1, 2, 3)] == [TRAIN] * 3
        assert job.query(1, round, 1, 4.0, begin + 4.0) == SYNC


def test_through_messages_workers_of_equal_speed_release_once_a_step() -> None:
    """They take turns in being the slowest by a hair."""
    job = job_of("wbsp", 2)
    assert job.query(0, 1, 1, 1.00, 0.0) == TRAIN  # nothing is known of worker 1
    assert job.query(1, 1, 1, 0.99, 0.0) == SYNC  # it is not the slowest, but the slowest has uploaded
    job.all_report(2, 0.0)
    assert job.query(1, 2, 1, 1.02, 0.0) == TRAIN  # the lower median is still 0.99
    assert job.query(0, 2, 1, 1.00, 0.0) == SYNC


def test_through_messages_a_worker_that_is_a_release_behind_trains() -> None:
    job = job_of("wbsp", 2)
    job.query(0, 1, 1, 1.0, 1.0)
    assert job.query(1, 1, 1, 4.0, 4.0) == SYNC
    job.report(1, 2, 4.0)
    assert job.query(0, 1, 2, 1.0, 4.1) == TRAIN  # it takes the release now
    assert job.query(1, 2, 1, 4.0, 8.0) == SYNC
    assert job.query(0, 1, 3, 1.0, 8.5) == TRAIN  # and if it still has not, no other one is made


def test_through_messages_a_dead_slowest_worker_is_not_waited_for() -> None:
    job = job_of("wbsp", 3)
    for rank, seconds in ((0, 1.0), (1, 2.0), (2, 4.0)):
        job.query(rank, 1, 1, seconds, 4.0)
        job.report(rank, 2, 4.0)
    # Worker 2 is not heard any more; it has ten times its own 4 s.
    assert job.query(1, 2, 20, 2.0, 44.0) == TRAIN
    assert job.query(0, 2, 41, 1.0, 44.1) == SYNC  # the slowest that is left has uploaded
    job.report(0, 3, 44.1)
    assert job.query(1, 2, 21, 2.0, 46.0) == SYNC  # and releases from now on
    job.report(1, 3, 46.0)
    assert job.query(0, 3, 1, 1.0, 46.1) == TRAIN
    assert job.query(1, 3, 1, 2.0, 48.0) == SYNC


def computing(rank: int, *seconds: float, samples: int = 64, m: float = 0.0) -> Row:
    """Its last steps took so long; one number means all of them. `m`: its own pushes and pulls."""
    times = seconds * STEP_TIME_WINDOW if len(seconds) == 1 else seconds
    return Row(rank, step_times=times, steps=10, samples=10 * samples, transmission_time=m)


def cluster(*seconds: float) -> list[Row]:
    return [computing(rank, each) for rank, each in enumerate(seconds)]


def found(*rows: Row) -> list[int]:
    """Who is marked; and whenever anybody is, greedy leaves BSP."""
    marks = POLICIES["sync-switch-greedy"].marks(rows, 0)
    assert answers("sync-switch-greedy", *rows) == [TRAIN if marks else SYNC] * len(rows)
    return sorted(marks)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        # 1280 samples/s thrice and 640 once: the mean is 1120, the standard deviation 277.
        (cluster(0.05, 0.05, 0.1, 0.05), ": 640 samples/s, the mean is 1120 +- 277"),
        # A slow link: 64 samples in 0.05 + 0.01 s thrice, and in 0.05 + 0.07 s: 1067 and 533 samples/s.
        ([computing(rank, 0.05, m=0.07 if rank == 2 else 0.01) for rank in range(4)], ": 533.3 samples/s"),
    ],
)
def test_one_clear_straggler_among_four_equal_workers(rows: list[Row], why: str) -> None:
    assert answers("sync-switch-none", *rows) == [SYNC, SYNC, SYNC, SYNC]
    assert answers("sync-switch-greedy", *rows) == [TRAIN, TRAIN, TRAIN, TRAIN]
    assert answers("sync-switch-elastic", *rows) == [SYNC, SYNC, TRAIN, SYNC]
    for policy, rank in (("sync-switch-greedy", 0), ("sync-switch-elastic", 2)):
        assert reason(policy, rank, *rows).startswith(f"worker 2 is a straggler{why}")


def test_where_there_is_no_straggler_the_reason_says_so() -> None:
    rows = cluster(0.05, 0.05, 0.1, 0.05)
    assert reason("sync-switch-elastic", 0, *rows) == (
        "worker 0 is no straggler: 1280 samples/s, the mean is 1120 +- 277"
    )
    assert reason("sync-switch-greedy", 0, *cluster(0.05, 0.05, 0.0505, 0.05)) == (
        "no straggler: worker 2 is the slowest with 1267 samples/s, the mean is 1277 +- 5.49"
    )


@pytest.mark.parametrize("policy", SYNC_SWITCH)
def test_equal_workers_stay_in_step(policy: str) -> None:
    assert answers(policy, *cluster(0.05, 0.05, 0.05, 0.05)) == [SYNC] * 4


@pytest.mark.parametrize("policy", SYNC_SWITCH[1:])
def test_the_reason_names_a_worker_that_is_not_known_yet(policy: str) -> None:
    rows = [*cluster(0.05, 0.05, 0.1), Row(3)]
    assert reason(policy, 0, *rows) == "no straggler is known: the throughput of worker 3 is not known yet"


STRAGGLERS = {
    "who does not say how many samples it trains on is not known": (
        [*cluster(0.05, 0.05, 0.1), computing(3, 0.05, samples=0)], []
    ),
    "a step of nearly no time harms nothing": (cluster(0.05, 0.05, 5e-324, 0.05), []),
    "who is silent does not count": ([*cluster(0.05, 0.05, 0.1), Row(3, counted=False)], [2]),
    # The last one is 1.6 standard deviations below the mean, which is 5 %.
    "slight noise makes none": (cluster(0.049, 0.05, 0.0505, 0.0535), []),
    # Three workers do 1000 samples/s; the mean moves with the fourth: x < 0.9 (3000 + x) / 4 at x < 871.
    "within the margin": (cluster(0.064, 0.064, 0.064, 0.064 / 0.875), []),
    "beyond the margin": (cluster(0.064, 0.064, 0.064, 0.064 / 0.867), [3]),
    "who is faster than the others makes none": (cluster(0.05, 0.05, 0.05, 0.02), []),
    "samples count and not steps": ([*cluster(0.05, 0.05, 0.05), computing(3, 0.1, samples=128)], []),
    "also of a fast step": ([*cluster(0.05, 0.05, 0.05), computing(3, 0.05, samples=32)], [3]),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "stragglers"), STRAGGLERS.values(), ids=STRAGGLERS)
def test_who_is_a_straggler(rows: list[Row], stragglers: list[int]) -> None:
    assert float(MARGIN) == 0.1
    assert found(*rows) == stragglers


@pytest.mark.parametrize("place", range(4))
def test_nobody_is_a_straggler_while_a_window_is_not_full(place: int) -> None:
    rows = cluster(0.05, 0.05, 0.1, 0.05)
    assert found(*rows) == [2]
    seconds = rows[place].step_times[1:]
    rows[place] = computing(place, *seconds)
    assert found(*rows) == []
    rows[place] = Row(place)
    assert found(*rows) == []


def test_of_two_workers_neither_is_a_straggler() -> None:
    """Each is exactly one standard deviation from their mean, and not more."""
    pairs = [(0.05, 0.1), (0.05, 0.11), (0.05, 0.12), (0.01, 0.03), (0.04, 0.06)]
    assert [found(*cluster(*pair)) for pair in pairs] == [[]] * len(pairs)


def rounds(job: ScriptedJob, numbers: range, usual: float, straggler: float) -> list[str]:
    """Each worker does a step a round, worker 2 another one; the answers to worker 0, and worker 2's behind them."""
    told: list[str] = []
    for round in numbers:
        told = [job.query(rank, round, 1, straggler if rank == 2 else usual, float(round)) for rank in (1, 3, 2, 0)]
    return [told[3], told[2]]


@pytest.mark.parametrize(
    ("policy", "while_it_lasts"),
    [
        ("sync-switch-none", [SYNC, SYNC]),
        ("sync-switch-greedy", [TRAIN, TRAIN]),
        ("sync-switch-elastic", [SYNC, TRAIN]),
    ],
)
def test_a_transient_straggler_shows_after_three_steps_and_clears_after_three(
    policy: str, while_it_lasts: list[Action]
) -> None:
    job = job_of(policy, 4)
    in_step = [SYNC, SYNC]
    assert rounds(job, range(1, 7), 0.05, 0.05) == in_step
    assert rounds(job, range(7, 9), 0.05, 0.2) == in_step  # two steps of the last five
    assert rounds(job, range(9, 10), 0.05, 0.2) == while_it_lasts
    assert rounds(job, range(10, 14), 0.05, 0.2) == while_it_lasts
    assert rounds(job, range(14, 16), 0.05, 0.05) == while_it_lasts
    assert rounds(job, range(16, 17), 0.05, 0.05) == in_step


@pytest.mark.parametrize("policy", SYNC_SWITCH)
def test_neither_one_outlier_nor_the_first_steps_make_a_straggler(policy: str) -> None:
    job = job_of(policy, 4)
    rounds(job, range(1, 7), 0.05, 0.05)
    assert rounds(job, range(7, 8), 0.05, 9.0) == [SYNC, SYNC]
    assert rounds(job, range(8, 9), 0.05, 0.05) == [SYNC, SYNC]
    assert rounds(job_of(policy, 4), range(1, STEP_TIME_WINDOW), 0.05, 0.5) == [SYNC, SYNC]


def test_a_rule_that_nobody_has_written_is_refused() -> None:
    about = {"msg_type": "RESET", "sender": "w", "job": "a", "num_workers": 4, "policy": "sync-switch"}
    with pytest.raises(BadMessage, match="sync-switch-elastic"):
        understand(about)
