"""A worker's log folder: claimed by one process, emptied when training begins, with run.json beside the round logs."""

from __future__ import annotations

import dataclasses
import fcntl
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from config import Config
from trainer import version
from trainer.engine import mx
from trainer.saved_model import saved_files
from utils import RUN_AS_OWNER, RUN_FILE, SetupError, read_json, remedy, round_files, version_number, write_json

MARGIN_S = 30.0  # by which the log of a worker may be older than the first round
LOCK_FILE = ".lock"


class RunFolder:
    """`{log_dir}/{device}`. Only files that a worker writes are ever removed from it."""

    def __init__(self, config: Config) -> None:
        """Makes and claims the folder.

        Raises:
            SetupError: it cannot be made, or another worker that still runs writes there.
        """
        self._config = config
        self.commit = version.commit()
        self.path = Path(config.log_dir) / config.device
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / LOCK_FILE).open("w")
        except OSError as error:
            what_to_do = remedy("choose another with -ld (simulate.py: --log-base)", RUN_AS_OWNER)
            raise SetupError(f"log folder {self.path}: {error.strerror}; {what_to_do}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SetupError(
                f"another worker writes its logs to {self.path}: give each worker of a host its own --device-name, "
                "each job of simulate.py its own --log-base"
            ) from None

    def _was_lost(self, job_age_s: float) -> bool:
        path = self.path / RUN_FILE
        try:
            age_s = time.time() - path.stat().st_mtime
            return age_s < job_age_s + MARGIN_S and not read_json(path).get("ended")
        except (OSError, SetupError, AttributeError):  # there is none, or none that can be read
            return False

    def close(self) -> None:
        """Another worker may write there now; a process that ends need not say so."""
        self._lock.close()

    def open(self, job_age_s: float | None = None) -> Path:
        """Removes what an earlier run left, unless this one goes on with it.

        Args:
            job_age_s: of a job at work to which this worker has come. Logs that were begun with it or since, and were
                not ended, are its own: this worker has taken part in it before.

        Raises:
            SetupError: what lies there cannot be removed.
        """
        begun = self.path / RUN_FILE
        is_back = job_age_s is not None and self._was_lost(job_age_s)
        rounds = round_files(self.path)
        for path in [] if self._config.resume or is_back else [*rounds, *saved_files(self.path), begun]:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise SetupError(
                    f"{path}, in the way of this run's logs, cannot be removed: {error.strerror}; move it elsewhere"
                ) from None
        return self.path

    def describe(self, facts: Mapping[str, Any], ended: str | None = None) -> None:
        """Writes run.json: what this run is, and once it has ended, why.

        Args:
            facts: what only the trainer knows, such as its rank.
        """
        description: dict[str, Any] = {
            **facts,
            "host": platform.node(),
            "device": self._config.device,
            "config": dataclasses.asdict(self._config),
            "commit": self.commit,
            "versions": {
                "esync": version_number(),
                "python": platform.python_version(),
                "mxnet": mx.__version__,
                "numpy": np.__version__,
                "platform": platform.platform(),
            },
            "command": sys.argv,
            "ended": ended,
        }
        write_json(self.path / RUN_FILE, description)
