"""The result of joining a job, whichever way its workers find each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainer.membership import Changes
from trainer.rendezvous.generations import Generations
from trainer.transport.protocol import Transport

if TYPE_CHECKING:
    from trainer.hub.hub_trainer import Exchange

# Takes a label for people and this worker's value (JSON); waits for those of all workers and returns them by rank, or
# None where they cannot be had. Every worker calls it.
Gather = Callable[[str, Any], list[Any] | None]


@dataclass
class Training:
    """This worker's own training, as other threads see it."""

    # Why it seems to stand, in words, where it has waited for no other worker since a moment (time.monotonic)
    standing: Callable[[float], str] = lambda since: ""


@dataclass(frozen=True)
class RendezvousInfo:
    """What a worker has once it has joined the others."""

    transport: Transport | None  # of an algorithm that sums
    gather: Gather
    places: tuple[str, ...]  # as Membership.places
    hub: Exchange | None = None  # with the server part, on the hub or on MXNet's kvstore; with the hub, where it sums
    generations: Generations | None = None  # of a job without a parameter server that survives lost workers
    changes: Callable[[], Changes] = dict  # with the hub
    job_age_s: Callable[[], float | None] = lambda: None  # as context.Peers has it
    add_round: Callable[[float], None] = lambda took_s: None  # told the seconds of each undisturbed round
    training: Training = field(default_factory=Training)

    @property
    def place(self) -> Transport | Exchange:
        """What tells this worker's rank, and the number of workers, at present."""
        place = self.transport or self.hub
        assert place is not None
        return place
