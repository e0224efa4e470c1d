"""How the samples of a job's round are shared out among its workers, where a rule decides on that: when it is asked."""

from __future__ import annotations


class BatchSizes:
    """The sizes that the workers are told. A rule looks at them once a round at most (policies/lb_bsp.py).

    What it decides holds from the next round on, and all questions of this round get the same answer: it is asked when
    the first worker has done its step of the round, when what all have done in the round before is known.

    Args:
        num_workers: N.
        batch_size: samples of each worker's batch at first; 0: no rule decides.
        are_known: False in a job that was taken over, whose workers have other sizes by now.

    Attributes:
        total: B, of all workers in a round; it never changes.
        sizes: by rank; empty while they are not known.
    """

    def __init__(self, num_workers: int, batch_size: int, are_known: bool) -> None:
        self.total = num_workers * batch_size
        self.sizes: tuple[int, ...] = (batch_size,) * num_workers if are_known and batch_size else ()
        self._num_workers = num_workers
        self._round = 0  # of the last look
        self._questions = num_workers  # since then

    def are_due(self, round: int) -> bool:
        """Whether the rule is to look at the sizes, now that a worker asks which has done its step of `round`.

        A look costs O(N), so it also takes as many questions as there are workers since the last one: whoever asks for
        ever new rounds alone costs no more than others.
        """
        is_due = round > self._round and self._questions >= self._num_workers
        if is_due:
            self._round, self._questions = round, 0
        self._questions += 1
        return is_due
