"""The rounds of a device as a summary has them: its log's numbers, and in place of the times of each local step their
sums. So the memory that a log takes does not grow with its steps.

Needs the standard library alone; where msgspec is installed, it reads and checks a round in one call.
"""

import contextlib
import functools
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from trainer.run_logs.measure import ABANDONED, AGGREGATION_STAGES, COMPUTING_STAGES, EVALUATION, FORWARD_BACKWARD
from trainer.run_logs.pace import Emulation, RoundPace
from trainer.run_logs.round_log import WHOLE, Form

_quick = WHOLE.quick
with contextlib.suppress(ImportError):
    from report import quick_round

    _quick = quick_round.quick_round


def form(run: Mapping[str, Any]) -> Form:
    """How a summary reads the rounds of a device with this run.json. Each is reduced to its log without "time", and

    - entries: of "time"
    - begun: local steps, complete or abandoned
    - abandoned: local steps
    - computing_s: seconds of the local steps
    - aggregation_s: seconds of the aggregation in the last entry
    - pace: RoundPace or None
    """
    return Form(_quick, partial(_reduced, Emulation.of_run(run)))


class _Shape(NamedTuple):
    """What the names of the stages in a round's entries tell. A log has few kinds of rounds, so most are known."""

    computing: Sequence[int]  # places among the seconds of all stages of the round, in the order of seconds_in
    evaluation: Sequence[int]
    aggregation: Sequence[int]  # in the last entry
    complete: int  # local steps
    begun: int
    abandoned: int


@functools.lru_cache(maxsize=1024)
def _shape(entries: tuple[tuple[str, ...], ...]) -> _Shape:
    places = itertools.count()
    where = [{stage: next(places) for stage in stages} for stages in entries]
    return _Shape(
        [each[stage] for each in where for stage in COMPUTING_STAGES if stage in each],
        [each[EVALUATION] for each in where if EVALUATION in each],
        [each[stage] for each in where[-1:] for stage in AGGREGATION_STAGES if stage in each],
        sum(FORWARD_BACKWARD in each for each in where),
        sum(FORWARD_BACKWARD in each or ABANDONED in each for each in where),
        sum(ABANDONED in each for each in where),
    )


def _reduced(emulation: Emulation | None, record: dict[str, Any]) -> tuple[dict[str, Any], float]:
    entries = record.pop("time").values()
    shape = _shape(tuple(map(tuple, entries)))
    seconds = [*chain.from_iterable(map(dict.values, entries))]
    second = seconds.__getitem__
    record["entries"] = len(entries)
    record["begun"] = shape.begun
    record["abandoned"] = shape.abandoned
    record["computing_s"] = computing_s = sum(map(second, shape.computing), start=0.0)
    record["aggregation_s"] = sum(map(second, shape.aggregation), start=0.0)
    evaluation_s = sum(map(second, shape.evaluation), start=0.0)
    record["pace"] = RoundPace.of_sums(record, shape.complete, computing_s, evaluation_s, emulation)
    return record, sum(seconds)
