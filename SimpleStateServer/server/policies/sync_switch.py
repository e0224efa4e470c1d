"""Sync-Switch's online policies for a transient straggler while the job is under BSP.

Source: Li et al., "Sync-Switch: Hybrid Parameter Synchronization for Distributed Deep Learning", ICDCS 2021,
arXiv:2104.08364. A straggler is a worker whose throughput over a sliding window is below the mean of the workers by
more than one standard deviation. SYNC tells the asker to stay in step with the others (BSP), TRAIN not to:

    none     SYNC always
    greedy   TRAIN for all while there is a straggler: ASP until it has cleared
    elastic  TRAIN for the straggler alone: the others go on without it

Under BSP all workers wait for the slowest and so all have its pace. So a throughput counts what is a worker's own: its
step, and the push and the pull of it, without the wait for others. The published stragglers are delays of the network.
Both times are smoothed (step times in row.py, transmission times by the worker: the lower median of the last five),
so one outlier makes no straggler.

One addition: a straggler is also at least MARGIN below the mean. Of a few equally fast workers the slowest is nearly
always more than one standard deviation below their mean, however small that is.
"""

import copy
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial

from server.policies.policy import Policy, Sync, sync, train
from server.row import STEP_TIME_WINDOW, Action, Decision, Row
from server.state import OUT, Table
from server.throughputs import Throughputs, throughput

MARGIN = Fraction(1, 10)  # of the mean


def delay(row: Row) -> float:
    """Seconds of computing and exchanging a sample; infinite while the window is not full."""
    step_time = row.step_time
    if len(row.step_times) < STEP_TIME_WINDOW or not step_time or not row.steps or not row.samples:
        return math.inf
    return (step_time + row.transmission_time) * row.steps / row.samples


def elastic_delay(row: Row) -> float:
    """The same, but OUT for a worker that is left out: it does not step any more, and would hide other stragglers."""
    return OUT if row.action is Action.TRAIN else delay(row)


def _told(row: Row, all_of_them: Throughputs, unknown: Row, otherwise: str) -> Decision:
    """TRAIN where the worker of this row is a straggler; `unknown` has no throughput yet, where one has none."""
    if not all_of_them.are_known:
        return sync(f"no straggler is known: the throughput of worker {unknown.rank} is not known yet")
    of_all = f"the mean is {all_of_them.mean:.4g} +- {all_of_them.deviation:.3g}"
    compared = f"{throughput(delay(row)):.4g} samples/s, {of_all}"
    if all_of_them.mean_is_far_above(delay(row), MARGIN):
        return train(f"worker {row.rank} is a straggler: {compared}")
    return sync(f"{otherwise} {compared}")


def none(table: Table, rank: int, now: float) -> Decision:
    """All stay in step."""
    return sync("no straggler policy")


def greedy(table: Table, rank: int, now: float) -> Decision:
    """No worker stays in step while there is a straggler. If there is any, the slowest worker is one. The table already
    holds the message of the asker, `rank`; `now` is not used: the window is of steps, not of seconds."""
    slowest = table.slowest
    return _told(slowest, table.throughputs, slowest, f"no straggler: worker {slowest.rank} is the slowest with")


def elastic(table: Table, rank: int, now: float) -> Decision:
    """All but a straggler stay in step. Arguments as in `greedy`."""
    asker, all_of_them = table.rows[rank], table.throughputs
    if elastic_delay(asker) == OUT:  # asks once more in a round for which it was left out: it counts itself
        all_of_them = copy.copy(all_of_them)
        all_of_them.change(OUT, delay(asker))
    unknown = asker if delay(asker) == math.inf else table.slowest
    return _told(asker, all_of_them, unknown, f"worker {rank} is no straggler:")


def _stragglers(of_row: Callable[[Row], float], rows: Sequence[Row]) -> list[int]:
    """The ranks of the stragglers among the counted workers, and of workers left out. `of_row` is the policy's
    delay."""
    delays = {row.rank: of_row(row) for row in rows if row.counted}
    all_of_them = Throughputs(delays.values())
    return [rank for rank, each in delays.items() if each == OUT or all_of_them.mean_is_far_above(each, MARGIN)]


_POLICY = partial(Policy, title="Sync-Switch", sync=Sync.STAYS_IN_STEP, delay=delay)
SYNC_SWITCH_POLICIES = (
    _POLICY("sync-switch-none", caption="waits for a straggler under BSP", decide=none),
    _POLICY(
        "sync-switch-greedy", caption="goes over to ASP while there is a straggler", decide=greedy,
        mark="straggler", stragglers=partial(_stragglers, delay),
    ),
    _POLICY(
        "sync-switch-elastic", caption="leaves a straggler out under BSP", decide=elastic, delay=elastic_delay,
        mark="straggler", stragglers=partial(_stragglers, elastic_delay), leaves_out=True,
    ),
)  # fmt: skip
