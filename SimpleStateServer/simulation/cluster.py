"""What is simulated, and what comes out: plain records."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Factor on a worker's step time, from (round, local step within the round), both from 1.
Pace = Callable[[int, int], float]


def steady(round: int, step: int) -> float:
    """Every step takes the same time."""
    return 1.0


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """One worker and its network.

    Attributes:
        step_s: seconds of a local step.
        transmission_s: seconds to push one model update to the server, and as many to pull the model.
        round_trip_s: seconds of a message to the state server and its answer, half of them each way.
        noise: standard deviation of the logarithm of each step's and each transfer's time; 0.1 is about 10 %. The
            medians are the times above.
        pace: drift, outliers, other speeds: a factor on each step's time.
        falls_silent_s: from then on (virtual time) it does nothing any more; what it has sent still arrives.
    """

    step_s: float
    transmission_s: float = 0.0
    round_trip_s: float = 0.0
    noise: float = 0.0
    pace: Pace = steady
    falls_silent_s: float = math.inf


class Algorithm(enum.Enum):
    """How the workers of a cluster proceed."""

    SSGD = "SSGD"  # one step a round, nobody asks
    BLOCKING = "blocking"  # ESync; waits for the answer to each message
    NON_BLOCKING = "non-blocking"  # ESync with delayed ACK (preprint, section 4.2); gives up a step at any moment
    BETWEEN_PASSES = "between passes"  # the same, but a step can only be given up after a pass
    IN_STEP = "in step"  # SSGD that asks after each step, as Sync-Switch does; the answer changes nothing
    RELEASING = "releasing"  # WBSP: nobody waits; SYNC releases a model, which the others take after their next step


# Seconds to wait for an answer before the next step, from (step_s, round_trip_s, local steps in a round).
Patience = Callable[[float, float, int], float]


def no_patience(step_s: float, round_trip_s: float, steps_per_round: int) -> float:
    """Trains on at once."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Way:
    """How the workers ask and train.

    Attributes:
        algorithm: who waits for what.
        test_step: whether each worker has timed a step before the first round and reports it (journal: "c_k starts
            from one test iteration"); otherwise its step time is not known until its first query.
        passes: shares of a step at which it can be given up, ascending; read by BETWEEN_PASSES only. The default is
            after the forward pass, a third of the work, and before the update.
        patience: how long to wait for an answer before the next step; read by BETWEEN_PASSES only.
    """

    algorithm: Algorithm = Algorithm.BLOCKING
    test_step: bool = False
    passes: tuple[float, ...] = (1 / 3, 1.0)
    patience: Patience = no_patience


@dataclass(frozen=True, slots=True)
class WorkerRound:
    """What one worker did in one round that was completed. Times are on the virtual clock.

    Attributes:
        round: its number, from 1.
        began: when the worker had pulled the model and entered the round.
        local_steps: local steps that went into its update.
        computed_s: seconds of these steps.
        abandoned_s: seconds of a step that was given up.
        arrived: when its update was at the server.
        last_arrived: when the last worker's was.
        ended: when it had pulled the new model.
    """

    round: int
    began: float
    local_steps: int
    computed_s: float
    abandoned_s: float
    arrived: float
    last_arrived: float
    ended: float

    @property
    def waited_s(self) -> float:
        """Seconds between its own update's arrival and the last one's."""
        return self.last_arrived - self.arrived


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulated cluster did.

    Attributes:
        workers: the cluster, by rank.
        history: of each worker, its completed rounds.
        ended: when nothing was left to happen.
    """

    workers: Sequence[WorkerModel]
    history: Sequence[Sequence[WorkerRound]]
    ended: float

    @property
    def complete_rounds(self) -> int:
        """Rounds that all workers have completed."""
        return min(len(rounds) for rounds in self.history)
