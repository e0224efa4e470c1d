"""A worker's log folder: claimed by one process, cleared of earlier logs when training begins; writes run.json."""

import logging
import platform
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from config import Config
from trainer import version
from trainer.run_logs import earlier_runs
from trainer.run_logs.scalars import TensorBoard, check_tensorboard
from utils import EARLIER, RUN_FILE, SetupError, read_json, remedy, setup_errors, version_number, write_json

MARGIN_S = 30.0  # a worker's run.json may be that much older than the job's first round


class RunFolder:
    """`{log_dir}/{device}`. Only files that a worker writes are moved or removed."""

    def __init__(self, config: Config, earlier: Path | None = None) -> None:
        """Makes and claims the folder. Earlier logs are moved to `earlier`, by default --earlier. Raises SetupError if
        it cannot be made, another running worker writes there, or earlier logs cannot be moved."""
        self._config = config
        self._earlier = earlier or (Path(config.earlier) if config.earlier else None)
        self._since = time.time()  # before training begins on any worker of the job
        self.missing = ""  # at the end: what a full disk has not taken, in words
        self.commit = version.commit()
        self.path = Path(config.log_dir) / config.device
        with setup_errors(f"log folder {self.path}", remedy("choose another with -ld (simulate.py: --log-base)")):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / earlier_runs.LOCK_FILE).open("w")
        if not earlier_runs.claim(self.path, self._lock):
            raise SetupError(
                f"another worker writes its logs to {self.path}: give each worker of a host its own --device-name, "
                "each job of simulate.py its own --log-base"
            )
        if self._earlier is not None:
            if not self.path.is_relative_to(earlier_runs.log_base(self._earlier)):
                raise SetupError(f"--earlier {self._earlier} is not in the log tree that -ld {config.log_dir} is in")
            if config.resume != 1 and not self._is_own() and earlier_runs.written(self.path):
                earlier_runs.check([self.path], self._earlier)
        self._board: Path | None = None  # of this worker's run of TensorBoard
        if config.tensorboard:
            place = config.mode_folder / platform.node()
            if self._earlier is not None:  # then its place in the log tree is known
                place = Path(config.log_dir).relative_to(earlier_runs.log_base(self._earlier))
            self._board = Path(config.tensorboard) / place.parent / f"{place.name}-{config.device}"
            check_tensorboard(self._board)

    def board(self) -> TensorBoard | None:
        """Writes the rounds for TensorBoard; None without --tensorboard."""
        advice = "summary.py --tensorboard FOLDER makes a whole one of the logs"
        fail = partial(logging.warning, f"warning: %s; {advice}")
        return TensorBoard(self._board, fail) if self._board else None

    def _was_lost(self, job_age_s: float) -> bool:
        path = self.path / RUN_FILE
        try:
            age_s = time.time() - path.stat().st_mtime
            return age_s < job_age_s + MARGIN_S and not read_json(path).get("ended")
        except (OSError, SetupError, AttributeError):  # missing or unreadable
            return False

    def _is_own(self) -> bool:
        """Whether the files are of this run: of a process before this one."""
        return earlier_runs.is_same_run(self._config.earlier, earlier_runs.config_in(self.path).get("earlier", ""))

    def close(self) -> None:
        """Releases the claim, as the end of the process does."""
        self._lock.close()

    def open(self, job_age_s: float | None = None, is_new: bool = False) -> Path:
        """Moves the files of an earlier run to the earlier runs, or removes them without --earlier; they stay if this
        run resumes that one. `job_age_s` is that of a job at work to which this worker has come: logs that were begun
        since the job began, and not ended, are the job's, in which this worker has taken part before. With `is_new` it
        has not, whether the job is resumed or begins. Raises SetupError if files cannot be moved or removed."""
        is_back = job_age_s is not None and self._was_lost(job_age_s)
        if not is_new and (self._config.resume or is_back):
            return self.path
        left = earlier_runs.written(self.path)
        # A run that is started again after a death without a checkpoint begins anew.
        is_own = self._is_own()
        if self._earlier is not None and not is_own:
            notice = earlier_runs.Notice(self.path, self._earlier)
            earlier_runs.set_aside(left, self._earlier, self._since)
            if self._earlier.name == EARLIER and (line := notice.line()):  # else the launcher logs it
                logging.info("%s", line)
            return self.path
        for path in left:
            with setup_errors(f"{path}, in the way of this run's logs, cannot be removed", "move it elsewhere"):
                path.unlink(missing_ok=True)
        if left:
            whose = "this job's start before" if is_own else "an earlier run"
            instead = "" if is_own else " (the launchers and worker.sh keep it, and so does --earlier)"
            logging.info("what %s left in %s is removed%s", whose, self.path, instead)
        return self.path

    def describe(self, facts: Mapping[str, Any], ended: str | None = None) -> None:
        """Writes run.json, a description of the run: `facts` are entries by the trainer, such as its rank, `ended` is
        why the run has ended; None: it has not. Raises SetupError if the disk is full, or the folder cannot be written
        to."""
        description: dict[str, Any] = {
            **facts,
            "host": platform.node(),
            "device": self._config.device,
            "config": self._config.values_by_name(),
            "commit": self.commit,
            "versions": {
                "esync": version_number(),
                "python": platform.python_version(),
                **{name: sys.modules[name].__version__ for name in ("mxnet", "numpy", "torch") if name in sys.modules},
                "platform": platform.platform(),
            },
            "command": sys.argv,
            "ended": ended,
        }
        write_json(self.path / RUN_FILE, description)
