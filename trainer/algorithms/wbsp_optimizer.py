"""The optimizer on WBSP's parameter server (wbsp.py): adds the uploads to the shadow, and releases it when the slowest
worker has uploaded. This module runs in the server's process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.algorithms.server_policies import Action, Decision, Policy, PolicyRunner, UploadReport
from trainer.algorithms.whole_models import BAD_UPLOAD, TEXT_SIZE, Keys, WholeModelOptimizer, text_of, text_to_numbers


@dataclass(frozen=True)
class WBSPStatus:
    """The server's answer to a worker's upload."""

    is_new: bool  # the worker's gradient buffer holds a release that is new to it
    release: int  # number of the newest release that it got; the initial model is release 0
    stop: bool  # all stop
    released: bool  # by this upload
    samples: int  # of all uploads so far
    uploads: tuple[int, ...]  # by rank, number of uploads in the newest release
    reason: str  # of the decision on this upload, in words

    @classmethod
    def read(cls, numbers: np.ndarray) -> WBSPStatus:
        is_new, release, stop, released, samples, *uploads = map(round, numbers[:-TEXT_SIZE].tolist())
        return cls(bool(is_new), release, bool(stop), bool(released), samples, tuple(uploads), text_of(numbers))

    def numbers(self) -> list[float]:
        state = (self.is_new, self.release, self.stop, self.released, self.samples, *self.uploads)
        return [*map(float, state), *text_to_numbers(self.reason)]


class WBSPOptimizer(WholeModelOptimizer):
    """A release is the initial model plus the sum of all uploads over N. A worker finds a new release in its own
    gradient buffer, in place of its upload. The buffer does not change before its next upload, so it never pulls a mix
    of two releases.
    """

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self._shadow: list[np.ndarray] = []
        self._release, self._stop, self._samples = 0, False, 0
        # Number of uploads by rank: all, and those in the newest release.
        self._arrivals, self._released = [0] * keys.num_workers, [0] * keys.num_workers
        self._status = [WBSPStatus(False, 0, False, False, 0, (0,) * keys.num_workers, "")] * keys.num_workers
        self._policy: PolicyRunner

    def state(self) -> dict[str, Any]:
        return {
            "release": self._release,
            "samples": self._samples,
            "arrivals": [*self._arrivals],
            "released": [*self._released],
            "shadow": self._shadow,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        super().restore(saved)
        self._release, self._samples = saved["release"], saved["samples"]
        if len(saved["arrivals"]) == self.keys.num_workers:  # else the ranks are other workers
            self._arrivals, self._released = list(saved["arrivals"]), list(saved["released"])
        self._status = [self._known for _ in self._status]

    @property
    def _known(self) -> WBSPStatus:
        """Of a worker that has the newest release."""
        return WBSPStatus(False, self._release, self._stop, False, self._samples, tuple(self._released), "")

    def begin(self) -> None:
        self.begin_with(self.take_saved())

    def begin_with(self, saved: Mapping[str, Any]) -> None:
        """Begins with the `state` of a checkpoint; empty in a new job."""
        self._shadow = [self.shown[position].copy() for position in range(self.keys.num_arrays)]
        for array, kept in zip(self._shadow, saved.get("shadow", ()), strict=False):
            array[:] = kept.reshape(array.shape)
        self._policy = PolicyRunner(self.policy, self.keys.num_workers, self.now())

    @property
    def policy(self) -> Policy | str:
        """Decides when to release."""
        return "wbsp"

    def act(self, rank: int, code: int, values: Sequence[float]) -> Iterable[int]:
        upload, now = UploadReport.read(values), self.now()
        if code != BAD_UPLOAD:  # of a bad one only the times count
            for position, array in enumerate(self._shadow):
                array += self.buffers[rank][position] / (self.keys.num_workers - len(self.lost))
            self._samples += upload.samples
        self._arrivals[rank] += 1
        self._stop |= upload.wants_stop
        self._policy.uploaded(rank, upload, now)
        self._policy.exclude_silent(now)  # one that evaluates for long
        decision = self._policy.decide(rank, now)
        if decision.action is Action.SYNC:
            self.publish()
        if self.answer(rank, decision):
            self._policy.enter(rank, self._release + 1, now)
        return (rank,)

    def remove_worker(self, rank: int) -> Iterable[int]:
        self._policy.remove_worker(rank)
        return ()

    def add_worker(self, rank: int) -> None:
        self._status[rank] = self._known

    def status(self, rank: int) -> list[float]:
        return self._status[rank].numbers()

    def publish(self) -> None:
        """Makes the shadow the newest release."""
        for position, array in enumerate(self._shadow):
            self.shown[position][:] = array
        self._release += 1
        self._released = list(self._arrivals)

    def answer(self, rank: int, decision: Decision) -> bool:
        """Answers an upload; returns whether with a release that is new to the worker."""
        is_new = self._status[rank].release != self._release
        if is_new:
            for position, array in self.buffers[rank].items():
                array[:] = self.shown[position]
        released = decision.action is Action.SYNC
        self._status[rank] = WBSPStatus(
            is_new, self._release, self._stop, released, self._samples, tuple(self._released), decision.reason
        )
        return is_new
