"""Samples on a worker's device, in the network's form."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainer.datasets.sources import Raw, described
from trainer.network import Batch, numpy_of
from utils import SetupError

# (inputs, targets, generator of random changes in training; None in an evaluation) -> (inputs, targets)
Prepare = Callable[[Any, Any, "np.random.Generator | None"], tuple[Any, Any]]


class Feed:
    """Prepares samples and brings them to the device. A network's own is of its library; this one has numpy's arrays
    of float32."""

    def __init__(self, prepare: Prepare | None = None) -> None:
        self._prepare = prepare

    def __call__(self, raw: Raw, random: np.random.Generator | None = None) -> Batch:
        """The batch of some samples; `random` draws their changes in training."""
        inputs, targets = raw.inputs, raw.targets
        if self._prepare is not None:
            inputs, targets = self._prepare(inputs, targets, random)
        return self.placed(inputs, targets, raw.size)

    def placed(self, inputs: Any, targets: Any, size: int = 0) -> Batch:
        """Brings arrays of numbers to the device: those of the library as they are. Raises SetupError if one of them is
        no array of numbers."""
        own, wanted = (
            tuple(map(self._placed, each if isinstance(each, tuple) else (each,))) for each in (inputs, targets)
        )
        return Batch(own, wanted, size or len(wanted[0]))

    def placed_again(self, inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Batch:
        """A batch of which the host has copies, each of its own type."""
        return self.placed(tuple(map(self.exactly, inputs)), tuple(map(self.exactly, targets)))

    def seed(self, number: int) -> None:
        """Seeds the generator of the library in whose arrays the samples come."""

    def exactly(self, array: np.ndarray) -> Any:
        """An array of the library, of the same type."""
        return array

    def of_numbers(self, array: np.ndarray) -> Any:
        """An array of the library, of the type that the network wants."""
        with np.errstate(over="ignore"):  # infinity is told where it matters
            return self.exactly(np.ascontiguousarray(array, np.float32))

    def own(self, value: Any) -> Any:
        """A value that is an array of the library already, on the device; None for others."""

    def _placed(self, value: Any) -> Any:
        if (own := self.own(value)) is not None:
            return own
        try:
            return self.of_numbers(numpy_of(value))
        except (TypeError, ValueError) as error:
            raise SetupError(
                f"samples that are {described(value)} are no numbers of one shape ({error}): make them that in "
                "prepare(inputs, targets) or batchify(samples)"
            ) from None
