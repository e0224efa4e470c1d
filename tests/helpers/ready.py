"""Images as batches of the trainers. Not a test itself."""

from functools import partial

import numpy as np

from trainer.datasets.augment import prepared
from trainer.datasets.batches import EndlessBatches
from trainer.datasets.samples import Samples
from trainer.datasets.sources import Arrays, Raw
from trainer.engine import mx
from trainer.jobs.gluon import GluonFeed
from trainer.network import Batch

FEED = GluonFeed(mx.cpu(), partial(prepared, 0, False))


def ready(samples: Samples) -> Batch:
    return FEED(Raw(samples.images, samples.labels, len(samples.labels)))


def endless(
    samples: Samples, indices: np.ndarray, batch_size: int, seed: int | tuple[int, ...], feed: GluonFeed = FEED
) -> EndlessBatches:
    return EndlessBatches(Arrays(samples.images, samples.labels), feed, indices, batch_size, seed)


def labels_of(batch: Batch) -> np.ndarray:
    """The classes (N,) of a batch."""
    return batch.targets[0].asnumpy().astype(int)


def images_of(batch: Batch) -> np.ndarray:
    """The pixels (N, C, H, W) of a batch, from 0 to 255."""
    return np.rint(batch.inputs[0].asnumpy() * 255).astype(int)
