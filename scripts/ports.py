"""Ports that nobody listens on, and what flags say of ports."""

from __future__ import annotations

import argparse
import random
import socket


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, ascending. Below those that the kernel gives to outgoing connections."""
    found: list[int] = []
    for port in random.sample(range(10000, 32768), 1000):
        if len(found) < count and is_free(port):
            found.append(port)
    return sorted(found)


def is_free(port: int) -> bool:
    """Whether a server could listen on it, on any address."""
    with socket.socket() as probe:
        # As servers do: connections of an earlier one that linger are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def port_or_zero(text: str) -> int:
    """Parses a port; 0 stands for a free one."""
    value = int(text)
    if not 0 <= value < 65536:
        raise argparse.ArgumentTypeError(f"{text} is not a port; give a number from 1 to 65535, or 0 for a free one")
    return value


port_or_zero.__name__ = "int"
