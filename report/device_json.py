"""A device in the JSON of a summary: lists over its rounds, as the published program wrote them, and more of ours."""

from typing import Any

from esync.metric import ACCURACY, Metric, metric_of
from report.metrics import Device, sound_events
from trainer.run_logs.pace import Pace
from trainer.run_logs.rounds import Round, Warn, impossible_times, is_quantity, value_faults

PUBLISHED = {
    "num_samples_list": "samples",
    "self_iters_list": "entries",
    "elapsed_time_list": "elapsed_s",
    "aggregate_time_list": "aggregation_s",
}
LISTS = {  # keys, and the fields of a round
    **PUBLISHED,
    "computing_time_list": "computing_s",
    "bytes_pushed_list": "bytes_pushed",
    "bytes_pulled_list": "bytes_pulled",
    "steps_list": "begun",
    "lost_steps_list": "lost",
}
ABOUT = ("rank", "num_workers", "of_workers", "parameter_bytes", "at_target", "virtual")


def _value_keys(metric: Metric) -> tuple[str, str]:
    """The keys of the metric's values, and of the seconds at which it was evaluated."""
    return ("accuracy_list", "accuracy_time_list") if metric.is_accuracy else ("metric_list", "metric_time_list")


def written(device: Device) -> dict[str, Any]:
    """The JSON of a device."""
    values, times = _value_keys(device.metric)
    found = {key: device.column(name) for key, name in LISTS.items()} | {
        values: device.values,
        times: device.value_times,
        "event_list": [list(event) for event in device.events] or None,
        "metric": None if device.metric.is_accuracy else device.metric.about(),
        **{name: getattr(device, name) for name in ABOUT},
        **(device.pace._asdict() if device.pace else {}),
    }
    return {key: value for key, value in found.items() if value is not None and value is not False}


def read(value: Any, where: str, warn: Warn) -> Device:
    """Reads a device, also of the published program, whose summary has neither optional nor further keys. `warn` gets
    what is left out: rounds and values that cannot be, malformed events. Raises ValueError if it has another shape."""
    if not isinstance(value, dict):
        raise ValueError("not an object of lists")
    metric = metric_of(value.get("metric")) or ACCURACY
    value_key, time_key = _value_keys(metric)
    if missing := [key for key in (value_key, *PUBLISHED) if key not in value]:
        raise ValueError(f"no {', '.join(missing)}")
    keys = [key for key in LISTS if value.get(key) is not None]
    for key in (value_key, *keys):
        if not isinstance(value[key], list):
            raise ValueError(f"{key} is no list")
        if key != value_key and len(value[key]) != len(value[keys[0]]):
            raise ValueError(f"{key} has {len(value[key])} entries, {keys[0]} {len(value[keys[0]])}")
    rows = [*zip(*(value[key] for key in keys), strict=True)]
    rounds = [
        Round(number=number, **{LISTS[key]: each for key, each in zip(keys, row, strict=True)})
        for number, row in enumerate(rows, start=1)
        if all(map(is_quantity, row))
    ]
    impossible = impossible_times(rounds)
    rounds = [one for one in rounds if one.number not in impossible]
    if len(rounds) < len(rows):
        first = min({*range(1, len(rows) + 1)} - {one.number for one in rounds})
        text = f"{len(rows) - len(rounds)} of {len(rows)} rounds left out, the first is {first}"
        warn(f"{where}: {text}: {impossible.get(first, 'a number in it cannot be')}")
    if not rounds or rounds[-1].elapsed_s <= 0:  # published times are whole seconds, so that short rounds end at 0
        raise ValueError("not one round" if not rounds else "the last elapsed time is not above 0")
    values, times = value[value_key], value.get(time_key)
    if times is None and len(values) == len(rows):  # evaluated in every round
        times = value["elapsed_time_list"]
    if times is not None and (not isinstance(times, list) or len(times) != len(values)):
        raise ValueError(f"the {len(values)} {metric.plural} have other times")
    faults = value_faults(values, metric)
    if told := [*filter(None, faults)]:
        warn(f"{where}: {len(told)} of {len(values)} {metric.plural} left out: {told[0]}")
    sound = [place for place, fault in enumerate(faults) if not fault and (times is None or is_quantity(times[place]))]
    events = value.get("event_list") or []
    pace: list[Any] = [value.get(name) for name in Pace._fields]
    return Device(
        rounds,
        [values[place] for place in sound],
        None if times is None else [times[place] for place in sound],
        metric,
        sound_events(events if isinstance(events, list) else [events], where, warn),
        Pace(*pace) if all(map(is_quantity, pace)) else None,
        **{name: value[name] for name in ABOUT if is_quantity(value.get(name)) or value.get(name) is True},
    )
