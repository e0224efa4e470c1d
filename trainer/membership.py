"""Who takes part in a round, and what is this worker's place among them: rank, number of workers, part of the data.

The loop asks for it at the start of each round: it may be another one in the next. Only trainers whose keys on the
parameter server are each worker's own keep rank and number of workers from the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from trainer.datasets.partitions import partition, sha256

if TYPE_CHECKING:
    from config import Config


@dataclass(frozen=True, eq=False)
class Membership:
    """The job's workers in one round, as one of them sees it.

    Attributes:
        sample_counts: n_k of each worker by rank: how many training samples are its part; empty where all have as many.
        partition: indices (n_k,) of this worker's samples; None where its batches come from elsewhere.
        partition_sha256: of this worker's partition and of all by rank, for run.json.
        places: device and host of each worker by rank, where they are known.
        lost: ranks of workers without which the others go on; these keep theirs, and N.
    """

    rank: int = 0
    num_workers: int = 1
    sample_counts: tuple[int, ...] = ()
    partition: np.ndarray | None = None
    partition_sha256: Mapping[str, str] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    lost: frozenset[int] = frozenset()

    @property
    def num_samples(self) -> int:
        """n_k: of this worker; 0 where nobody has counted them."""
        return self.sample_counts[self.rank] if self.sample_counts else 0

    @property
    def counted(self) -> int:
        """What this worker counts in a sum over all workers: its samples; 1 where nobody has counted any."""
        return self.num_samples or 1

    @property
    def counted_of_all(self) -> int:
        """The same, of all workers."""
        return sum(self.sample_counts) or self.num_workers

    @cached_property
    def sample_share(self) -> float:
        """n_k / n: this worker's part of all training samples."""
        if not self.sample_counts:
            return 1 / self.num_workers
        return self.num_samples / sum(self.sample_counts)

    @cached_property
    def weight(self) -> float:
        """N * n_k / n: what this worker counts in a mean over the workers, so that every sample counts alike. N is of
        those that are left."""
        return (self.num_workers - len(self.lost)) * self.sample_share if self.sample_counts else 1.0

    def name_of(self, rank: int) -> str:
        """What a person calls a worker, such as "2 (gpu0 on host b)"."""
        return f"{rank} ({self.places[rank]})" if self.places else str(rank)


def of_all(labels: np.ndarray, num_workers: int, config: Config, places: tuple[str, ...] = ()) -> list[Membership]:
    """Each worker's, by rank, in a job that cuts its training samples, of classes (N,), as the flags say."""
    return of_parts(partition(labels, num_workers, bool(config.split_by_class), config.seed), places)


def without(lost: frozenset[int], mine: Membership, labels: np.ndarray, config: Config) -> Membership:
    """A worker's, once others of the job are lost: those that are left cut all samples among themselves."""
    left = [rank for rank in range(mine.num_workers) if rank not in lost]
    among_them = of_all(labels, len(left), config)[left.index(mine.rank)]
    counts = [0] * mine.num_workers
    for rank, count in zip(left, among_them.sample_counts, strict=True):
        counts[rank] = count
    return replace(mine, sample_counts=tuple(counts), partition=among_them.partition, lost=lost)


def of_parts(parts: Sequence[np.ndarray], places: tuple[str, ...] = ()) -> list[Membership]:
    """Each worker's, by rank, in a job whose samples are cut into these parts, indices (n_k,)."""
    counts, all_of_them = tuple(map(len, parts)), sha256(parts)
    return [
        Membership(rank, len(parts), counts, part, {"this worker": sha256([part]), "all by rank": all_of_them}, places)
        for rank, part in enumerate(parts)
    ]
