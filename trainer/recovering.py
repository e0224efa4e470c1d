"""What the loop and the algorithms may ask of survival: recovery, in place of the trainer, and checkpoints of a server.

Protocols alone: trainer/survival/ has what keeps them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from trainer.run_logs.measure import Measure


class Recovers(Protocol):
    """One worker's way through the loss of others."""

    job_age_s: float | None  # of the job, when this worker came to one at work

    @property
    def is_broken(self) -> bool:
        """Whether the round cannot end with the workers with whom it began."""

    @property
    def wants_pause(self) -> bool:
        """Whether this worker wants all to come together anew after the round."""

    def come_together(self) -> None:
        """As Trainer's."""

    def open_measure(self, folder: Path) -> Measure:
        """As Trainer's."""

    def synchronize(self, wants_stop: bool) -> bool:
        """As Trainer's, with the workers that are left where some are lost meanwhile."""

    def part(self) -> None:
        """As Trainer's."""

    def notes(self) -> dict[str, Any]:
        """What the log of the round says of it."""


class Writes(Protocol):
    """Writes a parameter server's checkpoints."""

    def write(self, round_: int, tree: Any) -> None:
        """Begins to write one."""


class ServerCheckpoints(Protocol):
    """What a worker knows of the parameter server's checkpoints.

    Attributes:
        of_server: what the parameter server goes on from; None where it begins.
    """

    of_server: Any

    def for_server(self) -> Writes:
        """What writes them there."""
