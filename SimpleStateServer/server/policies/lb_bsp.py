"""LB-BSP's policy: all workers step together, on batches in proportion to their speeds, so that they end together.

Source: Chen et al., "Semi-dynamic load balancing: efficient distributed learning in non-dedicated environments", SoCC
2020. A round has B samples in all. With v_k samples/s worker k gets b_k = B * v_k / sum(v) of them, rounded to whole
numbers that sum to B: the largest remainders are rounded up, and each worker gets one at least.

v_k is what was measured at the present size. A step of b samples takes c0 + c1 * b, so v_k depends on b_k. But applied
again and again the rule comes to rest only where all steps take equally long: b_k is in proportion to b_k / t_k where
t_k is the same for all. So c0 and c1 need not be told apart. Where c0 is most of a step it takes more rounds.

A dead band, as OmniLearn's (arXiv:2503.17469): the sizes change only where the round is expected to get shorter by more
than DEAD_BAND, so that noise moves nothing. Times are smoothed (row.py): the lower median of the last five.
"""

import math
from collections.abc import Sequence

from server.policies.policy import Policy, Sync, sync, train
from server.row import Decision, Row
from server.state import Table
from server.throughputs import in_units, throughput

DEAD_BAND = 0.05  # share of a round's computing time


def delay(row: Row) -> float:
    """Seconds of computing a sample; infinite while they are not known."""
    return math.inf if row.sample_time is None else row.sample_time


def decide(table: Table, rank: int, now: float) -> Decision:
    """Answers a QUERY: all aggregate after every step. `now` is not used."""
    if table.rows[rank].local_iteration == 0:
        return train("no local step in this round yet")
    speeds, unknown = table.throughputs, table.slowest
    if not speeds.are_known:
        return sync(f"the speed of worker {unknown.rank} is not known yet")
    compared = f"{throughput(delay(table.rows[rank])):.4g} samples/s, the mean is {speeds.mean:.4g}"
    size = table.batch_size_of(rank)
    return sync(compared if size is None else f"{size} of {table.all_samples} samples: {compared}")


def share_out(table: Table) -> tuple[int, ...]:
    """The batch sizes of the next round by rank; the present ones unless a change is worthwhile. O(N log N)."""
    present, delays = table.batch_sizes, [delay(row) for row in table.rows]
    if math.inf in delays or not table.all_samples:
        return present
    wanted = in_proportion(table.all_samples, [in_units(throughput(each)) for each in delays])
    if present and _longest_s(wanted, delays) >= (1 - DEAD_BAND) * _longest_s(present, delays):
        return present
    return wanted


def in_proportion(total: int, speeds: Sequence[int]) -> tuple[int, ...]:
    """Whole numbers in proportion to the speeds that sum to `total`, each at least 1. `total` is as many as there are
    speeds, or more. The speeds are above 0, in any unit: whole numbers, so that nothing depends on how a float is
    rounded."""
    sizes = [1] * len(speeds)
    left, all_speeds = total, sum(speeds)
    order = sorted(range(len(speeds)), key=lambda rank: speeds[rank])
    first = 0  # of those whose part is one or more; the others keep their one
    while first < len(order) and left * speeds[order[first]] < all_speeds:
        left -= 1
        all_speeds -= speeds[order[first]]
        first += 1
    for rank in order[first:]:
        sizes[rank] = left * speeds[rank] // all_speeds
    remaining = total - sum(sizes)
    for rank in sorted(order[first:], key=lambda rank: (-(left * speeds[rank] % all_speeds), rank))[:remaining]:
        sizes[rank] += 1
    return tuple(sizes)


def _longest_s(sizes: Sequence[int], delays: Sequence[float]) -> float:
    return max(size * each for size, each in zip(sizes, delays, strict=True))


POLICY = Policy(
    "lb-bsp", "LB-BSP", "batches in proportion to the speeds", Sync.STAYS_IN_STEP, delay, decide, mark="slowest",
    share_out=share_out,
)  # fmt: skip
