"""What workers without a parameter server do together: add up, spread, meet, gather. Here over a mesh; mpi.py has MPI's
own."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from trainer.collectives import halves
from trainer.collectives import mesh as over_mesh
from trainer.collectives.mesh import Mesh, Moved, follow
from trainer.collectives.schedules import Algorithm, broadcast


class Group(Protocol):
    """One worker's place among them. All call the same methods in the same order, one at a time."""

    rank: int
    num_workers: int

    def add_up(self, buffer: np.ndarray, num_bytes: int, num_halves: int = 0) -> Moved:
        """Replaces the buffer, float32 (n,) and contiguous, by its sum over the workers, the same bits on all.

        Args:
            num_bytes: that the buffer counts on its way.
            num_halves: so many numbers from the first on travel as float16.

        Raises:
            PeerLost: a worker is gone.
        """

    def spread(self, buffer: np.ndarray, num_bytes: int, source: int = 0) -> Moved:
        """Replaces the buffer by that of rank `source`; otherwise as `add_up`."""

    def meet(self, value: float = 0.0) -> float:
        """Waits until all workers are here; returns the greatest of the values that they bring, to float32's digits."""

    def gather(self, content: bytes) -> list[bytes]:
        """What each worker brings, by rank; less than 16 MB each."""


class MeshGroup:
    """A Group over a mesh.

    Args:
        algorithm: of its sums, one of schedules.SUMS.
    """

    def __init__(self, mesh: Mesh, algorithm: Algorithm) -> None:
        self.rank = mesh.rank
        self.num_workers = mesh.num_workers
        self._mesh = mesh
        self._sum = algorithm(mesh.num_workers, mesh.rank)

    def add_up(self, buffer: np.ndarray, num_bytes: int, num_halves: int = 0) -> Moved:
        """As Group says."""
        if num_halves:
            return halves.follow(self._sum, self._mesh, buffer, num_bytes, num_halves)
        return follow(self._sum, self._mesh, buffer, num_bytes)

    def spread(self, buffer: np.ndarray, num_bytes: int, source: int = 0) -> Moved:
        """As Group says."""
        return follow(broadcast(self.num_workers, self.rank, source), self._mesh, buffer, num_bytes)

    def meet(self, value: float = 0.0) -> float:
        """As Group says."""
        return over_mesh.meet(self._mesh, value)

    def gather(self, content: bytes) -> list[bytes]:
        """As Group says."""
        return over_mesh.gather(self._mesh, content)
