"""What a job learns: of a job file, and of the built-in networks and datasets for what the file leaves out."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import models
from config import Config
from trainer.datasets.batches import Batches, CountedBatches, EndlessBatches, StreamedBatches
from trainer.datasets.feed import Feed, Prepare
from trainer.datasets.sources import Arrays, Raw, Source, Stream, Subset, described, hash_of, source_of
from trainer.engine import mx
from trainer.jobs import builtin, job_file
from trainer.jobs.job_file import JobFile, takes_random
from trainer.jobs.user_errors import UserError, users_errors
from trainer.passes import Batch
from utils import SetupError

MOST_TEST_BATCHES = 100_000  # of a stream: more is taken for an endless one


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a job learns.

    Attributes:
        file: whose parts go before the built-in ones.
        train: None: the file's own loop loads its samples.
        test: None: nothing is evaluated.
        labels: the class of each training sample (N,), where it is known.
        classes: of the targets; 0: they are no classes.
    """

    file: JobFile
    train: Source | Stream | None
    test: Source | Stream | None
    prepare: Prepare | None
    labels: Callable[[], np.ndarray | None]
    classes: int

    @property
    def name(self) -> str:
        """The file's stem; empty for a built-in job."""
        return self.file.path.stem if self.file.path is not None else ""

    def network(self, config: Config, first: Batch | None) -> Any:
        """The file's network, or the built-in one for inputs like those of the first batch.

        Raises:
            SetupError: the built-in networks do not take such inputs.
        """
        if self.file.network is not None:
            return self.file.network()
        shapes = [array.shape[1:] for array in first.inputs] if first is not None else []
        if len(shapes) != 1 or len(shapes[0]) != 3 or not self.classes:
            told = " and ".join(map(str, shapes)) or "unknown"
            raise SetupError(
                f"-n {config.network} takes images (N, C, H, W) and integer classes (N,) as targets; here the inputs "
                f"of a sample are {told}, with {self.classes or 'no'} classes: define network()"
            )
        return models.build(config.network, shapes[0], self.classes, mx.cpu(), config.seed)

    def partitioned_by(self, config: Config) -> Any:
        """What the samples are partitioned by: classes (N,), or anything as long; None: they have no numbers.

        Raises:
            SetupError: --split-by-class, and no classes are known.
        """
        if isinstance(self.train, Stream) or self.train is None:
            if config.split_by_class:
                raise SetupError("-s 1 cannot split a stream or the loader of train(worker): leave it out")
            return None
        if not config.split_by_class:
            return range(len(self.train))
        labels = self.labels()
        if labels is None:
            raise SetupError(
                "-s 1 cannot split these samples: their targets are no integers (N,); define labels(train), which "
                "returns the class of each"
            )
        return labels

    def content_hash(self) -> str:
        """Of the samples; empty where processes cannot compare them."""
        parts = [part for part in (self.train, self.test) if part is not None]
        known = [part for part in parts if not isinstance(part, Stream)]
        with users_errors(self.file.path, "data(folder)"):
            found = hash_of(known) if known else ""
        if len(known) < len(parts) or self.train is None or not found:
            logging.info("samples of streams, of own loaders and of random transforms are not compared between workers")
        return found

    def batches(self, feed: Feed, config: Config, rank: int, num_workers: int, indices: np.ndarray | None) -> Batches:
        """A worker's batches.

        Args:
            indices: of its samples (n_k,); None: they have no numbers.
        """
        seed = (config.seed, rank)
        if self.train is None:
            return CountedBatches(config.batch_size)
        if isinstance(self.train, Stream):
            if config.algorithm.shares_batch or config.phase_batch_size != (0,):
                raise SetupError(
                    f"mode {config.mode} chooses the size of batches, and a stream makes its own: give arrays or a "
                    "Dataset"
                )
            begin = partial(self.train.batches, rank, num_workers, config.seed)
            return StreamedBatches(begin, feed, seed)
        if indices is None:
            indices = np.arange(len(self.train))
        return EndlessBatches(self.train, feed, indices, config.batch_size, seed)

    def first(self, number: int, seed: int) -> Raw | None:
        """Some samples, of the training part if it has any."""
        for part in (self.train, self.test):
            if part is not None:
                if not isinstance(part, Stream):
                    return part.take(slice(0, number))
                if first := next(part.batches(0, 1, seed), None):
                    return first
                raise SetupError("the stream has no batches")
        return None

    def test_batches(self, feed: Feed, batch_size: int, seed: int) -> Iterator[Batch]:
        """Yields the test samples once."""
        assert self.test is not None
        if isinstance(self.test, Stream):
            raws = self.test.batches(0, 1, seed)
            yield from map(feed, itertools.islice(raws, MOST_TEST_BATCHES))
            if next(raws, None) is not None:
                raise SetupError(f"the stream of the test part has no end after {MOST_TEST_BATCHES} batches: give one")
            return
        for begin in range(0, len(self.test), batch_size):
            yield feed(self.test.take(slice(begin, begin + batch_size)))


