"""A job at one moment, as the page (status.py) and Prometheus (metrics.py) see it: the state of each worker, and the
workers that it waits for, inferred from the messages. Pure.

A worker reports its steps and the rounds that it enters; its state in between follows from the last answer, and from
the meaning of that under its policy (`policy.sync`).
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import NamedTuple

from server.jobs import AT_WORK, Job
from server.policies import Sync
from server.row import EVALUATION_S, HISTORY_ROUNDS, SILENCE_S, Action, Activity, PastRound, Row

TRAINING = "training"  # computes local steps
EVALUATING = "evaluating"  # by its own report
WAITING = "waiting"  # for others
EXCHANGING = "pushing and pulling"
LEFT_OUT = "left out"  # the others train without it
SILENT = "silent"  # a message is overdue
ABSENT = "not seen yet"
ENDED = "ended"
LOST = "lost"  # the job has ended, and this worker had not left it
ALL = (TRAINING, EVALUATING, WAITING, EXCHANGING, LEFT_OUT, SILENT, ABSENT, ENDED, LOST)
NOT_AT_WORK = (SILENT, ABSENT, ENDED, LOST)

# Seconds, and reach-server times, after which a worker counts as silent. Sooner than the decisions: a wrong guess costs
# nothing here. A published worker does not report evaluations, so it has more time to exchange.
_QUIET_S = {TRAINING: 5.0, EXCHANGING: SILENCE_S, EVALUATING: EVALUATION_S, WAITING: EVALUATION_S}
PAGE_SILENCE_STEPS = 5

ASP = "ASP"
NAMED = 3  # workers named where one waits for several


class Awaited(NamedTuple):
    """The workers that one waits for: the ranks of the most important ones, and their number. The first one evaluates,
    or is silent, or is the slowest."""

    ranks: tuple[int, ...] = ()
    number: int = 0


class WorkerStates(NamedTuple):
    """The states of a job's workers."""

    states: list[str]  # by rank
    find_awaited: Callable[[Row], Awaited] = lambda row: Awaited()  # for whom a worker waits, of those that do
    freed: float | None = None  # under BSP, when the training workers began their running step, by the messages


def _states_of(job: Job, now: float) -> WorkerStates:
    """The state of each worker. O(N)."""
    if job.ended is not None:
        left = [not job.is_cut_off or row.doing is Activity.ENDED for row in job.rows]
        return WorkerStates([ENDED if each else LOST for each in left])
    return _BY_SYNC[job.policy.sync](job, now)


def _unless_silent(state: str, row: Row, now: float, since: float = 0.0) -> str:
    """The state of a worker that is to send a message: silent where it was quiet for too long, since its last one or
    `since` then."""
    quiet_s, least_s = now - max(row.heard or 0.0, since), _QUIET_S[state]
    if quiet_s <= least_s:  # nearly always, and the step time costs more than this
        return state
    patience_s = PAGE_SILENCE_STEPS * row.reach_server_time if row.step_times else max(SILENCE_S, least_s)
    return SILENT if quiet_s > patience_s else state


def _without_sync(job: Job, row: Row, now: float) -> str | None:
    """The state where it does not depend on the policy."""
    if row.doing is Activity.ENDED:
        return ENDED
    if row.heard is None:
        return SILENT if job.silence(row, now) > SILENCE_S else ABSENT
    if row.doing is Activity.EVALUATING:
        return _unless_silent(EVALUATING, row, now)
    return None


# ------------------------------------------------------------------------------- ESync: SYNC is to aggregate


def _aggregating(job: Job, now: float) -> WorkerStates:
    """A worker that was told to aggregate waits for all that were not, in this round or one before.

    A worker's level is twice its round, and one more once it was told.
    """
    states: list[str] = []
    levels: dict[int, list[Row]] = {}
    told: list[Row] = []
    for row in job.rows:
        state = _without_sync(job, row, now)
        synced = row.action is Action.SYNC
        if state is None:
            if synced:
                told.append(row)
                state = EXCHANGING
            else:
                state = _unless_silent(TRAINING, row, now)
        states.append(state)
        # A worker without a message since the server's restart may be waiting itself.
        if state is not ENDED and not (row.heard is None and job.settings.resumed):
            levels.setdefault(2 * row.round + synced, []).append(row)
    lowest = min(levels, default=0)
    last_told = max((row.synced or 0.0 for row in told), default=0.0)
    for row in told:
        if lowest < 2 * row.round + 1:
            states[row.rank] = WAITING
        else:
            states[row.rank] = _unless_silent(EXCHANGING, row, now, last_told)
    below = _first_below(levels, states)
    return WorkerStates(states, lambda row: below(2 * row.round + 1))


