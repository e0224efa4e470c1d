"""The collective operations of workers without a parameter server. Here over a mesh; mpi.py has MPI's own."""

from typing import Protocol

import numpy as np

from trainer.collectives.mesh import Mesh, Moved, all_gather, barrier, follow
from trainer.collectives.schedules import ScheduleMaker, broadcast


class Group(Protocol):
    """One worker's side. All workers call the same methods in the same order, one at a time."""

    rank: int
    num_workers: int

    def all_reduce(self, buffer: np.ndarray, num_bytes: int, num_halves: int = 0) -> Moved:
        """Replaces the buffer, float32 (n,) and contiguous, by its sum over the workers, the same bits on all. It
        counts `num_bytes` in the traffic; of its numbers the first `num_halves` travel as float16. Raises PeerLost
        where a worker is lost."""

    def broadcast(self, buffer: np.ndarray, num_bytes: int, source: int = 0) -> Moved:
        """Replaces the buffer by that of rank `source`; otherwise as `all_reduce`."""

    def barrier(self, value: float = 0.0) -> float:
        """Waits until all workers have called it; returns the greatest of their values, as a float32."""

    def all_gather(self, content: bytes) -> list[bytes]:
        """The workers' contents by rank; less than 16 MB each."""


class MeshGroup:
    """A Group over a mesh; `algorithm` is one of schedules.SUMS."""

    def __init__(self, mesh: Mesh, algorithm: ScheduleMaker) -> None:
        self.rank = mesh.rank
        self.num_workers = mesh.num_workers
        self._mesh = mesh
        self._sum = algorithm(mesh.num_workers, mesh.rank)

    def all_reduce(self, buffer: np.ndarray, num_bytes: int, num_halves: int = 0) -> Moved:
        return follow(self._sum, self._mesh, buffer, num_bytes, num_halves)

    def broadcast(self, buffer: np.ndarray, num_bytes: int, source: int = 0) -> Moved:
        return follow(broadcast(self.num_workers, self.rank, source), self._mesh, buffer, num_bytes)

    def barrier(self, value: float = 0.0) -> float:
        return barrier(self._mesh, value)

    def all_gather(self, content: bytes) -> list[bytes]:
        return all_gather(self._mesh, content)
