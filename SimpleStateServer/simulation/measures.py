"""Numbers from an outcome, and what the cluster could do at best. All over the rounds that every worker completed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulation.cluster import Outcome, WorkerModel


@dataclass(frozen=True, slots=True)
class WorkerMeasures:
    """One worker over some rounds.

    Attributes:
        steps_per_round: mean number of local steps in a round.
        computing_ratio: seconds of the steps that went into its updates, over all seconds.
        possible_ratio: the largest that its transmission allows, see `possible_ratios`.
        abandoned_ratio: seconds of steps that were given up, over all seconds.
        mean_wait_s: seconds between its own update's arrival and the last one's, a round.
        longest_wait_s: the longest of these.
    """

    steps_per_round: float
    computing_ratio: float
    possible_ratio: float
    abandoned_ratio: float
    mean_wait_s: float
    longest_wait_s: float

    @property
    def of_possible(self) -> float:
        """Computing time ratio as a share of the possible one."""
        return self.computing_ratio / self.possible_ratio


@dataclass(frozen=True, slots=True)
class ClusterMeasures:
    """A cluster over some rounds.

    Attributes:
        workers: by rank.
        round_s: mean seconds of a round.
        samples_per_s: that went into the model.
    """

    workers: Sequence[WorkerMeasures]
    round_s: float
    samples_per_s: float


def possible_ratios(workers: Sequence[WorkerModel]) -> list[float]:
    """The largest share of the time that each worker could compute in a synchronous job.

    No round is shorter than its slowest worker's push, pull and one step, T = max(c_k + 2 m_k). Of it, worker k can
    compute all but its own push and pull: 1 - 2 m_k / T. For the worker that takes T this is c_k / (c_k + 2 m_k).
    """
    round_s = max(worker.step_s + 2 * worker.transmission_s for worker in workers)
    return [1 - 2 * worker.transmission_s / round_s for worker in workers]


def measure(outcome: Outcome, batch_size: int, first_round: int = 1) -> ClusterMeasures:
    """Measures the rounds from `first_round` on.

    Args:
        outcome: of a simulation.
        batch_size: samples of a local step, the same for all workers.
        first_round: of those measured; the first rounds differ, since times are not known yet.
    """
    last_round = outcome.complete_rounds
    num_rounds = last_round - first_round + 1
    if num_rounds < 1:
        raise ValueError(f"round {first_round} was not completed by all workers; only {last_round} rounds were")
    possible = possible_ratios(outcome.workers)
    measured, begins, ends = [], [], []
    for rank, history in enumerate(outcome.history):
        rounds = history[first_round - 1 : last_round]
        total_s = rounds[-1].ended - rounds[0].began
        begins.append(rounds[0].began)
        ends.append(rounds[-1].ended)
        measured.append(
            WorkerMeasures(
                steps_per_round=sum(each.local_steps for each in rounds) / num_rounds,
                computing_ratio=sum(each.computed_s for each in rounds) / total_s,
                possible_ratio=possible[rank],
                abandoned_ratio=sum(each.abandoned_s for each in rounds) / total_s,
                mean_wait_s=sum(each.waited_s for each in rounds) / num_rounds,
                longest_wait_s=max(each.waited_s for each in rounds),
            )
        )
    total_s = max(ends) - min(begins)
    samples = batch_size * num_rounds * sum(worker.steps_per_round for worker in measured)
    return ClusterMeasures(measured, total_s / num_rounds, samples / total_s)
