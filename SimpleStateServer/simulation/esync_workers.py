"""The workers that ask the state server: ESync's, by the way in which they ask, and two that time the other rules."""

from __future__ import annotations

from collections.abc import Callable

from server.messages import Action, Query, Report, Response, Status

from simulation.workers import Worker

JOB = "simulation"
SAMPLES = 64  # of a local step, the same for all workers


class BlockingWorker(Worker):
    """Waits for the answer to each message."""

    def begin_round(self) -> None:
        """Reports, and begins when that was answered."""
        self.tell(Report, lambda _: self.begin_step())

    def step_done(self) -> None:
        """Asks, and does what the answer says."""
        self.tell(Query, lambda response: self.push() if response.action is Action.SYNC else self.begin_step())

    def told_step_s(self) -> float:
        """c_k as this worker understands it, in seconds; 0 while it knows none."""
        return self.step_s

    def tell(self, kind: type[Report] | type[Query], answered: Callable[[Response], None]) -> None:
        """Sends its status."""
        status = Status(self.rank, self.steps, self.round, self.told_step_s(), self.transmission_s)
        self.around.send(
            kind(f"worker-{self.rank}", JOB, status, samples=SAMPLES),
            self.model.round_trip_s,
            lambda response: None if self.is_silent else answered(response),
        )


class InStepWorker(BlockingWorker):
    """Does one step a round, whatever it is told: what Sync-Switch's rules are asked under BSP."""

    def step_done(self) -> None:
        """Asks, and pushes."""
        self.tell(Query, lambda _: self.push())


class ReleasingWorker(BlockingWorker):
    """Asks after each step, and waits for nobody. A round is one release; it has no history, since no round has an end.

    Who is told SYNC releases; the others find that after their next step, and go on in the round of the last release.
    """

    def step_done(self) -> None:
        """Asks, releases if it is told to, and takes what was released."""
        self.tell(Query, self._answered)

    def _answered(self, response: Response) -> None:
        server = self.around.aggregation
        if response.action is Action.SYNC:
            server.releases = max(server.releases, self.round)
        if server.releases >= self.round:
            self.round = min(server.releases, self.around.rounds)
            self.enter()
        else:
            self.begin_step()


class NonBlockingWorker(BlockingWorker):
    """Trains on after a question, until SYNC arrives: the delayed ACK of the preprint, section 4.2.

    Then it gives up the running step at once and aggregates what is complete. Any number of questions may be under way.
    """

    _is_over = False  # SYNC has come in this round

    def begin_round(self) -> None:
        """Reports, and begins at once."""
        self._is_over = False
        self.tell(Report, lambda _: None)
        self.begin_step()

    def step_done(self) -> None:
        """Asks, and trains on."""
        self.ask()
        self.begin_step()

    def told_step_s(self) -> float:
        """Here c_k is the time of a step plus a round trip: when the next answer can be here."""
        # The round trip is known before the first round, from the messages by which a worker joins the job.
        return self.step_s + self.model.round_trip_s if self.step_s else 0.0

    def ask(self) -> None:
        """Sends the question after a local step; late answers, of a round that is over, are ignored."""
        round, steps = self.round, self.steps

        def answered(response: Response) -> None:
            if round != self.round or self._is_over:
                return
            if response.action is Action.SYNC:
                self._is_over = True
                self.told_to_aggregate()
            else:
                self.told_to_train(steps)

        self.tell(Query, answered)

    def told_to_aggregate(self) -> None:
        """SYNC has come."""
        self.push()

    def told_to_train(self, steps: int) -> None:
        """TRAIN has come for the question after `steps` local steps: what it does anyway."""


class BetweenPassesWorker(NonBlockingWorker):
    """The same, for an engine that runs a forward or a backward pass to its end.

    SYNC is acted upon only there. Where that costs more than to wait for the answer, a worker can wait for it
    (`Way.patience`) before it begins another step.
    """

    def step_done(self) -> None:
        """Asks, waits where that is worthwhile, and trains on."""
        self.ask()
        steps_before = self.history[-1].local_steps if self.history else 1
        patience_s = self.around.way.patience(self.step_s, self.model.round_trip_s, max(self.steps, steps_before))
        if patience_s > 0:
            steps = self.steps
            self.later(patience_s, lambda: self.told_to_train(steps))
        else:
            self.begin_step()

    def told_to_train(self, steps: int) -> None:
        """Ends the wait that began after `steps` local steps, if it still lasts."""
        if steps == self.steps and self._step_began is None and not self._is_over:
            self.begin_step()

    def told_to_aggregate(self) -> None:
        """Gives up the running step, if there is one, at the end of the pass that runs."""
        if self._step_began is None:
            self.push()
            return
        elapsed_s = self._clock.now - self._step_began
        ends_s = [share * self._step_takes_s for share in self.around.way.passes]
        self._steps_ended += 1  # so it cannot become complete
        self.later(next((end - elapsed_s for end in ends_s if end >= elapsed_s), 0.0), self.push)
