"""Sync-Switch's online policies: what to do about a transient straggler while the job is under BSP.

Source: Li et al., "Sync-Switch: Hybrid Parameter Synchronization for Distributed Deep Learning", ICDCS 2021,
arXiv:2104.08364. A straggler is a worker whose throughput over a sliding window is below the mean of the workers by
more than one standard deviation. SYNC tells the asker to stay in step with the others (BSP), TRAIN not to:

    none     SYNC always
    greedy   TRAIN for all while there is a straggler: ASP until it has cleared
    elastic  TRAIN for the straggler alone: the others go on without it

Under BSP all workers wait for the slowest and so all have its pace. So a throughput counts what is a worker's own: its
step, and the push and the pull of it, without the wait for others. The published stragglers are delays of the network.
Both times are smoothed (step times in state.py, transmission times by the worker: the lower median of the last five),
so one outlier makes no straggler.

One addition: a straggler is also at least MARGIN below the mean. Of a few equally fast workers the slowest is nearly
always more than one standard deviation below their mean, however small that is.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence

from server.messages import Action
from server.policies.journal import delay
from server.policies.policy import Decision, Marks, Policy, Sync, Watch, mark_nobody, sync, train
from server.state import STEP_TIME_WINDOW, Row, Table

MARGIN = 0.1  # of the mean


def throughput(row: Row) -> float | None:
    """Samples per second of computing and exchanging; None while the window is not full."""
    if len(row.step_times) < STEP_TIME_WINDOW or not row.steps or not row.step_time:
        return None
    return row.samples / row.steps / delay(row)


def stragglers(rows: Sequence[Row], left_out: Collection[int] = ()) -> dict[int, str]:
    """The stragglers by rank, with the reason in words; none while one of the throughputs is not known. O(N).

    Args:
        rows: all, by rank.
        left_out: ranks that do not count.
    """
    known: dict[int, float] = {}
    for row in rows:
        if row.counted and row.rank not in left_out:
            value = throughput(row)
            if value is None:
                return {}
            known[row.rank] = value
    if not known:
        return {}
    mean, deviation = statistics.fmean(known.values()), statistics.pstdev(known.values())
    # With half of the workers slow, all are one deviation from the mean and none is a straggler; not even by rounding.
    limit = min(mean - (1 + 1e-9) * deviation, (1 - MARGIN) * mean)
    return {
        rank: f"worker {rank} is a straggler: {value:.4g} samples/s, the mean is {mean:.4g} +- {deviation:.3g}"
        for rank, value in known.items()
        if value < limit
    }


def none(table: Table, rank: int, now: float) -> Decision:
    """All stay in step, whatever happens."""
    return sync("no straggler policy")


def greedy(table: Table, rank: int, now: float) -> Decision:
    """Nobody stays in step while there is a straggler.

    Args:
        table: the state table; the asker's row holds what it has just told.
        rank: of the asker.
        now: not used: the window is of steps, not of seconds.
    """
    for reason in stragglers(table.rows).values():
        return train(reason)
    return sync("no straggler")


def elastic(table: Table, rank: int, now: float) -> Decision:
    """All but a straggler stay in step. Arguments as in `greedy`.

    One that was left out does not step any more; it would hide others behind its last throughput.
    """
    left_out = {row.rank for row in table.rows if row.action is Action.TRAIN and row.rank != rank}
    reason = stragglers(table.rows, left_out).get(rank)
    return train(reason) if reason else sync("is no straggler")


def mark_stragglers(rows: Sequence[Row], slowest: int) -> Mapping[int, str]:
    """Marks the stragglers."""
    return dict.fromkeys(stragglers(rows), "straggler")


def mark_left_out(rows: Sequence[Row], slowest: int) -> Mapping[int, str]:
    """Marks those that are left out, and those of the others that would be."""
    left_out = {row.rank for row in rows if row.counted and row.action is Action.TRAIN}
    return dict.fromkeys([*left_out, *stragglers(rows, left_out)], "straggler")


def _policy(
    name: str, decide: Callable[[Table, int, float], Decision], caption: str, marks: Marks, leaves_out: bool = False
) -> Policy:
    watch = Watch("Sync-Switch", caption, Sync.STAYS_IN_STEP, marks, leaves_out)
    return Policy(f"sync-switch-{name}", delay, decide, watch)


SYNC_SWITCH_POLICIES = (
    _policy("none", none, "waits for a straggler under BSP", mark_nobody),
    _policy("greedy", greedy, "goes over to ASP while there is a straggler", mark_stragglers),
    _policy("elastic", elastic, "leaves a straggler out under BSP", mark_left_out, leaves_out=True),
)
