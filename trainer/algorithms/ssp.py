"""SSP, stale synchronous parallel (Ho et al., "More effective distributed ML via a stale synchronous parallel parameter
server", NIPS 2013): w <- w - eta * g at once as in ASGD, but a worker that is more than s steps ahead of the slowest
waits.
With s = 0 all steps are in step, with a large s it is ASGD."""

from __future__ import annotations

from trainer.algorithms.asynchronous import AsyncTrainer
from trainer.context import Context


class SSPTrainer(AsyncTrainer):
    """ASGD with a bound on how far the workers are apart.

    The workers' clocks (steps done) are counters that all ranks read from the kvstore, behind the vote to stop.
    """

    def __init__(self, context: Context, learning_rate: float, staleness: int) -> None:
        """
        Args:
            staleness: s, steps that a worker may be ahead of the slowest.
        """
        super().__init__(
            context, learning_rate, compensation=None, num_counters=1 + context.peers.membership().num_workers
        )
        self._staleness = staleness

    def broadcast(self) -> None:
        """In a job that goes on every clock goes on where its worker does."""
        super().broadcast()
        if self.rounds:
            self._add_to_counter(1 + self.membership.rank, self.rounds)

    def before_pull(self) -> None:
        """Turns this worker's clock once its gradient has arrived, and waits for those too far behind."""
        self._transport.wait_all()
        self.post(1 + self.membership.rank)
        self.clock.wait_until(self._may_go_on)

    def _may_go_on(self) -> bool:
        votes, *clocks = self.read_counters()[: 1 + self.membership.num_workers]
        lost = self.context.peers.lost()
        slowest = min(round(steps) for rank, steps in enumerate(clocks) if rank not in lost)
        return bool(self.rounds - slowest <= self._staleness or votes > 0)


def build(context: Context) -> SSPTrainer:
    """From the flags."""
    return SSPTrainer(context, context.config.learning_rate, context.config.staleness)
