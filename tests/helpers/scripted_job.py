"""A job on a virtual clock: a test says what its workers say and when, and looks at what is shown; and its table."""

from typing import Any

from server.handlers import Handlers
from server.jobs import Job, Jobs
from server.messages import Limits, Query, Report, Reset, Settings, Status
from server.policies import POLICIES
from server.row import Action, Activity, Decision, Row
from server.state import Table
from server.status import status
from server.worker_states import View

EVALUATING, ENDED = Activity.EVALUATING, Activity.ENDED


def table_of(policy: str, *rows: Row, **more: Any) -> Table:
    """A state table with these rows, as the policy compares them."""
    table = Table(Settings(len(rows), policy, **{"epsilon": 0.0, **more}), POLICIES[policy])
    for row in rows:
        table.put(row)
    return table


class ScriptedJob:
    """One job of a state server; `now` is in seconds on the server's clock, `more` what else its RESET says, and
    `transmission_time` what all workers tell (s)."""

    def __init__(
        self,
        num_workers: int,
        policy: str = "journal",
        transmission_time: float = 0.5,
        limits: Limits | None = None,
        began: float = 0.0,
        **more: Any,
    ) -> None:
        self.handlers = Handlers(Jobs(max_rows=10**6))
        self._transmission_time = transmission_time
        self.id = "a"
        self.handlers.reset(
            Reset("server-0", self.id, Settings(num_workers, policy, 0.5, limits=limits or Limits(), **more)), began
        )

    def report(self, rank: int, round: int, now: float, **more: Any) -> None:
        """A worker enters a round, or says what it does in it."""
        self.handlers.report(Report(f"worker-{rank}", self.id, Status(rank, 0, round), **more), now)

    def all_report(self, round: int, now: float) -> None:
        """All workers enter a round."""
        for row in self.job.rows:
            self.report(row.rank, round, now)

    def step_in_turn(self, steps: range, *seconds: float, first: float, every: float, **more: Any) -> list[str]:
        """All the first ranks do a step a round, in rounds of these numbers; returns what they are told in the last.

        Args:
            seconds: that each one's step takes.
            first: when the first of these steps has ended, and
            every: seconds later the next.
        """
        for number, step in enumerate(steps):
            now = first + number * every
            told = [self.query(rank, step, 1, each, now, **more) for rank, each in enumerate(seconds)]
        return told

    def query(self, rank: int, round: int, steps: int, seconds: float, now: float, **more: Any) -> str:
        """A worker has done its `steps`-th step of a round, which took `seconds`; returns what it is told."""
        told = Status(rank, steps, round, seconds, self._transmission_time)
        message = Query(f"worker-{rank}", self.id, told, **{"samples": 64, **more})
        action = self.handlers.query(message, now).action
        assert action is not None
        return action.value

    def tell(
        self, rank: int, round: int, steps: int, seconds: float, now: float, action: str, way: str = "BSP"
    ) -> None:
        """A worker says where it is, how long its last step took, and what the server part on the hub has decided."""
        told = Status(rank, steps, round, seconds, self._transmission_time)
        decision = Decision(Action(action), f"because of round {round}")
        self.handlers.report(Report(f"worker-{rank}", self.id, told, samples=64, decision=decision, way=way), now)

    @property
    def job(self) -> Job:
        """The job on the server."""
        job = self.handlers.jobs.get(self.id)
        assert job is not None
        return job

    def status(self, now: float) -> dict[str, Any]:
        """What the page gets."""
        return status(self.job, self.handlers.jobs, now)

    def states(self, now: float) -> list[str]:
        """What each worker does, by rank."""
        return View(self.job, now).states

    def whom(self, rank: int, now: float) -> str:
        """For whom a worker waits."""
        return View(self.job, now).whom(self.job.rows[rank])
