"""SSP, stale synchronous parallel (Ho et al., "More effective distributed ML via a stale synchronous parallel parameter
server", NIPS 2013): w <- w - eta * g at once as in ASGD, but a worker that is more than s steps ahead of the slowest
waits. With s = 0 all workers are in step, with a large s it is ASGD."""

from trainer.algorithms.asynchronous import AsyncTrainer
from trainer.context import Context


class SSPTrainer(AsyncTrainer):
    """ASGD with a bound on the distance between workers. A worker's number among the counters is its clock (steps)."""

    has_numbers = True

    def __init__(self, context: Context, learning_rate: float, staleness: int) -> None:
        super().__init__(context, learning_rate)
        self._staleness = staleness  # s

    def broadcast(self) -> None:
        super().broadcast()
        if not self.rounds and self.context.peers.job_age_s() is not None:  # in the place of a lost worker
            own = max(0.0, float(self.read_counters()[self._own]))
            self.rounds = round(max(own, self._slowest(default=own)))
        self.set_number(self.rounds)

    def before_pull(self) -> None:
        """Advances this worker's clock once its gradient has arrived, then waits for workers too far behind."""
        self._transport.wait_all()
        self.add_to_counter(self._own)
        self.clock.wait_until(self._may_go_on)

    def _may_go_on(self) -> bool:
        votes = self.read_counters()[0]
        return bool(self.rounds - self._slowest(default=self.rounds) <= self._staleness or votes > 0)

    def _slowest(self, default: float) -> float:
        """The least clock of the other workers, as they were read last."""
        return min(self.numbers_there(but=self.membership.rank).tolist(), default=default)


def build(context: Context) -> SSPTrainer:
    """From the flags."""
    return SSPTrainer(context, context.config.learning_rate, context.config.staleness)
