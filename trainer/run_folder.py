"""A worker's log folder: claimed by one process, emptied when training begins, with run.json beside the round logs."""

from __future__ import annotations

import dataclasses
import fcntl
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from config import Config
from trainer import version
from trainer.engine import mx
from trainer.saved_model import saved_files
from utils import RUN_AS_OWNER, RUN_FILE, SetupError, remedy, round_files, version_number, write_json

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

    def close(self) -> None:
        """Another worker may write there now; a process that ends need not say so."""
        self._lock.close()

    def open(self) -> Path:
        """Removes what an earlier run left, unless this one goes on with it."""
        rounds = round_files(self.path)
        for path in [] if self._config.resume else [*rounds, *saved_files(self.path), self.path / RUN_FILE]:
            path.unlink(missing_ok=True)
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
