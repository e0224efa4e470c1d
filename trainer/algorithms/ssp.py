"""SSP, stale synchronous parallel (Ho et al., "More effective distributed ML via a stale synchronous parallel parameter
server", NIPS 2013): w <- w - eta * g at once as in ASGD, but a worker that is more than s steps ahead of the slowest
waits. With s = 0 all workers are in step, with a large s it is ASGD."""

from trainer.algorithms.asynchronous import AsyncTrainer
from trainer.algorithms.server_sgd import GONE
from trainer.context import Context


class SSPTrainer(AsyncTrainer):
    """ASGD with a bound on the distance between workers. A worker's number among the counters is its clock (steps)."""

    has_numbers = True

    def __init__(self, context: Context, learning_rate: float, staleness: int) -> None:
        super().__init__(context, learning_rate)
        self._staleness = staleness  # s

    def broadcast(self) -> None:
        super().broadcast()
        if self.rounds:  # resumed
            self.add_to_counter(self._own, self.rounds)

    def before_pull(self) -> None:
        """Advances this worker's clock once its gradient has arrived, then waits for workers too far behind."""
        self._transport.wait_all()
        self.add_to_counter(self._own)
        self.clock.wait_until(self._may_go_on)

    def _may_go_on(self) -> bool:
        votes, *clocks = self.read_counters()[: 1 + self.membership.num_workers]
        lost = self.context.peers.lost()
        others = (steps for rank, steps in enumerate(clocks) if rank not in lost and steps != GONE)
        slowest = min(others, default=self.rounds)
        return bool(self.rounds - slowest <= self._staleness or votes > 0)


def build(context: Context) -> SSPTrainer:
    """From the flags."""
    return SSPTrainer(context, context.config.learning_rate, context.config.staleness)
