"""Batch sizes of a job's workers, where a policy decides on them."""


class BatchSizes:
    """The present sizes. The policy changes them once a round at most (policies/lb_bsp.py): when the first worker has
    done its step of a round, and the round before is complete. They hold from the next round on, for all workers alike.

    Args:
        num_workers: N.
        batch_size: samples of each worker's batch at first; 0: no policy decides.
        are_known: False in a job that was taken over, whose workers have other sizes by now.
    """

    def __init__(self, num_workers: int, batch_size: int, are_known: bool) -> None:
        self.total = num_workers * batch_size  # B, of all workers in a round; it never changes
        # By rank; empty while they are not known.
        self.sizes: tuple[int, ...] = (batch_size,) * num_workers if are_known and batch_size else ()
        self._num_workers = num_workers
        self._round = 0  # of the last change
        self._questions = num_workers  # since then

    def are_due(self, round: int) -> bool:
        """Whether the policy is to run now that a worker has done its step of `round`.

        It costs O(N), so N questions must have come since its last run: a worker that runs through rounds alone costs
        no more than others.
        """
        is_due = round > self._round and self._questions >= self._num_workers
        if is_due:
            self._round, self._questions = round, 0
        self._questions += 1
        return is_due
