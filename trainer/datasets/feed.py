"""Samples on a worker's device, in the network's form."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainer.datasets.sources import Raw, described
from trainer.engine import array_of, mx
from trainer.passes import Batch
from utils import SetupError

# (inputs, targets, generator of random changes in training; None in an evaluation) -> (inputs, targets)
Prepare = Callable[[Any, Any, "np.random.Generator | None"], tuple[Any, Any]]


class Feed:
    """Prepares samples and brings them to the device."""

    def __init__(self, device: mx.Context, prepare: Prepare | None = None) -> None:
        self._device = device
        self._prepare = prepare

    def __call__(self, raw: Raw, random: np.random.Generator | None = None) -> Batch:
        """The batch of some samples; `random` draws their changes in training."""
        if self._prepare is None:
            return self.placed(raw.inputs, raw.targets, raw.size)
        with self._device:
            inputs, targets = self._prepare(raw.inputs, raw.targets, random)
            return self.placed(inputs, targets, raw.size)

    def placed(self, inputs: Any, targets: Any, size: int = 0) -> Batch:
        """Brings arrays of numbers to the device: those of mx.nd as they are, all others as float32. Raises
        SetupError if one of them is no array of numbers."""
        own, wanted = (
            tuple(map(self._placed, each if isinstance(each, tuple) else (each,))) for each in (inputs, targets)
        )
        return Batch(own, wanted, size or len(wanted[0]))

    def seed(self, number: int) -> None:
        """Seeds the generator of the library in whose arrays the samples come."""
        mx.random.seed(number)

    def placed_again(self, inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Batch:
        """A batch of which the host has copies, each of its own type."""
        return self.placed(tuple(map(array_of, inputs)), tuple(map(array_of, targets)))

    def _placed(self, value: Any) -> mx.nd.NDArray:
        if isinstance(value, mx.np.ndarray):
            value = value.asnumpy()
        if isinstance(value, mx.nd.NDArray):
            return value.as_in_context(self._device)
        try:
            with np.errstate(over="ignore"):  # infinity is told where it matters
                return array_of(np.ascontiguousarray(value, np.float32), self._device)
        except (TypeError, ValueError) as error:
            raise SetupError(
                f"samples that are {described(value)} are no numbers of one shape ({error}): make them that in "
                "prepare(inputs, targets) or batchify(samples)"
            ) from None
