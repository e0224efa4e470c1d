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

UPLOAD_AWARE is this rule for slow links, and not in the paper. By the rule all aggregate once the straggler has done
its step. On a slow link its update is under way for long after that, and the others wait. Here the update is due m_s
later, at t_s + m_s: worker k goes on while another step's update comes no later, now + d_k <= t_s + m_s. Of equal links
it makes little difference: m_s is then no more than d_k.
"""

from functools import partial

from server import anchor
from server.policies.policy import Policy, Sync, sync, train
from server.row import Action, Activity, Decision, Row
from server.state import Table

LATE_S, LATE_STEPS = 1.0, 5  # seconds, and a worker's own reach-server times


def delay(row: Row) -> float:
    """d_k in seconds; infinite while the worker's step time is not known."""
    return row.reach_server_time


def decide(table: Table, rank: int, now: float, is_upload_aware: bool = False) -> Decision:
    """Answers a QUERY of a rank; the table already holds the asker's message, and `now` is on its clock, in seconds."""
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
    if left <= 0 or straggler.action is Action.SYNC:
        if is_upload_aware and straggler.since is not None:
            left_s = straggler.since + straggler.transmission_time - now
            return _while_one_fits(asker, left_s, f"the update of straggler {straggler.rank}")
        done = "a step" if straggler.local_iteration == 1 else f"{straggler.local_iteration} steps"
        what = f"has done {done} in this round" if left <= 0 else "was told to aggregate"
        return sync(f"straggler {straggler.rank} {what}")
    if straggler.since is None or straggler.step_time is None:
        return train(f"the step time of worker {straggler.rank} is not known yet")
    due = straggler.since + (left * straggler.step_time + straggler.transmission_time)
    return _while_one_fits(asker, due - now, f"straggler {straggler.rank}")


def _is_out_of_reach(row: Row, now: float) -> bool:
    """Whether a worker has been silent for long; while its times are not known none is long."""
    if not (row.step_time and row.transmission_time and row.doing is Activity.TRAINING):
        return False
    return row.heard is not None and now - row.heard > max(LATE_S, LATE_STEPS * delay(row))


def _while_one_fits(asker: Row, left: float, who: str) -> Decision:
    """Another step, unless its update would come later than what the others wait for, which `who`, in words, sends in
    `left` seconds."""
    if delay(asker) > left:
        return sync(f"another step would take {delay(asker):.3g} s, and {who} is due in {left:.3g} s")
    return train(f"{who} is due in {left:.3g} s, another step takes {delay(asker):.3g} s")


CAPTION = "balances the reach-server time"
POLICY = Policy("journal", "ESync", CAPTION, Sync.AGGREGATES, delay, decide, mark="straggler")
UPLOAD_AWARE = Policy(
    "upload-aware", "ESync", f"{CAPTION}, and trains on while the straggler uploads", Sync.AGGREGATES, delay,
    partial(decide, is_upload_aware=True), mark="straggler",
)  # fmt: skip
