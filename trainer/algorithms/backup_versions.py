"""Which gradients count with backup workers (backup.py): the versions of the model. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Arrival:
    """The effect of a gradient's arrival; ranks are ascending."""

    apply: tuple[int, ...] = ()  # ranks whose gradients make the next version; empty if there are too few yet
    answered: tuple[int, ...] = ()  # ranks that get the newest version now; empty if the gradient waits for others


class Versions:
    """The first `num_workers - num_backup` gradients of a version make the next one; later ones are dropped.

    A worker's gradient is of the version that it got last: after an upload it waits for the next version.
    """

    def __init__(self, num_workers: int, num_backup: int) -> None:
        self.version = 0  # of the newest model; the initial one is version 0
        self.given = [0] * num_workers  # by rank, the version that the worker got last
        self.answered = [0] * num_workers  # by rank, number of gradients that were applied or dropped
        self.dropped = [0] * num_workers  # by rank, number of gradients that came too late
        self.over = False  # the job has ended; each worker ends with its next answer
        self._num_left = num_workers
        self._most_needed = self._num_needed = num_workers - num_backup
        self._waiting: list[int] = []
        self._stop_wanted = False

    def begin_with(self, version: int) -> None:
        """All workers begin with this version; called before any gradient arrives."""
        self.version = version
        self.given = [version for _ in self.given]

    def want_stop(self) -> None:
        """A worker wants the job to end: it ends with the next version."""
        self._stop_wanted = True

    def arrive(self, rank: int) -> Arrival:
        is_late = self.given[rank] < self.version
        if self.over or is_late:  # at the end also that of a worker that is just back: no version follows
            self.dropped[rank] += is_late
            return self._answer((rank,))
        self._waiting.append(rank)
        return self._complete_version()

    def remove_worker(self, rank: int) -> Arrival:
        """A worker is lost. It counts as a spare one until fewer workers are left than a version needs."""
        self._num_left -= 1
        self._num_needed = min(self._num_needed, self._num_left)
        if rank in self._waiting:
            self._waiting.remove(rank)
        return self._complete_version()

    def add_worker(self, rank: int) -> None:
        """A lost worker is back, with the newest version."""
        self._num_left += 1
        self._num_needed = min(self._most_needed, self._num_left)
        self.given[rank] = self.version

    def _complete_version(self) -> Arrival:
        if not self._waiting or len(self._waiting) < self._num_needed:
            return Arrival()
        apply = tuple(sorted(self._waiting))
        self._waiting.clear()
        self.version += 1
        self.over = self._stop_wanted
        return self._answer(apply, apply)

    def skip(self, rank: int) -> Arrival:
        """A worker's gradient is not finite: the worker gets the newest version and tries again."""
        return self._answer((rank,))

    def _answer(self, ranks: tuple[int, ...], apply: tuple[int, ...] = ()) -> Arrival:
        for rank in ranks:
            self.given[rank] = self.version
            self.answered[rank] += 1
        return Arrival(apply, ranks)
