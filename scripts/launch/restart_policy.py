"""How a job survives failed processes: its checkpoints, its earlier restarts, the processes of the next start.

scripts/launch/restarts.py decides; scripts/launch/supervisor.py asks and acts.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from config import AMONG_WORKERS, CONTINUE, END, Config
from scripts.launch.process import Kind, Role
from scripts.launch.restarts import ExitReport, RestartDecision, RestartHistory, decide
from scripts.launch.roles import JobSpec
from trainer.survival import checkpoint_rounds
from utils import SetupError

RESUME = ("--resume", "1")


class RestartPolicy:
    """What the supervisor asks when a process has failed."""

    def __init__(
        self,
        limit: int,  # restarts without a new checkpoint between them
        newest: Callable[[], int | None],  # the round that the job would resume from now; None: there is none
        # Makes the processes of a restart of all, given whether it resumes from a checkpoint, and its number
        build: Callable[[bool, int], Sequence[Role]],
        others_continue: bool = False,  # workers continue without the failed ones
        # Whether a worker that is restarted alone has a checkpoint of this job, by its role
        resumes: Callable[[Role], bool] = lambda role: False,
        beside_hub: bool = False,  # where workers continue, they need the hub
        min_workers: int = 1,  # with fewer no worker is left out: the job ends
        left_out: set[str] | None = None,  # the names of workers without which all are restarted; it grows
    ) -> None:
        self.others_continue = others_continue
        self.beside_hub = beside_hub
        self._decide = partial(
            decide, limit=limit, others_continue=others_continue, beside_hub=beside_hub, min_workers=min_workers
        )
        self._resumes = resumes
        self._newest = newest
        self._build = build
        self._starts = 0
        self.left_out = set[str]() if left_out is None else left_out
        self._checkpoint = newest()
        self._began = RestartHistory(self._checkpoint)
        self._histories: dict[str, RestartHistory] = {}  # by service; of the others by worker, or of all
        self._before = self._began  # as that of all was before the last failure

    def after(
        self, name: str, reports: Sequence[ExitReport], uptime_s: float, is_same: bool = False, **more: Any
    ) -> RestartDecision:
        """Decides as restarts.decide does; the next restart resumes from the checkpoint that is the newest now. `name`
        is that of the (first) failed process; `more` is for restarts.decide. `is_same`: the failure before was part
        of this one, and they count once."""
        of_services = all(report.kind is Kind.SERVICE and not report.is_connection for report in reports)
        whose = name if self.others_continue or of_services else ""
        self.look()
        before = self._before if is_same and not whose else self._histories.get(whose, self._began)
        decision = self._decide(reports, uptime_s, self._checkpoint, before, **more)
        self._histories[whose] = decision.history
        self.left_out.update(decision.left_out)
        if not whose:  # a host that is lost in a restart without a worker begins with all tries, too
            self._before = decision.history if decision.left_out else before
        return decision

    def look(self) -> None:
        """Looks for the newest checkpoint. Hosts that do not answer are lost. Raises SetupError if none does."""
        self._checkpoint = self._newest()

    def roles(self) -> list[Role]:
        """The processes of a restart of all, which append to their logs. Raises SetupError if a host can no longer take
        part."""
        self._starts += 1
        built = self._build(self._checkpoint is not None, self._starts)
        roles = [role for role in built if role.name not in self.left_out]
        num_workers = sum(role.kind is Kind.WORKER for role in roles)
        return [self.restarted(role, num_workers) for role in roles]

    def restarted(self, role: Role, num_workers: int = 0) -> Role:
        """The role with which a failed process is started again. `num_workers`: those that are neither done nor left
        out; 0: as many as before. If all were lost, they begin once so many are there."""
        is_worker = role.kind is Kind.WORKER and RESUME[0] not in role.command
        flags = RESUME if is_worker and self._resumes(role) else ()
        environment, number = dict(role.environment), "DMLC_NUM_WORKER"
        if number in environment and num_workers and not self.beside_hub:  # which keeps it
            environment[number] = str(num_workers)
        return dataclasses.replace(role, command=[*role.command, *flags], environment=environment, appends=True)


def of_job(
    job: JobSpec,
    worker_config: Config,
    files: Callable[..., Mapping[str, int]],
    workers: Callable[[], Collection[str]],
    build: Callable[[Sequence[str]], Sequence[Role]],
) -> RestartPolicy | None:
    """Makes the policy that a job's flags ask for; None: a failed process ends the job.

    Args:
        worker_config: a worker's flags.
        files: the names in the checkpoint folder, and when each was written; of all hosts, or of the one that is given.
        workers: the names of those that would be restarted now, but for those that are left out.
        build: makes the processes of a restart, given flags for the workers beside the job's.
    """
    if worker_config.on_worker_death == END:
        return None

    def build_again(resumes: bool, start: int) -> Sequence[Role]:
        flags = [*RESUME] if resumes else []
        if job.transport in AMONG_WORKERS:  # under the old name the state server may still expect the failed workers
            flags += ["--job-name", f"{worker_config.job_name[:50]}-{start}"]
        return build(flags)

    if worker_config.leaves_out:
        few = worker_config.min_workers
        return RestartPolicy(
            job.restarts, lambda: None, build_again, others_continue=True, beside_hub=True, min_workers=few
        )
    before = {} if worker_config.resume else files()
    if worker_config.on_worker_death == CONTINUE:

        def resumes(role: Role) -> bool:
            """A worker sets an earlier job's checkpoints aside when it begins: until then those are not its own."""
            device = role.command[[*role.command].index("--device-name") + 1]
            try:
                found = files(role.host) if worker_config.ckpt_frequency else {}
            except SetupError:  # its host does not answer: should it come back, the others hand over the model
                found = {}
            names = checkpoint_rounds.of_device(found, device)
            return bool(names) and not any(before.get(name) == found[name] for name in names)

        return RestartPolicy(
            job.restarts,
            lambda: None,
            build_again,
            others_continue=True,
            resumes=resumes,
            min_workers=worker_config.min_workers,
        )

    def newest() -> int | None:
        found = files()  # it finds out which hosts are gone
        return checkpoint_rounds.newest(found, before, worker_config, len({*workers()} - left_out) or 1)

    left_out = set[str]()
    return RestartPolicy(job.restarts, newest, build_again, min_workers=worker_config.min_workers, left_out=left_out)


def files_in(folder: Path) -> dict[str, int]:
    """The checkpoints in a folder and when each was written, in nanoseconds; empty where there is no folder."""
    found = {}
    for name in checkpoint_rounds.names_in(folder):
        with contextlib.suppress(OSError):  # a worker removes its oldest ones
            found[name] = (folder / name).stat().st_mtime_ns
    return found
