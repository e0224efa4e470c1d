"""How many of the fastest workers a job should have, before anything has run: by a law, not by a search."""

from collections.abc import Sequence

from algorithms import Algorithm, TransportKind

# Fitted to 73 rows of results/comparison (mlp, 13 clusters), with a residual of 11 %.
WORKERS, STEPS = 3.0, 10.0


def growth(k: int, steps: float) -> float:
    """By how much the samples to a target grow with K workers and the mean number of local steps in a round."""
    return 1 + k / WORKERS + steps / STEPS


def best_number(row: Algorithm, step_times_s: Sequence[float], steps: int) -> int:
    """K of the shortest expected time, in which an exchange has no part; of equal ones the least. `steps`: a round,
    where a flag says so.

    Args:
        step_times_s: of all workers, seconds, above 0.
    """
    times_s = sorted(step_times_s)

    def expected(k: int) -> float:
        mine, slowest_s = times_s[:k], times_s[k - 1]
        is_in_step = row.transport is TransportKind.SUM and not row.has_state_server
        steps_a_second = k / slowest_s if is_in_step else sum(1 / step_s for step_s in mine)
        has_straggler = row.transport is TransportKind.SUM and row.has_state_server and not row.shares_batch
        mean_steps = sum(slowest_s / step_s for step_s in mine) / k if has_straggler else steps
        return growth(k, mean_steps) / steps_a_second

    return 1 if row.transport is TransportKind.NONE else min(range(1, len(times_s) + 1), key=expected)
