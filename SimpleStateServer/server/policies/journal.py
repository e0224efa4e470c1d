"""ESync as in the journal paper: balances the reach-server time, computation plus transmission.

Source: Li et al., "ESync: Accelerating Intra-Domain Federated Learning in Heterogeneous Data Centers", IEEE
Transactions on Services Computing 15(4), 2022, doi 10.1109/TSC.2020.3044043.

Rule: with d_k = c_k + m_k and straggler s = argmax d, worker k aggregates when it is s, when s has done a step in this
round or was told to aggregate, or when one more step would bring its update later than the straggler's:
now + d_k > t_s + d_s. There is no epsilon. With an anchor (anchor.py) s has A steps to do, of which L are left at t_s:
the last of them takes the place of its step, and t_s + L * c_s + m_s that of t_s + d_s.

Three additions. A worker whose step time is not known yet counts as the slowest of all, so the first round needs no
times: the others train until it has done its first step. A straggler that is a round ahead is not waited for. One that
has told nothing of the asker's round for long is gone, or cannot reach this server: it counts as having entered the
round with the asker, since all leave an aggregation together.
"""

from collections.abc import Callable

from server import anchor
from server.policies.policy import Policy, Sync, sync, train
from server.row import Row
from server.state import Table
from server.worker import Action, Activity, Decision

LATE_S, LATE_STEPS = 1.0, 5  # seconds, and a worker's own reach-server times


def delay(row: Row) -> float:
    """d_k in seconds; infinite while the worker's step time is not known."""
    return row.reach_server_time


def decide(table: Table, rank: int, now: float) -> Decision:
    """Answers a QUERY of a rank; the table already holds the asker's message, and `now` is on its clock, in seconds."""
    return decide_until(table, rank, now, lambda asker, straggler, what: sync(what))


def decide_until(table: Table, rank: int, now: float, stepped: Callable[[Row, Row, str], Decision]) -> Decision:
    """The rule, except for the answer once the straggler has done its steps in this round, or was told to aggregate:
    `stepped` gives that, from (asker, straggler, which of the two in words). The rest as in `decide`."""
    asker, straggler = table.rows[rank], table.slowest
    if straggler.round < asker.round and _is_out_of_reach(straggler, now):
        straggler = straggler._replace(round=asker.round, local_iteration=0, since=asker.entered, action=None)
    left = anchor.left(table, straggler)
    if asker.local_iteration == 0:
        return train("no local step in this round yet")
    if asker.round > straggler.round:
        return train(f"straggler {straggler.rank} has not entered round {asker.round} yet")
    if asker.rank == straggler.rank and left > 0:
        return train(f"is the straggler, with {left} more step(s) in this round")
    if asker.rank == straggler.rank:
        return sync(f"is the straggler: reaches the server in {delay(asker):.3g} s")
    if asker.round < straggler.round:
        return sync(f"straggler {straggler.rank} is in round {straggler.round} already")
    if left <= 0:
        done = "a step" if straggler.local_iteration == 1 else f"{straggler.local_iteration} steps"
        return stepped(asker, straggler, f"straggler {straggler.rank} has done {done} in this round")
    if straggler.action is Action.SYNC:
        return stepped(asker, straggler, f"straggler {straggler.rank} was told to aggregate")
    if straggler.since is None or straggler.step_time is None:
        return train(f"the step time of worker {straggler.rank} is not known yet")
    due = straggler.since + (left * straggler.step_time + straggler.transmission_time)
    return while_one_fits(asker, due - now, f"straggler {straggler.rank}")


def _is_out_of_reach(row: Row, now: float) -> bool:
    """Whether a worker has been silent for long; while its times are not known none is long."""
    if not (row.step_time and row.transmission_time and row.doing is Activity.TRAINING):
        return False
    return row.heard is not None and now - row.heard > max(LATE_S, LATE_STEPS * delay(row))


def while_one_fits(asker: Row, left: float, who: str) -> Decision:
    """Another step, unless its update would come later than what the others wait for, which `who`, in words, sends in
    `left` seconds."""
    if delay(asker) > left:
        return sync(f"another step would take {delay(asker):.3g} s, and {who} is due in {left:.3g} s")
    return train(f"{who} is due in {left:.3g} s, another step takes {delay(asker):.3g} s")


POLICY = Policy("journal", "ESync", "balances the reach-server time", Sync.AGGREGATES, delay, decide, mark="straggler")
