"""Data that is not what its name says: what cannot be is refused, what is unlike the published dataset is told."""

import logging
from pathlib import Path

import numpy as np
import pytest
from tiny_data import idx

from config import Config
from trainer.datasets import plausible
from trainer.datasets.loading import load, load_once
from trainer.datasets.plausible import PUBLISHED, doubts
from trainer.datasets.samples import Dataset, Samples
from trainer.jobs.job import job_of
from utils import SetupError

DATA = Path(__file__).parents[3] / "data"


@pytest.fixture(scope="module")
def fashion() -> Dataset:
    return load("fashion-mnist", str(DATA))


def part(samples: Samples, counts: tuple[int, ...]) -> Samples:
    """So many images of each class, in a fixed random order; where there are too few, mirrored ones too."""
    images, labels = [], []
    for label, count in enumerate(counts):
        its = samples.images[samples.labels == label]
        images.append(np.concatenate([its, its[..., ::-1]])[:count])
        labels.append(np.full(count, label, np.uint8))
    order = np.random.default_rng(0).permutation(sum(counts))
    return Samples(np.concatenate(images)[order], np.concatenate(labels)[order])


@pytest.fixture(scope="module")
def like_mnist(fashion: Dataset) -> Dataset:
    """As many images of each class as MNIST has."""
    its = PUBLISHED["mnist"]
    return Dataset(part(fashion.train, its.train), part(fashion.test, its.test), 10)


def write(folder: Path, dataset: Dataset) -> Path:
    folder.mkdir()
    for name, (images, labels) in (("train", dataset.train), ("t10k", dataset.test)):
        (folder / f"{name}-images-idx3-ubyte").write_bytes(idx(images[:, 0]))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels))
    return folder


def some(dataset: Dataset, train: int, test: int) -> Dataset:
    return Dataset(Samples(*(its[:train] for its in dataset.train)), Samples(*(its[:test] for its in dataset.test)), 10)


def shuffled(samples: Samples) -> Samples:
    """Half of its labels belong to others of its images; there are as many of each class as before."""
    random = np.random.default_rng(0)
    half = random.permutation(len(samples.labels))[::2]
    labels = samples.labels.copy()
    labels[half] = labels[random.permutation(half)]
    return samples._replace(labels=labels)


def test_what_has_the_numbers_of_the_published_dataset_is_not_doubted(like_mnist: Dataset) -> None:
    assert doubts("mnist", like_mnist) == ""


def test_fashion_mnist_under_the_name_of_mnist_is_refused_by_its_hash(tmp_path: Path, fashion: Dataset) -> None:
    write(tmp_path / "mnist", fashion)
    with pytest.raises(SetupError, match=r"/mnist/train-images-idx3-ubyte is Fashion-MNIST's train-images.*--dataset"):
        load("mnist", str(tmp_path))


def test_fashion_mnist_whose_parts_are_swapped_is_named(tmp_path: Path, fashion: Dataset) -> None:
    write(tmp_path / "fashion-mnist", Dataset(fashion.test, fashion.train, 10))
    with pytest.raises(SetupError, match=r"train-images-idx3-ubyte is Fashion-MNIST's t10k-images-idx3-ubyte"):
        load("fashion-mnist", str(tmp_path))


def padded(samples: Samples) -> Samples:
    return samples._replace(images=np.pad(samples.images, ((0, 0), (0, 0), (2, 2), (2, 2))))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda its: Dataset(its.test, its.train, 10),
            "the test part has 600 images, the training part 300.*swapped",
        ),
        (lambda its: Dataset(its.train, its.train, 10), "the test part is the training part once more"),
        (
            lambda its: its._replace(test=padded(its.test)),
            "images are 1 x 28 x 28, the test images 1 x 32 x 32",
        ),
        (lambda its: Dataset(*(each._replace(images=each.images[..., :0]) for each in its[:2]), 10), "no pixels"),
    ],
)
def test_what_no_dataset_can_be_is_refused_in_one_line(tmp_path: Path, like_mnist: Dataset, change, told) -> None:
    write(tmp_path / "mnist", change(some(like_mnist, 600, 300)))
    with pytest.raises(SetupError, match=f"mnist in {tmp_path}: .*{told}") as error:
        load("mnist", str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda its: some(its, 6000, 1000), ["it has 6000 training images, published 60000", "1000 test images"]),
        (lambda its: its._replace(train=shuffled(its.train)), ["of the training images look most like"]),
        (lambda its: its._replace(test=shuffled(its.test)), ["of the test images look most like"]),
        (lambda its: its._replace(test=some(its, 10000, 0).train), ["10000 of 10000 test images are training images"]),
        (
            lambda its: its._replace(train=its.train._replace(labels=(its.train.labels + 1) % 10)),
            ["training images are of class", "10 of 10 classes are off"],
        ),
        (lambda its: its._replace(train=part(its.train, (5900, 0))), ["0 training images are of class", "590"]),
    ],
)
def test_what_is_unlike_the_published_dataset_is_one_line(like_mnist: Dataset, change, told: list[str]) -> None:
    text = doubts("mnist", change(like_mnist))
    assert all(each in text for each in told), text
    assert text.endswith("Get the published files again, or go on if this is what you want to train on")
    assert "\n" not in text


def test_a_part_that_was_drawn_at_random_has_other_numbers_and_nothing_else(like_mnist: Dataset) -> None:
    assert doubts("mnist", some(like_mnist, 600, 100)).count(";") == 1


def test_the_warning_is_in_the_log_of_each_worker(tmp_path: Path, like_mnist: Dataset, caplog) -> None:
    write(tmp_path / "mnist", some(like_mnist, 600, 100))
    load_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # two workers by fork
            job_of(Config(dataset="mnist", data_dir=str(tmp_path)))
    assert [record.message.partition(": this is")[0] for record in caplog.records] == 2 * [
        f"warning: mnist in {tmp_path}"
    ]


@pytest.mark.parametrize("pixels", [1, 7, 8, 9, 784])
def test_fingerprints_are_of_the_whole_image(pixels: int) -> None:
    images = np.random.default_rng(1).integers(0, 256, (50, 1, 1, pixels), dtype=np.uint8)
    changed = images.copy()
    changed[..., -1] ^= 1
    assert (plausible._fingerprints(images) == plausible._fingerprints(images.copy())).all()
    assert (plausible._fingerprints(images) != plausible._fingerprints(changed)).all()
