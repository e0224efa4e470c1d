"""The workers' last rounds as coloured stretches: computing, waiting, evaluating, left out. Pure."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from server.jobs import Job
from server.policies import Policy, Sync
from server.row import Action, PastRound, Row
from server.worker_states import (
    ABSENT,
    ENDED,
    EVALUATING,
    LEFT_OUT,
    LOST,
    SILENT,
    TRAINING,
    View,
    is_on_its_own,
)

LANES = 24
ROUNDS = 12  # of the fastest worker
LONGEST_SILENCE = 0.25  # of the lanes, for silence alone

COMPUTING, EXCHANGE, EVALUATION, OUT, NOTHING = "computing", "waiting", "evaluating", "left-out", "silent"

# (kind, begin, end, round), in seconds on the server's clock
Stretch = tuple[str, float, float, int]

# What is computed and what is waited for, by the meaning of SYNC
_LEGENDS = {
    Sync.AGGREGATES: ("computing", "waiting, pushing, pulling"),
    Sync.RELEASES: ("computing and uploading", "releasing the global model"),
    Sync.STAYS_IN_STEP: ("computing", "waiting, pushing, pulling under BSP"),
    Sync.IS_NOT_SAID: ("computing", "waiting, pushing, pulling"),
}


def timeline(view: View, shown: Sequence[Row]) -> dict[str, Any]:
    """The lanes of some workers, as JSON: `seconds` that the lanes are long; `ends_s`, how long ago they end, 0 unless
    there was no message for long; `legend`, [kind, text]; `lanes`, rank and stretches [kind, begin, end, round], as
    ages in seconds before the end."""
    job, now = view.job, view.now
    lanes = [(row.rank, _lane(view, row)) for row in shown[:LANES]]
    begin = _begin([stretches for _, stretches in lanes])
    end = _end(job, begin, now)
    computing, waiting = _LEGENDS[job.policy.sync]
    out = [[OUT, "left out"]] if job.policy.leaves_out else []
    legend = [[COMPUTING, computing], [EXCHANGE, waiting], [EVALUATION, "evaluating"], *out, [NOTHING, "silent"]]
    return {
        "seconds": round(end - begin, 3),
        "ends_s": round(now - end, 3),
        "legend": legend,
        "lanes": [
            {
                "rank": rank,
                "spans": [
                    [kind, round(end - max(first, begin), 3), round(end - min(last, end), 3), number]
                    for kind, first, last, number in stretches
                    if last > begin and first < end
                ],
            }
            for rank, stretches in lanes
        ],
    }


def _begin(lanes: Sequence[Sequence[Stretch]]) -> float:
    """Start of all lanes: ROUNDS rounds back in the fastest lane; short lanes do not count."""
    begins = [[next(of_round)[1] for _, of_round in groupby(lane, key=lambda each: each[3])] for lane in lanes if lane]
    full = [each[-ROUNDS] for each in begins if len(each) >= ROUNDS]
    return max(full) if full else min((each[0] for each in begins), default=0.0)


def _end(job: Job, begin: float, now: float) -> float:
    """Now; the last message of an ended job; somewhat later for a quiet job, whose work would shrink to nothing."""
    if job.heard is None or job.is_at_work(now):
        return now
    if job.ended is not None:
        return job.heard
    return min(now, job.heard + max(5.0, LONGEST_SILENCE * (job.heard - begin)))


def _lane(view: View, row: Row) -> list[Stretch]:
    """One worker's stretches, in the order of time; neighbours of a kind and round are one."""
    if row.entered is None:
        return []
    stretches: list[Stretch] = []
    following = [*((past.entered, past.round, past.computing) for past in row.past[1:])]
    following.append((row.entered, row.round, row.computing))
    parts = [
        part
        for past, (until, number, computing) in zip(row.past, following, strict=False)  # none in its first round
        for part in _past(view.job.policy, past, until, number, computing)
    ]
    for kind, begin, end, number in (*parts, *_current(view, row)):
        if end <= begin:
            continue
        if stretches and stretches[-1][0] == kind and stretches[-1][3] == number and stretches[-1][2] >= begin:
            stretches[-1] = (kind, stretches[-1][1], end, number)
        else:
            stretches.append((kind, begin, end, number))
    return stretches


def _past(policy: Policy, past: PastRound, until: float, following: int, computing: float) -> Iterator[Stretch]:
    """A past round's stretches, until the beginning of the next reported round, by which the worker had computed for
    `computing` seconds."""
    synced = past.synced
    if policy.sync is Sync.IS_NOT_SAID:
        # Rounds that were not told lie in between: all computing of a stretch stands at its beginning.
        synced = past.entered + max(computing - past.computing, 0.0)
    if policy.sync is Sync.STAYS_IN_STEP:
        if is_on_its_own(past) or (past.action is Action.TRAIN and not policy.leaves_out):
            synced = None
        elif past.action is Action.TRAIN:
            out = past.asked or past.entered
            yield COMPUTING, past.entered, out, past.round
            yield OUT, out, until, past.round
            return
        elif following > past.round + 1:  # steps that were not told lie in between
            synced = None
    evaluating = until if past.evaluating is None else min(past.evaluating, until)
    computed = evaluating if synced is None else min(synced, evaluating)
    yield COMPUTING, past.entered, computed, past.round
    yield EXCHANGE, computed, evaluating, past.round
    yield EVALUATION, evaluating, until, past.round


def _current(view: View, row: Row) -> Iterator[Stretch]:
    """The present round's stretches."""
    policy, now = view.job.policy, view.now
    state, number = view.states[row.rank], row.round
    entered, heard = row.entered or 0.0, row.heard or 0.0
    if state in (ABSENT, ENDED, LOST):
        now = heard
    until = heard if state == SILENT else now
    in_step = policy.sync is Sync.STAYS_IN_STEP
    synced = row.synced
    if policy.sync is Sync.IS_NOT_SAID and state != TRAINING:
        synced = row.since
    if in_step and (is_on_its_own(row) or row.action is Action.TRAIN):
        synced = None
    if state == LEFT_OUT:
        out = row.since or entered
        yield COMPUTING, entered, out, number
        yield OUT, out, until, number
        return
    evaluating = row.evaluating if state in (EVALUATING, SILENT, ENDED, LOST) and row.evaluating is not None else until
    if synced is None:
        yield COMPUTING, entered, evaluating, number
    else:
        yield COMPUTING, entered, synced, number
        freed = evaluating
        if in_step and state == TRAINING and view.freed is not None:
            # Its next step has begun: the last one to end the step before is known, and its own push and pull.
            freed = min(max(synced, view.freed + row.transmission_time), evaluating)
        yield EXCHANGE, synced, freed, number
        yield COMPUTING, freed, evaluating, number
    yield EVALUATION, evaluating, until, number
    if state == SILENT:
        yield NOTHING, heard, now, number
