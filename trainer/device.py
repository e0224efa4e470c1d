"""The work of a worker's device: samples in the network's form, forward and backward passes, evaluation."""

from __future__ import annotations

import functools
from typing import Any, Protocol

import numpy as np

from trainer.datasets.samples import WHITE, Samples
from trainer.engine import mx
from trainer.parameters import array_of


class DeviceFeed:
    """Brings images (uint8, N x C x H x W) and classes to the device, scaled to [0, 1] and to the network's size."""

    def __init__(self, context: mx.Context, input_size: int) -> None:
        self._context = context
        self._size = input_size

    def __call__(self, samples: Samples) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
        """Returns float32 images (N, C, size, size) and float32 classes (N,)."""
        images = array_of(np.divide(samples.images, WHITE, dtype=np.float32), self._context)
        if self._size and self._size != images.shape[-1]:
            images = mx.nd.contrib.BilinearResize2D(images, height=self._size, width=self._size)
        return images, array_of(samples.labels.astype(np.float32), self._context)


class Passes(Protocol):
    """The forward and the backward pass of a step. Both only begin."""

    def forward(self, images: Any, labels: Any) -> None:
        """Begins the forward pass on a batch of the feed."""

    def wait_for_loss(self) -> None:
        """Waits for the end of the forward pass."""

    def backward(self, weight: float) -> None:
        """Begins the backward pass: gradients of the loss summed over the batch, times `weight`."""

    def loss(self) -> float:
        """Mean loss over the samples of the last batch that had a backward pass."""


class NetworkPasses:
    """The passes of an MXNet network."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._loss_function = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        self._loss_function.hybridize()
        self._running: mx.nd.NDArray | None = None
        self._complete: mx.nd.NDArray | None = None
        self._factors = functools.lru_cache(8)(lambda number, weight, on: mx.nd.full((number,), weight, ctx=on))

    def forward(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> None:
        with mx.autograd.record():
            self._running = self._loss_function(self._network(images), labels)

    def wait_for_loss(self) -> None:
        assert self._running is not None
        self._running.wait_to_read()

    def backward(self, weight: float) -> None:
        assert self._running is not None
        loss = self._complete = self._running
        loss.backward(self._factors(len(loss), weight, loss.context) if weight != 1 else None)

    def loss(self) -> float:
        assert self._complete is not None
        return float(self._complete.mean().asscalar())


class Evaluator:
    """Test accuracy: correct / total over the whole test set."""

    def __init__(self, network: Any, test: Samples, feed: DeviceFeed, batch_size: int) -> None:
        self._network = network
        self._test = test
        self._feed = feed
        self._batch_size = batch_size

    def __call__(self) -> float:
        total = len(self._test.labels)
        correct = []
        for begin in range(0, total, self._batch_size):
            part = slice(begin, begin + self._batch_size)
            images, labels = self._feed(Samples(self._test.images[part], self._test.labels[part]))
            correct.append((self._network(images).argmax(axis=1) == labels).sum())
        return float(mx.nd.add_n(*correct).asscalar()) / total
