"""What the status page shows, computed from one snapshot. Pure: runs in a reader's thread, never in the router's.

The payload is bounded: at most SHOWN_WORKERS workers and TIMELINE_ROUNDS rounds, however large the job is.
"""

from __future__ import annotations

from typing import Any

from server.messages import Action
from server.snapshot import Overview, Snapshot
from server.state import HISTORY_ROUNDS, Row

SHOWN_WORKERS = 64
TIMELINE_ROUNDS = 12

TRAINING = "training"  # computes local steps
WAITING = "waiting"  # was told to aggregate, while others still compute in this round
AGGREGATING = "aggregating"  # nobody is left to wait for: pushes, pulls, evaluates
SILENT = "silent"  # should have been heard long ago
ABSENT = "not seen yet"


def status(snapshot: Snapshot | None, overview: Overview) -> dict[str, Any]:
    """The state of the job for the page, as JSON; durations in seconds, ages in seconds before the snapshot."""
    if snapshot is None:
        return {"job": None}
    states = worker_states(snapshot)
    shown = _shown(snapshot, states)
    settings = snapshot.settings
    return {
        "job": settings.job,
        "policy": settings.policy,
        "epsilon_s": settings.epsilon,
        "num_workers": settings.num_workers,
        "round": snapshot.round,
        "elapsed_s": _rounded(snapshot.now - snapshot.began),
        "quiet": all(overdue(snapshot, row) for row in snapshot.rows),
        "quiet_s": _rounded(min(silence(snapshot, row) for row in snapshot.rows)),
        "samples": sum(row.samples for row in snapshot.rows),
        "samples_per_s": _rounded(
            sum(samples_per_s(row, snapshot.now) for row in snapshot.rows if states[row.rank] != SILENT)
        ),
        "states": {state: states.count(state) for state in (TRAINING, WAITING, AGGREGATING, SILENT, ABSENT)},
        "accuracies": [[_rounded(point.time - snapshot.began), point.accuracy] for point in snapshot.curve],
        "workers": [_worker(snapshot, row, states[row.rank]) for row in shown],
        "timeline": _timeline(snapshot, shown, states),
    }


def silence(snapshot: Snapshot, row: Row) -> float:
    """Seconds since the worker was last heard, or since the job began where it never was."""
    return snapshot.now - (snapshot.known_since if row.heard is None else row.heard)


def overdue(snapshot: Snapshot, row: Row) -> bool:
    """Whether the worker was not heard for so long that no decision would count on it."""
    return silence(snapshot, row) > row.silence_limit


def worker_states(snapshot: Snapshot) -> list[str]:
    """What each worker does, by rank.

    A worker that waits has no reason to speak, so only the one that it waits for is called silent.
    """
    others_compute = any(row.round < snapshot.round or row.action is not Action.SYNC for row in snapshot.rows)

    def state(row: Row) -> str:
        if row.heard is None:
            return SILENT if overdue(snapshot, row) else ABSENT
        told_to_aggregate = row.action is Action.SYNC
        if told_to_aggregate and row.round == snapshot.round and others_compute:
            return WAITING
        if overdue(snapshot, row):
            return SILENT
        return AGGREGATING if told_to_aggregate else TRAINING

    return [state(row) for row in snapshot.rows]


def samples_per_s(row: Row, now: float) -> float:
    """The worker's throughput over the rounds that are kept of it, waiting included."""
    if row.entered is None:
        return 0.0
    begins = [past.entered for past in row.past] + [row.entered]
    if len(row.past) < HISTORY_ROUNDS:
        begin, before = begins[0], 0
    else:
        begin, before = begins[1], row.past[0].samples
    return (row.samples - before) / (now - begin) if now > begin else 0.0


def _shown(snapshot: Snapshot, states: list[str]) -> list[Row]:
    """All workers, or of a large job the straggler, the silent and then the slowest ones; by rank."""
    rows = snapshot.rows
    if len(rows) <= SHOWN_WORKERS:
        return list(rows)

    def urgency(row: Row) -> tuple[bool, bool, float, int]:
        return row.rank != snapshot.slowest, states[row.rank] != SILENT, -(row.step_time or 0.0), row.rank

    return sorted(sorted(rows, key=urgency)[:SHOWN_WORKERS], key=lambda row: row.rank)


def _worker(snapshot: Snapshot, row: Row, state: str) -> dict[str, Any]:
    return {
        "rank": row.rank,
        "host": row.device.host,
        "device": row.device.device,
        "round": row.round,
        "step_time_s": row.step_time,
        "transmission_time_s": row.transmission_time if row.step_times else None,
        "local_steps": row.local_iteration,
        "state": state,
        "heard_s": None if row.heard is None else _rounded(silence(snapshot, row)),
        "silence_s": _rounded(silence(snapshot, row)),
        "action": row.last_action and row.last_action.value,
        "reason": row.reason,
        "samples_per_s": _rounded(samples_per_s(row, snapshot.now)),
        "straggler": row.rank == snapshot.slowest and bool(row.step_times),
    }


def _timeline(snapshot: Snapshot, shown: list[Row], states: list[str]) -> dict[str, Any]:
    """For each worker, spans [round, entered, told to aggregate or null, left or null], as ages in seconds.

    `silent` is the age from which on a silent worker's last span is not known to be true.
    """
    first_round = snapshot.round - TIMELINE_ROUNDS + 1
    now = snapshot.now

    def age(moment: float | None) -> float | None:
        return None if moment is None else _rounded(now - moment)

    lanes: list[dict[str, Any]] = []
    seconds = 0.0
    for row in shown:
        spans = [(past.round, past.entered, past.synced) for past in row.past]
        if row.entered is not None:
            spans.append((row.round, row.entered, row.synced))
        left = [entered for _, entered, _ in spans[1:]] + [None]
        recent = [(*span, until) for span, until in zip(spans, left, strict=False) if span[0] >= first_round]
        if recent:
            seconds = max(seconds, now - recent[0][1])
        lanes.append(
            {
                "rank": row.rank,
                "silent": age(row.heard) if states[row.rank] == SILENT else None,
                "spans": [[round, age(entered), age(synced), age(until)] for round, entered, synced, until in recent],
            }
        )
    return {"seconds": _rounded(seconds), "lanes": lanes}


def _rounded(seconds: float) -> float:
    return round(seconds, 3)
