"""A job that is to survive the death of its processes: its checkpoints, what was tried, the processes of a new start.

scripts/launch/restarts.py decides; scripts/launch/supervisor.py asks, and does it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from config import AMONG_WORKERS, CONTINUE, END, Config
from scripts.launch.process import Kind, Role
from scripts.launch.restarts import Death, Decision, Tries, decide
from scripts.launch.roles import Job
from trainer.survival import checkpoint_rounds

AnyJob = TypeVar("AnyJob", bound=Job)
RESUME = ["--resume", "1"]


class Survival:
    """What the supervisor asks when somebody has died.

    Args:
        limit: starts without a new checkpoint between them.
        newest: the round that the job would go on from now; None: there is none.
        build: makes the processes of a start; told whether they go on from a checkpoint, and which start after the
            first it is.
        others_go_on: the workers that are left do.
        resumes: whether a worker that is started again alone has a checkpoint of this job, by its role.
        takes_back: the workers that are left take in who comes back.
    """

    def __init__(
        self,
        limit: int,
        newest: Callable[[], int | None],
        build: Callable[[bool, int], Sequence[Role]],
        others_go_on: bool = False,
        resumes: Callable[[Role], bool] = lambda role: False,
        takes_back: bool = True,
    ) -> None:
        self.others_go_on = others_go_on
        self._resumes = resumes
        self.takes_back = takes_back
        self._limit = limit
        self._newest = newest
        self._build = build
        self._starts = 0
        self._checkpoint = newest()
        self._tries = Tries(self._checkpoint)

    def after(
        self, deaths: Sequence[Death], lived_s: float, service_was_away: bool, anybody_left: bool = True
    ) -> Decision:
        """What follows, as `decide` says; the next start goes on from the checkpoint that there is now."""
        self._checkpoint = self._newest()
        decision = decide(
            deaths,
            lived_s,
            self._checkpoint,
            self._tries,
            self._limit,
            service_was_away,
            self.others_go_on,
            anybody_left,
            self.takes_back,
        )
        self._tries = decision.tries
        return decision

    def roles(self) -> list[Role]:
        """The processes of the next start, whose logs go on where they are.

        Raises:
            SetupError: a host cannot take part any more.
        """
        self._starts += 1
        roles = self._build(self._checkpoint is not None, self._starts)
        return [self.alone(role) for role in roles]

    def alone(self, role: Role) -> Role:
        """What takes the place of a process that has died."""
        is_worker = role.kind is Kind.WORKER and RESUME[0] not in role.command
        flags = RESUME if is_worker and self._resumes(role) else []
        return dataclasses.replace(role, command=[*role.command, *flags], appends=True)


def of_job(
    job: Job,
    told: Config,
    files: Callable[[], Mapping[str, int]],
    num_workers: Callable[[], int],
    build: Callable[[bool, int], Sequence[Role]],
) -> Survival | None:
    """The survival of a job whose flags ask for it; else none.

    Args:
        told: a worker's flags.
        files: names in the checkpoint folder, and when each was written.
        num_workers: that would be started again.
        build: as Survival says.
    """
    if told.on_worker_death == END:
        return None
    if told.leaves_out:
        return Survival(job.restarts, lambda: None, build, others_go_on=True, takes_back=False)
    before = {} if told.resume else files()
    if told.on_worker_death == CONTINUE:

        def resumes(role: Role) -> bool:
            """A worker that has not begun yet has set nothing aside of what an earlier job left."""
            device = role.command[[*role.command].index("--device-name") + 1]
            found = files() if told.ckpt_frequency else {}
            names = checkpoint_rounds.of_device(found, device)
            return bool(names) and not any(before.get(name) == found[name] for name in names)

        return Survival(job.restarts, lambda: None, build, others_go_on=True, resumes=resumes)

    def newest() -> int | None:
        return checkpoint_rounds.newest(files(), before, told, num_workers())

    return Survival(job.restarts, newest, build)


def again(job: AnyJob, told: Config, resumes: bool, start: int) -> AnyJob:
    """The job as it is started again: its workers' flags.

    Args:
        told: a worker's flags, of the first start.
        resumes: there is a checkpoint.
        start: which one after the first.
    """
    flags = [*RESUME] if resumes else []
    if job.collective in AMONG_WORKERS:  # the state server may still count on those that have died, under the old name
        flags += ["--job", f"{told.job[:50]}-{start}"]
    return dataclasses.replace(job, worker_arguments=(*job.worker_arguments, *flags))


def files_in(folder: Path) -> dict[str, int]:
    """The names in a folder of checkpoints and when each was written, in nanoseconds; none where there is no folder."""
    found = {}
    for path in folder.glob("*.ckpt"):
        try:
            found[path.name] = path.stat().st_mtime_ns
        except FileNotFoundError:  # it was one too many
            continue
    return found
