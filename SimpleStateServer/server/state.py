"""The state table: one immutable row a worker, and an index that finds the straggler without looking at every row.

Only the router changes a table, one message at a time. Rows are immutable: a reader is handed a tuple of them
and may take as long as it likes. All times are seconds on the server's monotonic clock, given by the caller.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from server.messages import Action, Device, Doing, Total

STEP_TIME_WINDOW = 5  # step times that the smoothed one is taken from
HISTORY_ROUNDS = 20  # past rounds kept of each worker, for the status page

# The decisions wait for the slowest worker: the others go on training until it has done its step. A dead one would keep
# them training for ever, so no decision counts on a worker that was not heard for SILENCE_STEPS times its own
# reach-server time, and for at least SILENCE_S seconds.
SILENCE_S = 30.0
SILENCE_STEPS = 10

_NOWHERE = Device()


@dataclass(frozen=True, slots=True)
class PastRound:
    """What a worker did in a round that is over.

    Attributes:
        round: its number.
        entered: when the worker reported that it had pulled.
        synced: when it was told to aggregate; None where that was not seen.
        local_iterations: local steps in this round.
        samples: samples that it has trained on since the job began, at the end of this round.
        computing: seconds that it has computed since then.
        evaluating: when it began to evaluate in this round; None where it did not.
    """

    round: int
    entered: float
    synced: float | None
    local_iterations: int
    samples: int
    computing: float = 0.0
    evaluating: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one worker.

    Attributes:
        rank: k.
        round: r_k; a new job begins in round 1.
        local_iteration: i_k, local steps done in this round.
        step_times: c_k of its last local steps, the newest last; empty while no step time is known.
        transmission_time: m_k, seconds to push one model update, in Sync-Switch also to pull the model.
        since: t_k, when the last REPORT or QUERY of this round that brought news arrived; None before the first one.
        action: the last answer in this round; None before the first one.
        last_action: the last answer in any round.
        reason: why it was given, in words.
        heard: when anything was last heard, repeated messages included; None before the first.
        counted: False while no decision counts on the worker: it has been silent for too long, or was not heard yet
            since this server took over a job that was running.
        entered: when it entered this round.
        synced: when it was told to aggregate in this round.
        device: where it runs.
        samples: samples that it has trained on since the job began.
        steps: local steps that it has done since the job began.
        past: its last rounds, the newest last.
        doing: what it says that it does.
        evaluating: when it said that it evaluates, in this round.
        way: how the job goes on, by its word, where that changes.
        computing: seconds that it has computed since the job began.
    """

    rank: int
    round: int = 1
    local_iteration: int = 0
    step_times: tuple[float, ...] = ()
    transmission_time: float = 0.0
    since: float | None = None
    action: Action | None = None
    last_action: Action | None = None
    reason: str = ""
    heard: float | None = None
    counted: bool = True
    entered: float | None = None
    synced: float | None = None
    device: Device = _NOWHERE
    samples: int = 0
    steps: int = 0
    past: tuple[PastRound, ...] = ()
    doing: Doing = Doing.TRAINING
    evaluating: float | None = None
    way: str = ""
    computing: float = 0.0

    @property
    def computation_time(self) -> float | None:
        """Seconds of the last local step; None while not known."""
        return self.step_times[-1] if self.step_times else None

    @property
    def step_time(self) -> float | None:
        """Smoothed c_k in seconds; None while not known.

        The lower median of the last steps: one outlier, such as the slow first step of a device, does not show, and a
        lasting change shows after three steps.
        """
        return statistics.median_low(self.step_times) if self.step_times else None

    @property
    def reach_server_time(self) -> float:
        """d_k = c_k + m_k, seconds to compute one local step and push one update; infinite while c_k is not known."""
        return math.inf if self.step_time is None else self.step_time + self.transmission_time

    @property
    def silence_limit(self) -> float:
        """Seconds of silence after which no decision counts on this worker."""
        return SILENCE_S if self.step_time is None else max(SILENCE_S, SILENCE_STEPS * self.reach_server_time)

    def entering(self, round: int, now: float, computed: float = 0.0) -> Row:
        """This worker at the start of `round`, in which it has computed for so long already."""
        past = self.past
        if self.entered is not None:
            over = PastRound(
                self.round,
                self.entered,
                self.synced,
                self.local_iteration,
                self.samples,
                self.computing,
                self.evaluating,
            )
            past = (*past, over)[-HISTORY_ROUNDS:]
            computed = min(computed, now - (self.synced or self.entered))
        return dataclasses.replace(
            self,
            round=round,
            local_iteration=0,
            since=now,
            entered=now - computed,
            synced=None,
            evaluating=None,
            action=None,
            past=past,
        )

    def stepping(self, local_iteration: int, computation_time: float | None, batch: int, now: float) -> Row:
        """This worker after it has told that it has done `local_iteration` local steps of `batch` samples."""
        step_times = self.step_times
        if computation_time is not None:
            step_times = (*step_times, computation_time)[-STEP_TIME_WINDOW:]
        steps = local_iteration - self.local_iteration
        return dataclasses.replace(
            self,
            local_iteration=local_iteration,
            step_times=step_times,
            since=now,
            steps=self.steps + steps,
            samples=self.samples + steps * batch,
            computing=self.computing + steps * (computation_time or 0.0),
        )

    def timed(self, computation_time: float) -> Row:
        """This worker with the time of one more local step, whatever round that was in."""
        return dataclasses.replace(self, step_times=(*self.step_times, computation_time)[-STEP_TIME_WINDOW:])

    def in_total(self, total: Total) -> Row:
        """This worker with what it has done by its own count. A message that was overtaken takes nothing back."""
        return dataclasses.replace(
            self,
            steps=max(self.steps, total.steps),
            samples=max(self.samples, total.samples),
            computing=max(self.computing, total.computing),
        )

    def answered(self, action: Action, reason: str, now: float) -> Row:
        """This worker after it was told what to do."""
        synced = now if action is Action.SYNC and self.synced is None else self.synced
        return dataclasses.replace(self, action=action, last_action=action, reason=reason, synced=synced)


