"""What computes: a network on its device, by the one protocol that algorithms, checks and transports know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from trainer.datasets.feed import Feed, Prepare
    from trainer.draws import Draws
    from trainer.passes import Batch, Passes


class Network(Protocol):
    """A network whose arrays the host can read and write.

    On the CPU the host arrays are the network's own memory, float32, contiguous. They are valid until the network is
    used again, by its passes or for outputs. Getting them waits for these.
    """

    suffix: str  # of a file with its parameters
    names: list[str]  # of `weights`, such as conv0_weight

    @property
    def weights(self) -> list[np.ndarray]:
        """The trainable weights, in the order of the layers. Frozen ones stay as they are and never travel."""

    @property
    def gradients(self) -> list[np.ndarray]:
        """The gradients of `weights`, in their order; each backward pass overwrites them."""

    @property
    def statistics(self) -> list[np.ndarray]:
        """BatchNorm's running means and variances."""

    def passes(self, loss: Any, draws: Draws, samples: Callable[[], int]) -> Passes:
        """The passes of a step with this loss (None: cross-entropy). `draws` seeds what a pass draws, such as dropout's
        masks, by the number of this worker's samples so far."""

    def feed(self, prepare: Prepare | None) -> Feed:
        """What brings samples to the network's device."""

    def outputs(self, batch: Batch) -> Any:
        """What the network gives for the inputs, without a gradient, in arrays of its own kind."""

    def seed(self, number: int) -> None:
        """Seeds the random generator of its library."""

    def state(self) -> dict[str, np.ndarray]:
        """Copies of all parameters, frozen ones too, by their names."""

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes parameters by their names."""
