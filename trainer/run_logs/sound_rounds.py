"""Which logged rounds of a device count, and the warnings about the others. Pure; standard library only."""

import contextlib
import itertools
import reprlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainer.metric import ACCURACY, Metric, logged_value
from trainer.run_logs import round_faults

EVALUATED = "evaluated"  # in the log of a round: the metric of earlier rounds' models that came in it
MISSED = "missed"  # there: rounds of the job before it in which this worker took no part


class LoggedRound(NamedTuple):
    """A round in a log."""

    where: str  # file and line
    # As round_faults.checked returns it, perhaps reduced (round_log.Form); of an impossible round what else counts in
    # it; None where it cannot be read
    record: dict[str, Any] | None
    stages_s: float = 0.0  # seconds of all its stages
    fault: str = ""  # why it is left out; else empty


def sound_rounds(
    folder: Path, logged: Mapping[int, LoggedRound], warn: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Yields the rounds without impossible numbers (round_faults.py). Of an impossible value of the metric only the
    value is left out, as is one of another metric than the last. The key "where" has file and line."""
    numbers = [number for number in logged if number <= round_faults.MOST_ROUNDS]
    missing = max(numbers, default=0) - len(numbers) - rounds_missed(logged)
    if missing > 0:
        first = next(number for number in itertools.count(1) if number not in logged)
        warn(f"{folder}: {missing} round(s) missing, the first is round {first}")
    faults: dict[int, str] = {}
    sound: dict[int, dict[str, Any]] = {}
    for number, (where, record, _, fault) in logged.items():
        if record is None or fault:
            faults[number] = fault
        else:
            record["num_iters"], record["where"] = number, where
            sound[number] = record
    for number, text in round_faults.out_of_order([(each, its["total_time"]) for each, its in sound.items()]).items():
        faults[number] = f"{sound.pop(number)['where']}: {text}"
    before_s = 0.0
    for number, record in list(sound.items()):
        total_s = record["total_time"]
        if text := round_faults.too_long(logged[number].stages_s, total_s - before_s):
            faults[number] = f"{sound.pop(number)['where']}: {text}"
        before_s = total_s
    told = [f"{faults[number]}; round {number} left out" for number in sorted(faults)]
    round_faults.tell(told, f"{folder}: {len(told)} of {len(logged)} rounds left out", warn)
    longest_s = max((record["total_time"] for record in sound.values()), default=0.0)
    if text := round_faults.too_empty(sum(logged[number].stages_s for number in sound), longest_s):
        warn(f"{folder}: {text}")
    _take_values(folder, logged, sound, warn)
    yield from sound.values()


def _take_values(
    folder: Path, logged: Mapping[int, LoggedRound], sound: Mapping[int, dict[str, Any]], warn: Callable[[str], None]
) -> None:
    """Adds the values of the metric that came in later rounds, and removes impossible ones."""
    for number, evaluation in _evaluated_later(logged).items():
        if number in sound:
            sound[number] |= evaluation
    evaluated = [
        (record, logged_value(record)) for record in sound.values() if "accuracy" in record or "metric" in record
    ]
    if not evaluated:
        return
    metric = next((found[0] for _, found in reversed(evaluated) if found is not None), ACCURACY)
    above = round_faults.in_percent([found[1] for _, found in evaluated if found]) if metric.is_accuracy else 0
    faults = []
    for record, found in evaluated:
        fault = _fault(found, metric)
        if above or fault:
            key = "accuracy" if "accuracy" in record else "metric"
            text = f"{found[0].name if found else key} {reprlib.repr(found[1] if found else record[key])}"
            faults.append(f"{record['where']}: {text} after {record['total_time']} s is {fault}; left out")
            del record[key]
    if above:
        warn(
            f"{folder}: {above} of {len(evaluated)} accuracies are above 1, so all are taken to be in percent and left "
            f"out: write shares from 0 to 1; the first: {evaluated[0][0]['where']}"
        )
    else:
        round_faults.tell(faults, f"{folder}: {len(faults)} of {len(evaluated)} {metric.plural} left out", warn)


def _fault(found: tuple[Metric, Any] | None, metric: Metric) -> str:
    """Why a logged value does not count; empty where it does."""
    if found is None:
        return "no metric with its name and direction"
    return (
        metric.fault(found[1])
        if found[0] == metric
        else f"of the metric {found[0].name}, and the last is {metric.name}"
    )


def rounds_missed(logged: Mapping[int, LoggedRound]) -> int:
    """Rounds of the job in which this worker took no part."""
    told = [(number, its.record[MISSED]) for number, its in logged.items() if its.record and MISSED in its.record]
    return sum(int(rounds) for number, rounds in told if round_faults.is_count(rounds) and rounds < number)


def _evaluated_later(logged: Mapping[int, LoggedRound]) -> dict[int, dict[str, Any]]:
    """Takes the metric's entries out of the logs of later rounds (main.py --evaluator 1), by the round of the model."""
    found: dict[int, dict[str, Any]] = {}
    for its in logged.values():
        with contextlib.suppress(AttributeError, KeyError, TypeError):  # of another shape
            for each in (its.record or {}).pop(EVALUATED, ()):
                found[each["round"]] = {key: each[key] for key in ("accuracy", "metric") if key in each}
    return found
