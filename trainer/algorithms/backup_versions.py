"""Which gradients count where some workers are spare (backup.py): the versions of the model, pure."""

from __future__ import annotations

from dataclasses import dataclass

from config import Config
from utils import SetupError


@dataclass(frozen=True)
class Arrival:
    """What a gradient leads to.

    Attributes:
        apply: ranks, ascending, whose gradients make the next version; empty where they are not enough yet.
        answered: ranks, ascending, that get the newest version now: those of `apply`, or the one that came too late;
            nobody where the gradient waits for others.
    """

    apply: tuple[int, ...] = ()
    answered: tuple[int, ...] = ()


class Versions:
    """The first `num_workers - num_backup` gradients of a version make the next one, and later ones are dropped.

    A worker's gradient is of the version that it was given last: it uploads one, and waits to be given another.

    Attributes:
        version: of the newest model; the initial one is version 0.
        given: by rank, the version that the worker was given last.
        answered: by rank, how many of its gradients are dealt with.
        dropped: by rank, how many of these came too late.
        over: the job is, for all: each worker ends with its next answer.
    """

    def __init__(self, num_workers: int, num_backup: int) -> None:
        self.version = 0
        self.given = [0] * num_workers
        self.answered = [0] * num_workers
        self.dropped = [0] * num_workers
        self.over = False
        self._num_left = num_workers
        self._num_needed = num_workers - num_backup
        self._waiting: list[int] = []
        self._stop_wanted = False

    def begin_with(self, version: int) -> None:
        """All workers are given this version, before any gradient."""
        self.version = version
        self.given = [version for _ in self.given]

    def want_stop(self) -> None:
        """A worker wants the job to end: it is over with the next version, which all others still help to make."""
        self._stop_wanted = True

    def arrive(self, rank: int) -> Arrival:
        """A worker's gradient is there."""
        if self.given[rank] < self.version:
            self.dropped[rank] += 1
            return self._answer((rank,))
        self._waiting.append(rank)
        return self._look()

    def go_on_without(self, rank: int) -> Arrival:
        """A worker is lost: one that was spare, until fewer are left than make a version."""
        self._num_left -= 1
        self._num_needed = min(self._num_needed, self._num_left)
        if rank in self._waiting:
            self._waiting.remove(rank)
        return self._look()

    def _look(self) -> Arrival:
        if not self._waiting or len(self._waiting) < self._num_needed:
            return Arrival()
        apply = tuple(sorted(self._waiting))
        self._waiting.clear()
        self.version += 1
        self.over = self._stop_wanted
        return self._answer(apply, apply)

    def skip(self, rank: int) -> Arrival:
        """A worker's gradient is there and no good: it gets the newest version, and the next one waits for its next."""
        return self._answer((rank,))

    def _answer(self, ranks: tuple[int, ...], apply: tuple[int, ...] = ()) -> Arrival:
        for rank in ranks:
            self.given[rank] = self.version
            self.answered[rank] += 1
        return Arrival(apply, ranks)


def check_flags(config: Config, num_workers: int | None) -> None:
    """Makes sure that not all workers are spare.

    Raises:
        SetupError: they are.
    """
    if num_workers is not None and config.backup >= num_workers:
        raise SetupError(
            f"--backup {config.backup} of {num_workers} worker(s) leaves nobody whose gradient counts: give a number "
            f"from 0 to {num_workers - 1}, or more workers"
        )
