"""ESync's two published rules behind the same messages.

A policy is a pair of pure functions on the state table: `delay(row)`, the seconds by which it calls a worker slow, and
`decide(table, rank, now)`. No Django, no lock, no clock: `now` is an argument.
"""

from server.policies import journal, preprint
from server.policies.policy import Decision, Policy

POLICIES = {policy.name: policy for policy in (journal.POLICY, preprint.POLICY)}

__all__ = ["POLICIES", "Decision", "Policy"]
