"""A simulated worker and the parameter server. What a worker waits for comes as a call."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from server.messages import Query, Report, Response

from simulation.clock import VirtualClock
from simulation.cluster import Way, WorkerModel, WorkerRound

# Sends a message to the state server over a network of this round trip (s); the answer comes as a call.
Send = Callable[[Report | Query, float, Callable[[Response], None]], None]


class Aggregation:
    """The parameter server of a synchronous job: when all updates have arrived, every worker pulls.

    Attributes:
        releases: models that were released, where an algorithm does that instead.
    """

    def __init__(self, clock: VirtualClock, num_workers: int) -> None:
        self._clock = clock
        self._num_workers = num_workers
        self._arrived: list[Worker] = []
        self.releases = 0

    def arrive(self, worker: Worker) -> None:
        """The worker's update is here."""
        self._arrived.append(worker)
        if len(self._arrived) == self._num_workers:
            complete, self._arrived = self._arrived, []
            for each in complete:
                each.pull(last_arrived=self._clock.now)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the workers of a cluster share.

    Attributes:
        clock: virtual time.
        aggregation: the parameter server.
        send: reaches the state server.
        way: how they ask and train.
        rounds: how many to do.
        seed: of the noise.
    """

    clock: VirtualClock
    aggregation: Aggregation
    send: Send
    way: Way
    rounds: int
    seed: int


class Worker:
    """What all workers share, and all that one of SSGD does: one step, push, wait, pull."""

    def __init__(self, rank: int, model: WorkerModel, around: Surroundings) -> None:
        self.rank = rank
        self.model = model
        self.around = around
        self.history: list[WorkerRound] = []
        self.round = 0
        self.steps = 0  # local steps in this round
        self.step_s = model.step_s if around.way.test_step else 0.0  # of the last step; 0: none was done
        self.transmission_s = model.round_trip_s / 2  # journal: half a round trip, until a push was measured
        self._clock = around.clock
        # Its own, so that what other workers do changes nothing about this one's noise.
        self._random = random.Random(f"{around.seed}-{rank}") if model.noise else None
        self._step_began: float | None = None  # None: no step is running
        self._step_takes_s = 0.0
        self._steps_ended = 0  # completed or not; a step whose number is lower was given up
        self._began = self._arrived = self._computed_s = self._abandoned_s = 0.0

    # ---------------------------------------------------------------------------------------- what ESync changes

    def begin_round(self) -> None:
        """The worker has the model."""
        self.begin_step()

    def step_done(self) -> None:
        """A local step is complete."""
        self.push()

    # ------------------------------------------------------------------------------------------------- the round

    def enter(self) -> None:
        """Enters the next round, if there is one."""
        if self.round == self.around.rounds:
            return
        self.round += 1
        self.steps, self._computed_s, self._abandoned_s = 0, 0.0, 0.0
        self._began = self._clock.now
        self.begin_round()

    def begin_step(self) -> None:
        """Begins a local step."""
        number, pace = self._steps_ended, self.model.pace(self.round, self.steps + 1)
        self._step_began, self._step_takes_s = self._clock.now, self._noisy(self.model.step_s * pace)
        self.later(self._step_takes_s, lambda: self._complete_step(number))

    def push(self) -> None:
        """Sends the update of the steps that are complete; gives up the running one, if there is one."""
        if self._step_began is not None:
            self._abandoned_s += self._clock.now - self._step_began
            self._end_step()
        self.transmission_s = self._noisy(self.model.transmission_s)
        self.later(self.transmission_s, self._arrive)

    def pull(self, last_arrived: float) -> None:
        """The aggregation is complete."""
        self.later(self._noisy(self.model.transmission_s), lambda: self._leave(last_arrived))

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Does something later, unless the worker is silent by then."""
        self._clock.after(seconds, lambda: None if self.is_silent else action())

    @property
    def is_silent(self) -> bool:
        """Whether it does nothing any more."""
        return self._clock.now >= self.model.falls_silent_s

    def _complete_step(self, number: int) -> None:
        if number != self._steps_ended:
            return  # it was given up
        self._end_step()
        self.steps += 1
        self.step_s = self._step_takes_s
        self._computed_s += self._step_takes_s
        self.step_done()

    def _end_step(self) -> None:
        self._step_began = None
        self._steps_ended += 1

    def _arrive(self) -> None:
        self._arrived = self._clock.now
        self.around.aggregation.arrive(self)

    def _leave(self, last_arrived: float) -> None:
        self.history.append(
            WorkerRound(
                self.round,
                self._began,
                self.steps,
                self._computed_s,
                self._abandoned_s,
                self._arrived,
                last_arrived,
                ended=self._clock.now,
            )
        )
        self.enter()

    def _noisy(self, seconds: float) -> float:
        return seconds if self._random is None else seconds * self._random.lognormvariate(0.0, self.model.noise)
