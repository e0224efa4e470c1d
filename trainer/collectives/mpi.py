"""MPI's own collectives: what the library of a cluster (InfiniBand and the like) does best it does itself.

The processes are mpiexec's: rank and number are MPI's, and where one dies mpiexec ends the others. mpi4py is no part of
requirements.txt; requirements-mpi.txt has it with a library.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from trainer.collectives.mesh import Moved
from utils import SetupError

CHUNK = 1 << 20  # float32 of one MPI_Allreduce: 4 MB, for which it was the fastest


def world() -> Any:
    """All processes that mpiexec has started.

    Raises:
        SetupError: there is no mpi4py, or no MPI library for it.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # the latter: no library
        raise SetupError(
            f"--collective mpi needs mpi4py and an MPI library ({str(error).splitlines()[0]}): {sys.executable} -m pip "
            "install -r requirements-mpi.txt, or choose ring, butterfly or binary-blocks, which need nothing"
        ) from None
    return MPI.COMM_WORLD


def place_on_host(comm: Any) -> int:
    """Which of this host's processes this one is, from 0."""
    from mpi4py import MPI

    own = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        return int(own.rank)
    finally:
        own.Free()


class MpiGroup:
    """A Group of all processes of an MPI communicator."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self.rank: int = comm.rank
        self.num_workers: int = comm.size
        self._comm = comm
        self._in_place, self._greatest = MPI.IN_PLACE, MPI.MAX

    def add_up(self, buffer: np.ndarray, num_bytes: int, num_halves: int = 0) -> Moved:
        """As Group says. How MPI does it is its own matter: the bytes that count are the least that it takes.

        Raises:
            ValueError: some are to be float16, which MPI cannot add up.
        """
        if num_halves:
            raise ValueError("MPI adds up no float16")
        for begin in range(0, len(buffer), CHUNK):
            self._comm.Allreduce(self._in_place, buffer[begin : begin + CHUNK])
        least = 2 * num_bytes * (self.num_workers - 1) // self.num_workers
        return Moved(least, least)

    def spread(self, buffer: np.ndarray, num_bytes: int, source: int = 0) -> Moved:
        """As Group says."""
        self._comm.Bcast(buffer, source)
        is_source = self.rank == source
        return Moved(num_bytes * is_source, num_bytes * (not is_source))

    def meet(self, value: float = 0.0) -> float:
        """As Group says."""
        return float(self._comm.allreduce(value, self._greatest))

    def gather(self, content: bytes) -> list[bytes]:
        """As Group says."""
        return list(self._comm.allgather(content))
