"""A DataLoader of torch as data. A worker of the job draws its own samples of the loader's dataset, -b at a time, so
the loader's batch_size, shuffle and sampler do not count; its collate_fn and its processes do."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import manual_seed
from torch.utils.data import DataLoader, Dataset, IterableDataset

from trainer.datasets.sources import Batchify, Items, Raw, Stream
from trainer.draws import seed_all
from trainer.network import single
from utils import SetupError


def source_of(loader: DataLoader, batchify: Batchify | None = None, endless: bool = False) -> Items | Stream:
    """The samples of a loader; of an IterableDataset, which has no numbers, its batches, of which each worker takes its
    share in turn. `endless`: the batches begin again after the last."""
    if not isinstance(loader.dataset, IterableDataset):
        return LoadedItems(loader, batchify)

    def begin(rank: int, num_workers: int, seed: int) -> Iterator[tuple[Any, Any]]:
        for _ in itertools.count() if endless else range(1):
            are_there = False
            for batch in itertools.islice(loader, rank, None, num_workers):
                are_there = True
                yield _pair(batch)
            if endless and not are_there:
                raise SetupError(f"the DataLoader has no batch for worker {rank} of {num_workers}: give more")

    return Stream(begin)


class LoadedItems(Items):
    """The samples of a loader's dataset. The loader's processes load the samples of a batch together."""

    def __init__(self, loader: DataLoader, batchify: Batchify | None) -> None:
        collate = loader.collate_fn
        super().__init__(loader.dataset, batchify or (lambda samples: _pair(collate(samples))))
        self._parts: list[list[tuple[int, int]]] = []  # of the samples of one batch, one for each process
        self._loader: DataLoader | None = None
        if loader.num_workers:
            self._loader = DataLoader(
                _Seeded(loader.dataset),
                batch_sampler=self._parts,
                collate_fn=list,
                num_workers=loader.num_workers,
                worker_init_fn=loader.worker_init_fn,
                persistent_workers=True,
            )

    def take(self, chosen: np.ndarray | slice) -> Raw:
        if self._loader is None:
            return super().take(chosen)
        numbers = np.arange(len(self))[chosen]
        seed = int(np.random.randint(1 << 31))  # of a generator that this program seeds before each batch
        parts = np.array_split(numbers, min(self._loader.num_workers, len(numbers)))
        self._parts[:] = [[(int(number), seed) for number in part] for part in parts]
        return self.made([sample for part in self._loader for sample in part])


class _Seeded(Dataset):  # type: ignore[misc]
    """Seeds the generators of the loader's process before each sample, by the batch and the sample."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __getitem__(self, chosen: tuple[int, int]) -> Any:
        number, seed = chosen
        seed_all(manual_seed, seed, number)
        return self._items[number]


def _pair(batch: Any) -> tuple[Any, Any]:
    """A batch of a loader, (inputs..., targets), as inputs and targets."""
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise SetupError(f"the DataLoader gives {type(batch).__name__} as a batch: give (inputs, targets)")
    *inputs, targets = batch
    return single(tuple(inputs)), targets
