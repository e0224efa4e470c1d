"""What an algorithm does on the server, as the hub and the virtual cluster call it.

A worker sends a message and arrays, and waits for its answer, which is a message and arrays too. Messages are JSON.
"""

from __future__ import annotations

import logging
import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from algorithm_row import GradientSteps
from config import Config
from flag_values import parse_schedule
from trainer.nan_guard import first_not_finite
from trainer.steps import Rule, Stepper

Arrays = Sequence[np.ndarray]
Message = dict[str, Any]
SHOWN = "shown"  # a checkpoint's name for the model that workers get
BAD = "bad"  # in a message: its arrays are not finite and must not count
WANTS_STOP = "wants_stop"  # in a message: this worker wants all to stop
JOB = "job"  # in the first answer: the job's name on the state server
SAVE = "save"  # in what rank 0 tells: the round of a checkpoint that the hub is to write
ENDED = "ended"  # in what a worker tells: it has done its rounds, and the others go on without it
SHARED = "shared"  # in a frame: its arrays stand in the memory that hub and worker share, or in which slot of it
STATE = "state"  # in what a worker tells: of its state, whose arrays come along, for others that have none


class Answer(NamedTuple):
    """To one worker."""

    message: Message
    arrays: Arrays = ()  # the model, or none


Answers = dict[int, Answer]  # those that are due now, by rank
Sink = Callable[[int, np.ndarray], None]  # takes numbers (n,) of arrays one behind another, from this position on


class ServerPart(Protocol):
    """Its calls come one at a time. Arrays of an answer do not change while one is sent (GlobalModel). What a worker
    tells has no answer."""

    def act(self, rank: int, message: Message, arrays: Arrays) -> Answers:
        """A worker's message. The arrays are the server part's from now on. A worker whose answer is not among those
        that are returned waits for one of a later call; meanwhile it may tell WANTS_STOP, without arrays."""

    def joined(self, rank: int) -> Answer | None:
        """A worker begins, or is there again after it was lost; the answer has the newest model. None: a later call
        answers it."""

    def lost(self, rank: int) -> Answers:
        """A worker is lost, or comes back on another connection before its loss was seen; may come twice. The others go
        on."""
        return {}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: plain values and arrays, the model's under SHOWN."""
        return {}


@dataclass(frozen=True)
class Served:
    """A job, as its server part begins it."""

    config: Config
    num_workers: int  # N, with lost ones
    decays: tuple[bool, ...]  # of each weight, whether weight decay acts on it; other arrays are BatchNorm's statistics
    sample_counts: tuple[int, ...]  # n_k by rank; empty: all are equal
    model: list[np.ndarray]  # which it begins with; the server part's own
    # What it resumes, by the names of `state`, without SHOWN: of a checkpoint, or of an answer (`KEPT`); empty: nothing
    saved: Mapping[str, Any]
    now: Callable[[], float]  # seconds
    is_sending: Callable[[], bool] = lambda: False  # whether arrays of an answer are still read
    # The memory of the sum with this number, of so many numbers. Two sums later it is that of another one.
    memory_of_sum: Callable[[int, int], np.ndarray] = lambda number, size: np.empty(size, np.float32)

    @property
    def num_weights(self) -> int:
        return len(self.decays)


ANEW = "anew"  # in an answer: the hub was started again, and the message before may be lost
KEPT = "kept"  # in an answer: what of `state` has no arrays. A hub that is started again resumes it with the model


def about(config: Config, decays: Sequence[bool], counts: Sequence[int], checkpoints: Message | None) -> Message:
    """What a worker says of its job when it begins. `checkpoints`: how the hub keeps its own, and resumes one."""
    flags = config.values_by_name()
    return {"flags": flags, "decays": decays, "sample_counts": counts, "checkpoints": checkpoints}


def config_in(about: Message) -> Config:
    """The flags of a job that `about` tells of."""
    flags: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in about["flags"].items()}
    return Config(**flags)


def serve(job: Served) -> ServerPart:
    """The server part of the job's algorithm."""
    row = job.config.algorithm
    own = f"{row.module}:{row.server}" if row.server else "trainer.hub.sums:SumServer"
    make = pkgutil.resolve_name("trainer.hub.probe:EchoServer" if job.config.probe else own)
    part: ServerPart = make(job, job.config.settings)
    return part


def shaped(flat: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Views of numbers (n,) as arrays of these shapes, one behind another."""
    edges = np.cumsum([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, edges), shapes, strict=False)]


def in_shapes(saved: Arrays, like: Arrays) -> list[np.ndarray]:
    """Copies of saved arrays, none or all, in these shapes. Version 0.6.0 kept small neighbours as one."""
    if not saved:
        return []
    flat = np.concatenate([array.reshape(-1) for array in saved], dtype=np.float32)
    return shaped(flat, [array.shape for array in like])


def shown_and_kept(saved: Mapping[str, Any], model: Arrays) -> tuple[list[np.ndarray], Message]:
    """The model of a checkpoint in these shapes, or this one itself where there is none, and the rest of the
    checkpoint."""
    if "values" in saved:  # version 0.6.0 counted the steps of each weight, which had a key of its own
        weights = dict(saved.get("global") or saved["values"])
        steps = max(dict(saved["num_steps"]).values(), default=0)
        squares = [square for _, square in sorted(saved.get("squares", ()))]
        saved = {"steps": saved["steps"], "num_steps": steps, "squares": squares}
        saved[SHOWN] = [weights[position] for position in range(len(model))] if len(weights) >= len(model) else model
    kept = {name: value for name, value in saved.items() if name != SHOWN}
    return in_shapes(saved[SHOWN], model) if SHOWN in saved else list(model), kept


class ServerSteps(Stepper):
    """Steps of SGD by the flags, as the job's checkpoint left them where it has one. Workers clip their gradients
    themselves."""

    def __init__(self, job: Served, settings: GradientSteps) -> None:
        super().__init__(Rule(None, settings.momentum, settings.weight_decay, job.config.batch_size), job.decays)
        self._learning_rate, self._schedule = settings.learning_rate, parse_schedule(settings.lr_schedule)
        if "steps" in job.saved:
            self.restore(job.saved["steps"])
            for velocity, weight in zip(self.arrays(job.model[: job.num_weights]), job.model, strict=False):
                velocity.shape = weight.shape  # version 0.6.0 kept it flat

    def rate(self, num_gradients: int) -> float:
        """The step size, which follows the samples of all workers: of so many gradients so far."""
        return self._learning_rate * self._schedule.factor(num_gradients * self._rule.batch_size)


def marked(rank: int, message: Message, arrays: Arrays, checks: bool) -> Message:
    """The message, with BAD where numbers are checked and the arrays are not finite."""
    if not checks or first_not_finite(arrays) is None:
        return message
    logging.warning("warning: an upload of worker %d is not finite and does not count", rank)
    return {**message, BAD: True}


class GlobalModel:
    """The model that workers get. While it is sent, a change is made to a copy."""

    def __init__(self, job: Served) -> None:
        self.arrays, self._is_sending = job.model, job.is_sending

    def to_change(self) -> list[np.ndarray]:
        """The arrays to be written to."""
        if self._is_sending():
            self.arrays = [array.copy() for array in self.arrays]
        return self.arrays
