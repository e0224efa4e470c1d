"""Steps whose numbers are not finite (NaN, infinity) are skipped and counted; after so many in a row the job ends.

Pure: standard library only. What is looked at is finite.py's matter, and what skipping means the trainers'.

A worker skips its step before anything of it leaves. Where all workers sum it still takes part in the sum, with zeros,
and says beside them how many training samples are missing with it: the mean is then that over the others, in which
every sample counts alike. Where a parameter server applies gradients as they come it sends none; where others may wait
for its gradient there, it has another try with its next batch. The server looks at what arrives too.
"""

from __future__ import annotations

from utils import DIVERGED, JobError

NOT_FINITE = "is not finite"


class BadSteps:
    """One worker's steps in a row that had to be skipped.

    Attributes:
        in_round: of the round that runs.
        total: since the job began.
    """

    def __init__(self, most: int, what: str = "steps") -> None:
        """
        Args:
            most: so many in a row end the job.
            what: is counted.
        """
        self._most = most
        self._what = what
        self._in_a_row = 0
        self.in_round = 0
        self.total = 0

    def begin_round(self) -> None:
        """The next round runs."""
        self.in_round = 0

    def good(self) -> None:
        """A step was good, so the row ends."""
        self._in_a_row = 0

    def bad(self, where: str, layer: str, what: str = NOT_FINITE) -> str:
        """A step was bad; returns the warning.

        Args:
            where: worker, round and step.
            layer: of which something is not finite.
            what: it is.

        Raises:
            JobError: it was one too many.
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
    """Share of a sum over all workers that is there: exactly 1 where nobody's part is missing.

    Args:
        total: training samples of all workers.
        missing: those of the workers that had nothing to give.
    """
    return (total - missing) / total
