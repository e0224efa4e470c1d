"""The rules of ESync (three), WBSP and Sync-Switch (three) behind the same messages.

A policy is a pair of pure functions on the state table: `delay(row)`, the seconds by which it calls a worker slow, and
`decide(table, rank, now)`. No Django, no lock, no clock: `now` is an argument. Its `watch` says what the answers mean
to someone who watches.
"""

from server.policies import journal, preprint, upload_aware, wbsp
from server.policies.policy import Decision, Policy, Sync, Watch
from server.policies.sync_switch import SYNC_SWITCH_POLICIES

_ALL = (journal.POLICY, preprint.POLICY, upload_aware.POLICY, wbsp.POLICY, *SYNC_SWITCH_POLICIES)
POLICIES = {policy.name: policy for policy in _ALL}

__all__ = ["POLICIES", "Decision", "Policy", "Sync", "Watch"]
