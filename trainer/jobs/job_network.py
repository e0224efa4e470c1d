"""What a job asks of its network, whatever library it is of: gluon.py and torch_network.py answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainer.network import Batch, Loss, Network


class JobNetwork(Network, Protocol):
    """A network of a job file, or a built-in one."""

    device: Any  # of its library

    @property
    def layers(self) -> Any:
        """The library's own object, such as a gluon Block, for one use of it: host arrays from before are no longer
        valid."""

    @property
    def frozen(self) -> list[np.ndarray]:
        """Copies of the weights that stay as they are."""

    def begin(self) -> None:
        """Called before a training loop of the user's own computes gradients."""

    def own_loop(self) -> Callable[[bool], str]:
        """Returns a function that says at the end of each step of such a loop what is wrong with it, in words. Its
        argument: whether the step is the first, which must have computed gradients."""

    def tried(self, loss: Loss | None, batch: Batch, outputs: Any) -> Any:
        """The loss (None: cross-entropy) as `passes` and `total` take it, after a trial on a batch and its outputs.
        Raises SetupError if it cannot be trained with."""

    def total(self, loss: Any, outputs: Any, batch: Batch) -> float:
        """The losses of a batch's samples, added up, by what `tried` has returned."""

    def on(self, use_cpu: bool, gpu: int) -> JobNetwork:
        """The network on its device, once it was tried on the CPU. Raises SetupError if there is no such device."""

    def keep_memory(self) -> None:
        """The passes keep their memory, which takes less time and more memory."""

    def saved(self, inputs: Sequence[str]) -> tuple[bytes | None, bytes]:
        """The content of files with its layers, where its library has such a file, and with its parameters. `inputs`
        are the names of its inputs."""

    def restore(self, file: Path) -> None:
        """Takes all parameters of a file of `saved`. Raises SetupError if they are another network's."""

    def found_in(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Those of a file's arrays whose names are the network's, in whatever way of naming, by the names of
        `state`."""
