"""Which processes acknowledge nothing that this one sends: the kernel knows, so nothing is sent to find out.

The kernel of a frozen process acknowledges. So what is sent again and again goes to a host or over a link that is cut.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection
from pathlib import Path

TABLE = Path("/proc/net/tcp")
_ESTABLISHED, _SENDS_AGAIN = "01", "01"  # states of a connection and of its timer
_ENDING = ("04", "09", "0B")  # the other side has not acknowledged the end


def own_sockets() -> set[str]:
    """The inodes of this process's sockets."""
    found = set()
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it has just been closed
            found.add(str(file.readlink()).removeprefix("socket:[").removesuffix("]"))
    return found


def sent_again(table: str) -> dict[str, str]:
    """Inode by the other end, as "10.0.0.1:4711", of connections whose last bytes were sent more than once, from the
    content of /proc/net/tcp."""
    found = {}
    for line in table.splitlines()[1:]:
        _, _, remote, state, _, timer, times, _, _, inode, *_ = line.split()
        if (state, timer[:2]) == (_ESTABLISHED, _SENDS_AGAIN) and int(times, 16):
            found[_place(remote)] = inode
    return found


def ends(places: Collection[str]) -> bool:
    """Whether a process of this host has ended, and one of these places does not know yet of the end of a
    connection."""
    lines: list[str] = []
    with contextlib.suppress(OSError):  # another kernel
        lines = TABLE.read_text().splitlines()[1:]
    return any(state in _ENDING and _place(remote) in places for _, _, remote, state, *_ in map(str.split, lines))


def _place(remote: str) -> str:
    address, port = remote.split(":")
    return f"{socket.inet_ntoa(bytes.fromhex(address)[::-1])}:{int(port, 16)}"


class Unacknowledged:
    """Notices which of some places, as "10.0.0.1:4711", acknowledge nothing for so long."""

    def __init__(self, places: Collection[str]) -> None:
        self._places = frozenset(places)
        self._since: dict[str, float] = {}

    def look(self, now: float, longest_s: float) -> list[str]:
        """To be called every second or so."""
        with contextlib.suppress(OSError, ValueError):  # another kernel
            found = sent_again(TABLE.read_text())
            own = own_sockets() if self._places & found.keys() else ()  # others of this host may have such connections
            self._since = {place: self._since.get(place, now) for place in self._places if found.get(place) in own}
        return sorted(place for place, since in self._since.items() if now - since >= longest_s)
