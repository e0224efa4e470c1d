"""Removes rounds with impossible numbers from the lists of a device in a summary, as from its logs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.run_logs.round_faults import in_percent, is_accuracy, is_quantity, out_of_order

TIMES = "elapsed_time_list"
ACCURACIES, ACCURACY_TIMES = "accuracy_list", "accuracy_time_list"
EVENTS = "event_list"


def without_impossible(device: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The device without impossible rounds and accuracies, and warnings about them; unchanged where the lengths of its
    lists differ, which metrics.Device reports."""
    lists = {name: values for name, values in device.items() if name.endswith("_list") and isinstance(values, list)}
    times, accuracies = lists.get(TIMES, []), lists.get(ACCURACIES, [])
    of_rounds = {name: its for name, its in lists.items() if name not in (ACCURACIES, ACCURACY_TIMES, EVENTS)}
    of_accuracies = {name: lists[name] for name in (ACCURACIES, ACCURACY_TIMES) if name in lists}
    if any(len(its) != len(times) for its in of_rounds.values()):
        return dict(device), []
    if ACCURACY_TIMES not in lists and len(accuracies) == len(times):
        of_accuracies[ACCURACY_TIMES] = times
    if any(len(its) != len(accuracies) for its in of_accuracies.values()):
        return dict(device), []
    bad = {place for its in of_rounds.values() for place, value in enumerate(its) if not is_quantity(value)}
    bad |= set(out_of_order([(place, value) for place, value in enumerate(times) if place not in bad]))
    above = in_percent(accuracies)
    no_accuracy = {place for place, value in enumerate(accuracies) if above or not is_accuracy(value)}
    later = {place for place, value in enumerate(of_accuracies.get(ACCURACY_TIMES, [])) if not is_quantity(value)}
    faults = []
    if bad:
        faults.append(
            f"{len(bad)} of {len(times)} rounds left out, the first is {min(bad) + 1}: a number in it cannot be"
        )
    if no_accuracy:
        why = "they are in percent, it seems: write shares" if above else "they should be numbers"
        faults.append(f"{len(no_accuracy)} of {len(accuracies)} accuracies left out: {why} from 0 to 1")
    if not (bad or no_accuracy or later):
        return dict(device), []
    rest = {name: [value for place, value in enumerate(its) if place not in bad] for name, its in of_rounds.items()}
    rest |= {
        name: [value for place, value in enumerate(its) if place not in no_accuracy | later]
        for name, its in of_accuracies.items()
    }
    return {**device, **rest}, faults
