"""ESync as first published: balances the computation time, with a tolerance epsilon in seconds.

Source: the ESync preprint and its published program. The decision is kept exactly, except that the times are the
server's own and not the worker's `te`, so that skewed clocks decide nothing.

Rule: with s the worker of the longest last step c, rest = c_s - (now - t_s). Worker k aggregates when it is s, when s
was told to aggregate, or when c_k + epsilon > rest; not before s has entered the current round. With an anchor
(anchor.py) s has A steps to do, and rest is that of those that are left.
"""

from server import anchor
from server.policies.policy import Policy, Sync, sync, train
from server.row import Action, Decision, Row
from server.state import Table


def delay(row: Row) -> float:
    """Seconds of the last local step; 0 while it is not known, as in the published program."""
    return row.computation_time or 0.0


def decide(table: Table, rank: int, now: float) -> Decision:
    """Answers a QUERY of a rank; the table already holds the asker's message, and `now` is on its clock, in seconds."""
    asker, slowest = table.rows[rank], table.slowest
    if asker.local_iteration == 0:
        return train("no local step in this round yet")
    if slowest.round < table.round:
        return train(f"the slowest device {slowest.rank} has not entered round {table.round} yet")
    left = anchor.left(table, slowest)
    if asker.rank == slowest.rank and left > 0:
        return train(f"is the slowest device, with {left} more step(s) in this round")
    if asker.rank == slowest.rank:
        return sync(f"is the slowest device: its last step took {delay(asker):.3g} s")
    if slowest.action is Action.SYNC:
        return sync(f"the slowest device {slowest.rank} was told to aggregate")
    rest = max(left, 1) * delay(slowest) - (0.0 if slowest.since is None else now - slowest.since)
    comparison = f"{delay(asker):.3g} s + epsilon {table.settings.epsilon:.3g} s against {rest:.3g} s"
    if delay(asker) + table.settings.epsilon > rest:
        return sync(f"the slowest device {slowest.rank} is nearly done: {comparison}")
    return train(f"time for another step before the slowest device {slowest.rank} is done: {comparison}")


POLICY = Policy("preprint", "ESync", "balances the computing time", Sync.AGGREGATES, delay, decide, mark="straggler")
