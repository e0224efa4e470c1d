"""Runs a cluster on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from server.handlers import Handlers
from server.messages import Query, Report, Reset, Response

from simulation.clock import VirtualClock
from simulation.cluster import Algorithm, Outcome, Way, WorkerModel
from simulation.esync_workers import (
    JOB,
    BetweenPassesWorker,
    BlockingWorker,
    InStepWorker,
    NonBlockingWorker,
    ReleasingWorker,
)
from simulation.workers import Aggregation, Surroundings, Worker

PREPRINT_EPSILON_S = 0.5

# The default limit of a simulation: so many times what its rounds would take if each worker did one step in each, and
# so many seconds for workers that fall silent. A rule that lets workers train for ever is then an error, not a hang.
LIMIT_ROUNDS, LIMIT_S = 100, 1000.0

_WORKERS: dict[Algorithm, type[Worker]] = {
    Algorithm.SSGD: Worker,
    Algorithm.BLOCKING: BlockingWorker,
    Algorithm.NON_BLOCKING: NonBlockingWorker,
    Algorithm.BETWEEN_PASSES: BetweenPassesWorker,
    Algorithm.IN_STEP: InStepWorker,
    Algorithm.RELEASING: ReleasingWorker,
}


def simulate(
    workers: Sequence[WorkerModel],
    rounds: int,
    policy: str = "journal",
    way: Way | None = None,
    *,
    epsilon: float = PREPRINT_EPSILON_S,
    handlers: Handlers | None = None,
    started: float = 0.0,
    until: float | None = None,
    seed: int = 0,
) -> Outcome:
    """Does `rounds` rounds, or as many as are possible where a worker falls silent.

    Args:
        workers: the cluster, by rank.
        rounds: that every worker is to do.
        policy: name of the rule; nobody asks in SSGD.
        way: how the workers ask and train; default: blocking, no test step.
        epsilon: the preprint's tolerance (s).
        handlers: the state server, without a job; default: a new one.
        started: virtual time at the beginning (s).
        until: virtual time by which all must have happened; default: long enough for every rule that ends.
        seed: of the noise.

    Raises:
        TimeIsUp: there was more to do at `until`.
    """
    way = way or Way()
    handlers = handlers or Handlers()
    clock = VirtualClock(started)
    if until is None:
        round_s = max(worker.step_s + 2 * worker.transmission_s + worker.round_trip_s for worker in workers)
        until = started + LIMIT_ROUNDS * rounds * round_s + LIMIT_S
    handlers.reset(Reset("simulation", JOB, num_workers=len(workers), policy=policy, epsilon=epsilon), clock.now)

    def send(message: Report | Query, round_trip_s: float, answered: Callable[[Response], None]) -> None:
        def arrive() -> None:
            handle = handlers.query if isinstance(message, Query) else handlers.report
            response = handle(message, clock.now)  # type: ignore[arg-type]
            clock.after(round_trip_s / 2, lambda: answered(response))

        clock.after(round_trip_s / 2, arrive)

    around = Surroundings(clock, Aggregation(clock, len(workers)), send, way, rounds, seed)
    simulated = [_WORKERS[way.algorithm](rank, model, around) for rank, model in enumerate(workers)]
    for worker in simulated:
        clock.after(0.0, worker.enter)
    clock.run(until)
    return Outcome(tuple(workers), tuple(tuple(worker.history) for worker in simulated), clock.now)
