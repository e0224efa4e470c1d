"""The status page's content, computed from the jobs at one moment.

The payload is bounded for jobs of any size: SHOWN_WORKERS workers one by one, of all others a letter each, or a letter
for several.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import Any

from server import anchor, worker_states
from server.curve import Curve
from server.job_rates import rates, rounds_per_s
from server.jobs import AT_WORK, ENDED, Job, Jobs
from server.row import Row
from server.timeline import timeline
from server.worker_states import View

SHOWN_WORKERS = 100
BY_RANK = 16  # up to this many workers are sorted by rank; of more the slow and the silent come first
CELLS = 1000
SHOWN_JOBS = 24

LETTERS = dict(zip(worker_states.ALL, "tewplsndx", strict=True))  # on the wire and in the page's style sheet


def status(job: Job | None, jobs: Jobs, now: float) -> dict[str, Any]:
    """The state of the job for the page, as JSON; durations in seconds, ages in seconds before `now`."""
    if job is None:
        return {"job": None, "jobs": _jobs(jobs, now)}
    table, rows, settings, view = job.table, job.rows, job.settings, View(job, now)
    until = now if view.state == AT_WORK else job.heard or now
    shown, counts, best = _shown(view), Counter(view.states), job.curve.best
    return {
        "job": job.id,
        "title": job.title,
        "policy": settings.policy,
        "caption": job.policy.caption,
        "epsilon_s": settings.epsilon if settings.policy == "preprint" else None,
        "anchor": anchor.steps(settings.anchor, table.slowest) if settings.anchor else None,
        "way": _way(rows),
        "state": view.state,
        "num_workers": settings.num_workers,
        "generation": settings.generation,
        "round": table.round,
        "elapsed_s": _rounded(job.elapsed(now)),
        "quiet_s": _rounded(now - (table.started if job.heard is None else job.heard)),
        "resumed_s": _rounded(now - table.started) if settings.resumed else None,
        "beginning_known": not settings.resumed or job.began < table.started,
        "history_lost": job.history_lost,
        "end": _ending(job, now),
        "samples": sum([row.samples for row in rows]),
        "samples_per_s": _rounded(view.samples_per_s_of_all),
        "rates": [[_rounded(time - job.began), _rounded(rate)] for time, rate in rates(table.rates.marks, until)],
        "computing_share": view.computing_share_of_all,
        "states": {name: counts[name] for name in worker_states.ALL if counts[name]},
        "many": len(rows) > BY_RANK,
        "cells": _cells(view.states),
        "metric": {
            "name": "accuracy" if settings.metric is None else settings.metric.name,
            "more_is_better": settings.metric is None or settings.metric.more_is_better,
        },
        "accuracies" if settings.metric is None else "values": _points(job, job.curve),
        "losses": _points(job, job.losses),
        "events": [[_rounded(event.time - job.began), *event[2:], event.round] for event in job.events],
        "best": best and [_rounded(best.time - job.began), best.value],
        "workers": [_worker(view, row) for row in shown],
        "timeline": timeline(view, shown),
        "jobs": _jobs(jobs, now),
    }


def _ending(job: Job, now: float) -> dict[str, Any]:
    """The limits, as JSON: `rounds`, [done, of]; `seconds`, [done, of]; `accuracy`, or `target` of another metric; each
    None where there is no such limit. `share` is the progress to the nearest limit, 0 to 1; `left_s` the seconds to it
    by the recent rate of rounds, None where it is not known. The time to the target is never estimated."""
    limits, state, seconds = job.settings.limits, job.state(now), job.elapsed(now)
    done = max(job.table.round - (state != ENDED), 0)  # the running round is not done yet
    shares, lefts = [], []
    if limits.rounds is not None:
        shares.append(done / limits.rounds)
        if (pace := rounds_per_s(job.table.rates.marks, now)) is not None:
            lefts.append((limits.rounds - done) / pace)
    if limits.seconds is not None:
        shares.append(seconds / limits.seconds if limits.seconds else 1.0)
        lefts.append(limits.seconds - seconds)
    return {
        "rounds": None if limits.rounds is None else [min(done, limits.rounds), limits.rounds],
        "seconds": None if limits.seconds is None else [round(min(seconds, limits.seconds), 1), limits.seconds],
        "accuracy": limits.accuracy,
        "target": limits.target,
        "share": round(min(max(shares), 1.0), 4) if shares else None,
        "left_s": round(max(min(lefts), 0.0), 1) if lefts and state == AT_WORK else None,
    }


def _points(job: Job, curve: Curve) -> list[list[float]]:
    return [[_rounded(point.time - job.began), point.value, point.round] for point in curve.points]


def _shown(view: View) -> list[Row]:
    """The workers shown one by one. Of many, the marked, silent, awaited and slowest come first."""
    rows, states = view.rows, view.states
    if len(rows) <= BY_RANK:
        return list(rows)
    waiting = [row for row in rows if states[row.rank] == worker_states.WAITING]
    awaited: tuple[int, ...] = ()
    if waiting:
        awaited = view.awaited(min(waiting, key=lambda row: row.since or 0.0)).ranks

    def kind(row: Row) -> int:
        state = states[row.rank]
        if row.rank in view.marks:
            return 0
        if state in (worker_states.SILENT, worker_states.LEFT_OUT):
            return 1
        return 2 if row.rank in awaited or state == worker_states.EVALUATING else 3

    def urgency(row: Row) -> tuple[int, float, int]:
        return kind(row), -row.step_times[-1] if row.step_times else 0.0, row.rank

    def steadily(row: Row) -> tuple[int, float, int]:
        """Equal workers do not change places with every step."""
        return kind(row), -float(f"{row.step_time or 0.0:.1e}"), row.rank

    return sorted(heapq.nsmallest(SHOWN_WORKERS, rows, key=urgency), key=steadily)


def _worker(view: View, row: Row) -> dict[str, Any]:
    quiet_s = _rounded(view.job.silence(row, view.now))
    return {
        "rank": row.rank,
        "host": row.device.host,
        "device": row.device.device,
        "round": row.round,
        "step_time_s": row.step_time,
        "transmission_time_s": view.transmission_time(row),
        "local_steps": row.local_iteration,
        "state": view.states[row.rank],
        "whom": view.whom(row),
        "heard_s": None if row.heard is None else quiet_s,
        "silence_s": quiet_s,
        "action": row.last_action and row.last_action.value,
        "reason": row.reason,
        "samples_per_s": _rounded(view.samples_per_s(row.rank)),
        "computing_share": view.computing_share(row.rank),
        "mark": view.marks.get(row.rank, ""),
    }


def _cells(states: Sequence[str]) -> dict[str, Any]:
    """A letter for each worker by rank; for every `each` workers of a very large job: silent if one is, else as most
    of them."""
    each = -(-len(states) // CELLS)
    if each == 1:
        return {"each": 1, "letters": "".join([LETTERS[state] for state in states])}
    letters = []
    for begin in range(0, len(states), each):
        counts = Counter(states[begin : begin + each])
        most = worker_states.SILENT if counts[worker_states.SILENT] else counts.most_common(1)[0][0]
        letters.append(LETTERS[most])
    return {"each": each, "letters": "".join(letters)}


def _way(rows: Sequence[Row]) -> str:
    """BSP or ASP, as most workers report; empty where that never changes."""
    ways = Counter([row.way for row in rows if row.way])
    return ways.most_common(1)[0][0] if ways else ""


# ---------------------------------------------------------------------------------------------------- the jobs


def _jobs(jobs: Jobs, now: float) -> dict[str, Any]:
    """The latest jobs, running ones first."""
    latest = sorted(jobs.values(), key=lambda job: (job.state(now) != AT_WORK, -job.began))[:SHOWN_JOBS]
    return {
        "count": len(jobs),
        "shown": [
            {
                "job": job.id,
                "title": job.title,
                "num_workers": len(job.rows),
                "round": job.table.round,
                "state": job.state(now),
                "elapsed_s": _rounded(job.elapsed(now)),
            }
            for job in latest
        ],
    }


def _rounded(seconds: float) -> float:
    return round(seconds, 3)
