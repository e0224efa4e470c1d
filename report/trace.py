"""Writes a job's logs as a trace for ui.perfetto.dev and chrome://tracing.

The format is Chrome's trace events as JSON ("Trace Event Format", Google, 2016): a process for each host, a track for
each worker with a slice for each round, and in it a slice for each stage of each local step; events are marks, the
metric is a counter. Times are microseconds since the worker began to train, by its own clock, and are not shifted:
all workers begin when they have the initial model, within the time of one pull.
"""

import json
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from report.job_logs import WorkerLog, events_of
from trainer.run_logs.rounds import Round, Warn
from utils import SetupError

MAX_SLICES = 1_000_000  # about 130 MB, which ui.perfetto.dev still opens
ROUND_ARGUMENTS = ("loss", "bytes_pushed", "bytes_pulled", "release", "batches", "steps_lost", "bad_steps")


class TraceSummary(NamedTuple):
    """Size and limits of a written trace."""

    slices: int
    until_s: float | None  # where the trace was cut, which had too many slices
    apart_s: float | None  # as `ends_apart` returns it; None where rounds do not end together


def write(
    path: Path, logs: Sequence[WorkerLog], title: str, in_step: bool, warn: Warn, limit: int = MAX_SLICES
) -> TraceSummary:
    """Writes a trace, event by event, and atomically.

    Args:
        in_step: rounds of one number end together on all workers.
        limit: slices at most; the trace of a longer job is cut at one time on all tracks.

    Raises:
        SetupError: the file cannot be written.
    """
    until_s = _cut(logs, limit)
    apart_s = ends_apart(logs) if in_step else None
    about = {
        "title": title,
        "clocks": "each track has the clock of its worker, from when that began to train; nothing is shifted",
        "rounds_end_apart_s": apart_s,
        "cut_after_s": until_s,
    }
    temporary, slices = path.with_name(f"{path.name}.tmp"), 0
    try:
        with temporary.open("w") as file:
            file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[')
            for number, event in enumerate(events(logs, until_s, warn)):
                file.write(("," if number else "") + "\n" + json.dumps(event, separators=(",", ":")))
                slices += event["ph"] == "X"
            file.write("\n]}\n")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SetupError(f"{error.filename or path} cannot be written: {error.strerror}") from None
    return TraceSummary(slices, until_s, apart_s)


def events(logs: Sequence[WorkerLog], until_s: float | None, warn: Warn) -> Iterator[dict[str, Any]]:
    """All events of a trace: names first, then those of each track in order of time, enclosing slices first."""
    hosts = {host: number for number, host in enumerate(dict.fromkeys(log.place[0] for log in logs), start=1)}
    for host, number in hosts.items():
        yield _metadata("process_name", number, 0, name=f"host {host}")
    for track, log in enumerate(logs, start=1):
        (host, device), rank = log.place, log.run.get("rank")
        name = device if rank is None else f"{device} (rank {rank})"
        yield _metadata("thread_name", hosts[host], track, name=name)
        yield _metadata("thread_sort_index", hosts[host], track, sort_index=track)
    for track, log in enumerate(logs, start=1):
        where = {"pid": hosts[log.place[0]], "tid": track}
        yield from ({**event, **where} for event in _of_worker(log.rounds, until_s, warn))


def ends_apart(logs: Sequence[WorkerLog]) -> float:
    """Seconds between the ends of a round by the workers' own clocks: the greatest median difference of two workers.

    Where rounds end together it is the difference of the clocks, and of when the workers receive the sum.
    """
    ends = [{one.number: one.elapsed_s for one in log.rounds} for log in logs]
    common = set.intersection(*map(set, ends))
    if not common:
        return 0.0
    late = [statistics.median(of_worker[number] - ends[0][number] for number in common) for of_worker in ends]
    return max(late) - min(late)


def _metadata(kind: str, process: int, track: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": arguments}


def _of_worker(rounds: Sequence[Round], until_s: float | None, warn: Warn) -> Iterator[dict[str, Any]]:
    """The events of a track.

    A log has the total time of a stage of a step, not its begin. Time outside all stages is put at the beginning of a
    round, when the previous round's log is written. Where times do not fit (the published program truncates to whole
    seconds) later stages are moved, so that nothing overlaps.
    """
    before, number = 0.0, 0
    for one in rounds:
        moment = max(before, one.elapsed_s - one.stages_s)
        begin_s, stages = before if one.number == number + 1 else moment, []
        for step, times in one.steps.items():
            for stage, seconds in times.items():
                if _us(moment + seconds) > _us(moment):
                    stages.append(_slice(stage, "stage", moment, moment + seconds, {"entry": step}))
                moment += seconds
        before, number = max(moment, one.elapsed_s), one.number
        if until_s is not None and before > until_s:
            return
        about = {"steps": one.complete, "num_samples": one.samples}
        about |= {name: value for name in ROUND_ARGUMENTS if (value := getattr(one, name)) is not None}
        yield _slice(f"round {one.number}", "round", begin_s, before, about)
        yield from stages
        end = _us(before)
        for event in events_of(one, warn):
            yield {"ph": "i", "s": "t", "name": event.kind, "cat": "event", "ts": end, "args": {"text": event.text}}
        if one.evaluation is not None:
            metric, value = one.evaluation
            yield {"ph": "C", "name": metric.name, "ts": end, "args": {metric.name: value}}


def _slice(name: str, kind: str, begin_s: float, end_s: float, arguments: Mapping[str, Any]) -> dict[str, Any]:
    begin = _us(begin_s)  # rounds both ends, not the length, so that adjacent slices stay adjacent
    return {"ph": "X", "name": name, "cat": kind, "ts": begin, "dur": _us(end_s) - begin, "args": arguments}


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _cut(logs: Sequence[WorkerLog], limit: int) -> float | None:
    """Seconds at which a trace of at most `limit` slices ends; None where the whole job fits."""
    sizes = sorted((one.elapsed_s, 1 + sum(map(len, one.steps.values()))) for log in logs for one in log.rounds)
    slices, before_s = 0, 0.0
    for end_s, size in sizes:
        slices += size
        if slices > limit:
            return before_s
        before_s = end_s
    return None
