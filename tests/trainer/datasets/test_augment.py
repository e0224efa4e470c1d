"""Random crops and mirrored images: by hand, the same for the same seed, and of training images alone."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from ready import endless, images_of, labels_of

from trainer.command_line import parse
from trainer.datasets.augment import PADDING, crop_and_flip, prepared, randomly_changed
from trainer.datasets.samples import Samples
from trainer.datasets.sources import Arrays
from trainer.engine import mx
from trainer.from_flags import learning_task
from trainer.jobs.gluon import GluonFeed
from trainer.jobs.job import Job
from trainer.jobs.job_file import JobFile
from trainer.jobs.network import build
from trainer.membership import Membership

IMAGES = np.arange(1, 1 + 6 * 2 * 3 * 4, dtype=np.uint8).reshape(6, 2, 3, 4)  # no pixel is black
SAMPLES = Samples(np.random.default_rng(0).integers(1, 256, (40, 3, 8, 8), np.uint8), np.arange(40, dtype=np.uint8) % 7)


def batches(augment=False, seed=(0, 0)):
    return endless(SAMPLES, np.arange(40), 16, seed, GluonFeed(mx.cpu(), partial(prepared, 0, augment)))


def one(down, right, flip):
    """What becomes of the first channel of the first image."""
    return crop_and_flip(IMAGES[:1], np.array([down]), np.array([right]), np.array([flip]))[0, 0].tolist()


def test_crops_by_hand():
    assert IMAGES[0, 0].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
    assert one(PADDING, PADDING, False) == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]  # from the middle
    assert one(PADDING, PADDING, True) == [[4, 3, 2, 1], [8, 7, 6, 5], [12, 11, 10, 9]]
    assert one(PADDING - 1, PADDING + 2, False) == [[0, 0, 0, 0], [3, 4, 0, 0], [7, 8, 0, 0]]  # up and to the right
    assert one(PADDING - 1, PADDING + 2, True) == [[0, 0, 0, 0], [0, 0, 4, 3], [0, 0, 8, 7]]
    assert one(0, 0, False) == [[0] * 4] * 3  # a margin is wider than these images
    assert one(2 * PADDING, PADDING, False) == [[0] * 4] * 3


def test_each_image_of_a_batch_has_its_own_crop_and_all_its_channels_the_same():
    down, right, flips = np.array([4, 3, 5, 4, 4, 6]), np.array([4, 4, 4, 5, 2, 6]), np.array([0, 0, 1, 0, 1, 1], bool)
    together = crop_and_flip(IMAGES, down, right, flips)
    padded = np.pad(IMAGES, ((0, 0), (0, 0), (4, 4), (4, 4)))
    for image, y, x, flip, made in zip(padded, down, right, flips, together, strict=True):
        crop = image[:, y : y + 3, x : x + 4]
        assert made.tolist() == (crop[:, :, ::-1] if flip else crop).tolist()


def test_the_images_of_the_dataset_stay_as_they_are():
    before = SAMPLES.images.copy()
    randomly_changed(SAMPLES.images, np.random.default_rng(0))
    np.testing.assert_array_equal(SAMPLES.images, before)


def test_all_places_and_both_ways_are_drawn():
    """Of one image whose crops all differ, among 4,000 crops each of the 2 x 81 is there, about as often."""
    image = np.random.default_rng(1).integers(1, 256, (1, 1, 16, 16), np.uint8)
    made = randomly_changed(np.repeat(image, 4000, axis=0), np.random.default_rng(0))
    _, counts = np.unique(made.reshape(4000, -1), axis=0, return_counts=True)
    assert len(counts) == 2 * 81
    assert counts.min() > 4 and counts.max() < 60  # 25 are expected


def test_the_same_seed_gives_the_same_batches_and_each_worker_has_its_own():
    def first(seed):
        batch = next(batches(True, seed))
        return labels_of(batch).tolist(), images_of(batch).tolist()

    labels, images = first((1, 0))
    assert first((1, 0)) == (labels, images)
    assert first((1, 1))[0] != labels and first((1, 1))[1] != images


def test_the_order_of_the_samples_is_that_without_augmentation():
    plain, augmented = batches(), batches(True)
    for _ in range(6):
        ours, theirs = next(plain), next(augmented)
        assert labels_of(ours).tolist() == labels_of(theirs).tolist()
        assert images_of(ours).tolist() != images_of(theirs).tolist()


def test_a_batch_that_was_put_back_comes_again_unchanged_and_the_next_ones_too():
    undisturbed, put_back = batches(True), batches(True)
    first, second = next(undisturbed), next(undisturbed)
    given_up = next(put_back)
    put_back.put_back(given_up)
    again, after = next(put_back), next(put_back)
    assert again is given_up
    assert images_of(again).tolist() == images_of(first).tolist()
    assert images_of(after).tolist() == images_of(second).tolist()


@pytest.fixture
def tasks(tmp_path):
    """A worker's, without augmentation and with it; the network is the same."""
    made = []
    for augment in "01":
        config = parse(["-m", "local", "-c", "1", "-n", "mlp", "-b", "16", "--augment", augment, "-ld", str(tmp_path)])
        arrays, prepare = Arrays(*SAMPLES), partial(prepared, 0, augment == "1")
        job = Job(file=JobFile(), train=arrays, test=arrays, prepare=prepare, labels=lambda: None, classes=7)
        made.append(learning_task(config, job, build(config, job), Membership()))
    return made


def test_the_flag_changes_training_images_and_no_test_images(tasks):
    plain, augmented = tasks
    assert images_of(next(plain.batches)).tolist() == images_of(next(batches())).tolist()
    assert images_of(next(augmented.batches)).tolist() == images_of(next(batches(True))).tolist()
    seen = []
    for task in tasks:
        outputs = []
        task.network.layers.register_forward_hook(lambda _, images, out, outputs=outputs: outputs.append(out.asnumpy()))
        assert 0 <= task.evaluate() <= 1
        seen.append(np.concatenate(outputs))
    np.testing.assert_array_equal(*seen)
    assert seen[0].shape == (40, 7)
