"""What a worker has once it has joined the others of its job, whichever way they have met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from trainer.rendezvous.cluster import Gathers
from trainer.survival.recovery import ElasticGroup
from trainer.transport.protocol import Transport


class Joined(NamedTuple):
    """What a worker has once it has joined the others."""

    transport: Transport
    attendance: Gathers
    members: list[dict[str, Any]] | None  # rank, host and device of all workers, where they are known
    elastic_group: ElasticGroup | None = None  # where the workers find each other again when one is lost
    lost: Callable[[], frozenset[int]] = frozenset  # ranks without which a job with a parameter server goes on
