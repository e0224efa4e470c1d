"""Reads and checks the log of a sound round in one call of msgspec, which summary.py needs for speed alone."""

import functools
from typing import Annotated, Any, TypedDict

import msgspec

from trainer.run_logs.round_faults import MOST, MOST_SAMPLES

Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST)]


class Needed(TypedDict):
    """The keys that each round's log has."""

    num_samples: Annotated[int, msgspec.Meta(ge=0, le=MOST_SAMPLES)]
    total_time: Seconds
    time: dict[str, dict[str, Seconds]]


class Round(Needed, total=False):
    """What a summary needs of a round's log; other keys are left out."""

    num_iters: Any
    accuracy: Any
    metric: Any
    evaluated: Any
    missed: Any
    events: Any
    bytes_pushed: Any
    bytes_pulled: Any
    steps_lost: Any
    bad_steps: Any
    emulated_s: Any


_DECODER = msgspec.json.Decoder(Round)


def quick_round(content: bytes) -> dict[str, Any] | None:
    """A round as round_faults.checked returns it; None where a number in it cannot be, it is no JSON to msgspec, which
    knows no NaN, it has other characters than ASCII, or its local steps are not in order."""
    if not content.isascii():  # msgspec does not decode what it leaves out
        return None
    try:
        record: Any = _DECODER.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    time = record["time"]
    return record if [*time] == _first(len(time)) else None


@functools.lru_cache(maxsize=64)
def _first(steps: int) -> list[str]:
    return [*map(str, range(steps))]
