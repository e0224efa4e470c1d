"""The parameter server's side of WBSP (wbsp.py): collects the uploads, and decides when to release what there is.
This module runs in the server's process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.algorithms.server_policies import Action, Decision, Decisions, Upload
from trainer.algorithms.whole_models import BAD_UPLOAD, TEXT_SIZE, Keys, WholeModelOptimizer, text_of, text_to_numbers
from trainer.engine import mx
from trainer.parameters import wait_for

RULE = "wbsp"


@dataclass(frozen=True)
class Status:
    """What the server tells a worker that has uploaded."""

    is_new: bool  # its gradient buffer holds a release that it was not given before
    release: int  # number of the latest that it was given; the initial model is release 0
    stop: bool
    released: bool  # by its upload
    samples: int  # of all uploads that have come
    uploads: tuple[int, ...]  # by rank, how many of a worker's uploads are in the latest release
    reason: str  # why its upload led to a release, or did not

    @classmethod
    def read(cls, numbers: np.ndarray) -> Status:
        """Reads a status vector."""
        is_new, release, stop, released, samples, *uploads = map(round, numbers[:-TEXT_SIZE].tolist())
        return cls(bool(is_new), release, bool(stop), bool(released), samples, tuple(uploads), text_of(numbers))

    def numbers(self) -> list[float]:
        """As a status vector."""
        state = (self.is_new, self.release, self.stop, self.released, self.samples, *self.uploads)
        return [*map(float, state), *text_to_numbers(self.reason)]


class WBSPOptimizer(WholeModelOptimizer):
    """Collects in a shadow, shows it at a release. At each release the model that is shown is the initial one plus the
    sum of all uploads over N. A worker finds a release that is new to it in its gradient buffer, where its upload was:
    nothing changes there before its next one, so it can never pull a mix of two.
    """

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self._shadow: list[mx.nd.NDArray] = []
        self._release, self._stop, self._samples = 0, False, 0
        self._arrivals, self._released = [0] * keys.num_workers, [0] * keys.num_workers  # uploads: all, in the release
        self._status = [Status(False, 0, False, False, 0, (0,) * keys.num_workers, "")] * keys.num_workers
        self._decisions: Decisions

    def state(self) -> dict[str, Any]:
        """As WholeModelOptimizer says."""
        return {
            "release": self._release,
            "samples": self._samples,
            "arrivals": self._arrivals,
            "released": self._released,
            "shadow": [array.asnumpy() for array in self._shadow],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """As WholeModelOptimizer says: every worker begins with the release that is shown."""
        super().restore(saved)
        self._release, self._samples = saved["release"], saved["samples"]
        if len(saved["arrivals"]) == self.keys.num_workers:  # else nobody knows which of them is which
            self._arrivals, self._released = list(saved["arrivals"]), list(saved["released"])
        known = Status(False, self._release, False, False, self._samples, tuple(self._released), "")
        self._status = [known for _ in self._status]

    def begin(self) -> None:
        """The shadow begins as the initial model, or as a checkpoint has it."""
        self._shadow = [self.shown[position].copy() for position in range(self.keys.num_shown)]
        for array, saved in zip(self._shadow, self.take_saved().get("shadow", ()), strict=False):
            array[:] = saved.reshape(array.shape)
        self._decisions = Decisions(RULE, self.keys.num_workers, self.now())

    def act(self, rank: int, code: int, values: Sequence[float]) -> Iterable[int]:
        """An upload: the only command that there is. Of one that is not finite only the time counts."""
        upload, now = Upload.read(values), self.now()
        if code != BAD_UPLOAD:
            for position, array in enumerate(self._shadow):
                array += self.buffers[rank][position] / (self.keys.num_workers - len(self.lost))
            wait_for(self._shadow)
            self._samples += upload.samples
        self._arrivals[rank] += 1
        self._stop |= upload.wants_stop
        self._decisions.uploaded(rank, upload, now)
        self._decisions.stop_counting_on_the_silent(now)  # one that evaluates for long
        decision = self._decisions.decide(rank, now)
        if decision.action is Action.SYNC:
            self._publish()
        self._answer(rank, decision, now)
        return (rank,)

    def go_on_without(self, rank: int) -> Iterable[int]:
        """As WholeModelOptimizer says: nobody waits for its uploads, and the others' count for more."""
        self._decisions.go_on_without(rank)
        return ()

    def status(self, rank: int) -> list[float]:
        """As WholeModelOptimizer says."""
        return self._status[rank].numbers()

    def _publish(self) -> None:
        for position, array in enumerate(self._shadow):
            array.copyto(self.shown[position])
        wait_for(self.shown.values())
        self._release += 1
        self._released = list(self._arrivals)

    def _answer(self, rank: int, decision: Decision, now: float) -> None:
        is_new = self._status[rank].release != self._release
        if is_new:
            for position, array in self.buffers[rank].items():
                self.shown[position].copyto(array)
            wait_for(self.buffers[rank].values())
            self._decisions.enter(rank, self._release + 1, now)
        released = decision.action is Action.SYNC
        self._status[rank] = Status(
            is_new, self._release, self._stop, released, self._samples, tuple(self._released), decision.reason
        )
