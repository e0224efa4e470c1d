"""ESync (Li et al., "ESync: Accelerating intra-domain federated learning in heterogeneous data centers", IEEE TSC
15(4), 2022, doi 10.1109/TSC.2020.3044043): every worker takes as many local SGD steps as fit into the
straggler's step (with --anchor A: into its A steps), then w <- w + eps * sum_k (n_k / n) * (w_k - w) (averaging.py;
optionally with an outer optimiser or FedNova's weights)."""

from algorithm_row import SGD, Algorithm, Averaging, end_of_head
from flag_parser import Flag
from flag_values import at_least, steps_or_auto, zero_or_one
from utils import SetupError


class Settings(Averaging):
    """ESync's flags."""

    normalise: int = Flag(0, zero_or_one).means(
        "1 normalises each worker's model update by its local steps of the round (FedNova): divides by their number, "
        "and as in the paper with --momentum, whose velocity then restarts in each round, and with --lr-schedule; with "
        "--optimizer sgd alone"
    )
    policy: str = Flag("journal", choices=("journal", "upload-aware", "preprint")).means(
        "reach-server time (journal), the same but training on while the straggler uploads, for slow links "
        "(upload-aware), or computing time and --epsilon (preprint)"
    )
    epsilon: float = Flag(0.5, at_least(0, float), needs=("policy", "preprint")).means(
        "tolerance in seconds of the preprint's rule"
    )
    anchor: int | str = Flag(0, steps_or_auto).means(
        "local steps of the straggler in a round; the others take as many as fit into those. auto: the smallest number "
        "for which the update's transmission (with a server one way) takes less than a tenth of these steps "
        "and itself, by the measured times, 32 at most (0: one, as published)"
    )
    query: str = Flag("non-blocking", choices=("blocking", "non-blocking")).means(
        "question after each local step: wait for the answer (as published), or train on meanwhile"
    )

    def check(self, num_workers: int | None) -> None:
        if self.normalise and self.optimizer != SGD:
            raise SetupError(
                f"--normalise 1 (FedNova) is defined for the local steps of SGD, not for --optimizer {self.optimizer}, "
                f"which divides each gradient by its size: give --optimizer {SGD}, also with --momentum, or leave "
                "--normalise out"
            )
        super().check(num_workers)


ROW = Algorithm(
    name="esync",
    title="ESync",
    paper="Li et al., TSC 2022, doi:10.1109/TSC.2020.3044043",
    settings=Settings,
    trainer="ESyncTrainer",
    rule="{policy}",
    stem="ESync",
)
end_of_head(globals())

from esync.measure import CHECK_READY
from esync.queries import Queries
from trainer.algorithms.averaging import ModelAveragingTrainer
from trainer.context import Context

# To time the transmission, pushes and pulls must not overlap, which at most doubles the transmission time.
# If that is more than this share of a round, only some rounds are timed.
CHEAP_SHARE = 0.1
TIMED_ROUNDS_AT_START = 3
TIMED_EVERY = 10


class ESyncTrainer(ModelAveragingTrainer):
    """Asks the state server (SimpleStateServer/server/policies/) after each local step whether to average now."""

    def __init__(self, context: Context, settings: Settings) -> None:
        super().__init__(context, settings, bool(settings.normalise))
        self._state = context.state
        self._queries = queries = Queries(context.state, self.clock, waits=settings.query == "blocking")
        if not queries.waits:  # abandon the running step when the state server answers READY
            self.give_up = lambda: queries.is_ready(self.rounds)
        self._round_began = 0.0

    def broadcast(self) -> None:
        self.join_job()
        super().broadcast()

    def begin_round(self) -> None:
        super().begin_round()
        self._round_began = self.clock.now()
        self.measure.enter(CHECK_READY)
        self._queries.report(self.rounds, self.step_s, self.transmission.value)

    def ready(self) -> bool:
        self.measure.next_step()
        self.measure.enter(CHECK_READY)
        if self.company.is_broken:  # a worker was lost: the others wait for this one to regroup
            return True
        return self._queries.ask(self.rounds, self.steps, self.step_s, self.transmission.value)

    def end(self) -> None:
        super().end()
        self._queries.close()
        self._state.leave()

    def is_timed(self) -> bool:
        is_cheap = self.transmission.value <= CHEAP_SHARE * (self.clock.now() - self._round_began)
        return is_cheap or self.rounds <= TIMED_ROUNDS_AT_START or not self.rounds % TIMED_EVERY
