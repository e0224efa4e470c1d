"""Impossible content of round logs: numbers of another kind, times that run back or are in another unit, accuracies
beyond [0, 1]. Pure; standard library only."""

import bisect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeGuard

FEW = 3  # warnings about the rounds of one device; more become one line
MOST = 1e15  # of a duration, a size or a count: far above those of any job, and exact as a float
MOST_SAMPLES = 10**12  # in a round
MOST_ROUNDS = 10**9

# A round and its stages may differ this much: the published program cuts seconds off. Milliseconds exceed it.
_TIMES, _MORE_S = 10, 10.0
_MUCH_LONGER = 300  # times the stages of all rounds


def is_quantity(value: Any) -> TypeGuard[float]:
    """Whether `value` can be a duration, a size or an accuracy."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MOST


def are_quantities(values: Sequence[Any]) -> bool:
    """Whether all can be; without a call for each where they are plain numbers."""
    if not {*map(type, values)} <= {int, float}:
        return all(map(is_quantity, values))
    return not values or bool(min(values) >= 0 and max(values) <= MOST and sum(values) >= 0)  # of NaN the sum is NaN


def is_count(value: Any) -> TypeGuard[float]:
    """Whether `value` is a whole number from 0 on."""
    return is_quantity(value) and value == int(value)


def count_in(record: Mapping[str, Any], key: str) -> int:
    """The whole number under a key of a round's log; 0 where it is missing or no count."""
    value = record.get(key)
    return int(value) if is_count(value) else 0


def tell(faults: Sequence[str], of_many: str, warn: Callable[[str], None]) -> None:
    """Warns of each of few faults; of many in one line, with the first. `of_many` begins that line."""
    if len(faults) <= FEW:
        for fault in faults:
            warn(fault)
    else:
        warn(f"{of_many}; the first: {faults[0]}")


def checked(record: Any, number: int) -> dict[str, Any]:
    """A round's log, with its local steps in order and its times as floats. Raises ValueError if it has another shape,
    or a number in it cannot be; the message says which."""
    if not isinstance(record, dict) or not isinstance(record.get("time"), dict):
        raise ValueError('it should be an object with "num_samples", "total_time" and "time"')
    if number > MOST_ROUNDS:
        raise ValueError("no job has so many rounds")
    samples, total_s = record.get("num_samples"), record.get("total_time")
    if not is_count(samples) or samples > MOST_SAMPLES:
        raise ValueError(f"num_samples is {reprlib.repr(samples)}, but should be a whole number from 0 on")
    if not is_quantity(total_s):
        raise ValueError(f"total_time is {reprlib.repr(total_s)}, but should be a number of seconds from 0 on")
    for step, times in record["time"].items():
        if not step.isdecimal() or not isinstance(times, dict):
            raise ValueError(f'"time" of step {reprlib.repr(step)} should be an object under the number of the step')
        for stage, seconds in times.items():
            if not is_quantity(seconds):
                raise ValueError(
                    f"{reprlib.repr(stage)} of step {step} is {reprlib.repr(seconds)}, but should be a number of "
                    "seconds from 0 on"
                )
    steps = sorted(record["time"].items(), key=lambda item: int(item[0]))
    return {
        **record,
        "num_samples": int(samples),
        "total_time": float(total_s),
        "time": {step: {stage: float(seconds) for stage, seconds in times.items()} for step, times in steps},
    }


def stages_s(record: Mapping[str, Any]) -> float:
    """Seconds of all stages of a round that is `checked`."""
    return sum(map(sum, map(dict.values, record["time"].values())))


def out_of_order(rounds: Sequence[tuple[int, float]]) -> dict[int, str]:
    """The faults of rounds whose times contradict those of other rounds, by number. As few rounds as possible count: a
    single time that is far too large, not all that follow. Of sets of equal size the later one counts. Where the time
    has run back, all rounds count until it is later than before. `rounds`: numbers, ascending, and elapsed seconds at
    their end."""
    times = [elapsed_s for _, elapsed_s in rounds]
    if all(before <= after for before, after in pairwise(times)):
        return {}
    in_order = _longest_ascending(times)
    found: dict[int, str] = {}
    last, ran_back = -1, False  # the last place in order
    for place, (number, elapsed_s) in enumerate(rounds):
        if place in in_order and not (ran_back and elapsed_s == times[last]):
            last, ran_back = place, False
        elif last >= 0 and elapsed_s <= times[last]:
            ran_back = True
            found[number] = f"total_time is {elapsed_s:.6g} s, after {times[last]:.6g} s in round {rounds[last][0]}"
        else:
            found[number] = f"total_time is {elapsed_s:.6g} s, and rounds after it end earlier"
    return found


def _longest_ascending(times: Sequence[float]) -> set[int]:
    """Places of the longest subsequence of `times` that does not descend; of several the earliest places. By patience
    sorting from the end, which keeps for each length the subsequence with the greatest beginning."""
    begins: list[int] = []
    greatest: list[float] = []  # negated, so that they ascend
    after: dict[int, int] = {}
    for place in range(len(times) - 1, -1, -1):
        length = bisect.bisect_right(greatest, -times[place])
        if length:
            after[place] = begins[length - 1]
        begins[length : length + 1] = [place]
        greatest[length : length + 1] = [-times[place]]
    place, found = begins[-1], {begins[-1]}
    while place in after:
        place = after[place]
        found.add(place)
    return found


def too_long(took_s: float, round_s: float) -> str:
    """Why the stages of a round, `took_s` seconds of `round_s`, are impossibly long; empty where they are not."""
    if took_s <= _TIMES * round_s + _MORE_S:
        return ""
    return f"its stages take {took_s:.6g} s, in a round of {round_s:.6g} s: are they milliseconds?"


def too_empty(took_s: float, longest_s: float) -> str:
    """Why a worker's elapsed time may be in another unit; empty where it is plausible. The stages of all its rounds
    took `took_s`, and `longest_s` had elapsed at their end."""
    if not took_s or longest_s <= _MUCH_LONGER * took_s:
        return ""
    return (
        f"total_time is {longest_s:.6g} s at the end, and the stages of all rounds take {took_s:.6g} s: write both in "
        "seconds if it is in milliseconds; or its clock has jumped"
    )


def in_percent(accuracies: Sequence[Any]) -> int:
    """The number of accuracies above 1, if they show that all are in percent; else 0."""
    above = sum(is_quantity(value) and 1 < value <= 100 for value in accuracies)
    return above if above > 1 and 2 * above > len(accuracies) else 0
