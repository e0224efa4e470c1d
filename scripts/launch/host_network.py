"""Which network card of this host leads to the others, and its address there. MXNet knows IPv4 only."""

from __future__ import annotations

import ipaddress
import os
import socket

from trainer.rendezvous.addresses import first_address
from utils import SetupError

_ASK = "name the card in the column interface of the hosts file"


def cards() -> dict[str, str]:
    """The addresses of this host and the cards that have them; of a card the first, which is the one MXNet takes."""
    return {address: name for _, name in socket.if_nameindex() if (address := first_address(name))}


def is_here(address: str) -> bool:
    """Whether an address or a name is this host's own."""
    here = cards()
    return any(known in here for known in _resolved(address))


def _resolved(address: str) -> list[str]:
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(address, None, socket.AF_INET)]
    except OSError:
        return []  # such as a name that only ssh knows


def find(address: str, interface: str, toward: str) -> tuple[str, str]:
    """Address and card by which the other hosts of a job reach this one.

    Args:
        address: of this host as the user wrote it; may be a name that only ssh knows.
        interface: the card that the user wants; may be empty.
        toward: IPv4 address of the host that all must reach; empty on that host itself.

    Raises:
        SetupError: none can be told, or there is no such card, or no way to that host.
    """
    here = cards()
    if interface:
        chosen = next((known for known, card in here.items() if card == interface), "")
        if not chosen:
            raise SetupError(f"network card {interface!r} has no address here; {_ASK}: {', '.join(here.values())}")
    elif toward:
        chosen = _source(toward)
    else:
        chosen = _own(address, here)
    if chosen not in here:
        raise SetupError(f"{chosen or address} is not the first address of a network card here; {_ASK}: {here}")
    return chosen, here[chosen]


def _source(toward: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((toward, 9))  # sends nothing: the system looks up the route
        except OSError as error:
            raise SetupError(f"there is no way from here to the scheduler's {toward}: {error.strerror}") from None
        return str(probe.getsockname()[0])


def _own(address: str, here: dict[str, str]) -> str:
    """The address as given, where that is one of this host's; else the one by which ssh came; loopback at last."""
    named = _resolved(address)
    came_by = os.environ.get("SSH_CONNECTION", "").split()[2:3]
    candidates = [known for known in (*named, *came_by) if known in here]
    # Debian gives a host's own name the address 127.0.1.1.
    candidates.sort(key=lambda known: ipaddress.ip_address(known).is_loopback)
    return candidates[0] if candidates else ""
