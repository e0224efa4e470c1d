"""Memory that the hub shares with the workers on its own host, so that arrays need not cross a socket. Linux alone.

token, a page | two sums, which take turns | an upload of each worker, by rank; each as large as the model
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets

import numpy as np

from trainer.hub.server_part import Arrays

_NUM_SUMS = 2
_Place = tuple[str, str, int]  # path; token, since in another container the path may be that of another file; numbers


class SharedMemory:
    """As one process sees it."""

    def __init__(self, descriptor: int, place: _Place) -> None:
        """Raises OSError or ValueError where there is none."""
        self.place, (_, token, self.size) = place, place
        self._bytes = mmap.mmap(descriptor, 0)
        if self._bytes[: len(token) // 2] != bytes.fromhex(token):
            raise ValueError("it is of another process")
        # Numbers (size,) each, behind the token
        self.slots = np.frombuffer(self._bytes, np.float32, offset=mmap.PAGESIZE).reshape(-1, self.size)

    @classmethod
    def made(cls, size: int, num_workers: int) -> SharedMemory | None:
        """New memory for models of so many numbers, which goes with this process; None where the system has none."""
        if not hasattr(os, "memfd_create"):
            return None
        descriptor, token = os.memfd_create("esync-hub"), secrets.token_bytes(16)
        os.ftruncate(descriptor, mmap.PAGESIZE + 4 * size * (_NUM_SUMS + num_workers))
        os.pwrite(descriptor, token, 0)
        return cls(descriptor, (f"/proc/{os.getpid()}/fd/{descriptor}", token.hex(), size))

    @classmethod
    def found(cls, place: _Place) -> SharedMemory | None:
        """The memory at this place; None where this process cannot reach it."""
        with contextlib.suppress(OSError, ValueError):
            descriptor = os.open(place[0], os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                return cls(descriptor, place)
            finally:
                os.close(descriptor)
        return None

    def sum(self, number: int) -> np.ndarray:
        return self.slots[number % _NUM_SUMS]

    def upload(self, rank: int) -> np.ndarray:
        return self.slots[_NUM_SUMS + rank]

    def slot_of(self, arrays: Arrays) -> int | None:
        """The slot in which these arrays stand; None: they are elsewhere, or there are none."""
        if not arrays:
            return None
        begin, slots = arrays[0].__array_interface__["data"][0], self.slots.__array_interface__["data"][0]
        return (begin - slots) // (4 * self.size) if 0 <= begin - slots < self.slots.nbytes else None
