"""Free ports, and the parser of flags for ports."""

import argparse
import contextlib
import socket

from trainer.rendezvous.addresses import listen_anywhere


def free_ports(count: int) -> list[int]:
    """Ports that are free on all addresses, ascending."""
    with contextlib.ExitStack() as stack:  # keeps them open, so that they differ
        return sorted(stack.enter_context(listen_anywhere("")).getsockname()[1] for _ in range(count))


def is_free(port: int) -> bool:
    """Whether a server can listen on the port, on all addresses."""
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


def port_or_zero(text: str) -> int:
    """Parses a port; 0: a free one."""
    value = int(text)
    if not 0 <= value < 65536:
        raise argparse.ArgumentTypeError(f"{text} is not a port; give a number from 1 to 65535, or 0 for a free one")
    return value


port_or_zero.__name__ = "int"
