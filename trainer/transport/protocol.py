"""The transport's protocol: all that a trainer knows of how arrays travel.

There are two kinds (algorithms.TransportKind). SUM: broadcasts and sums over all workers, by a parameter server or
among the workers (collective.py). SERVER: an optimizer on a parameter server handles each push by itself, and a pull
takes the present values. With MXNet's distributed kvstore these are dist_sync and dist_async.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from trainer.collectives.compression import AS_IT_IS, Compression


class Counted(Protocol):
    """Counts the bytes that it moves."""

    def take_traffic(self) -> dict[str, int]:
        """Bytes pushed and pulled since the last call, by their names in the round logs."""


class SummedArrays(Counted, Protocol):
    """A list of arrays that the workers sum again and again."""

    largest: float  # magnitude up to which a worker's numbers can be part of a sum: finite where they travel as float16

    def broadcast(self, arrays: Sequence[Any], exact: int = 0) -> None:
        """Afterwards every rank's arrays hold rank 0's values. Every rank calls it, once, before anything else. The
        last `exact` arrays never travel compressed."""

    def begin_sum(self, arrays: Sequence[Any]) -> None:
        """Begins to send all arrays; early ones first where there is a choice.

        They have the shapes and the order of the broadcast ones, and must not be touched before `finish_sum`.
        """

    def finish_sum(self, arrays: Sequence[Any], timed: bool = False) -> float | None:
        """Waits until each of the arrays that were given to `begin_sum` is the sum over all workers.

        `timed`: pushes and pulls do not overlap, so that one of them can be timed. Returns seconds in which the sums
        came back, or were made where there is no server, without the wait for other workers; None if that was not
        timed.
        """


class SharedArrays(Counted, Protocol):
    """A list of arrays on a parameter server: array i lives under key `first_key + i`."""

    def define(self, arrays: Sequence[Any]) -> None:
        """Defines the keys with rank 0's values. Every rank calls it, once."""

    def broadcast(self, arrays: Sequence[Any]) -> None:
        """Defines the keys; afterwards every rank's arrays hold rank 0's values. Every rank calls it, once."""

    def push(self, arrays: Sequence[Any]) -> None:
        """Begins to push all arrays; early ones first where there is a choice.

        They must not be written to before they have arrived, and a pull under the same keys may overwrite them.
        """

    def wait_until_arrived(self, arrays: Sequence[Any]) -> None:
        """Waits until the pushes have arrived, and the server's optimizer, if any, has handled them."""

    def pull(self, arrays: Sequence[Any]) -> None:
        """Begins to pull into all arrays; `wait` before you rely on their values."""

    def wait(self, arrays: Sequence[Any]) -> None:
        """Waits until these arrays have their pulled values, and for nothing else."""


class Transport(Protocol):
    """A worker's connection to the others. Where one of them is lost, a call that waits for others raises PeerLost, or
    ends the process as PeerLost does: MXNet's kvstore cannot be interrupted."""

    @property
    def rank(self) -> int:
        """From 0."""

    @property
    def num_workers(self) -> int:
        """At present."""

    def sums(self, compression: Compression = AS_IT_IS, first_key: int = 0) -> SummedArrays:
        """A list of arrays to be summed; of the kind SUM. `compression`: 2bit holds for all later pushes of this
        worker. `first_key`: as in `arrays`."""

    def arrays(self, first_key: int = 0) -> SharedArrays:
        """A list of arrays under the keys from `first_key` on; of the kind SERVER, `broadcast` of both."""

    def set_optimizer(self, optimizer: Any) -> None:
        """Gives the server its optimizer: a ServerOptimizer. Rank 0 calls it, before the keys are defined."""

    def barrier(self) -> None:
        """Waits until all workers have called it."""

    def wait_all(self) -> None:
        """Waits for all computations, pushes and pulls of this worker."""
