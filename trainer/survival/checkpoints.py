"""Checkpoints as files: what a process of a job needs to resume. Numpy and standard library.

A file is a line with its format and the SHA-256 of the rest; a line of JSON; and the arrays' bytes. The JSON is the
tree that was saved, in which {"array": [type, shape, offset]} stands for an array. A file is written under another
name, flushed to the disk, and renamed, so it is whole or not there; the last few of each process stay. Instead of a
damaged file the one before it is taken, with a warning.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from config import FIELDS, Config, modes_of
from server.setups import DATA
from trainer.array_tree import Damaged, decode, encode
from trainer.survival.checkpoint_rounds import file_name, names_in, rounds_in
from utils import EARLIER, SetupError

# Flags with which a job cannot be resumed at other values. Step sizes are not among them.
_SAME = (
    *("mode", "network", "dataset", "split_by_class", "validation", "augment", "batch_size", "seed"),
    *("optimizer", "momentum", "weight_decay", "clip_norm", "outer_momentum", "outer_nesterov"),
    *("use_dcasgd", "dcasgd_adaptive", "max_delay", "table"),
    *("switch_order", "train_steps", "phase_momentum", "phase_batch_size"),
)

_SAME_DATA = "bring back the data that the job began with (the two are hashes of its content)"


def job_of(config: Config) -> dict[str, Any]:
    """The flags that must be the same to resume a job, as JSON gives them back."""
    values = config.values_by_name()
    return json.loads(json.dumps({name: values[name] for name in _SAME if config.mode in modes_of(name)}))


class Checkpoints:
    """The files of one process of a job, by the round that they were taken after."""

    def __init__(self, folder: Path, name: str, job: Mapping[str, Any], keep: int = 3, beside: str = "") -> None:
        self.folder = folder  # of all processes
        self.name = name  # of the process, as checkpoint_rounds.py has it
        self._job = dict(job)  # what must be the same to resume
        self._keep = keep  # number of files that stay
        self._beside = beside  # another process; files of rounds that it has stay, too

    def about(self) -> dict[str, Any]:
        """As JSON: `folder`, `job` and `keep`."""
        return {"folder": str(self.folder), "job": self._job, "keep": self._keep}

    def of(self, name: str) -> Checkpoints:
        """The checkpoints of another process of the job."""
        return Checkpoints(self.folder, name, self._job, self._keep)

    def paths(self) -> dict[int, Path]:
        """By round, ascending."""
        return {round_: self.folder / name for round_, name in rounds_in(names_in(self.folder), self.name).items()}

    def save(self, round_: int, tree: Any) -> None:
        """Writes the checkpoint of a round, and removes those that are too old. Raises SetupError where the disk is
        full, or the folder cannot be written to."""
        path = self.folder / file_name(self.name, round_)
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(encode({"job": self._job, "round": round_, "state": tree}))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            _sync_folder(self.folder)
            still = self.of(self._beside).paths() if self._beside else {}
            for old, path_ in [*self.paths().items()][: -self._keep]:
                if old not in still:
                    path_.unlink(missing_ok=True)
        except OSError as error:
            with contextlib.suppress(OSError):  # the folder may take nothing at all
                temporary.unlink(missing_ok=True)
            raise SetupError(f"checkpoint {path} cannot be written: {error.strerror}") from None

    def load(self, round_: int) -> Any:
        """Reads what was saved after a round. Raises Damaged where the file is missing or damaged, SetupError where it
        is of another job."""
        path = self.folder / file_name(self.name, round_)
        try:
            saved = decode(path.read_bytes())
        except OSError as error:
            raise Damaged(f"cannot be read: {error.strerror}") from None
        theirs = saved["job"]
        if DATA in self._job and DATA not in theirs:
            _warn_of_earlier_version(self.folder)
            theirs = {**theirs, DATA: self._job[DATA]}
        for name, ours in self._job.items():
            default = FIELDS[name].default if name in FIELDS else None  # an earlier version may not have had the flag
            if theirs.get(name, default) != ours:
                raise SetupError(
                    f"--resume: checkpoint {path} is of a job with {name} {theirs.get(name)}, here it is {ours}: "
                    f"{_SAME_DATA if name == DATA else 'give the same'}, or start without --resume"
                )
        return saved["state"]

    def good_rounds(self) -> list[int]:
        """The rounds whose checkpoints are whole, ascending. A warning names each other file."""
        good = []
        for round_, path in self.paths().items():
            try:
                self.load(round_)
            except Damaged as error:
                logging.warning("warning: checkpoint %s %s; the one before it is taken", path, error)
            else:
                good.append(round_)
        return good

    def set_aside(self, after: int = 0) -> None:
        """Moves checkpoints of rounds after this one to a folder of their own: another job begins, or this one at that
        round."""
        later = [path for round_, path in self.paths().items() if round_ > after]
        try:
            for path in later:
                (self.folder / EARLIER).mkdir(exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # another worker has done it
                    path.replace(self.folder / EARLIER / path.name)
        except OSError as error:
            logging.warning("warning: the checkpoints in %s cannot be set aside: %s", self.folder, error.strerror)


@functools.lru_cache
def _warn_of_earlier_version(folder: Path) -> None:
    """Warns once in a process, not for each of its checkpoints."""
    logging.warning(
        "warning: the checkpoints in %s are of an earlier version, which did not note what data they are of: make sure "
        "that it is still the same",
        folder,
    )


def _sync_folder(folder: Path) -> None:
    """Flushes the new name to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