def classes_of(part: Any) -> np.ndarray | None:
    """The targets (N,) of arrays where they are integers; None where they are not."""
    if isinstance(part, Arrays) and len(part.targets) == 1:
        targets = part.targets[0]
        if isinstance(targets, np.ndarray) and targets.ndim == 1 and np.issubdtype(targets.dtype, np.integer):
            return targets
    return None


HELD_OUT_SEED = 0  # not the job's: runs with other seeds are evaluated on the same samples


def hold_out(source: Source, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the samples to train on, and those of the last `count` of a seeded permutation, each ascending. So
    step sizes can be chosen without the test set.

    Raises:
        SetupError: no training samples would be left.
    """
    if count >= len(source):
        raise SetupError(f"--validation {count} leaves nothing of the {len(source)} training samples: hold out fewer")
    order = np.random.default_rng(HELD_OUT_SEED).permutation(len(source))
    return np.sort(order[:-count]), np.sort(order[-count:])


def job_of(config: Config) -> Job:
    """The job that the flags name.

    Raises:
        SetupError: the file, the data or the flags are no job.
    """
    here = Path.cwd()
    file = job_file.load(Path(config.job)) if config.job else JobFile()
    train, test, prepare, classes, labels = _data(config, file)
    if Path.cwd() != here:
        raise UserError(
            f"{config.job} leaves the folder {here} (os.chdir), from which relative paths of flags count: name files "
            "from Path(__file__).parent"
        )
    if train is None and file.train is None:
        raise UserError(f"{config.job}: data(folder) has no training samples, and there is no train(worker): give one")
    if test is None and (config.target is not None or config.target_accuracy):
        raise UserError(f"{config.job}: data(folder) has no test samples, and a target needs them: give test samples")
    if config.validation:
        if train is None or isinstance(train, Stream):
            raise SetupError("--validation holds out samples with numbers, and a stream has none: leave it out")
        kept, held = hold_out(train, config.validation)
        train, test, labels = Subset(train, kept), Subset(train, held), partial(_of, labels, kept)
    if train is not None and not isinstance(train, Stream):
        largest = max(config.batch_size, *config.phase_batch_size)
        if largest > len(train):
            flag = "-b" if largest == config.batch_size else "--phase-batch-size"
            raise SetupError(f"batch size {largest} exceeds the {len(train)} training samples: choose a smaller {flag}")
    return Job(file=file, train=train, test=test, prepare=prepare, labels=labels, classes=classes)


def _of(labels: Callable[[], np.ndarray | None], chosen: np.ndarray) -> np.ndarray | None:
    found = labels()
    return None if found is None else found[chosen]


def _data(
    config: Config, file: JobFile
) -> tuple[Source | Stream | None, Source | Stream | None, Prepare | None, int, Callable[[], np.ndarray | None]]:
    """The training and the test part, their preparation, the number of classes, and the training samples' classes."""
    own = _prepare(file)
    if file.data is None:
        size = models.REGISTRY[config.network].input_size if file.network is None else 0
        data = builtin.data_of(config, size)
        return data.train, data.test, own or data.prepare, data.classes, partial(_labels, file, data.train, data.train)
    if config.augment:
        raise SetupError("--augment changes the images of a built-in dataset: change those of data() in prepare()")
    with users_errors(file.path, "data(folder)"):
        given = file.data(config.data_dir)
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise SetupError(f"returns {described(given)}: return (train, test)")
    parts: list[Source | Stream | None] = []
    for name, part in zip(("train", "test"), given, strict=True):
        with users_errors(file.path, f"data(folder), {name}"):
            parts.append(None if part is None else source_of(part, file.batchify))
    found = classes_of(parts[0])
    classes = int(found.max()) + 1 if found is not None else 0
    return parts[0], parts[1], own, classes, partial(_labels, file, given[0], parts[0])


def _labels(file: JobFile, given: Any, train: Any) -> np.ndarray | None:
    """The class of each training sample: of the file's `labels`, or the targets."""
    if file.labels is None:
        return classes_of(train)
    with users_errors(file.path, "labels(train)"):
        labels = np.asarray(file.labels(given))
        if labels.shape != (len(train),):
            raise SetupError(f"gives {described(labels)} for {len(train)} samples: give one label for each")
        return labels


def _prepare(file: JobFile) -> Prepare | None:
    """The file's `prepare`, with or without a generator of random changes."""
    prepare = file.prepare
    if prepare is None:
        return None

    def checked(inputs: Any, targets: Any, random: np.random.Generator | None) -> tuple[Any, Any]:
        prepared = prepare(inputs, targets, **({"random": random} if is_random else {}))
        if not isinstance(prepared, (tuple, list)) or len(prepared) != 2:
            raise SetupError(f"prepare() returns {described(prepared)}: return (inputs, targets)")
        return prepared[0], prepared[1]

    is_random = takes_random(prepare)
    return checked
