"""Where a process listens, and whether the others reach it there: tried first, since MXNet would wait for ever.

MXNet connects every worker with every server, in both directions, and the scheduler with all. It advertises the address
of DMLC_NODE_HOST, else of DMLC_INTERFACE, else of the host's first network card. Here the last is the card that leads
to the scheduler, and DMLC_NODE_HOST is always set, so that MXNet takes the address that was tried.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import secrets
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from trainer.rendezvous.config_check import join_names
from utils import SetupError

TRY_S = 5.0  # one try to connect
MOST_THREADS = 256
# Below the ports of outgoing connections, so that the kernel gives none away before MXNet listens there.
FREE_PORTS = range(10000, 32768)
_SIOCGIFADDR = 0x8915


class Target(NamedTuple):
    """Where one process must reach another."""

    name: str
    address: str
    port: int
    token: str  # answered by the right process


def own_address(towards: str, environment: Mapping[str, str] = os.environ) -> str:
    """The IPv4 address that MXNet will advertise.

    Args:
        towards: this host's address on the way to the scheduler.

    Raises:
        SetupError: the chosen network card has no IPv4 address.
    """
    if environment.get("DMLC_NODE_HOST"):
        return environment["DMLC_NODE_HOST"]
    card = environment.get("DMLC_INTERFACE")
    return card_address(card) if card else towards


def address_towards(host: str, port: int) -> str:
    """This host's IPv4 address on the way to another one; nothing is sent.

    Raises:
        SetupError: the host is unknown, or has no route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError as error:
            raise SetupError(f"there is no route to {host}: {error.strerror}") from None
        return str(probe.getsockname()[0])


def card_address(card: str) -> str:
    """The IPv4 address of a network card.

    Raises:
        SetupError: the card does not exist, or has no such address.
    """
    cards = [name for _, name in socket.if_nameindex()]
    if card not in cards:
        raise SetupError(f"DMLC_INTERFACE={card!r} is no network card of this host; choose from {', '.join(cards)}")
    address = first_address(card)
    if not address:
        raise SetupError(f"DMLC_INTERFACE={card!r} has no IPv4 address; choose another card")
    return address


def first_address(card: str) -> str:
    """The IPv4 address of a network card that MXNet takes; empty if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", card.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


class ProbeResponder:
    """Listens where MXNet will, and answers each connection with a token; `close` frees the port for MXNet."""

    def __init__(self, address: str, port: int | None) -> None:
        """
        Args:
            port: None for any free one.

        Raises:
            SetupError: as `listen`.
        """
        self.token = secrets.token_hex(8)
        remedy = "set PORT to a free one, another for each process of this host, or correct DMLC_INTERFACE"
        self._socket = listen(address, port, remedy)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._answer, name="probe responder", daemon=True).start()

    def _answer(self) -> None:
        with contextlib.suppress(OSError):  # closed: done
            while True:
                caller, _ = self._socket.accept()
                with caller, contextlib.suppress(OSError):
                    caller.sendall(self.token.encode() + b"\n")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept; closing alone would not
        self._socket.close()


def chosen_port(environment: Mapping[str, str] = os.environ) -> int | None:
    """MXNet's port as PORT fixes it; None where any will do.

    Raises:
        SetupError: PORT is no port.
    """
    text = environment.get("PORT")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise SetupError(f"PORT={text!r} is not a port: give a number from 1 to 65535, or unset it for a free one")
    return int(text)


def listen(address: str, port: int | None, remedy: str) -> socket.socket:
    """A listening socket.

    Args:
        port: None for any free one.

    Raises:
        SetupError: the address is not this host's, or the port is in use; the message ends with `remedy`.
    """
    if port is None:
        return listen_anywhere(address)
    try:
        return socket.create_server((address, port), backlog=256)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            problem = f"port {port} is in use at {address}"
        elif error.errno == errno.EADDRNOTAVAIL:
            problem = f"{address} is no address of this host"
        else:
            problem = f"{address}:{port} cannot be listened at ({error.strerror})"
        raise SetupError(f"{problem}: {remedy}") from None


def listen_anywhere(address: str) -> socket.socket:
    """A listening socket at a free port of this host's address, empty for all; raises SetupError."""
    for port in random.sample(FREE_PORTS, 100):
        with contextlib.suppress(OSError):
            return socket.create_server((address, port), backlog=256)
    return listen(address, 0, "choose another address with DMLC_INTERFACE, or a port with PORT")


def unreachable(targets: Sequence[Target], try_s: float = TRY_S) -> list[str]:
    """Tries all targets at once; returns a line for each that fails: "server on a at 10.0.0.1:4711 (no answer)"."""

    def attempt(target: Target) -> str:
        try:
            with socket.create_connection((target.address, target.port), try_s) as connection:
                answer = connection.makefile("rb").readline(64).decode(errors="replace").strip()
        except (OSError, ValueError) as error:  # ValueError: no host's name
            why = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", "") or str(error)
        else:
            why = "" if answer == target.token else "another program answers there"
        return f"{target.name} at {target.address}:{target.port} ({why})" if why else ""

    if not targets:
        return []
    with ThreadPoolExecutor(min(MOST_THREADS, len(targets))) as pool:
        return [problem for problem in pool.map(attempt, targets) if problem]


def by_target(unreached: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence for each target that cannot be reached, with the processes that cannot reach it.

    Args:
        unreached: the results of `unreachable`, by the name of the process that tried.
    """
    callers: dict[str, list[str]] = defaultdict(list)
    for name, problems in unreached.items():
        for problem in problems:
            callers[problem].append(name)
    return [f"{problem} cannot be reached from {join_names(names)}" for problem, names in callers.items()]
