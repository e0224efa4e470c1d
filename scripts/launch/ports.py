"""Free ports."""

from trainer.rendezvous.addresses import reserve


def free_ports(count: int) -> list[int]:
    """Ports that are free on all addresses, ascending; no other process that asks here gets one while this one runs."""
    return sorted(reserve("") for _ in range(count))
