"""MPI's own collectives, by the library that suits a cluster's network (InfiniBand and the like).

Ranks are MPI's; where a process dies, mpiexec ends the others. requirements-mpi.txt, not requirements.txt, has mpi4py
and a library.
"""

import sys
from typing import Any

import numpy as np

from trainer.collectives.mesh import Moved
from utils import SetupError

CHUNK = 1 << 20  # float32 of one MPI_Allreduce: 4 MB, for which it was the fastest


def world() -> Any:
    """The communicator of all processes that mpiexec has started. Raises SetupError if mpi4py or its MPI library is
    missing."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: no library
        raise SetupError(
            f"--exchange mpi needs mpi4py and an MPI library ({str(error).splitlines()[0]}): {sys.executable} -m pip "
            "install -r requirements-mpi.txt, or choose ring, butterfly or binary-blocks, which need nothing"
        ) from None
    return MPI.COMM_WORLD


def place_on_host(comm: Any) -> int:
    """This process's number among those of its host, from 0."""
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

    def all_reduce(self, buffer: np.ndarray, num_bytes: int, num_halves: int = 0) -> Moved:
        """As Group; counts the least bytes that a sum takes, since MPI chooses its algorithm itself. Raises ValueError
        for float16, which MPI cannot sum."""
        if num_halves:
            raise ValueError("MPI adds up no float16")
        for begin in range(0, len(buffer), CHUNK):
            self._comm.Allreduce(self._in_place, buffer[begin : begin + CHUNK])
        least = 2 * num_bytes * (self.num_workers - 1) // self.num_workers
        return Moved(least, least)

    def broadcast(self, buffer: np.ndarray, num_bytes: int, source: int = 0) -> Moved:
        self._comm.Bcast(buffer, source)
        is_source = self.rank == source
        return Moved(num_bytes * is_source, num_bytes * (not is_source))

    def barrier(self, value: float = 0.0) -> float:
        greatest = np.array([value], np.float64)
        self._comm.Allreduce(self._in_place, greatest, self._greatest)
        return float(greatest[0])

    def all_gather(self, content: bytes) -> list[bytes]:
        """By plain bytes: mpi4py's allgather would unpickle what comes."""
        sizes = np.empty(self.num_workers, np.int64)
        self._comm.Allgather(np.array([len(content)], np.int64), sizes)
        whole = bytearray(sizes.sum())
        self._comm.Allgatherv(content, [whole, sizes])
        ends = np.cumsum(sizes)
        return [bytes(whole[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
