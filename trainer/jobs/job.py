"""What a job learns: of a job file, and of the built-in networks and datasets for what the file leaves out."""

import itertools
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from config import Config
from trainer.datasets.augment import prepared
from trainer.datasets.batches import Batches, EndlessBatches, Feed, Prepare, StreamedBatches
from trainer.datasets.finite import faults
from trainer.datasets.loading import load_once
from trainer.datasets.sources import Arrays, Raw, Source, Stream, Subset, described, hash_of, source_of
from trainer.draws import seed_all
from trainer.jobs import job_file
from trainer.jobs.job_file import JobFile, takes_random
from trainer.jobs.user_errors import UserError, users_errors
from trainer.network import Batch, is_tensor, numpy_of
from utils import SetupError

MOST_TEST_BATCHES = 100_000  # of a stream: more is taken for an endless one


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a job learns."""

    file: JobFile  # whose parts go before the built-in ones
    train: Source | Stream | None  # None: the file's own loop loads its samples
    test: Source | Stream | None  # None: nothing is evaluated
    prepare: Prepare | None
    labels: Callable[[], np.ndarray | None]  # the class of each training sample (N,), where it is known
    classes: int  # of the targets; 0: they are no classes

    @property
    def name(self) -> str:
        """The file's stem; empty for a built-in job."""
        return self.file.path.stem if self.file.path is not None else ""

    @property
    def makes_samples(self) -> str:
        """The file's function that a batch comes from."""
        return "prepare(inputs, targets)" if self.file.prepare else "data(folder)"

    def built_in(self, config: Config, first: Batch | None) -> Any:
        """The built-in network for inputs like those of the first batch. Raises SetupError if the built-in networks do
        not take such inputs."""
        shapes = [array.shape[1:] for array in first.inputs] if first is not None else []
        if len(shapes) != 1 or len(shapes[0]) != 3 or not self.classes:
            told = " and ".join(map(str, shapes)) or "unknown"
            raise SetupError(
                f"-n {config.network} takes images (N, C, H, W) and integer classes (N,) as targets; here the inputs "
                f"of a sample are {told}, with {self.classes or 'no'} classes: define network()"
            )
        import models  # which imports MXNet

        return models.build(config.network, shapes[0], self.classes, None, config.seed)

    def partitioned_by(self, config: Config) -> Any:
        """What the samples are partitioned by: classes (N,), or anything as long; None: they have no numbers. Raises
        SetupError where --split-by-class is given and no classes are known."""
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
        """A worker's batches. `indices` are those of its samples (n_k,); None: they have no numbers."""
        seed = (config.seed, rank)
        if self.train is None:
            return Batches(config.batch_size)
        if isinstance(self.train, Stream):
            if config.algorithm.shares_batch or {*config.batch_sizes} != {config.batch_size}:
                raise SetupError(
                    f"mode {config.mode} chooses the size of batches, and a stream makes its own: give arrays or a "
                    "Dataset"
                )
            begin = partial(self.train.batches, rank, num_workers, config.seed)
            return StreamedBatches(begin, feed, seed)
        if indices is None:
            indices = np.arange(len(self.train))
        return EndlessBatches(self.train, feed, indices, config.batch_size, seed, self.file.path is not None)

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

    def some_test_batches(self, feed: Feed, number: int, seed: int) -> Iterator[Batch]:
        """Yields so many test samples, spread over all; of a stream its first batch."""
        assert self.test is not None
        if isinstance(self.test, Stream):
            yield from map(feed, itertools.islice(self.test.batches(0, 1, seed), 1))
        else:
            yield feed(self.test.take(np.unique(np.linspace(0, len(self.test) - 1, number).astype(int))))

    def test_batches(self, feed: Feed, batch_size: int, seed: int) -> Iterator[Batch]:
        """Yields the test samples once."""
        assert self.test is not None
        if self.file.path is not None:
            seed_all(feed.seed, seed)  # a prepare() that draws here too
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
        if is_tensor(targets):
            targets = numpy_of(targets)
        if isinstance(targets, np.ndarray) and targets.ndim == 1 and np.issubdtype(targets.dtype, np.integer):
            return targets
    return None


HELD_OUT_SEED = 0  # not the job's: runs with other seeds are evaluated on the same samples


