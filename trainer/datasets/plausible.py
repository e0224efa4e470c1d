"""Whether a dataset is the published one of its name. Pure; needs numpy.

Researchers train on parts of a dataset, or on data of their own under its name. So only what no dataset can be is an
error; all other differences are warnings. Fashion-MNIST is not here: its files are checked by their hashes.
"""

from typing import NamedTuple

import numpy as np

from trainer.datasets.samples import Dataset, Samples


class Published(NamedTuple):
    """Properties of a published dataset."""

    title: str
    image: tuple[int, int, int]  # channels, height, width
    train: tuple[int, ...]  # images of each class in the training part
    test: tuple[int, ...]  # the same in the test part
    # The least share of images whose nearest class mean is that of their own class, among means of `SAMPLE` training
    # images. MNIST has 0.8, CIFAR-10 0.27; with half of the labels changed they have 0.45 and 0.19.
    alike: float


PUBLISHED = {
    "mnist": Published(
        "MNIST",
        (1, 28, 28),
        (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
        alike=0.65,
    ),
    "cifar10": Published("CIFAR-10", (3, 32, 32), (5000,) * 10, (1000,) * 10, alike=0.2),
    "cifar100": Published("CIFAR-100", (3, 32, 32), (500,) * 100, (100,) * 100, alike=0.02),
}
SAMPLE = 2000  # images whose classes are compared; smaller datasets are not checked
FEW = 100  # images that may serve as both parts, to try a program out
DUPLICATES = 0.01  # greatest share of the test images that are training images too


def fault_of(dataset: Dataset) -> str:
    """Why no dataset can be like this one, and what to do; else empty."""
    train, test = dataset.train, dataset.test
    if not train.images[0].size:
        return f"its images have no pixels ({_size(train.images.shape[1:])}): get the published files again"
    if train.images.shape[1:] != test.images.shape[1:]:
        return (
            f"the training images are {_size(train.images.shape[1:])}, the test images {_size(test.images.shape[1:])}: "
            "get both parts of one dataset"
        )
    if len(test.labels) > len(train.labels):
        return (
            f"the test part has {len(test.labels)} images, the training part {len(train.labels)}: its files are "
            "swapped, or some of the training part are missing"
        )
    if len(test.labels) > FEW and all(map(np.array_equal, train, test)):
        return "the test part is the training part once more: get the published test files"
    return ""


def doubts(name: str, dataset: Dataset) -> str:
    """Differences from the published dataset of that name, in one line with what to do; empty where there are none."""
    if name not in PUBLISHED:
        return ""
    its = PUBLISHED[name]
    found = []
    if (image := dataset.train.images.shape[1:]) != its.image:
        found.append(f"its images are {_size(image)}, published {_size(its.image)}")
    for part, samples, counts in (("training", dataset.train, its.train), ("test", dataset.test, its.test)):
        if len(samples.labels) != sum(counts):
            found.append(f"it has {len(samples.labels)} {part} images, published {sum(counts)}")
        found.append(_count_doubt(part, samples, counts))
    found += [_duplicate_doubt(dataset), *_label_doubts(its, dataset)]
    told = [each for each in found if each]
    if not told:
        return ""
    return (
        f"this is unlike the published {its.title}: {'; '.join(told)}. Get the published files again, or go on if "
        "this is what you want to train on"
    )


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _count_doubt(part: str, samples: Samples, counts: tuple[int, ...]) -> str:
    """The counts of a whole part are known; those of a sample may be off by half, or by five std."""
    found, published = np.bincount(samples.labels, minlength=len(counts)), np.array(counts)
    expected = published * (len(samples.labels) / published.sum())
    allowed = 0.0 if found.sum() == published.sum() else np.maximum(expected / 2, 5 * np.sqrt(expected))
    off = np.abs(found - expected) - allowed
    if not (off > 0).any():
        return ""
    worst = int(off.argmax())
    return (
        f"{found[worst]} {part} images are of class {worst}, where {expected[worst]:.0f} are to be expected "
        f"({(off > 0).sum()} of {len(counts)} classes are off)"
    )


def _duplicate_doubt(dataset: Dataset) -> str:
    train, test = (_fingerprints(samples.images) for samples in (dataset.train, dataset.test))
    both = int(np.isin(test, train).sum())
    if both <= DUPLICATES * len(test):
        return ""
    return f"{both} of {len(test)} test images are training images too, published next to none"


def _fingerprints(images: np.ndarray) -> np.ndarray:
    """64-bit hashes (N,) of images: sums of eight bytes at a time, times fixed random numbers."""
    rows = np.ascontiguousarray(images).reshape(len(images), -1)
    if rows.shape[1] % 8:
        rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 8)))
    words = rows.view(np.uint64)
    factors = np.random.default_rng(0).integers(0, 1 << 63, words.shape[1], dtype=np.uint64)
    return words @ (2 * factors + 1)


def _label_doubts(its: Published, dataset: Dataset) -> list[str]:
    """Finds labels that do not belong to the images, such as after a shuffle, which leaves all counts."""
    if len(dataset.train.labels) < 2 * SAMPLE or len(dataset.test.labels) < SAMPLE:
        return []
    random = np.random.default_rng(0)
    to_learn, to_look_at = np.split(random.permutation(len(dataset.train.labels))[: 2 * SAMPLE], 2)
    images, labels = _rows(dataset.train, to_learn)
    classes = np.unique(labels)
    means = np.stack([images[labels == each].mean(axis=0) for each in classes])
    found = []
    looked_at = {
        "training": _rows(dataset.train, to_look_at),
        "test": _rows(dataset.test, random.permutation(len(dataset.test.labels))[:SAMPLE]),
    }
    for part, (images, labels) in looked_at.items():
        # The nearest of means m to x: |x - m|^2 is least where x.m - |m|^2 / 2 is greatest.
        nearest = classes[(images @ means.T - (means**2).sum(axis=1) / 2).argmax(axis=1)]
        alike = float((nearest == labels).mean())
        if alike < its.alike:
            found.append(
                f"only {alike:.0%} of the {part} images look most like the mean image of their class, expected are "
                f"{its.alike:.0%} or more, so labels may be changed or shuffled"
            )
    return found


def _rows(samples: Samples, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Some images as float32 (n, pixels), and their labels (n,)."""
    return samples.images[chosen].reshape(len(chosen), -1).astype(np.float32), samples.labels[chosen]
