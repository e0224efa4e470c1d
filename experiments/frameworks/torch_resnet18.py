"""A job file: ResNet-18 of PyTorch, as `-n resnet18-v1` has it of gluon."""

import numpy as np
from torch import nn


class Block(nn.Module):  # type: ignore[misc]
    """Two convolutions, and a short cut around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()),
            *(nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)),
        )
        layers = (nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.short = nn.Sequential(*layers if before != after else ())

    def forward(self, images):  # type: ignore[no-untyped-def]
        return nn.functional.relu(self.body(images) + self.short(images))


def network() -> nn.Module:
    """ResNet-18, with a first convolution of one channel."""
    layers = nn.Sequential(nn.Conv2d(1, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    for before, after in ((64, 64), (64, 128), (128, 256), (256, 512)):
        layers.extend([Block(before, after, 1 if before == after else 2), Block(after, after, 1)])
    return layers.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)])


def prepare(images: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales to [0, 1]."""
    return images / np.float32(255), classes