def _first_below(levels: dict[int, list[Row]], states: list[str]) -> Callable[[int], Awaited]:
    """Finds the workers behind a level. All levels are scanned once, at the first call."""
    found: list[tuple[int, Awaited]] = []

    def below(level: int) -> Awaited:
        if not found:
            first: list[Row] = []
            count = 0
            for each in sorted(levels):
                first = _first_of((*first, *levels[each]), states)
                count += len(levels[each])
                found.append((each, Awaited(tuple(row.rank for row in first), count)))
        place = bisect_left(found, level, key=lambda pair: pair[0])
        return found[place - 1][1] if place else Awaited()

    return below


def _first_of(rows: Iterable[Row], states: list[str]) -> list[Row]:
    """The workers to be named: evaluating, silent, slow ones, in this order."""

    def order(row: Row) -> tuple[bool, bool, float, int]:
        state = states[row.rank]
        return state != EVALUATING, state != SILENT, -(row.computation_time or 0.0), row.rank

    return heapq.nsmallest(NAMED, rows, key=order)


# --------------------------------------------------------------------------- WBSP: SYNC is to publish a release


def _releasing(job: Job, now: float) -> WorkerStates:
    """No worker waits. One that was told to release pushes and pulls until it reports the next round."""
    told = ((row, EXCHANGING if row.action is Action.SYNC else TRAINING) for row in job.rows)
    return WorkerStates([_without_sync(job, row, now) or _unless_silent(state, row, now) for row, state in told])


# -------------------------------------------------------------------- Sync-Switch: SYNC is to stay in step (BSP)


def is_on_its_own(row: Row | PastRound) -> bool:
    """Whether the worker reports ASP."""
    return row.way == ASP


def _in_step(job: Job, now: float) -> WorkerStates:
    """A worker asks at the end of each step. Under BSP it waits for the workers that have asked nothing since it began
    its last step: they have not ended theirs."""
    states: list[str] = []
    members: list[Row] = []  # workers that step together
    for row in job.rows:
        state = _without_sync(job, row, now)
        if state in (None, EVALUATING) and not is_on_its_own(row):
            if row.action is not Action.TRAIN and row.counted:
                members.append(row)
            elif row.action is Action.TRAIN and job.policy.leaves_out:
                state = LEFT_OUT
        states.append(state or TRAINING)
    oldest = min((row.since or 0.0 for row in members), default=0.0)
    for row in members:
        if row.action is Action.SYNC and oldest < _begin_of_step(row) and states[row.rank] == TRAINING:
            states[row.rank] = WAITING
    training = [row for row in members if states[row.rank] == TRAINING]
    # The last of them to end the step before released the others.
    freed = max((row.since or 0.0 for row in training), default=None)
    for row in job.rows:
        if states[row.rank] == TRAINING:
            since = freed or 0.0 if row.action is Action.SYNC else 0.0
            states[row.rank] = _unless_silent(TRAINING, row, now, since=since)

    return WorkerStates(states, _not_asked_since(members, states), freed)


def _not_asked_since(members: list[Row], states: list[str]) -> Callable[[Row], Awaited]:
    """Finds the workers that have not ended their step while one waits. They are sorted once, at the first call."""
    by_question: list[Row] = []
    evaluating: list[Row] = []

    def awaited(row: Row) -> Awaited:
        if not by_question:
            by_question.extend(sorted(members, key=lambda member: member.since or 0.0))
            evaluating.extend(member for member in by_question if states[member.rank] == EVALUATING)
        begin = _begin_of_step(row)
        count = bisect_left(by_question, begin, key=lambda member: member.since or 0.0)
        known = [member for member in evaluating if (member.since or 0.0) < begin]
        first = [*known, *(member for member in by_question[: min(count, NAMED)] if member not in known)][:NAMED]
        return Awaited(tuple(member.rank for member in first), count)

    return awaited


def _begin_of_step(row: Row) -> float:
    return (row.since or 0.0) - (row.computation_time or 0.0)


# --------------------------------------------------------------------------------- no rule: the workers tell it


def _as_told(job: Job, now: float) -> WorkerStates:
    """A worker that waits does so for all that do not; where there are none, all exchange."""
    told = ((row, WAITING if row.doing is Activity.WAITING else TRAINING) for row in job.rows)
    states = [_without_sync(job, row, now) or _unless_silent(state, row, now) for row, state in told]
    busy = [row for row in job.rows if states[row.rank] not in (WAITING, ENDED)]
    if not busy:
        return WorkerStates([EXCHANGING if state == WAITING else state for state in states])
    awaited = Awaited(tuple(row.rank for row in _first_of(busy, states)), len(busy))
    return WorkerStates(states, lambda row: awaited)


