"""Removes rounds with impossible numbers from the lists of a device in a summary, as from its logs. Pure."""

from collections.abc import Mapping
from typing import Any

from trainer.metric import ACCURACY, metric_of
from trainer.run_logs.round_faults import in_percent, is_quantity, out_of_order

TIMES = "elapsed_time_list"
ACCURACIES, ACCURACY_TIMES = "accuracy_list", "accuracy_time_list"
VALUES, VALUE_TIMES = "metric_list", "metric_time_list"  # of another metric than accuracy
EVENTS = "event_list"


def without_impossible(device: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The device without impossible rounds and values of the metric, and warnings about them; unchanged where the
    lengths of its lists differ, which metrics.Device reports."""
    lists = {name: values for name, values in device.items() if name.endswith("_list") and isinstance(values, list)}
    metric = metric_of(device.get("metric")) or ACCURACY
    value_list, time_list = (ACCURACIES, ACCURACY_TIMES) if metric.is_accuracy else (VALUES, VALUE_TIMES)
    times, values = lists.get(TIMES, []), lists.get(value_list, [])
    of_rounds = {name: its for name, its in lists.items() if name not in (value_list, time_list, EVENTS)}
    of_values = {name: lists[name] for name in (value_list, time_list) if name in lists}
    if any(len(its) != len(times) for its in of_rounds.values()):
        return dict(device), []
    if time_list not in lists and len(values) == len(times):
        of_values[time_list] = times
    if any(len(its) != len(values) for its in of_values.values()):
        return dict(device), []
    bad = {place for its in of_rounds.values() for place, value in enumerate(its) if not is_quantity(value)}
    bad |= set(out_of_order([(place, value) for place, value in enumerate(times) if place not in bad]))
    above = in_percent(values) if metric.is_accuracy else 0
    no_value = {place for place, value in enumerate(values) if above or metric.fault(value)}
    later = {place for place, value in enumerate(of_values.get(time_list, [])) if not is_quantity(value)}
    faults = []
    if bad:
        faults.append(
            f"{len(bad)} of {len(times)} rounds left out, the first is {min(bad) + 1}: a number in it cannot be"
        )
    if no_value:
        allowed = "numbers from 0 to 1" if metric.is_accuracy else "finite numbers"
        why = "they are in percent, it seems: write shares from 0 to 1" if above else f"they should be {allowed}"
        faults.append(f"{len(no_value)} of {len(values)} {metric.plural} left out: {why}")
    if not (bad or no_value or later):
        return dict(device), []
    rest = {name: [value for place, value in enumerate(its) if place not in bad] for name, its in of_rounds.items()}
    rest |= {
        name: [value for place, value in enumerate(its) if place not in no_value | later]
        for name, its in of_values.items()
    }
    return {**device, **rest}, faults
