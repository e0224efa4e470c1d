"""A worker's actions, its activities and its device. Standard library only: the hub imports this too."""

import enum
from dataclasses import dataclass

from server.errors import BadMessage


class Action(str, enum.Enum):
    """A worker's next action: another local step, or the aggregation."""

    TRAIN = "TRAIN"
    SYNC = "SYNC"


class Activity(str, enum.Enum):
    """A worker's activity by its own report: it computes local steps, exchanges the results or waits for others,
    evaluates the model, or has left the job in order."""

    TRAINING = "training"
    WAITING = "waiting"
    EVALUATING = "evaluating"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Decision:
    """A worker's next action, and the reason in words."""

    action: Action
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """Where a worker runs, for the status page."""

    host: str = ""
    device: str = ""

    def __post_init__(self) -> None:
        check_text("host", self.host)
        check_text("device", self.device)


def check_text(field: str, text: str | None, longest: int = 255) -> None:
    """Raises BadMessage unless the text is printable and short enough."""
    if text and (len(text) > longest or not text.isprintable()):
        raise BadMessage.of_field(field, text, f"at most {longest} printable characters")
