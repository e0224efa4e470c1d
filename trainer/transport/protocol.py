"""What a trainer may ask of a transport, whatever carries the arrays.

There are two kinds (algorithms.TransportKind). SUM: the workers broadcast, and add up what each of them gives; workers
among themselves can do that as well as a parameter server (collective.py). SERVER: an optimizer on a parameter server
is told of each push on its own, and a pull takes what is there. With MXNet's distributed kvstore these are dist_sync
and dist_async.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from trainer.collectives.compression import AS_IT_IS, Compression


class Counted(Protocol):
    """What counts the bytes that it moves."""

    def take_traffic(self) -> dict[str, int]:
        """Bytes pushed and pulled since the last call, under their names in the round logs."""


class SummedArrays(Counted, Protocol):
    """A list of arrays that the workers add up, again and again.

    Attributes:
        largest: magnitude up to which a worker's numbers can be a part of any sum: less than infinity where they
            travel as float16.
    """

    largest: float

    def broadcast(self, arrays: Sequence[Any], exact: int = 0) -> None:
        """Afterwards every rank's arrays hold rank 0's values. Every rank calls it, once, before anything else.

        Args:
            exact: so many of the last arrays are summed as they are, where the others travel compressed.
        """

    def begin_sum(self, arrays: Sequence[Any]) -> None:
        """Begins to send all arrays, each as soon as it is computed; early ones first where there is a choice.

        Nobody may touch them before `finish_sum`. They have the shapes and the order of what was broadcast.
        """

    def finish_sum(self, arrays: Sequence[Any], timed: bool = False) -> float | None:
        """Waits until each of the arrays that were given to `begin_sum` is the sum over all workers.

        Args:
            timed: give up the overlap of the two ways, to tell how long one of them takes.

        Returns:
            Seconds in which the sums came back, or were made where there is no server, without the wait for other
            workers; None if that was not timed.
        """


class SharedArrays(Counted, Protocol):
    """A list of arrays on a parameter server: array i lives under key `first_key + i`."""

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
    """A worker's place among the others. Whatever waits for others raises PeerLost where one of them is gone, or ends
    the process as PeerLost does: MXNet's kvstore cannot be interrupted."""

    @property
    def rank(self) -> int:
        """Of this worker, from 0."""

    @property
    def num_workers(self) -> int:
        """How many there are now."""

    def sums(self, compression: Compression = AS_IT_IS, first_key: int = 0) -> SummedArrays:
        """A list of arrays to be added up; of the kind SUM.

        Args:
            compression: 2bit holds for all that is pushed from here on.
            first_key: as `arrays` says.
        """

    def arrays(self, first_key: int = 0) -> SharedArrays:
        """A list of arrays under the keys from `first_key` on; of the kind SERVER, `broadcast` of both."""

    def set_optimizer(self, optimizer: Any) -> None:
        """Gives the server its optimizer: an mx.optimizer.Optimizer. Rank 0 calls it, before the keys are defined."""

    def barrier(self) -> None:
        """Waits until all workers have called it."""

    def wait_all(self) -> None:
        """Waits for all that this worker has begun: computations, pushes and pulls."""
