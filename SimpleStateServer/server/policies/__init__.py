"""The rules of ESync (three), WBSP, the quorum merge, Sync-Switch (three) and LB-BSP behind the same messages, and that
of jobs without a rule.

A policy is a pair of pure functions on the state table: `delay(row)`, the seconds by which it calls a worker slow, and
`decide(table, rank, now)`. No Django, no lock, no clock: `now` is an argument. Its other fields
describe the answers for the page. LB-BSP's `share_out` also returns the batch sizes of the next round.
"""

from server.policies import journal, lb_bsp, preprint, quorum, watched, wbsp
from server.policies.policy import Policy, Sync
from server.policies.quorum import merging
from server.policies.sync_switch import SYNC_SWITCH_POLICIES
from server.row import Decision

_OF_SERVERS = (wbsp.POLICY, quorum.POLICY, *SYNC_SWITCH_POLICIES)  # the server part on the hub decides
_ALL = (journal.POLICY, preprint.POLICY, journal.UPLOAD_AWARE, *_OF_SERVERS, lb_bsp.POLICY, watched.POLICY)
POLICIES = {policy.name: policy for policy in _ALL}

__all__ = ["POLICIES", "Decision", "Policy", "Sync", "merging"]
