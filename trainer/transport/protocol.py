"""What a trainer may ask of a transport, whatever carries the arrays.

There are two kinds (algorithms.TransportKind), as of MXNet's distributed kvstore. SUM (dist_sync): what all workers
have pushed under a key is added up, and a pull after a worker's push waits for that sum. SERVER (dist_async): an
optimizer on the server is told of each push on its own, and a pull takes what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Counted(Protocol):
    """What counts the bytes that it moves."""

    def take_traffic(self) -> dict[str, int]:
        """Bytes pushed and pulled since the last call, under their names in the round logs."""


class SharedArrays(Counted, Protocol):
    """A list of arrays that the workers share: array i lives under key `first_key + i`."""

    def define(self, arrays: Sequence[Any]) -> None:
        """Defines the keys with rank 0's values. Every rank calls it, once."""

    def broadcast(self, arrays: Sequence[Any]) -> None:
        """Defines the keys; afterwards every rank's arrays hold rank 0's values. Every rank calls it, once."""

    def push(self, arrays: Sequence[Any]) -> None:
        """Begins to push all arrays, each as soon as it is computed; early ones first where there is a choice.

        Nobody may write to them before they have arrived, and a pull under the same keys may overwrite them.
        """

    def wait_until_arrived(self, arrays: Sequence[Any]) -> None:
        """Waits until what was pushed has arrived, and been dealt with where an optimizer is told of it."""

    def pull(self, arrays: Sequence[Any], first: int = 0) -> None:
        """Begins to pull into all arrays, from position `first` on; `wait` before you rely on their values."""

    def wait(self, arrays: Sequence[Any]) -> None:
        """Waits until the values of these arrays are there, and for nothing else."""


class Transport(Protocol):
    """A worker's place among the others. Whatever it does raises PeerLost where another process is gone."""

    rank: int
    num_workers: int

    def arrays(self, first_key: int = 0) -> SharedArrays:
        """A list of arrays under the keys from `first_key` on."""

    def set_optimizer(self, optimizer: Any) -> None:
        """Gives the server its optimizer: an mx.optimizer.Optimizer. Rank 0 calls it, before the keys are defined."""

    def barrier(self) -> None:
        """Waits until all workers have called it."""

    def wait_all(self) -> None:
        """Waits for all that this worker has begun: computations, pushes and pulls."""
