"""A supervisor in the test's own process, for roles of stand_ins.py. Not a test itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster_processes import running

from scripts.launch.process import Kind, Process, Role, RunningProcess
from scripts.launch.restart_policy import RestartPolicy
from scripts.launch.supervisor import JobOutcome, Supervisor, Timeouts


def supervise(
    *roles: Role,
    policy: RestartPolicy | None = None,
    hears: Callable[[str], object] = lambda line: None,  # what the user is told, at once
    start: Callable[[Role], RunningProcess] = Process,
    links: Sequence[RunningProcess] = (),
    leave_together: bool = False,  # as the workers of a job with servers always do
    **waits: float,
) -> tuple[JobOutcome, list[str]]:
    """Runs the roles, of which nothing is left; returns how the job ended and what the user was told."""
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        hears(line)

    timeouts = Timeouts(**{"settle_s": 5.0, **waits})
    together = leave_together or any(role.kind in (Kind.SERVER, Kind.HUB) for role in roles)
    outcome = Supervisor(roles, say, timeouts, start, links, together, policy).run()
    assert running(roles[0].folder) == [], lines
    return outcome, lines
