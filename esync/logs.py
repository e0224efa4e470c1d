"""Writes a worker's rounds where summary.py, draw.py and why.sh look for them: FOLDER/NAME/RULE/HOST/DEVICE/."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from esync.base import RUN_FILE, SetupError, write_json
from esync.measure import Measure, drop_after
from esync.metric import Metric


class RoundLog:
    """One worker's. Without a folder it times the stages, and writes nothing."""

    def __init__(
        self,
        folder: Path | None,  # of this device
        run: Mapping[str, Any],  # facts for run.json
        metric: Metric,
        rounds_before: int = 0,  # where the job goes on: what came later in the log is lost
        elapsed_before_s: float = 0.0,  # seconds of these rounds
    ) -> None:
        self._folder, self._metric = folder, metric
        self._evaluated: list[dict[str, Any]] = []  # since the last round
        self._record: dict[str, Any] = {}
        if folder is not None and rounds_before:
            drop_after(folder, rounds_before)
        self.measure = Measure(folder, time.monotonic, rounds_before, elapsed_before_s, as_lines=True)
        versions = {"python": platform.python_version(), "torch": sys.modules["torch"].__version__}
        self._run = {**run, "metric": metric.about(), "versions": versions, "command": sys.argv, "ended": None}
        self._describe()

    def evaluated(self, round_: int, value: float) -> None:
        self._evaluated.append({"round": round_, **self._metric.logged(value)})

    def write_round(self, samples: int, loss: float | None, num_bytes: int) -> None:
        about: dict[str, Any] = {"bytes_pushed": num_bytes, "bytes_pulled": num_bytes}
        about |= {} if loss is None else {"loss": loss}
        about |= {"evaluated": self._evaluated} if self._evaluated else {}
        self._record, self._evaluated = self.measure.write_round(samples, **about), []

    def end(self, why: str) -> None:
        """The last round is logged anew, if its model was evaluated."""
        if self._folder is not None and self._record and self._evaluated:
            drop_after(self._folder, self._record["num_iters"] - 1)
            self.measure.log({**self._record, "evaluated": self._record.get("evaluated", []) + self._evaluated})
        self._run["ended"] = why
        self._describe()

    def _describe(self) -> None:
        if self._folder is not None:
            write_json(self._folder / RUN_FILE, self._run)


def folder_of(base: Path, name: str, mode: str, place: Sequence[str], date_time: str, goes_on: bool) -> Path:
    """The folder of a device (host and name). What an earlier run has left there is moved to BASE/earlier/DATE-TIME/,
    unless this one goes on with it. Raises SetupError if that cannot be done."""
    inside = Path(name, mode, *place)
    folder = base / inside
    try:
        if folder.exists() and not goes_on:
            earlier = base / "earlier" / date_time / inside
            earlier.parent.mkdir(parents=True, exist_ok=True)
            folder.replace(earlier)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"logs={base}: {error.filename} cannot be made: {error.strerror}") from None
    return folder
