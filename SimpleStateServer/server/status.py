"""The status page's content, computed from the jobs at one moment.

The payload is bounded for jobs of any size: SHOWN_WORKERS workers one by one, of all others a letter each, or a letter
for several.
"""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server import anchor, worker_states
from server.eta import AT_WORK, elapsed, ending, job_state
from server.job_rates import rates
from server.jobs import Job, Jobs
from server.policies import Sync
from server.row import HISTORY_ROUNDS, Row
from server.timeline import timeline
from server.worker_states import WorkerStates, silence

SHOWN_WORKERS = 100
BY_RANK = 16  # up to this many workers are sorted by rank; of more the slow and the silent come first
CELLS = 1000
SHOWN_JOBS = 24

LETTERS = dict(zip(worker_states.ALL, "tewplsndx", strict=True))  # on the wire and in the page's style sheet
_NOT_AT_WORK = (worker_states.SILENT, worker_states.ABSENT, worker_states.ENDED, worker_states.LOST)


def status(job: Job | None, jobs: Jobs, now: float) -> dict[str, Any]:
    """The state of the job for the page, as JSON; durations in seconds, ages in seconds before `now`."""
    if job is None:
        return {"job": None, "jobs": _jobs(jobs, now)}
    table, rows, settings, policy = job.table, job.rows, job.settings, job.policy
    done, state = worker_states.states_of(job, now), job_state(job, now)
    until = now if state == AT_WORK else job.heard or now
    works = work(job, done.states, now)
    marks = policy.marks(rows, table.slowest.rank) if state == AT_WORK else {}
    shown = _shown(rows, done, marks)
    counts, best = Counter(done.states), job.curve.best
    return {
        "job": job.id,
        "title": job.title,
        "policy": settings.policy,
        "caption": policy.caption,
        "epsilon_s": settings.epsilon if settings.policy == "preprint" else None,
        "anchor": anchor.steps(settings.anchor, table.slowest) if settings.anchor else None,
        "way": _way(rows),
        "state": state,
        "num_workers": settings.num_workers,
        "generation": settings.generation,
        "round": table.round,
        "elapsed_s": _rounded(elapsed(job, now)),
        "quiet_s": _rounded(now - (table.started if job.heard is None else job.heard)),
        "resumed_s": _rounded(now - table.started) if settings.resumed else None,
        "beginning_known": not settings.resumed or job.began < table.started,
        "history_lost": job.history_lost,
        "end": ending(job, now),
        "samples": sum([row.samples for row in rows]),
        "samples_per_s": _rounded(_samples_per_s(job, works, done.states, state)),
        "rates": [[_rounded(time - job.began), _rounded(rate)] for time, rate in rates(table.rates.marks, until)],
        "computing_share": works.computing_share_of_all,
        "states": {name: counts[name] for name in worker_states.ALL if counts[name]},
        "many": len(rows) > BY_RANK,
        "cells": _cells(done.states),
        "metric": {
            "name": "accuracy" if settings.metric is None else settings.metric.name,
            "more_is_better": settings.metric is None or settings.metric.more_is_better,
        },
        "accuracies" if settings.metric is None else "values": [
            [_rounded(point.time - job.began), point.value, point.round] for point in job.curve.points
        ],
        "losses": [[_rounded(point.time - job.began), point.value, point.round] for point in job.losses.points],
        "events": [[_rounded(event.time - job.began), *event[2:], event.round] for event in job.events.latest],
        "best": best and [_rounded(best.time - job.began), best.value],
        "workers": [_worker(job, row, done, works, marks, now) for row in shown],
        "timeline": timeline(job, shown, done, now),
        "jobs": _jobs(jobs, now),
    }


# ---------------------------------------------------------------------------------------------- the work


@dataclass(frozen=True, slots=True)
class Work:
    """The workers' recorded work, by rank.

    Columns: an object for each of 100,000 workers would set off the garbage collector, which then goes through the
    whole state table.
    """

    samples: list[int] = field(default_factory=list)  # trained on
    computing: list[float] = field(default_factory=list)  # seconds of local steps
    seconds: list[float] = field(default_factory=list)  # of that work, waiting included

    def samples_per_s(self, rank: int) -> float:
        seconds = self.seconds[rank]
        return self.samples[rank] / seconds if seconds > 0 else 0.0

    def computing_share(self, rank: int) -> float | None:
        """Share of the worker's time spent computing; None where it is not known."""
        return _share(self.computing[rank], self.seconds[rank])

    @property
    def computing_share_of_all(self) -> float | None:
        """The same over all workers' time."""
        known = [seconds for seconds, computing in zip(self.seconds, self.computing, strict=True) if computing > 0]
        return _share(sum(self.computing), sum(known))


