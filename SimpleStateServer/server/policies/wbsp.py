"""WBSP's rule: the global model is released when the slowest worker has uploaded.

Source: Yang et al., "Worker-busy synchronous parallel", Parallel Computing 121, 2024, 103092. The paper takes it as
known which worker is the slowest; here it is the one with the largest measured reach-server time. A round ends with a
release; a worker asks after each upload, SYNC tells it to release.

One addition, for about equally slow workers that take turns in being the slowest: the next asker releases, if the
slowest has uploaded and was not the slowest then. Otherwise no worker would release.
"""

from server.policies.journal import delay
from server.policies.policy import Policy, Sync, sync, train
from server.row import Action, Decision
from server.state import Table


def decide(table: Table, rank: int, now: float) -> Decision:
    """Answers a QUERY of worker `rank`; `now` is not used, since the slowest does not depend on the moment."""
    asker, slowest = table.rows[rank], table.slowest
    if asker.local_iteration == 0:
        return train("nothing uploaded in this round yet")
    if asker.rank == slowest.rank:
        return sync(f"is the slowest: reaches the server in {delay(asker):.3g} s")
    if slowest.round == asker.round and slowest.local_iteration > 0 and slowest.action is Action.TRAIN:
        return sync(f"the slowest worker {slowest.rank} has uploaded, when another one was slower")
    return train(f"the slowest worker {slowest.rank} releases, after {delay(slowest):.3g} s a step")


POLICY = Policy(
    "wbsp", "WBSP", "the slowest worker releases the global model", Sync.RELEASES, delay, decide, mark="slowest"
)
