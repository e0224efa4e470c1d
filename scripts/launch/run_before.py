"""The logs of the run before, from a launcher's view: what is done with them when, and what the user is told."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from config import Config
from scripts.launch import job_options
from scripts.launch.roles import Job, Layout
from trainer.run_logs import earlier_runs
from utils import SetupError


class RunBefore:
    """The logs of the run before in a mode's folder. They stay there until this run begins to train."""

    def __init__(
        self,
        log_folder: Path,
        earlier: Path,
        devices: Collection[tuple[str, str]],
        told: Config,
        say: Callable[[str], None],
    ) -> None:
        """
        Args:
            log_folder: of the mode.
            earlier: where they are moved.
            devices: host and device of the workers of this run, which move their own.
            told: a worker's flags.
            say: prints a line for the user.

        Raises:
            SetupError: they cannot be moved.
        """
        self.goes_on = bool(told.resume)  # this run does with that one: all stays where it is
        self._keeps_checkpoints = bool(told.ckpt_frequency and not told.checkpoint)
        self._log_folder, self._earlier, self._devices, self._say = log_folder, earlier, devices, say
        if not self.goes_on:
            earlier_runs.check([path for path in log_folder.glob("*/*") if earlier_runs.written(path)], earlier)
        earlier_runs.keep_process_logs(log_folder, self.goes_on)
        self._notice = earlier_runs.Notice(log_folder, earlier)
        self._is_cleared = self.goes_on
        self._is_told = False

    def begins(self) -> None:
        """To be called when a worker begins to train: moves what the workers do not move themselves."""
        if self._is_cleared:
            return
        self._is_cleared = True
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


def run_before(job: Job, layout: Layout, say: Callable[[str], None]) -> RunBefore:
    """The logs of the run whose place a job takes.

    Raises:
        SetupError: they cannot be moved.
    """
    devices = {(seat.site.name, seat.device) for seat in layout.seats}
    return RunBefore(job.log_folder, job.earlier, devices, next(job_options.worker_configs(job, layout))[0], say)
