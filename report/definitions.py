"""Numbers with two definitions: as measured here, and as in the published figures. Pure functions.

Summaries of the published program hold neither bytes nor computing times, so only the published definitions fit them.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from report import metrics
from report.metrics import Devices

DEFINITIONS = AUTO, MEASURED, PUBLISHED = "auto", "measured", "published"
MARK = "*"  # behind a number that follows the published definition

# Each number as measured here and as published.
TRAFFIC = ("bytes pushed and pulled", "the model's size once a worker and round")
RATIO = ("time of batches, passes and local updates / elapsed time", "1 - aggregation / elapsed time")

# Weights and BatchNorm's statistics in bytes, for one grey channel and ten classes (Fashion-MNIST, MNIST).
MODEL_BYTES = {
    "alexnet": 228_117_288,
    "resnet18-v1": 44_739_880,
    "resnet50-v1": 94_377_000,
    "resnet50-v2": 94_241_080,
    "mobilenet-v1": 12_954_152,
    "mobilenet-v2": 9_085_440,
    "inception-v3": 87_359_656,
    "lenet": 246_824,
    "resnet20": 1_083_240,
    "resnet32": 1_864_552,
    "cnn": 6_653_480,
    "mlp": 101_800,
}


class Numbers(NamedTuple):
    """One run's numbers that have two definitions."""

    traffic: float | None  # MB/s of all workers; None where the summary lacks what the definition needs
    traffic_published: bool
    ratios: Mapping[tuple[str, str], float]  # computing time ratio by host and device, where known
    ratios_published: bool


def numbers(devices: Devices, definitions: str, model_bytes: int | None, exchanges: bool = True) -> Numbers:
    """The numbers of a run's devices, all by the same definition: MEASURED, PUBLISHED, or AUTO, measured where every
    worker's summary allows it. `model_bytes` is the size of the model, for summaries without it. Where no worker
    `exchanges` anything the traffic is 0 by either."""
    load = metrics.traffic(devices.values()) if exchanges else 0.0
    by_size = exchanges and (definitions == PUBLISHED or (definitions == AUTO and load is None))
    if by_size:
        load = metrics.published_traffic(devices.values(), model_bytes)
    ratios = {key: metrics.computing_ratio(device) for key, device in devices.items()}
    by_aggregation = definitions == PUBLISHED or (definitions == AUTO and None in ratios.values())
    if by_aggregation:
        ratios = {key: metrics.published_computing_ratio(device) for key, device in devices.items()}
    known = {key: ratio for key, ratio in ratios.items() if ratio is not None}
    return Numbers(load, by_size, known, by_aggregation)


def mark(text: str, published: bool) -> str:
    """The text of a number or name, with MARK behind it where it follows the published definition."""
    return text + MARK * published


def published_note(definition: tuple[str, str]) -> str:
    """Explains MARK below a figure of TRAFFIC or RATIO."""
    return f"{MARK} as published: {definition[1]}"


def notes(runs: Collection[Numbers]) -> list[str]:
    """The definitions below a table: a line for measured numbers, and one for those with MARK."""
    loads = {run.traffic_published for run in runs if run.traffic is not None}
    used = (("MB/s", TRAFFIC, loads), ("computing ratio", RATIO, {run.ratios_published for run in runs if run.ratios}))
    lines = [
        begin + "; ".join(f"{name} = {texts[published]}" for name, texts, forms in used if published in forms)
        for published, begin in ((False, ""), (True, f"{MARK} as published: "))
    ]
    return [line for line in lines if " = " in line]
