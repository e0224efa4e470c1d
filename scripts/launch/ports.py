"""Free ports, and the parser of flags for ports."""

import argparse

from trainer.rendezvous.addresses import reserve


def free_ports(count: int) -> list[int]:
    """Ports that are free on all addresses, ascending; no other process that asks here gets one while this one runs."""
    return sorted(reserve("") for _ in range(count))


def port_or_zero(text: str) -> int:
    """Parses a port; 0: a free one."""
    value = int(text)
    if not 0 <= value < 65536:
        raise argparse.ArgumentTypeError(f"{text} is not a port; give a number from 1 to 65535, or 0 for a free one")
    return value


port_or_zero.__name__ = "int"
