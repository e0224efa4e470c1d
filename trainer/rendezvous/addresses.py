"""Where a process listens.

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
import socket
import struct
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from utils import SetupError, authority

# Below the ports of outgoing connections, so that the kernel gives none away before MXNet listens there.
FREE_PORTS = range(10000, 32768)
_RESERVED: deque[socket.socket] = deque(maxlen=128)  # the oldest are closed, since open files are limited
_SIOCGIFADDR = 0x8915
_GIVE = "give an address, or a name that this host resolves, alone: no scheme, no port"
_LINK_LOCAL = "20"  # scope of an address that needs the name of the card with it


def check_ipv4(variable: str, host: str) -> None:
    """Raises SetupError where a host of a job with a parameter server, which this variable names, is unknown or has
    only IPv6 addresses: MXNet knows no other ones than IPv4's."""
    try:
        found = socket.getaddrinfo(host.strip("[]") if ":" in host else host, None)
    except (OSError, UnicodeError) as error:
        raise SetupError(f"{variable}={host!r} cannot be resolved ({error.args[-1]}); {_GIVE}") from None
    if socket.AF_INET not in (family for family, *_ in found):
        raise SetupError(
            f"{variable}={host!r} is IPv6, and MXNet's parameter server knows IPv4 alone: give an IPv4 address in "
            "every process of the job, or leave the parameter server out (--exchange ring)"
        )


def own_address(towards: str, environment: Mapping[str, str] = os.environ) -> str:
    """The address at which this process listens to the others. `towards` is this host's on the way to the scheduler or
    the state server. Raises SetupError where the chosen network card has no address of that family."""
    if environment.get("DMLC_NODE_HOST"):
        return environment["DMLC_NODE_HOST"].strip("[]")
    card = environment.get("DMLC_INTERFACE")
    return card_address(card, family_of(towards)) if card else towards


def family_of(address: str) -> socket.AddressFamily:
    """IPv6 of an address with colons, else IPv4."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def address_towards(host: str, port: int) -> str:
    """This host's address on the way to another one, IPv4 where both are possible; nothing is sent. Raises SetupError
    where the host is unknown, or has no route."""
    reasons = []
    for family in dict.fromkeys((family_of(host), socket.AF_INET6)):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(socket.getaddrinfo(host, port, family, socket.SOCK_DGRAM)[0][-1])
                return str(probe.getsockname()[0])
        except (OSError, UnicodeError) as error:
            reasons.append(error.args[-1])
    raise SetupError(f"there is no route to {host!r} ({reasons[0]}); {_GIVE}")


def card_address(card: str, family: socket.AddressFamily = socket.AF_INET) -> str:
    """The first address of a network card that other hosts can use as it is; of IPv4 it is the one that MXNet takes.
    Raises SetupError where there is no such card, or it has none of this family."""
    cards = [name for _, name in socket.if_nameindex()]
    if card not in cards:
        raise SetupError(f"DMLC_INTERFACE={card!r} is no network card of this host; choose from {', '.join(cards)}")
    with contextlib.suppress(OSError):  # no address, or no IPv6
        if family == socket.AF_INET:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", card.encode()[:15]))
            return socket.inet_ntoa(answer[20:24])
        for digits, _, _, scope, _, name in map(str.split, Path("/proc/net/if_inet6").read_text().splitlines()):
            if name == card and scope != _LINK_LOCAL:
                return socket.inet_ntop(family, bytes.fromhex(digits))
    version = 4 if family == socket.AF_INET else 6
    raise SetupError(f"DMLC_INTERFACE={card!r} has no IPv{version} address; choose another card")


def chosen_port(environment: Mapping[str, str] = os.environ) -> int | None:
    """MXNet's port as PORT fixes it; None where any will do. Raises SetupError where PORT is no port."""
    text = environment.get("PORT")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise SetupError(f"PORT={text!r} is not a port: give a number from 1 to 65535, or unset it for a free one")
    return int(text)


def listen(address: str, port: int | None, advice: str) -> socket.socket:
    """A listening socket; at any free port where `port` is None. Raises SetupError, with the advice at its end, where
    the address is not this host's, or the port is in use."""
    if port is None:
        port, advice = reserve(address), "choose another address with DMLC_INTERFACE or DMLC_NODE_HOST"
    try:
        return socket.create_server((address, port), backlog=256, family=family_of(address))
    except OSError as error:
        problem = {
            errno.EADDRINUSE: f"port {port} is in use at {address}",
            errno.EADDRNOTAVAIL: f"{address} is no address of this host",
        }.get(error.errno or 0, f"{authority(address, port)} cannot be listened at ({error.args[-1]})")
        raise SetupError(f"{problem}: {advice}") from None


def reserve(address: str) -> int:
    """A port that is free at this host's address, empty for all; 0 where no such address is to be had. This process
    keeps it, and who is told the port can listen there: a socket that is bound and does not listen keeps out only those
    that choose one here, since they bind without SO_REUSEADDR."""
    for port in random.sample(FREE_PORTS, 100):
        try:
            with socket.socket(family_of(address)) as found:
                found.bind((address, port))
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                _RESERVED.append(found.dup())
                return port
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                break  # no other port would be better, and a name that is looked up in vain takes time
    return 0
