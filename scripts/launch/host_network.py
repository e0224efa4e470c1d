"""The network interface of this host that leads to the others, and its address. MXNet supports IPv4 only."""

import contextlib
import ipaddress
import os
import socket

from trainer.rendezvous.addresses import address_towards, card_address
from utils import SetupError

WAY_S = 2.0
_ASK = "name one in the column interface of the hosts file"


def interfaces() -> dict[str, str]:
    """Network interfaces by the first address of each, which MXNet takes."""
    found = {}
    for _, name in socket.if_nameindex():
        with contextlib.suppress(SetupError):
            found[card_address(name)] = name
    return found


def is_here(address: str) -> bool:
    """Whether an address or a name is this host's own."""
    here = interfaces()
    return any(known in here for known in _resolved(address))


def _resolved(address: str) -> list[str]:
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(address, None, socket.AF_INET)]
    except OSError:
        return []  # for example a name that only ssh knows


def find(address: str, interface: str, toward: str) -> tuple[str, str]:
    """The address and interface by which the other hosts of a job reach this one.

    Args:
        address: of this host as the user wrote it; may be a name that only ssh knows.
        interface: the user's choice; may be empty.
        toward: IPv4 address of the host that all must reach; empty on that host itself.

    Raises:
        SetupError: none is found, there is no such interface, or no route to that host.
    """
    here = interfaces()
    if interface:
        chosen = next((known for known, name in here.items() if name == interface), "")
        if not chosen:
            names = ", ".join(here.values())
            raise SetupError(f"network interface {interface!r} has no address here; {_ASK}: {names}")
    elif toward:
        chosen = address_towards(toward, port=9)
    else:
        chosen = _own(address, here)
    if chosen not in here:
        raise SetupError(f"{chosen or address} is not the first address of a network interface here; {_ASK}: {here}")
    return chosen, here[chosen]


def check_way(address: str, port: int) -> None:
    """Tries to connect; a refusal shows that both directions work. Raises SetupError if nothing answers."""
    try:
        socket.create_connection((address, port), WAY_S).close()
    except ConnectionRefusedError:
        return
    except OSError as error:
        raise SetupError(f"there is no way from here to the job's {address}:{port}: {error}") from None


def _own(address: str, here: dict[str, str]) -> str:
    """The given address, if it is one of this host's; else the one that ssh came to; loopback addresses last."""
    named = _resolved(address)
    came_by = os.environ.get("SSH_CONNECTION", "").split()[2:3]
    candidates = [known for known in (*named, *came_by) if known in here]
    # Debian gives a host's own name the address 127.0.1.1.
    candidates.sort(key=lambda known: ipaddress.ip_address(known).is_loopback)
    return candidates[0] if candidates else ""
