"""Progress of a job towards its limits. Pure."""

from typing import Any

from server.job_rates import rounds_per_s
from server.jobs import Job
from server.row import SILENCE_S

AT_WORK, QUIET, ENDED = "at work", "quiet", "ended"


def job_state(job: Job, now: float) -> str:
    """At work; quiet: no recent message, and not all workers have left; or ended."""
    if job.ended is not None:
        return ENDED
    is_new = job.heard is None and now - job.table.started <= SILENCE_S
    return AT_WORK if is_new or job.is_at_work(now) else QUIET


def elapsed(job: Job, now: float) -> float:
    """Seconds from the job's beginning to its end, or to its last message where it is quiet."""
    until = now if job.heard is None or job_state(job, now) == AT_WORK else job.heard
    return max((until if job.ended is None else min(until, job.ended)) - job.began, 0.0)


def ending(job: Job, now: float) -> dict[str, Any]:
    """The limits, as JSON: `rounds`, [done, of]; `seconds`, [done, of]; `accuracy`, or `target` of another metric; each
    None where there is no such limit. `share` is the progress to the nearest limit, 0 to 1; `left_s` the seconds to it
    by the recent rate of rounds, None where it is not known. The time to the target is never estimated."""
    limits, state, seconds = job.settings.limits, job_state(job, now), elapsed(job, now)
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
