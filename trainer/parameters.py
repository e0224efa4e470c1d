"""The model's parameters on this worker, as algorithms use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trainer.datasets.partitions import sha256

if TYPE_CHECKING:
    from trainer.network import Network


class Parameters:
    """A network's trainable weights with their gradients, and BatchNorm's statistics as one array."""

    def __init__(self, network: Network) -> None:
        self._network = network

    @property
    def weights(self) -> list[np.ndarray]:
        """As Network.weights."""
        return self._network.weights

    @property
    def names(self) -> Sequence[str]:
        """As Network.names."""
        return self._network.names

    @property
    def gradients(self) -> list[np.ndarray]:
        """As Network.gradients."""
        return self._network.gradients

    def statistics(self) -> list[np.ndarray]:
        """A copy of BatchNorm's statistics as one flat array, cheaper to exchange than many small ones; empty if the
        network has none."""
        found = self._network.statistics
        return [np.concatenate([array.reshape(-1) for array in found], dtype=np.float32)] if found else []

    def set_statistics(self, statistics: Sequence[np.ndarray]) -> None:
        """Writes arrays of the form of `statistics` into the network."""
        for flat in statistics:
            begin = 0
            for target in self._network.statistics:
                own = flat[begin : begin + target.size].reshape(target.shape)
                target[...] = own if target.dtype == np.float32 else np.rint(own)  # a mean of counts
                begin += target.size

    def model(self) -> list[np.ndarray]:
        """The weights themselves, then `statistics`."""
        return [*self.weights, *self.statistics()]

    def replace(self, model: Sequence[np.ndarray]) -> None:
        """Copies arrays of the form of `model()` into the network."""
        for weight, array in zip(self.weights, model, strict=False):
            weight[...] = array
        self.set_statistics(model[len(self.weights) :])  # the weights are the network's own

    def sha256(self) -> str:
        """A hash of the trainable weights."""
        return sha256(self.weights)

    def num_bytes(self) -> int:
        """Size of trainable weights and statistics."""
        return 4 * sum(array.size for array in (*self.weights, *self._network.statistics))