def _share(computing: float, seconds: float) -> float | None:
    return round(min(computing / seconds, 1.0), 3) if seconds > 0 and computing > 0 else None


def work(job: Job, states: Sequence[str], now: float) -> Work:
    """Each worker's work. A running step and its time do not count: they are reported at its end."""
    done, resumed = Work(), job.settings.resumed
    told = job.policy.sync is Sync.IS_NOT_SAID  # what was done is known up to each row's `since`
    for row, state in zip(job.rows, states, strict=True):
        past, samples, computing, begin = row.past, 0, 0.0, row.entered
        if len(past) == HISTORY_ROUNDS or resumed:
            # The work before the first recorded round is known from its end on.
            if past:
                samples, computing = past[0].samples, past[0].computing
                begin = past[0].asked if told else past[1].entered if len(past) > 1 else begin
            else:
                samples, computing, begin = row.samples, row.computing, None
        elif past:
            begin = past[0].entered
        end: float | None = now
        if state == worker_states.TRAINING or told:
            end = row.since
        elif state in _NOT_AT_WORK:
            end = row.heard
        seconds = 0.0 if begin is None or end is None else end - begin
        done.samples.append(row.samples - samples)
        done.computing.append(row.computing - computing)
        done.seconds.append(seconds if seconds > 0 else 0.0)
    return done


def _samples_per_s(job: Job, done: Work, states: Sequence[str], state: str) -> float:
    """Of all running workers; of a job that is not running, the mean over its time."""
    if state == AT_WORK:
        return sum([done.samples_per_s(rank) for rank, name in enumerate(states) if name not in _NOT_AT_WORK])
    first, last = (marks := job.table.rates.marks)[0], marks[-1]
    return last.samples / (last.time - first.time) if last.time > first.time else 0.0


# ------------------------------------------------------------------------------------------------ the workers


def _shown(rows: Sequence[Row], done: WorkerStates, marks: Mapping[int, str]) -> list[Row]:
    """The workers shown one by one. Of many, the marked, silent, awaited and slowest come first."""
    states = done.states
    if len(rows) <= BY_RANK:
        return list(rows)
    waiting = [row for row in rows if states[row.rank] == worker_states.WAITING]
    awaited: tuple[int, ...] = ()
    if waiting:
        awaited = done.awaited(min(waiting, key=lambda row: row.since or 0.0)).ranks

    def kind(row: Row) -> int:
        state = states[row.rank]
        if row.rank in marks:
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


def _worker(
    job: Job, row: Row, done: WorkerStates, works: Work, marks: Mapping[int, str], now: float
) -> dict[str, Any]:
    state = done.states[row.rank]
    quiet_s = _rounded(silence(job, row, now))
    return {
        "rank": row.rank,
        "host": row.device.host,
        "device": row.device.device,
        "round": row.round,
        "step_time_s": row.step_time,
        "transmission_time_s": transmission_time(job, row),
        "local_steps": row.local_iteration,
        "state": state,
        "whom": done.whom(row),
        "heard_s": None if row.heard is None else quiet_s,
        "silence_s": quiet_s,
        "action": row.last_action and row.last_action.value,
        "reason": row.reason,
        "samples_per_s": _rounded(works.samples_per_s(row.rank)),
        "computing_share": works.computing_share(row.rank),
        "mark": marks.get(row.rank, ""),
    }


def transmission_time(job: Job, row: Row) -> float | None:
    """Seconds; None where none was measured."""
    is_known = row.step_times and job.policy.sync is not Sync.IS_NOT_SAID
    return row.transmission_time if is_known else None


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

    latest = sorted(jobs, key=lambda job: (job_state(job, now) != AT_WORK, -job.began))[:SHOWN_JOBS]
    return {
        "count": len(jobs),
        "shown": [
            {
                "job": job.id,
                "title": job.title,
                "num_workers": len(job.rows),
                "round": job.table.round,
                "state": job_state(job, now),
                "elapsed_s": _rounded(elapsed(job, now)),
            }
            for job in latest
        ],
    }


def _rounded(seconds: float) -> float:
    return round(seconds, 3)
