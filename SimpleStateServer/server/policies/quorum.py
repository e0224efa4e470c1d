"""The rule of the quorum merge: uploads become a new global model when enough workers are in.

Source: Douillard et al., "Decoupled DiLoCo", 2026, arXiv:2604.21428: K updates are enough, and a worker that would be
late is waited for as long as waiting costs nothing. A round of the table is the time between two merges, and a worker
enters it with its first upload: from then on it is in. A worker asks after each upload; SYNC tells to merge all uploads
that wait. A worker that is lost or silent is not waited for; what it has uploaded merges.
"""

from server.policies.journal import delay
from server.policies.policy import Policy, Sync, sync, train
from server.row import Decision
from server.state import Table

CAPTION = "the uploads of K workers make the next global model"


def merging(quorum: int = 0, grace_s: float | None = None) -> Policy:
    """The rule of a job.

    Args:
        quorum: K, as many workers as must be in, or all that count where these are fewer; 0: more than half of all.
        grace_s: seconds from the quorum to the merge; None: until a worker uploads again that was in before. No worker
            takes a new global model before its next upload, so up to then waiting costs nothing.
    """

    def decide(table: Table, rank: int, now: float) -> Decision:
        """Answers worker `rank`, which has uploaded."""
        asker, counted = table.rows[rank], table.num_counted
        entered = table.entered.get(asker.round, [])
        needed = min(quorum or len(table.rows) // 2 + 1, counted)
        are_in = f"{len(entered)} of {counted} workers are in"
        if len(entered) < needed:
            return train(f"{are_in}, the quorum is {needed}")
        if len(entered) == counted:
            return sync(are_in)
        if grace_s is None:
            if asker.action is None:
                return train(f"{are_in}: waits until one of them uploads again")
            return sync(f"{are_in}, this one again")
        waited = now - entered[needed - 1]
        if waited >= grace_s:
            return sync(f"{are_in}, the quorum since {waited:.3g} s")
        return train(f"{are_in}: waits for others until {grace_s:g} s after the quorum")

    return Policy("quorum", "Quorum merge", CAPTION, Sync.RELEASES, delay, decide)


POLICY = merging()
