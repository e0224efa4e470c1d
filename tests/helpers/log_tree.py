"""Small log trees, devices and curves, with times and sizes that can be summed in the head. Not a test itself."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from report import device_json
from report.metrics import MODES, Device, Mode

ROOT = Path(__file__).resolve().parents[2]
NETWORK = "lenet"

# Test accuracy over time: to 0.8 in 24 s, in 8 s, and not at all.
SLOW = [(12.0, 0.4), (24.0, 0.8), (36.0, 0.75)]
FAST = [(4.0, 0.5), (8.0, 0.8)]
NEVER = [(5.0, 0.3), (10.0, 0.6)]


def esync_round(number: int, end_s: float, steps: int, accuracy: float | None = None, **extra: Any) -> dict[str, Any]:
    """A round of ESync: `steps` local steps (64 samples, 1 s of computing), then the aggregation (0.5 s)."""
    step = {"check ready": 0.125, "get_batch": 0.25, "forward and backward": 0.5, "local update": 0.25}
    aggregation = {"check ready": 0.125, "global update": 0.5}
    if accuracy is not None:
        aggregation["evaluation"] = 0.125
    entries = [step] * steps + [aggregation]
    return _record(number, end_s, 64 * steps, entries, accuracy, extra)


def sync_round(number: int, end_s: float, accuracy: float | None = None, **extra: Any) -> dict[str, Any]:
    """A round of SSGD, ASGD or DC-ASGD: one entry, 0.75 s of computing and 2 s of aggregation."""
    entry = {"get_batch": 0.25, "forward and backward": 0.5, "global aggregate": 2.0}
    if accuracy is not None:
        entry["evaluation"] = 0.125
    return _record(number, end_s, 64, [entry], accuracy, extra)


def _record(
    number: int, end_s: float, num_samples: int, entries: Sequence[dict], accuracy: float | None, extra: dict[str, Any]
) -> dict[str, Any]:
    record = {"num_iters": number, "num_samples": num_samples, "total_time": end_s, **extra}
    if accuracy is not None:
        record["accuracy"] = accuracy
    return record | {"time": {str(index): entry for index, entry in enumerate(entries)}}


def write_device(folder: Path, rounds: Sequence[dict[str, Any]], run: dict[str, Any] | None = None) -> Path:
    """Writes one worker's folder: its iter files, and run.json where `run` is given."""
    folder.mkdir(parents=True)
    for record in rounds:
        (folder / f"iter-{record['num_iters']}.txt").write_text(json.dumps(record))
    if run is not None:
        (folder / "run.json").write_text(json.dumps(run))
    return folder


def write_esync(base: Path, mode: str = "esync") -> Path:
    """ESync on two hosts: 512 samples, 16 MB in 10 s; accuracy 0.8 after 8 s; computing 0.75 and 0.2 of the time."""
    folder = base / NETWORK / mode
    counted = {"bytes_pushed": 2_000_000, "bytes_pulled": 2_000_000}
    write_device(
        folder / "alpha" / "gpu0",
        [esync_round(1, 4.0, 3, 0.5, **counted), esync_round(2, 8.0, 3, 0.8, **counted)],
        {"rank": 0, "num_workers": 2},
    )
    write_device(
        folder / "beta" / "cpu",
        [esync_round(1, 5.0, 1, **counted), esync_round(2, 10.0, 1, **counted)],
        {"rank": 1, "num_workers": 2},
    )
    return folder


def write_sync(base: Path, mode: str = "sync", accuracies: Sequence[float] = (0.4, 0.8, 0.75)) -> Path:
    """SSGD as the published program logs it, with no bytes and no run.json: rounds of 12 s, 384 samples in 36 s."""
    folder = base / NETWORK / mode
    write_device(
        folder / "alpha" / "gpu0", [sync_round(n, 12.0 * n, accuracy) for n, accuracy in enumerate(accuracies, start=1)]
    )
    write_device(folder / "beta" / "cpu", [sync_round(n, 12.0 * n) for n in range(1, len(accuracies) + 1)])
    return folder


def published_device(rounds: int, round_s: float, accuracy: bool = False) -> dict[str, Any]:
    """A device in a summary of the published program, which has whole seconds and no other keys: rounds of 64 samples
    and `round_s` seconds, a quarter of which is aggregation."""
    return {
        "accuracy_list": [round(0.9 * number / rounds, 3) for number in range(1, rounds + 1)] if accuracy else [],
        "num_samples_list": [64] * rounds,
        "self_iters_list": [1] * rounds,
        "elapsed_time_list": [round(number * round_s) for number in range(1, rounds + 1)],
        "aggregate_time_list": [round_s / 4] * rounds,
    }


def write_published(base: Path, mode: Mode, hosts: Mapping[str, Mapping[str, dict[str, Any]]]) -> Path:
    """Writes a mode's summary as the published program does; its logs are not there."""
    path = base / NETWORK / mode.name / mode.file_name
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(hosts))
    return path


def six_published_devices(base: Path) -> Path:
    """ASGD on two hosts with a CPU and two GPUs each, for 60 s: the GPUs' rounds take 0.15 s, the CPUs' 4 s."""
    fast, slow = published_device(400, 0.15), published_device(15, 4.0)
    first = published_device(400, 0.15, accuracy=True)
    hosts = {"alpha": {"cpu": slow, "gpu0": first, "gpu1": fast}, "beta": {"cpu": slow, "gpu0": fast, "gpu1": fast}}
    return write_published(base, MODES["async"], hosts)


def device(warn: Callable[[str], object] = pytest.fail, /, **lists: Any) -> Device:
    """Two rounds of 64 samples, 8 s in all; `lists` come on top or instead."""
    lists = {
        "accuracy_list": [], "num_samples_list": [64, 64], "self_iters_list": [1, 1],
        "elapsed_time_list": [4.0, 8.0], "aggregate_time_list": [0.5, 0.5],
    } | lists  # fmt: skip
    return device_json.read(lists, "here", warn)


def evaluated(curve: Sequence[tuple[float, float]], **more: Any) -> Device:
    """A device with this curve of accuracies."""
    return device(accuracy_list=[value for _, value in curve], accuracy_time_list=[at for at, _ in curve], **more)


def run_program(
    name: str, *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `python summary.py ...` or `python draw.py ...` as a user does."""
    command = [sys.executable, str(ROOT / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def events(folder: Path) -> list[tuple[str, int, float, float]]:
    """Tag, round, seconds since the first event, and value of all scalars of a run of TensorBoard."""
    from tensorboardX.proto import event_pb2

    (path,) = folder.glob("events.out.tfevents.*")
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)  # before a checksum, and behind it comes another
        event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
        found += [(value.tag, event.step, event.wall_time, value.simple_value) for value in event.summary.value]
        at += size + 16
    begin_s = found[0][2]
    return [(tag, step, round(wall_s - begin_s, 3), round(value, 5)) for tag, step, wall_s, value in found]
