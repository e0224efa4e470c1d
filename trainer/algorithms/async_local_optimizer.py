"""The optimizer on the parameter server of asynchronous local SGD (async_local.py): applies the uploads, and decides
how many local steps each worker takes. This module runs in the server's process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.algorithms.delayed_nesterov import DelayedNesterov
from trainer.algorithms.server_policies import UploadReport
from trainer.algorithms.whole_models import BAD_UPLOAD, Keys, WholeModelOptimizer


class LocalSteps:
    """How many local steps each worker takes: H_k = max(1, floor(H * v_k / max v)) with DyLU, else H."""

    def __init__(self, most: int, is_dynamic: bool, num_workers: int) -> None:
        """`most` is H, `is_dynamic` DyLU."""
        self._most, self._is_dynamic = most, is_dynamic
        self.times_s = [math.inf] * num_workers  # by rank, of a local step; infinite: not known, or the worker is lost

    def of(self, rank: int) -> int:
        """H_k; 1 as long as this worker's time is not known."""
        if not self._is_dynamic:
            return self._most
        own_s = self.times_s[rank]
        if math.isinf(own_s):
            return 1
        share = min(self.times_s) / own_s if own_s else 1.0  # v_k / max v
        return max(1, math.floor(self._most * share * (1 + 1e-6)))  # times travel as float32: 0.1 / 0.3 is a third


@dataclass(frozen=True)
class AsyncLocalStatus:
    """The server's answer to an upload; the model is in the worker's gradient buffer."""

    stop: bool  # all stop
    local_steps: int  # H_k of the worker's next round
    samples: int  # of all uploads so far

    @classmethod
    def read(cls, numbers: np.ndarray) -> AsyncLocalStatus:
        stop, local_steps, samples = map(round, numbers[:3].tolist())
        return cls(bool(stop), local_steps, samples)


class AsyncLocalOptimizer(WholeModelOptimizer):
    """Applies each upload to the global model, and leaves that in the worker's gradient buffer, where it does not
    change before the worker's next upload."""

    def __init__(
        self, keys: Keys, num_weights: int, outer: DelayedNesterov, local_steps: LocalSteps, delay_momentum: bool
    ) -> None:
        """`num_weights` of the arrays are weights; those behind them are BatchNorm's statistics."""
        super().__init__(keys)
        self._num_weights = num_weights
        self._outer, self._local_steps, self._delay_momentum = outer, local_steps, delay_momentum
        self._stop, self._samples = False, 0

    def state(self) -> dict[str, Any]:
        return {"samples": self._samples, "times_s": [*self._local_steps.times_s], "outer": self._outer.state()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        super().restore(saved)
        self._samples = saved["samples"]
        if len(saved["times_s"]) == self.keys.num_workers:  # else the ranks are other workers
            self._local_steps.times_s = list(saved["times_s"])

    def begin(self) -> None:
        weights = [self.shown[position] for position in range(self._num_weights)]
        self._outer.begin(weights, self.take_saved().get("outer", {}))

    def act(self, rank: int, code: int, values: Sequence[float]) -> Iterable[int]:
        upload = UploadReport.read(values)
        self._stop |= upload.wants_stop
        self._local_steps.times_s[rank] = upload.step_s
        model = [self.shown[position] for position in range(self.keys.num_arrays)]
        buffer = [self.buffers[rank][position] for position in range(self.keys.num_arrays)]
        if code != BAD_UPLOAD and upload.samples:
            self._samples += upload.samples
            num_weights, num_workers = self._num_weights, self.keys.num_workers - len(self.lost)
            self._outer.apply(model[:num_weights], buffer[:num_weights], num_workers if self._delay_momentum else 1)
            for statistics, update in zip(model[num_weights:], buffer[num_weights:], strict=True):
                statistics += update / num_workers
        for array, target in zip(model, buffer, strict=True):
            target[:] = array
        return (rank,)

    def remove_worker(self, rank: int) -> Iterable[int]:
        self._local_steps.times_s[rank] = math.inf
        return ()

    def status(self, rank: int) -> list[float]:
        numbers = (self._stop, self._local_steps.of(rank), self._samples)
        # A command has the length of a status vector.
        return [*map(float, numbers), *[0.0] * (1 + len(UploadReport._fields) - len(numbers))]
