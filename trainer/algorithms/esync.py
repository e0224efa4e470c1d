"""ESync (Li et al., "ESync: Accelerating intra-domain federated learning in heterogeneous data centers", IEEE TSC
15(4), 2022, doi 10.1109/TSC.2020.3044043): every worker takes as many local SGD steps as fit into the
straggler's step (with --anchor A: into its A steps), then w <- w + eps * sum_k (n_k / n) * (w_k - w) (averaging.py;
optionally with an outer optimiser or FedNova's weights)."""

from collections.abc import Sequence

import numpy as np

from trainer.algorithms.averaging import ModelAveragingTrainer
from trainer.algorithms.outer_momentum import OuterMomentum
from trainer.context import Context
from trainer.coordinator.job import join_job
from trainer.coordinator.queries import Queries
from trainer.coordinator.smoothing import Smoothed
from trainer.run_logs.measure import CHECK_READY

# To time the transmission, pushes and pulls must not overlap, which at most doubles the transmission time.
# If that is more than this share of a round, only some rounds are timed.
CHEAP_SHARE = 0.1
TIMED_ROUNDS_AT_START = 3
TIMED_EVERY = 10


class ESyncTrainer(ModelAveragingTrainer):
    """Asks the state server (SimpleStateServer/server/policies/) after each local step whether to average now."""

    def __init__(
        self,
        context: Context,
        learning_rate: float,
        global_learning_rate: float,
        queries: Queries,
        outer: OuterMomentum | None = None,
        normalise: bool = False,
    ) -> None:
        super().__init__(context, learning_rate, global_learning_rate, outer, normalise)
        self._state = context.state
        self._queries = queries
        if not queries.waits:  # abandon the running step when the state server answers READY
            self.give_up = lambda: queries.is_ready(self.rounds)
        self._transmission = Smoothed()
        self._round_began = 0.0

    def broadcast(self) -> None:
        join_job(self.context, self.progress)
        super().broadcast()

    def begin_round(self) -> None:
        super().begin_round()
        self._round_began = self.clock.now()
        self.measure.enter(CHECK_READY)
        self._queries.report(self.rounds, self.step_s, self._transmission.value)

    def ready(self) -> bool:
        self.measure.next_step()
        self.measure.enter(CHECK_READY)
        if self.company.is_broken:  # a worker was lost: the others wait for this one to regroup
            return True
        return self._queries.ask(self.rounds, self.steps, self.step_s, self._transmission.value)

    def end(self) -> None:
        super().end()
        self._queries.close()
        self._state.leave()

    def take_sum(self, arrays: Sequence[np.ndarray]) -> float | None:
        took_s = super().take_sum(arrays)
        if took_s is not None:
            self._transmission.add(took_s)
        return took_s

    def is_timed(self) -> bool:
        is_cheap = self._transmission.value <= CHEAP_SHARE * (self.clock.now() - self._round_began)
        return is_cheap or self.rounds <= TIMED_ROUNDS_AT_START or not self.rounds % TIMED_EVERY


def build(context: Context) -> ESyncTrainer:
    """From the flags."""
    config = context.config
    queries = Queries(context.state, context.run.clock, waits=config.query == "blocking")
    outer = OuterMomentum.from_config(config)
    return ESyncTrainer(context, config.local_lr, config.global_lr, queries, outer, bool(config.normalise))
