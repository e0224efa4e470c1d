"""The workers of a round and this worker's place among them (`Membership`): rank, number of workers, part of the
samples; how it begins to train (`Begin`), and how it meets the others (`Company`).

The loop asks for the membership at the start of each round, since it may change. On the hub rank and number of workers
stay those of the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from algorithms import RESUME
from trainer.network import sha256

if TYPE_CHECKING:
    from config import Config
    from trainer.loop import Loop
    from trainer.trainer import Trainer


@dataclass(frozen=True, eq=False)
class Membership:
    """The job's workers in one round, as one of them sees it."""

    rank: int = 0
    num_workers: int = 1
    sample_counts: tuple[int, ...] = ()  # n_k by rank: number of training samples of each worker; empty: all are equal
    # Indices (n_k,) of this worker's samples; None if its batches come from elsewhere
    partition: np.ndarray | None = None
    # Of this worker's partition and of all by rank, for run.json
    partition_sha256: Mapping[str, str] = field(default_factory=dict)
    places: tuple[str, ...] = ()  # device and host of each worker by rank; empty: not known
    lost: frozenset[int] = frozenset()  # ranks excluded from the job; remaining ranks and N do not change

    @property
    def num_samples(self) -> int:
        """n_k of this worker; 0: not known."""
        return self.sample_counts[self.rank] if self.sample_counts else 0

    @cached_property
    def share(self) -> float:
        """n_k / n: this worker's part of all training samples."""
        return self.num_samples / sum(self.sample_counts) if self.sample_counts else 1 / self.num_workers

    @cached_property
    def weight(self) -> float:
        """N * n_k / n, N without lost workers: factor on its gradients, so that every sample counts alike."""
        return (self.num_workers - len(self.lost)) * self.share if self.sample_counts else 1.0

    @property
    def members(self) -> list[dict[str, Any]]:
        """Rank, host and device of all workers, as run.json has them; empty: not known."""
        parts = (place.rpartition(" on host ") for place in self.places)
        return [{"rank": rank, "host": host, "device": device} for rank, (device, _, host) in enumerate(parts)]

    def name_of(self, rank: int) -> str:
        """A worker's name for people, such as "2 (gpu0 on host b)"."""
        return f"{rank} ({self.places[rank]})" if self.places else str(rank)

    def repeating(self, batch_size: int) -> str:
        """A warning if batches are larger than some workers' shares; empty on all but the first of them on a host."""
        hosts = [place.rpartition(" on host ")[2] for place in self.places] or [""] * self.num_workers
        few = {rank: count for rank, count in enumerate(self.sample_counts) if count < batch_size}
        if self.rank not in few or any(hosts[rank] == hosts[self.rank] for rank in few if rank < self.rank):
            return ""
        return (
            f"a batch has {batch_size} samples (-b), and {len(few)} of {self.num_workers} worker(s) have fewer, "
            f"{min(few.values())} at least: their batches repeat samples, and each time counts as a sample: choose "
            "a smaller -b, or fewer workers"
        )


class Change(NamedTuple):
    """The last loss or return of a worker."""

    serial: int = 0  # all changes of a job are counted
    is_lost: bool = False


Changes = Mapping[int, Change]  # by rank, of each worker that was lost ever


def changes_in(told: Iterable[tuple[int, Sequence[int]]]) -> dict[int, Change]:
    """Those of a message."""
    return {rank: Change(serial, bool(is_lost)) for rank, (serial, is_lost) in told}


def lost_of(changes: Changes) -> frozenset[int]:
    """Ranks of the lost workers."""
    return frozenset(rank for rank, change in changes.items() if change.is_lost)


def partition(labels: Sequence[int], num_workers: int, by_class: bool, seed: int) -> list[np.ndarray]:
    """Indices of the samples of each worker, by rank. Every sample is in exactly one part. Parts are equal; where N
    does not divide the samples, the first ones have one more. i.i.d.: parts of a seeded permutation. By class: parts of
    the samples in the order of their classes, as in the published program. `labels`: classes (N,) of all training
    samples; without `by_class` only their number counts."""
    order = np.argsort(labels, kind="stable") if by_class else np.random.default_rng(seed).permutation(len(labels))
    return np.array_split(order, num_workers)


