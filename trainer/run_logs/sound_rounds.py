"""Which logged rounds of a device count, and the warnings about the others. Pure; standard library only."""

from __future__ import annotations

import contextlib
import itertools
import reprlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainer.run_logs import round_faults

EVALUATED = "evaluated"  # in the log of a round: accuracies of earlier rounds' models that came in it


class LoggedRound(NamedTuple):
    """A round in a log."""

    where: str  # file and line
    record: Any  # the JSON value, perhaps of another shape
    fault: str  # why it cannot be read; else empty


def sound_rounds(
    folder: Path, logged: Mapping[int, LoggedRound], warn: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Yields the rounds without impossible numbers (round_faults.py). Of an impossible accuracy only the accuracy is
    left out. The key "where" has file and line.
    """
    numbers = [number for number in logged if number <= round_faults.MOST_ROUNDS]
    missing = max(numbers, default=0) - len(numbers) - rounds_missed(logged)
    if missing > 0:
        first = next(number for number in itertools.count(1) if number not in logged)
        warn(f"{folder}: {missing} round(s) missing, the first is round {first}")
    faults: dict[int, str] = {}
    sound: dict[int, dict[str, Any]] = {}
    for number, (where, record, fault) in logged.items():
        try:
            if fault:
                raise ValueError
            sound[number] = {**round_faults.checked(record, number), "num_iters": number, "where": where}
        except ValueError as error:
            faults[number] = fault or f"{where} is not a round log ({error})"
    for number, text in round_faults.out_of_order([(each, its["total_time"]) for each, its in sound.items()]).items():
        faults[number] = f"{sound.pop(number)['where']}: {text}"
    before_s = 0.0
    for number, record in list(sound.items()):
        if text := round_faults.too_long(record, before_s):
            faults[number] = f"{sound.pop(number)['where']}: {text}"
        before_s = record["total_time"]
    told = [f"{faults[number]}; round {number} left out" for number in sorted(faults)]
    round_faults.tell(told, f"{folder}: {len(told)} of {len(logged)} rounds left out", warn)
    if text := round_faults.too_empty(sound.values()):
        warn(f"{folder}: {text}")
    _take_accuracies(folder, logged, sound, warn)
    yield from sound.values()


def _take_accuracies(
    folder: Path,
    logged: Mapping[int, LoggedRound],
    sound: Mapping[int, dict[str, Any]],
    warn: Callable[[str], None],
) -> None:
    """Adds the accuracies that came in later rounds, and removes impossible ones."""
    for number, accuracy in _evaluated_later(logged).items():
        if number in sound:
            sound[number]["accuracy"] = accuracy
    evaluated = [record for record in sound.values() if "accuracy" in record]
    above = round_faults.in_percent([record["accuracy"] for record in evaluated])
    faults = []
    for record in evaluated:
        if above or not round_faults.is_accuracy(record["accuracy"]):
            faults.append(
                f"{record['where']}: accuracy {reprlib.repr(record.pop('accuracy'))} after {record['total_time']} s is "
                "no number from 0 to 1; left out"
            )
    if above:
        warn(
            f"{folder}: {above} of {len(evaluated)} accuracies are above 1, so all are taken to be in percent and left "
            f"out: write shares from 0 to 1; the first: {evaluated[0]['where']}"
        )
    else:
        round_faults.tell(faults, f"{folder}: {len(faults)} of {len(evaluated)} accuracies left out", warn)


def rounds_missed(logged: Mapping[int, LoggedRound]) -> int:
    """Rounds of the job in which this worker took no part."""
    told = ((number, record.get("missed", 0)) for number, (_, record, _) in logged.items() if isinstance(record, dict))
    return sum(int(rounds) for number, rounds in told if round_faults.is_count(rounds) and rounds < number)


def _evaluated_later(logged: Mapping[int, LoggedRound]) -> dict[int, Any]:
    """Accuracies in the logs of later rounds (main.py --evaluator 1), by the round of the model."""
    found = {}
    for _, record, _ in logged.values():
        with contextlib.suppress(AttributeError, KeyError, TypeError):  # of another shape: its round is left out
            found.update({each["round"]: each["accuracy"] for each in record.get(EVALUATED, ())})
    return found
