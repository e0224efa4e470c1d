"""A job file: LeNet-5 of PyTorch, as `-n lenet` has it of gluon."""

import numpy as np
from torch import nn


def network() -> nn.Module:
    """LeNet-5, with max pooling and ReLU."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def prepare(images: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales to [0, 1]."""
    return images / np.float32(255), classes