def of_all(
    labels: Sequence[int] | None, num_workers: int, config: Config, places: tuple[str, ...] = ()
) -> list[Membership]:
    """Each worker's membership, by rank. The flags say how the training samples, of classes (N,), are partitioned. With
    --split-by-class `labels` are the classes; else anything as long; None: the samples have no numbers."""
    if labels is None:
        return [Membership(rank, num_workers, places=places) for rank in range(num_workers)]
    return of_parts(partition(labels, num_workers, bool(config.split_by_class), config.seed), places)


def without(lost: frozenset[int], mine: Membership, labels: Sequence[int] | None, config: Config) -> Membership:
    """A worker's membership after losses: the remaining workers partition all samples among themselves."""
    if labels is None:
        return replace(mine, lost=lost)
    left = [rank for rank in range(mine.num_workers) if rank not in lost]
    among_them = of_all(labels, len(left), config)[left.index(mine.rank)]
    counts = dict(zip(left, among_them.sample_counts, strict=True))
    of_all_ranks = tuple(counts.get(rank, 0) for rank in range(mine.num_workers))
    return replace(mine, sample_counts=of_all_ranks, partition=among_them.partition, lost=lost)


def of_parts(parts: Sequence[np.ndarray], places: tuple[str, ...] = ()) -> list[Membership]:
    """Each worker's membership, by rank, in a job with these partitions, indices (n_k,)."""
    counts, all_of_them = tuple(map(len, parts)), sha256(parts)
    return [
        Membership(rank, len(parts), counts, part, {"this worker": sha256([part]), "all by rank": all_of_them}, places)
        for rank, part in enumerate(parts)
    ]


class How(Enum):
    """How a worker begins."""

    NEW = "new"  # with the job
    RESUMED = "resumed"  # the job continues from a checkpoint, of this worker or of another one
    JOINS = "joins"  # the others train already: this worker is new among them, or is back


@dataclass(frozen=True)
class Begin:
    """How a worker begins, and what the job has done before. Valid with the checkpoint; complete with the open log."""

    how: How = How.NEW
    rounds: int = 0  # done
    elapsed_s: float = 0.0  # seconds of the job, with those of rounds that are done again
    missed: int = 0  # rounds without this worker
    lost: int = 0  # local steps of this worker that are done again

    def notes(self) -> dict[str, Any]:
        """Entries of the first round's log."""
        notes: dict[str, Any] = {"missed": self.missed} if self.missed else {}
        if self.how is How.RESUMED:
            event = {"kind": RESUME.name, "text": f"resumed after round {self.rounds}"}
            notes |= {"events": [event], "steps_lost": self.lost}
        return notes


class Company:
    """The other workers, as the loop meets them, where the exchange does not end with the loss of one: none is lost, or
    the hub continues without it. survival/recovery.py overrides the methods where workers connect with each other."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @property
    def is_broken(self) -> bool:
        """Whether a worker of this round was lost: the exchange of this round fails, and the others regroup."""
        return False

    @property
    def comes_late(self) -> bool:
        """Whether the others may train already: they would wait while this worker does test steps."""
        return False

    @property
    def wants_pause(self) -> bool | None:
        """Whether this worker wants all to regroup after the round; None: they never do."""
        return None

    def meet(self, loop: Loop) -> None:
        """Called once, when this worker is ready to train: all get the same model. Sets `trainer.begin` where the
        others know better how this worker begins."""
        loop.come_together()
        if (age_s := self._trainer.context.peers.job_age_s()) is not None:
            self._trainer.begin = replace(self._trainer.begin, how=How.JOINS, elapsed_s=age_s)

    def exchange(self, wants_stop: bool) -> bool:
        """`Trainer.synchronize`; if workers are lost meanwhile, the remaining ones synchronize."""
        return self._trainer.synchronize(wants_stop)

    def leaves(self) -> bool:
        """Whether this worker leaves after the round, while the others continue."""
        return self._trainer.context.peers.leaves()

    def part(self) -> None:
        """Called after the last round."""

    def notes(self) -> dict[str, Any]:
        """Entries for the log of the round; called once a round."""
        return {}