def hold_out(source: Source, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the samples to train on, and those of the last `count` of a seeded permutation, each ascending. So
    step sizes can be chosen without the test set. Raises SetupError if no training samples would be left."""
    if count >= len(source):
        raise SetupError(f"--validation {count} leaves nothing of the {len(source)} training samples: hold out fewer")
    order = np.random.default_rng(HELD_OUT_SEED).permutation(len(source))
    return np.sort(order[:-count]), np.sort(order[-count:])


def job_of(config: Config) -> Job:
    """The job that the flags name. Raises SetupError if the file, the data or the flags are no job."""
    here = Path.cwd()
    file = job_file.load(Path(config.job)) if config.job else JobFile()
    job = _built_in(config, file) if file.data is None else _of_file(config, file, file.data)
    if Path.cwd() != here:
        raise UserError(
            f"{config.job} leaves the folder {here} (os.chdir), from which relative paths of flags count: name files "
            "from Path(__file__).parent"
        )
    if job.train is None and file.train is None:
        raise UserError(f"{config.job}: data(folder) has no training samples, and there is no train(worker): give one")
    if job.test is None and (config.target is not None or config.target_accuracy):
        raise UserError(f"{config.job}: data(folder) has no test samples, and a target needs them: give test samples")
    _check_finite(job)
    if config.validation:
        job = _held_out(job, config.validation)
    if job.train is not None and not isinstance(job.train, Stream):
        largest, total = max(config.batch_sizes), len(job.train)
        if largest > total:
            flag = "-b" if largest == config.batch_size else "--phase-batch-size"
            raise SetupError(f"batch size {largest} exceeds the {total} training samples: choose a smaller {flag}")
    return job


def _check_finite(job: Job) -> None:
    """Looks at all arrays in memory. Raises SetupError if one has numbers that are not finite, also as prepare() and
    batchify() leave the first such samples."""
    told = []
    for name, part in (("training", job.train), ("test", job.test)):
        found = faults(part.inputs, part.targets, name) if isinstance(part, Arrays) else []
        if found and isinstance(part, Arrays):
            with users_errors(job.file.path, job.makes_samples):
                tried = Feed(job.prepare)(part.take(np.unique([each.sample for each in found])))
            told += [each.text for each in found] if tried.fault() else []
    with users_errors(job.file.path, "data(folder)"):
        if told:
            raise SetupError(f"{'; '.join(told)}: leave such samples out, or give other numbers here or in prepare()")


def _held_out(job: Job, count: int) -> Job:
    """The job with some of its training samples in place of its test part."""
    if job.train is None or isinstance(job.train, Stream):
        raise SetupError("--validation holds out samples with numbers, and a stream has none: leave it out")
    kept, held = hold_out(job.train, count)

    def labels() -> np.ndarray | None:
        found = job.labels()
        return None if found is None else found[kept]

    return replace(job, train=Subset(job.train, kept), test=Subset(job.train, held), labels=labels)


def _built_in(config: Config, file: JobFile) -> Job:
    size = 0
    if file.network is None:
        import models  # which imports MXNet

        size = models.REGISTRY[config.network].input_size  # pixels of a side; 0: those of the images
    dataset, doubts = load_once(config.dataset, config.data_dir)
    if doubts:
        logging.warning("warning: %s in %s: %s", config.dataset, config.data_dir, doubts)
    train = Arrays(*dataset.train)
    return Job(
        file=file,
        train=train,
        test=Arrays(*dataset.test),
        prepare=prepare_of(file) or partial(prepared, size, bool(config.augment)),
        labels=partial(_labels, file, train, train),
        classes=dataset.classes,
    )


def _of_file(config: Config, file: JobFile, data: Callable[[str], Any]) -> Job:
    """A job with the file's own data."""
    if config.augment:
        raise SetupError("--augment changes the images of a built-in dataset: change those of data() in prepare()")
    with users_errors(file.path, "data(folder)"):
        given = data(config.data_dir)
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise SetupError(f"returns {described(given)}: return (train, test)")
    parts: list[Source | Stream | None] = []
    for name, part in zip(("train", "test"), given, strict=True):
        with users_errors(file.path, f"data(folder), {name}"):
            parts.append(None if part is None else _source_of(part, file, endless=name == "train"))
    train, test = parts
    found = classes_of(train)
    return Job(
        file=file,
        train=train,
        test=test,
        prepare=prepare_of(file),
        labels=partial(_labels, file, given[0], train),
        classes=0 if found is None else int(found.max()) + 1,
    )


def _source_of(part: Any, file: JobFile, endless: bool) -> Source | Stream:
    """As sources.source_of, also of a DataLoader of torch; `endless`: its batches begin again after the last."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(part, torch.utils.data.DataLoader):
        return source_of(part, file.batchify)
    from trainer.datasets import torch_loader

    return torch_loader.source_of(part, file.batchify, endless)


def _labels(file: JobFile, given: Any, train: Any) -> np.ndarray | None:
    """The class of each training sample: of the file's `labels`, or the targets."""
    if file.labels is None:
        return classes_of(train)
    with users_errors(file.path, "labels(train)"):
        labels = np.asarray(file.labels(given))
        if labels.shape != (len(train),):
            raise SetupError(f"gives {described(labels)} for {len(train)} samples: give one label for each")
        return labels


def prepare_of(file: JobFile) -> Prepare | None:
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
