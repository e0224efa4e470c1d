r"""Images in files, a folder for each class. They need not fit into memory: a batch is decoded when it is trained on.

.venv/bin/python examples/image_folder.py  # draws data/stripes
scripts/local_cluster.sh -m esync --job examples/image_folder.py --workers 0.04,0.08,0.4 -- \
    -ll 0.003 --max-seconds 20 -e 10
"""

from pathlib import Path

import numpy as np
from mxnet.gluon import nn
from mxnet.gluon.data.vision import ImageFolderDataset
from PIL import Image


def network():
    layers = nn.HybridSequential()
    layers.add(nn.Conv2D(16, 5, strides=2, activation="relu"), nn.GlobalMaxPool2D(), nn.Dense(2))
    return layers


def data(folder):
    return ImageFolderDataset(f"{folder}/stripes/train"), ImageFolderDataset(f"{folder}/stripes/test")


def prepare(images, classes):  # uint8 (N, height, width, 3) -> (N, 3, height, width) in [0, 1]
    return images.transpose(0, 3, 1, 2) / 255, classes


def labels(train):  # for -s 1, which gives each worker other classes
    return [label for _, label in train.items]


if __name__ == "__main__":
    for number in range(1200):
        stripes = np.sin(np.arange(32) * np.random.uniform(0.5, 2)).reshape(32, 1, 1) + np.random.randn(32, 32, 3)
        picture = stripes if number % 2 else stripes.transpose(1, 0, 2)
        file = Path("data/stripes", ("test", "train")[number >= 200], ("across", "down")[number % 2], f"{number}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.uint8(picture.clip(-2, 2) * 60 + 128)).save(file)
