"""A worker's row in the state table, and what is in it: actions, activities, a device. All times are seconds on the
server's monotonic clock, given by the caller. The policies need this file and no messages."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from server.errors import BadMessage

if TYPE_CHECKING:
    from server.messages import Total

STEP_TIME_WINDOW = 5  # step times that the smoothed one is taken from
HISTORY_ROUNDS = 20  # past rounds kept of each worker, for the status page

# Decisions wait for the slowest worker: the others train until it has done its step. So that a dead one does not keep
# them training for ever, decisions ignore a worker after a silence of SILENCE_STEPS times its own reach-server time,
# SILENCE_S seconds at least.
SILENCE_S = 30.0
SILENCE_STEPS = 10
EVALUATION_S = 300.0  # likewise, for a worker that evaluates


def check_text(field: str, text: str | None, longest: int = 255) -> None:
    """Raises BadMessage unless the text is printable and short enough."""
    if text and (len(text) > longest or not text.isprintable()):
        raise BadMessage.of_field(field, text, f"at most {longest} printable characters")


class Action(str, enum.Enum):
    """A worker's next action: another local step, or the aggregation."""

    TRAIN = "TRAIN"
    SYNC = "SYNC"


class Activity(str, enum.Enum):
    """A worker's activity by its own report: it computes local steps, exchanges the results or waits for others,
    evaluates the model, or has left the job in order."""

    TRAINING = "training"
    WAITING = "waiting"
    EVALUATING = "evaluating"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Decision:
    """A worker's next action, and the reason in words."""

    action: Action
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """Where a worker runs, for the status page."""

    host: str = ""
    device: str = ""

    def __post_init__(self) -> None:
        check_text("host", self.host)
        check_text("device", self.device)


_NOWHERE = Device()


class PastRound(NamedTuple):
    """A worker's past round."""

    round: int  # its number
    entered: float  # when the worker reported that it had pulled
    synced: float | None  # when it was told to aggregate; None where that was not seen
    samples: int  # samples that it has trained on since the job began, at the end of this round
    computing: float = 0.0  # seconds that it has computed since then
    evaluating: float | None = None  # when it began to evaluate in this round; None where it did not
    asked: float | None = None  # when it last told of a step, or entered
    action: Action | None = None  # the last answer in this round
    way: str = ""  # the job's mode, as the worker told


class Row(NamedTuple):
    """One worker. Each message makes a few rows, and a tuple is made four times as fast as a frozen dataclass."""

    rank: int  # k
    round: int = 1  # r_k; a new job begins in round 1
    local_iteration: int = 0  # i_k, local steps done in this round
    # C_k of its last local steps, the newest last; empty while no step time is known
    step_times: tuple[float, ...] = ()
    transmission_time: float = 0.0  # m_k, seconds to push one model update, in Sync-Switch also to pull the model
    # T_k, when the last REPORT or QUERY of this round that brought news arrived; None before the first one
    since: float | None = None
    action: Action | None = None  # the last answer in this round; None before the first one
    last_action: Action | None = None  # the last answer in any round
    reason: str = ""  # of it, in words
    heard: float | None = None  # time of the last message, repeated ones included; None before the first
    # False while decisions ignore the worker: it was silent for too long, or has sent no message since this server took
    # over its running job
    counted: bool = True
    entered: float | None = None  # when it entered this round
    synced: float | None = None  # when it was told to aggregate in this round
    device: Device = _NOWHERE  # where it runs
    samples: int = 0  # samples that it has trained on since the job began
    steps: int = 0  # local steps that it has done since the job began
    past: tuple[PastRound, ...] = ()  # its last rounds, the newest last
    doing: Activity = Activity.TRAINING  # its activity by its own report
    evaluating: float | None = None  # when it reported an evaluation in this round
    way: str = ""  # the job's mode by its own report, where that changes
    computing: float = 0.0  # seconds that it has computed since the job began
    sample_times: tuple[float, ...] = ()  # the same divided by the samples of each step, where these are known

    @property
    def computation_time(self) -> float | None:
        """Seconds of the last local step; None while not known."""
        return self.step_times[-1] if self.step_times else None

    @property
    def step_time(self) -> float | None:
        """Smoothed c_k in seconds; None while not known.

        The lower median of the last steps: one outlier, such as the slow first step of a device, has no effect, and a
        lasting change has after three steps.
        """
        return _median_low(self.step_times)

    @property
    def sample_time(self) -> float | None:
        """Smoothed seconds of one sample, likewise."""
        return _median_low(self.sample_times)

    @property
    def reach_server_time(self) -> float:
        """d_k = c_k + m_k, seconds to compute one local step and push one update; infinite while c_k is not known."""
        return math.inf if self.step_time is None else self.step_time + self.transmission_time

    @property
    def silence_limit(self) -> float:
        """Seconds of silence after which the policies ignore this worker."""
        if self.doing is Activity.EVALUATING:
            return EVALUATION_S
        return SILENCE_S if self.step_time is None else max(SILENCE_S, SILENCE_STEPS * self.reach_server_time)

    def entering(self, round: int, now: float, computed: float = 0.0) -> Row:
        """The row at the start of `round`, in which the worker has computed for `computed` seconds already."""
        past = self.past
        if self.entered is not None:
            done = (self.round, self.entered, self.synced, self.samples, self.computing)
            past = (*past, PastRound(*done, self.evaluating, self.since, self.action, self.way))[-HISTORY_ROUNDS:]
            computed = min(computed, now - (self.synced or self.entered))
        new = self._replace(round=round, local_iteration=0, since=now, entered=now - computed, past=past)
        return new._replace(synced=None, evaluating=None, action=None)

    def stepping(self, local_iteration: int, computation_time: float | None, batch: int, now: float) -> Row:
        """The row after `local_iteration` local steps of `batch` samples in this round."""
        steps = local_iteration - self.local_iteration
        row = self if computation_time is None else self.timed(computation_time, batch)
        return row._replace(
            local_iteration=local_iteration,
            since=now,
            steps=self.steps + steps,
            samples=self.samples + steps * batch,
            computing=self.computing + steps * (computation_time or 0.0),
        )

    def timed(self, computation_time: float, batch: int = 0) -> Row:
        """The row with the time of one more local step of any round, of `batch` samples (0: not known)."""
        step_times, sample_times = (*self.step_times, computation_time)[-STEP_TIME_WINDOW:], self.sample_times
        if batch and computation_time:
            sample_times = (*sample_times, computation_time / batch)[-STEP_TIME_WINDOW:]
        return self._replace(step_times=step_times, sample_times=sample_times)

    def in_total(self, total: Total | None, before: Row) -> Row:
        """The row with the worker's own totals, where it tells them, in place of those from its messages, some of which
        may be overtaken, or name a longer step time. `before` is the row before the message."""
        if total is None:
            return self
        return self._replace(
            steps=max(before.steps, total.steps),
            samples=max(before.samples, total.samples),
            computing=max(before.computing, total.computing),
        )

    def answered(self, decision: Decision, now: float) -> Row:
        action = decision.action
        synced = now if action is Action.SYNC and self.synced is None else self.synced
        return self._replace(action=action, last_action=action, reason=decision.reason, synced=synced)

    def told(self, decision: Decision, now: float) -> Row:
        """The row after a decision made elsewhere; before the first step of a round, at the end of the one before."""
        if self.local_iteration:
            return self.answered(decision, now)
        return self._replace(last_action=decision.action, reason=decision.reason)


def _median_low(times: tuple[float, ...]) -> float | None:
    return sorted(times)[(len(times) - 1) // 2] if times else None  # statistics.median_low takes twice as long
