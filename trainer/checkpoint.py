"""Checkpoints: what a job needs to go on where it was, in one file that is replaced atomically."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from config import SAME, Config
from utils import SetupError, write_atomically


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds.

    Attributes:
        model: weights, and behind them BatchNorm's statistics as one flat array.
        velocity: the optimizer's state, one array for each of the weights.
        done: parts of steps done of each phase (schedule.py).
        batches: of all workers that the model was trained with.
        samples: in them, of each phase; none where the file is older than that.
    """

    model: list[np.ndarray]
    velocity: list[np.ndarray]
    done: list[int]
    batches: int
    samples: list[int] = dataclasses.field(default_factory=list)


# Flags that came later than checkpoints, and what they would have been before.
BEFORE_THERE_WERE = {"augment": 0, "weight_decay": 0.0, "phase_momentum": [SAME], "phase_batch_size": [0]}


class CheckpointFile:
    """The file of one job, in numpy's npz format."""

    def __init__(self, path: Path, job: Mapping[str, Any]) -> None:
        """
        Args:
            job: what must be the same to go on with it (flags and their values, as JSON takes them).
        """
        self.path = path
        self._job = dict(job)

    @classmethod
    def of_job(cls, config: Config, num_workers: int) -> CheckpointFile:
        """That of a job with these flags; with other values of some of them it would be another job.

        Step sizes and their schedules are not among them: a job may go on with others.
        """
        same = ("network", "dataset", "split_by_class", "batch_size", "seed", "switch_order", "momentum")
        job = {name: getattr(config, name) for name in (*same, *BEFORE_THERE_WERE)}
        lists = {name: list(value) for name, value in job.items() if isinstance(value, tuple)}
        lists["train_steps"] = list(config.train_steps)
        return cls(config.checkpoint_path, job | lists | {"num_workers": num_workers})

    def check_folder(self) -> None:
        """Makes sure that the file can be written when its time comes.

        Raises:
            SetupError: it cannot.
        """
        folder = self.path.parent
        if self.path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise SetupError(
                f"checkpoint {self.path} cannot be written: name a file in a folder that is there and can be written "
                "to with --checkpoint"
            )

    def set_aside(self) -> None:
        """Another job begins here: the checkpoint of the one before does not fit its logs. It stays, as `*.old`."""
        if self.path.exists():
            self.path.replace(self.path.with_name(f"{self.path.name}.old"))

    def save(self, saved: Saved) -> None:
        """Replaces the file.

        Raises:
            SetupError: it cannot be written.
        """
        content = io.BytesIO()
        lists = {"model": saved.model, "velocity": saved.velocity}
        arrays: dict[str, Any] = {
            f"{name}-{number}": array for name, part in lists.items() for number, array in enumerate(part)
        }
        about = {"job": self._job, "done": saved.done, "batches": saved.batches, "samples": saved.samples}
        about |= {name: len(part) for name, part in lists.items()}
        np.savez(content, about=np.array(json.dumps(about)), **arrays)
        write_atomically(self.path, content.getvalue())

    def load(self) -> Saved:
        """Reads the file.

        Raises:
            SetupError: it is not there, is not a checkpoint, belongs to another job, or its job is done.
        """
        about = self.check()
        with self._opened() as arrays:
            model, velocity = (
                [arrays[f"{name}-{number}"] for number in range(about[name])] for name in ("model", "velocity")
            )
        return Saved(model, velocity, about["done"], about["batches"], about.get("samples", []))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Mapping[str, np.ndarray]]:
        try:
            with np.load(self.path) as arrays:
                yield arrays
        except FileNotFoundError:
            raise SetupError(
                f"--resume: there is no checkpoint {self.path}: name it with --checkpoint, and start without --resume "
                "where the job never saved one (--ckpt-frequency)"
            ) from None
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
            raise SetupError(f"--resume: {self.path} is not a checkpoint: {error}") from None

    def check(self) -> dict[str, Any]:
        """Reads only what the file is about; errors as in `load`."""
        with self._opened() as arrays:
            about = json.loads(str(arrays["about"]))
            theirs, done, _ = dict(about["job"].items()), list(about["done"]), int(about["batches"])
        for name, ours in self._job.items():
            if (there := theirs.get(name, BEFORE_THERE_WERE.get(name))) != ours:
                raise SetupError(
                    f"--resume: checkpoint {self.path} is of a job with {name} {there}, here it is {ours}: "
                    "give the same, or start without --resume"
                )
        parts = [steps * self._job["num_workers"] for steps in self._job["train_steps"]]
        if all(there >= all_ for there, all_ in zip(done, parts, strict=True)):
            raise SetupError(f"--resume: the job of checkpoint {self.path} is done: nothing is left to train")
        return about


def kept_and_lost(rounds: Sequence[Mapping[str, Any]], resumed_after: int) -> tuple[list[Mapping[str, Any]], int]:
    """Those of a worker's logged steps that are in the model that a job is resumed with, and how many this resumption
    loses; those that an earlier one lost are neither.

    Args:
        rounds: its round logs, one step each, over all resumptions; `batches` there are those of all workers when this
            step's gradient had been applied.
        resumed_after: batches of all workers in the checkpoint.
    """
    kept: list[Mapping[str, Any]] = []

    def lose_after(batches: int) -> int:
        before = len(kept)
        while kept and kept[-1].get("batches", 0) > batches:
            kept.pop()
        return before - len(kept)

    for record in rounds:
        if "resumed_after" in record:
            lose_after(record["resumed_after"])
        kept.append(record)
    lost = lose_after(resumed_after)
    return kept, lost
