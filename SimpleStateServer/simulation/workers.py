"""How a worker proceeds through its rounds, with each algorithm. What a worker waits for comes as a call."""

from __future__ import annotations

import random
from collections.abc import Callable

from server.messages import Action, Query, Report, Response, Status
from simulation.clock import VirtualClock
from simulation.cluster import Algorithm, Way, WorkerModel, WorkerRound

JOB = "simulation"

# Sends a message to the state server; the answer comes after the round trip.
Send = Callable[[Report | Query, float, Callable[[Response], None]], None]


class Aggregation:
    """The parameter server of a synchronous job: when all updates have arrived, every worker pulls."""

    def __init__(self, clock: VirtualClock, num_workers: int) -> None:
        self._clock = clock
        self._num_workers = num_workers
        self._arrived: list[Worker] = []

    def arrive(self, worker: Worker) -> None:
        """The worker's update is here."""
        self._arrived.append(worker)
        if len(self._arrived) == self._num_workers:
            complete, self._arrived = self._arrived, []
            for each in complete:
                each.pull(last_arrived=self._clock.now)


class Worker:
    """A worker of SSGD: one step, push, wait, pull. ESync's workers differ in what follows a step.

    Args:
        rounds: how many to do.
        seed: of its noise, which no other worker's events can change.
    """

    def __init__(
        self, rank: int, model: WorkerModel, rounds: int, clock: VirtualClock, aggregation: Aggregation, seed: int
    ) -> None:
        self.rank = rank
        self.model = model
        self.history: list[WorkerRound] = []
        self.round = 0
        self.steps = 0
        self.step_s = 0.0  # of its last step
        self.transmission_s = model.round_trip_s / 2  # journal: half a round trip, until a push was measured
        self._clock = clock
        self._rounds = rounds
        self._aggregation = aggregation
        self._random = random.Random(f"{seed}-{rank}") if model.noise else None
        self._step_began: float | None = None  # None: no step is running
        self._step_number = 0  # of all steps ever begun: tells the end of the running one from that of one given up

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
        if self.round == self._rounds:
            return
        self.round += 1
        self.steps, self._computed_s, self._abandoned_s = 0, 0.0, 0.0
        self._began = self._clock.now
        self.begin_round()

    @property
    def step_elapsed_s(self) -> float | None:
        """Seconds since the running step began; None while none runs."""
        return None if self._step_began is None else self._clock.now - self._step_began

    def begin_step(self) -> None:
        """Begins a local step."""
        self._step_began = self._clock.now
        self._step_number += 1
        number = self._step_number
        seconds = self._noisy(self.model.step_s * self.model.pace(self.round, self.steps + 1))
        self._step_takes_s = seconds
        self.later(seconds, lambda: self._end_step(number, seconds))

    def give_up_step(self) -> None:
        """Drops the running step, if one runs."""
        if self._step_began is not None:
            self._abandoned_s += self._clock.now - self._step_began
            self._step_began = None
            self._step_number += 1

    def push(self) -> None:
        """Sends the update of the steps that are complete."""
        self.transmission_s = self._noisy(self.model.transmission_s)
        self.later(self.transmission_s, self._arrive)

    def pull(self, last_arrived: float) -> None:
        """The aggregation is complete."""
        self.later(self._noisy(self.model.transmission_s), lambda: self._end_round(last_arrived))

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Does something later, if the worker is not silent by then."""
        self._clock.after(seconds, lambda: self._alive() and action())

    def _alive(self) -> bool:
        return self._clock.now < self.model.falls_silent_s

    def _end_step(self, number: int, seconds: float) -> None:
        if number != self._step_number:
            return  # it was given up
        self._step_began = None
        self.steps += 1
        self.step_s = seconds
        self._computed_s += seconds
        self.step_done()

    def _arrive(self) -> None:
        self._arrived = self._clock.now
        self._aggregation.arrive(self)

    def _end_round(self, last_arrived: float) -> None:
        record = WorkerRound(
            self.round,
            self._began,
            self.steps,
            self._computed_s,
            self._abandoned_s,
            self._arrived,
            last_arrived,
            ended=self._clock.now,
        )
        self.history.append(record)
        self.enter()

    def _noisy(self, seconds: float) -> float:
        return seconds if self._random is None else seconds * self._random.lognormvariate(0.0, self.model.noise)


class BlockingWorker(Worker):
    """A worker of ESync that waits for the answer to each message.

    Args:
        send: reaches the state server.
        way: how it asks.
        common: as for Worker.
    """

    def __init__(self, *common: object, send: Send, way: Way) -> None:
        super().__init__(*common)  # type: ignore[arg-type]
        self.way = way
        self._send = send
        if way.test_step:
            self.step_s = self.model.step_s

    def begin_round(self) -> None:
        """Reports, and begins when that was heard."""
        self.tell(Report, lambda _: self.begin_step())

    def step_done(self) -> None:
        """Asks, and does what the answer says."""
        self.tell(Query, self._answered)

    def told_step_s(self) -> float:
        """c_k as this worker understands it (s); 0 while it knows none."""
        return self.step_s

    def tell(self, kind: type[Report] | type[Query], answered: Callable[[Response], None]) -> None:
        """Sends its status."""
        status = Status(self.rank, self.steps, self.round, self.told_step_s(), self.transmission_s)
        message = kind(f"worker-{self.rank}", JOB, status)
        self._send(message, self.model.round_trip_s, lambda response: answered(response) if self._alive() else None)

    def _answered(self, response: Response) -> None:
        if response.action is Action.SYNC:
            self.push()
        else:
            self.begin_step()


class NonBlockingWorker(BlockingWorker):
    """A worker of ESync that trains on after a question, until SYNC arrives: a delayed ACK (preprint, section 4.2).

    Then it gives up the running step at once and aggregates what is complete.
    """

    def begin_round(self) -> None:
        """Reports, and begins at once."""
        self._steps_before = self.steps
        self._syncing = False
        self.tell(Report, lambda _: None)
        self.begin_step()

    def step_done(self) -> None:
        """Asks, and trains on."""
        self._ask()
        self.begin_step()

    def told_step_s(self) -> float:
        """Here c_k is the time of a step plus a round trip: when the next answer can be here."""
        # The round trip itself is known before the first round, from the messages by which a worker joins the job.
        return self.step_s + self.model.round_trip_s if self.step_s else 0.0

    def _ask(self) -> None:
        round, steps = self.round, self.steps

        def answered(response: Response) -> None:
            if round != self.round or self._syncing:
                return  # late: an earlier answer has ended the round already
            if response.action is Action.SYNC:
                self._ready()
            elif steps == self.steps:
                self._told_to_train()

        self.tell(Query, answered)

    def _ready(self) -> None:
        self._sync()

    def _told_to_train(self) -> None:
        """It does so already."""

    def _sync(self) -> None:
        self._syncing = True
        self.give_up_step()
        self.push()


class BetweenPassesWorker(NonBlockingWorker):
    """The same, for an engine that runs a forward or backward pass to its end.

    So READY is acted upon only there. Where that costs more than to wait for the answer, a worker can wait
    (`Way.patience`) before it begins another step.
    """

    def enter(self) -> None:
        """As before; the steps of the round before say how long to wait."""
        self._steps_last_round = max(1, self.steps)
        self._ready_seen = False
        super().enter()

    def step_done(self) -> None:
        """Asks, waits a little where that is worthwhile, and trains on."""
        if self._ready_seen:
            self._sync()
            return
        self._ask()
        steps = max(self.steps, self._steps_last_round)
        patience_s = self.way.patience(self.step_s, self.model.round_trip_s, steps)
        if patience_s > 0:
            asked, round = self.steps, self.round
            self.later(patience_s, lambda: self._train_on(round, asked))
        else:
            self.begin_step()
