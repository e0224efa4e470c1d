"""Of a job without a rule here: its workers ask nothing, they only tell what they do, for the page."""

from server.policies.journal import delay
from server.policies.policy import Policy, Sync, train
from server.row import Decision
from server.state import Table


def decide(table: Table, rank: int, now: float) -> Decision:
    """Answers a QUERY, which no worker in these modes sends: another program may."""
    return train("no rule of the state server decides")


POLICY = Policy(
    "watched", "Training", "no rule of the state server decides", Sync.IS_NOT_SAID, delay, decide, mark="slowest"
)
