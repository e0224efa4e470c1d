"""A job's processes and the logs of the previous run: when they are moved, and what the user is told."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from config import AUTO, Config
from scripts.launch import job_options
from scripts.launch.process import Process, Role, RunningProcess
from scripts.launch.restart_policy import RestartPolicy
from scripts.launch.roles import JobSpec, Layout
from scripts.launch.supervisor import JobOutcome, Supervisor, Timeouts
from trainer.run_logs import earlier_runs
from utils import SetupError


class PreviousRun:
    """The logs of the previous run in a mode's folder. They stay there until this run begins to train."""

    def __init__(
        self,
        log_folder: Path,
        earlier: Path,
        devices: Collection[tuple[str, str]],
        worker_config: Config,
        say: Callable[[str], None],
    ) -> None:
        """The logs in a mode's folder are moved to `earlier`, but the workers of this run, on `devices` (host, device),
        move their own. Raises SetupError if they cannot be moved."""
        has_checkpoint = any(worker_config.checkpoint_folder.glob("*.ckpt"))
        # This run resumes that one: all stays where it is
        self.is_resumed = has_checkpoint if worker_config.resume == AUTO else bool(worker_config.resume)
        self._keeps_checkpoints = bool(worker_config.ckpt_frequency and not worker_config.checkpoint)
        self._log_folder, self._earlier, self._devices, self._say = log_folder, earlier, devices, say
        if not self.is_resumed:
            earlier_runs.check([path for path in log_folder.glob("*/*") if earlier_runs.written(path)], earlier)
        earlier_runs.keep_process_logs(log_folder, self.is_resumed)
        self._notice = earlier_runs.Notice(log_folder, earlier)
        self._is_told = False

    def begins(self) -> None:
        """Moves the logs that no worker moves; call it once, when a worker begins to train."""
        if self.is_resumed:
            return
        try:
            earlier_runs.clear_mode(self._log_folder, self._devices, self._earlier, self._keeps_checkpoints)
        except SetupError as error:
            self._say(f"warning: {error}")
        self.tell()

    def tell(self) -> None:
        """Says once where the logs are now."""
        if not self._is_told and (line := self._notice.line()):
            self._is_told = True
            self._say(line)


def of_job(job: JobSpec, layout: Layout, say: Callable[[str], None]) -> PreviousRun:
    """The logs of the run that a job replaces. Raises SetupError if they cannot be moved."""
    devices = {(worker.host, worker.folder) for worker in job.hosts.workers}
    worker_config = job_options.first_config(job, layout)
    return PreviousRun(job.log_folder, job.earlier, devices, worker_config, say)


def supervise(
    job: JobSpec,
    roles: Sequence[Role],
    before: PreviousRun,
    say: Callable[[str], None],
    start: Callable[[Role], RunningProcess] = Process,
    connections: Sequence[RunningProcess] = (),
    policy: RestartPolicy | None = None,
) -> JobOutcome:
    """Runs the processes of a job until all have ended; those of a resumed one append to their logs. The other
    arguments are the Supervisor's."""
    roles = [dataclasses.replace(role, appends=before.is_resumed) for role in roles]
    waits, together = Timeouts(grace_s=job.grace_s), job.algorithm.is_distributed
    return Supervisor(roles, say, waits, start, connections, together, policy, before.begins).run()
