"""The protocol of trainer/survival/ for the loop: recovery from losses."""

from pathlib import Path
from typing import Any, Protocol

from trainer.run_logs.measure import Measure


class Recovers(Protocol):
    """One worker's recovery from the loss of others. Four methods replace those of the loop with these names."""

    job_age_s: float | None  # when this worker joined a running job

    @property
    def is_broken(self) -> bool:
        """Whether a worker of this round was lost: the exchange of this round fails, and the others regroup."""

    @property
    def wants_pause(self) -> bool:
        """Whether this worker wants all to regroup after the round."""

    def come_together(self) -> None: ...

    def open_measure(self, folder: Path) -> Measure: ...

    def synchronize(self, wants_stop: bool) -> bool:
        """If workers are lost meanwhile, the remaining ones synchronize."""

    def part(self) -> None: ...

    def notes(self) -> dict[str, Any]:
        """Entries for the log of the round."""