_BY_SYNC: dict[Sync, Callable[[Job, float], WorkerStates]] = {
    Sync.AGGREGATES: _aggregating,
    Sync.RELEASES: _releasing,
    Sync.STAYS_IN_STEP: _in_step,
    Sync.IS_NOT_SAID: _as_told,
}


class View:
    """What follows from a job's rows, computed once.

    The workers' work is in columns, by rank: an object for each of 100,000 workers would set off the garbage collector,
    which then goes through the whole state table.
    """

    def __init__(self, job: Job, now: float) -> None:
        self.job, self.now, self.rows = job, now, job.rows
        self.state = job.state(now)
        self.states, self._find_awaited, self.freed = _states_of(job, now)
        slowest = job.table.slowest.rank
        self.marks = job.policy.marks(job.rows, slowest) if self.state == AT_WORK else {}  # by rank, of the marked
        self._samples: list[int] = []  # trained on
        self._computing: list[float] = []  # seconds of local steps
        self._seconds: list[float] = []  # of that work, waiting included
        for row, state in zip(job.rows, self.states, strict=True):
            self._add_work(row, state)

    def _add_work(self, row: Row, state: str) -> None:
        """A running step and its time do not count: they are reported at its end."""
        told = self.job.policy.sync is Sync.IS_NOT_SAID  # what was done is known up to each row's `since`
        past, samples, computing, begin = row.past, 0, 0.0, row.entered
        if len(past) == HISTORY_ROUNDS or self.job.settings.resumed:
            # The work before the first recorded round is known from its end on.
            if past:
                samples, computing = past[0].samples, past[0].computing
                begin = past[0].asked if told else past[1].entered if len(past) > 1 else begin
            else:
                samples, computing, begin = row.samples, row.computing, None
        elif past:
            begin = past[0].entered
        end: float | None = self.now
        if state == TRAINING or told:
            end = row.since
        elif state in NOT_AT_WORK:
            end = row.heard
        self._samples.append(row.samples - samples)
        self._computing.append(row.computing - computing)
        self._seconds.append(0.0 if begin is None or end is None else max(end - begin, 0.0))

    def awaited(self, row: Row) -> Awaited:
        """The workers that one waits for."""
        return self._find_awaited(row) if self.states[row.rank] == WAITING else Awaited()

    def whom(self, row: Row) -> str:
        """The same in words; empty where it waits for none."""
        ranks, number = self.awaited(row)
        if not number:
            return ""
        more = number - 1
        why = {EVALUATING: "evaluates", SILENT: "is silent", ABSENT: "was not seen yet"}.get(self.states[ranks[0]])
        if why is not None:
            return f"worker {ranks[0]}, which {why}" + (f", and {more} more" if more else "")
        if not more:
            return f"worker {ranks[0]}"
        names = [str(rank) for rank in ranks]
        last = f"{number - len(ranks)} more" if number > len(ranks) else names.pop()
        return f"workers {', '.join(names)} and {last}"

    def samples_per_s(self, rank: int) -> float:
        seconds = self._seconds[rank]
        return self._samples[rank] / seconds if seconds > 0 else 0.0

    @property
    def samples_per_s_of_all(self) -> float:
        """Of all running workers; of a job that is not running, the mean over its time."""
        if self.state == AT_WORK:
            return sum([self.samples_per_s(rank) for rank, name in enumerate(self.states) if name not in NOT_AT_WORK])
        first, last = (marks := self.job.table.rates.marks)[0], marks[-1]
        return last.samples / (last.time - first.time) if last.time > first.time else 0.0

    def computing_share(self, rank: int) -> float | None:
        """Share of the worker's time spent computing; None where it is not known."""
        return _share(self._computing[rank], self._seconds[rank])

    @property
    def computing_share_of_all(self) -> float | None:
        """The same over all workers' time."""
        known = [seconds for seconds, computing in zip(self._seconds, self._computing, strict=True) if computing > 0]
        return _share(sum(self._computing), sum(known))

    def transmission_time(self, row: Row) -> float | None:
        """Seconds; None where none was measured."""
        is_known = row.step_times and self.job.policy.sync is not Sync.IS_NOT_SAID
        return row.transmission_time if is_known else None


def _share(computing: float, seconds: float) -> float | None:
    return round(min(computing / seconds, 1.0), 3) if seconds > 0 and computing > 0 else None
