"""Counts steps that are skipped because their numbers are not finite (NaN, infinity); too many in a row end the job.

Pure: standard library only. finite.py checks the numbers; the trainers skip.

A worker skips its step before it sends anything of it. In a sum over all workers it takes part with zeros and says how
many training samples are missing; the mean is then over the others, and every sample counts alike. To a parameter
server that applies gradients on arrival it sends none; if others may wait for its gradient, it tries again with its
next batch. The server checks what arrives too.
"""

from __future__ import annotations

from utils import DIVERGED, JobError

NOT_FINITE = "is not finite"


class BadSteps:
    """One worker's skipped steps.

    Attributes:
        in_round: in this round.
        total: since the job began.
    """

    def __init__(self, most: int, what: str = "steps") -> None:
        """`most` in a row end the job; `what` names the counted things."""
        self._most = most
        self._what = what
        self._in_a_row = 0
        self.in_round = 0
        self.total = 0

    def begin_round(self) -> None:
        self.in_round = 0

    def good(self) -> None:
        self._in_a_row = 0

    def bad(self, where: str, layer: str, what: str = NOT_FINITE) -> str:
        """Counts a bad step at `where` (worker, round, step); returns the warning.

        Raises:
            JobError: too many in a row.
        """
        self._in_a_row += 1
        self.in_round += 1
        self.total += 1
        found = f"{where}: {layer} {what}"
        if self._in_a_row >= self._most:
            raise JobError(
                f"{DIVERGED}: {found}, and so were {self._in_a_row} {self._what} in a row "
                f"(--max-bad-steps): lower the learning rate (-l or -ll)"
            )
        return f"{found}; skipped, as {self.total} so far"


def present(total: float, missing: float) -> float:
    """Fraction of the samples contained in a sum over all workers; exactly 1 if none is missing.

    Args:
        total: training samples of all workers.
        missing: training samples of the workers that contributed zeros.
    """
    return (total - missing) / total