class Slowest:
    """A tournament over the workers' delays: its top is the slowest one, the lowest rank among equals.

    A change costs one comparison for each level of the tree, so O(log N); the top costs nothing.
    """

    def __init__(self, delays: list[float]) -> None:
        self._size = len(delays)
        leaves = [(delay, -rank) for rank, delay in enumerate(delays)]
        # Node i plays its children 2i and 2i+1 against each other; the leaves are the last `size` nodes.
        self._nodes = [*leaves, *leaves]
        for node in range(self._size - 1, 0, -1):
            self._play(node)

    def _play(self, node: int) -> None:
        self._nodes[node] = max(self._nodes[2 * node], self._nodes[2 * node + 1])

    def change(self, rank: int, delay: float) -> None:
        """From now on the worker with this rank has this delay."""
        node = self._size + rank
        if self._nodes[node][0] == delay:
            return
        self._nodes[node] = (delay, -rank)
        while (node := node // 2) > 0:
            self._play(node)

    @property
    def rank(self) -> int:
        """The slowest worker's."""
        return -self._nodes[1][1]


_NOT_COUNTED = -1.0  # below every delay, so that such a worker is never the slowest while another one is counted


class Table:
    """The rows of one job.

    Args:
        num_workers: N; the ranks are 0 .. N-1.
        delay: seconds by which the job's policy calls a worker slow.
        epsilon: the preprint's tolerance in seconds.
        started: when the job began.
        counted: whether decisions count on workers that were not heard yet. In a new job they do: everybody is in the
            first round. In a job that was taken over they must not: a worker may be waiting in the aggregation already.
    """

    def __init__(
        self,
        num_workers: int,
        delay: Callable[[Row], float],
        epsilon: float = 0.0,
        started: float = 0.0,
        counted: bool = True,
    ) -> None:
        self.epsilon = epsilon
        self.started = started
        self.round = 1  # the latest that any worker has entered
        self.num_ended = 0  # workers that have left in order
        self.rows = [Row(rank, counted=counted) for rank in range(num_workers)]
        self._delay = delay
        self._slowest = Slowest([self._counted_delay(row) for row in self.rows])

    def put(self, row: Row) -> None:
        """Replaces the row of its worker."""
        self.num_ended += (row.doing is Doing.ENDED) - (self.rows[row.rank].doing is Doing.ENDED)
        self.rows[row.rank] = row
        self.round = max(self.round, row.round)
        self._slowest.change(row.rank, self._counted_delay(row))

    def _counted_delay(self, row: Row) -> float:
        return self._delay(row) if row.counted else _NOT_COUNTED

    @property
    def slowest(self) -> Row:
        """The straggler: the counted worker with the largest delay, the lowest rank among equals."""
        return self.rows[self._slowest.rank]

    def silence(self, row: Row, now: float) -> float:
        """Seconds since the worker was last heard, or since the job began where it never was."""
        return now - (self.started if row.heard is None else row.heard)

    def stop_counting_on_the_silent(self, now: float) -> list[Row]:
        """Takes stragglers that fell silent out of the decisions until they are heard again; returns their rows.

        Only the slowest worker is ever waited for, so only it is looked at: each silent worker costs O(log N) once.
        """
        silent = []
        while (row := self.slowest).counted and self.silence(row, now) > row.silence_limit:
            silent.append(row)
            self.put(dataclasses.replace(row, counted=False))
        return silent
