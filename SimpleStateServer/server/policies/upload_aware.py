"""The journal's rule for slow links: the others train on while the straggler uploads.

By the journal's rule (journal.py) all aggregate as soon as the straggler has done its step, with an anchor its last
one. On a slow link its update is under way for long after that, and the others wait. Here the update is due m_s later,
at t_s + m_s: worker k goes on while another step's update comes no later, now + d_k <= t_s + m_s. Until then it is the
journal's rule.

This is not in the paper. Of equal links it makes little difference: m_s is then no more than d_k.
"""

from server.policies import journal
from server.policies.policy import Policy, Sync, sync
from server.row import Row
from server.state import Table
from server.worker import Decision


def decide(table: Table, rank: int, now: float) -> Decision:
    """Answers a QUERY; arguments as in `journal.decide`."""

    def stepped(asker: Row, straggler: Row, what: str) -> Decision:
        if straggler.since is None:
            return sync(what)
        left = straggler.since + straggler.transmission_time - now
        return journal.while_one_fits(asker, left, f"the update of straggler {straggler.rank}")

    return journal.decide_until(table, rank, now, stepped)


CAPTION = "balances the reach-server time, and trains on while the straggler uploads"
POLICY = Policy("upload-aware", "ESync", CAPTION, Sync.AGGREGATES, journal.delay, decide, mark="straggler")
