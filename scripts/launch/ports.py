"""Ports that nobody listens on, and what flags say of ports."""

from __future__ import annotations

import argparse
import contextlib
import socket

from trainer.rendezvous.addresses import listen_anywhere


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at any address, ascending."""
    with contextlib.ExitStack() as held:  # so that they differ
        return sorted(held.enter_context(listen_anywhere("")).getsockname()[1] for _ in range(count))


def is_free(port: int) -> bool:
    """Whether a server could listen on it, on any address."""
    try:
        socket.create_server(("", port)).close()
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
