"""A tenth of Fashion-MNIST in MNIST's files: jobs read and evaluate it in a tenth of the time. Not a test itself."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from tiny_data import idx

from trainer.datasets import loading

WHERE = "TESTS_FEW_IMAGES"  # in the environment: what the tests start finds the files that are there


def few_images() -> Path:
    """The folder of data that has them. It is made once, and goes with the process that made it."""
    if WHERE not in os.environ:
        os.environ[WHERE] = tempfile.mkdtemp(prefix="few-images-")
        atexit.register(shutil.rmtree, os.environ[WHERE], ignore_errors=True)
        _write(Path(os.environ[WHERE], "mnist"))
    return Path(os.environ[WHERE])


def on_few_images() -> list[str]:
    """The flags of main.py that choose them."""
    return ["--dataset", "mnist", "-dd", str(few_images())]


def _write(folder: Path) -> None:
    folder.mkdir()
    whole = loading.load("fashion-mnist", str(Path(__file__).parents[2] / "data"))
    for name, (images, labels) in (("train", whole.train), ("t10k", whole.test)):
        tenth = len(labels) // 10
        (folder / f"{name}-images-idx3-ubyte").write_bytes(idx(images[:tenth, 0]))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels[:tenth]))
