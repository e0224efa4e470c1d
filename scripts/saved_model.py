"""Evaluates a network that a worker saved, or converts it to ONNX.

A model is named by its description, such as logs/cpu/best.json or final.json.
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import importlib.metadata
import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from config import DATASETS
from flag_parser import FlagParser
from utils import SetupError

ROOT = Path(__file__).resolve().parent.parent
BATCH_SIZE = 64
METADATA = "esync"  # key of the description in an ONNX file's metadata


def evaluate(path: Path, dataset: str, data_dir: Path) -> str:
    """Evaluates a saved model; returns a line with its test accuracy. `dataset` is the test data; empty: the dataset of
    the training. Raises SetupError if the model or the dataset is not available, or they do not fit."""
    from trainer.datasets import loading
    from trainer.datasets.feed import Feed
    from trainer.datasets.sources import Arrays
    from trainer.engine import mx
    from trainer.evaluation.evaluator import Evaluator
    from trainer.evaluation.saved_model import SavedModel
    from trainer.jobs.builtin import prepared
    from trainer.metric import ACCURACY, logged_value

    model = SavedModel.find(path)
    name = dataset or str(model.about["dataset"])
    if name not in DATASETS:
        raise SetupError(f"{path} is a model of a job file, with data of its own; evaluate it in a program of your own")
    _, test, classes = loading.load(name, str(data_dir))
    channels, size, _ = model.input_shape
    if test.images.shape[1] != channels:
        raise SetupError(f"{name} has images of {test.images.shape[1]} channel(s), {path} is a model for {channels}")
    if classes != model.about.get("classes", classes):
        raise SetupError(f"{name} has {classes} classes, {path} is a model for {model.about['classes']}")
    feed = Feed(mx.cpu(), partial(prepared, size, False))
    arrays = Arrays(*test)
    batches = (feed(arrays.take(slice(begin, begin + BATCH_SIZE))) for begin in range(0, len(arrays), BATCH_SIZE))
    evaluator = Evaluator(model.load(mx.cpu()), lambda: batches)
    metric, before = logged_value(model.about) or (ACCURACY, None)
    its = "" if metric.is_accuracy else f"{metric.name} "
    saved = "not known" if before is None else f"{its}{metric.text(before)}"
    return f"accuracy {evaluator():.4f} on the {len(test.labels)} test images of {name}; when it was saved: {saved}"


def to_onnx(path: Path, output: Path) -> str:
    """Writes a saved model as ONNX, for batches of any size; returns a line about the file. Raises SetupError if the
    model is not available, or no onnx that works with MXNet's exporter is installed."""
    check_onnx()
    import numpy as np
    import onnx  # type: ignore[import-not-found]

    from trainer.engine import mx
    from trainer.evaluation.saved_model import SavedModel

    model = SavedModel.find(path)
    shape = [(1, *model.input_shape)]
    any_batch = [(None, *model.input_shape)]
    files = mx.sym.load(model.layers), mx.nd.load(str(model.parameters))
    temporary = output.with_name(f"{output.name}.tmp")
    try:
        mx.onnx.export_model(*files, shape, np.float32, str(temporary), dynamic=True, dynamic_input_shapes=any_batch)
        converted = onnx.load(temporary)
        # MXNet lists the parameters as inputs too, which would prevent constant folding.
        parameters = {array.name for array in converted.graph.initializer}
        inputs = [entry for entry in converted.graph.input if entry.name not in parameters]
        del converted.graph.input[:]
        converted.graph.input.extend(inputs)
        onnx.helper.set_model_props(converted, {METADATA: json.dumps(model.about)})
        onnx.checker.check_model(converted)
        onnx.save(converted, temporary)
        temporary.replace(output)
    except OSError as error:
        raise SetupError(f"{output} cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
    shown = " x ".join(map(str, model.input_shape))
    by = model.about["input"].get("divide_by")
    return f"{output}: give it float32 {f'images of N x {shown}, divided by {by}' if by else f'inputs of N x {shown}'}"


def check_onnx() -> None:
    """Raises SetupError unless an onnx is installed that works with MXNet's exporter."""
    remedy = "pip install -r requirements-onnx.txt (Python 3.10 to 3.12)"
    try:
        version = importlib.metadata.version("onnx")
    except importlib.metadata.PackageNotFoundError:
        raise SetupError(f"onnx is not installed: {remedy}") from None
    if tuple(map(int, re.findall(r"\d+", version)[:2])) > (1, 17):
        raise SetupError(f"MXNet's exporter works with onnx up to 1.17, here it is {version}: {remedy}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; a mistake ends the process with exit code 2."""
    parser = FlagParser(prog="scripts/saved_model.sh", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="evaluate | onnx")
    model = FlagParser(add_help=False)
    model.add_argument("model", type=Path, help="the model's description, such as logs/cpu/best.json")
    test = commands.add_parser("evaluate", parents=[model], help="test accuracy, on the CPU")
    test.add_argument("--dataset", default="", help="test data (default: the dataset of the training)")
    test.add_argument("-dd", "--data-dir", type=Path, default=ROOT / "data", help="default: %(default)s")
    convert = commands.add_parser("onnx", parents=[model], help="conversion to ONNX")
    convert.add_argument("output", nargs="?", type=Path, help="default: beside the model, such as best.onnx")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """The command: evaluates or converts."""
    given = parse(arguments)
    if given.command == "evaluate":
        print(evaluate(given.model, given.dataset, given.data_dir))
    else:
        print(to_onnx(given.model, given.output or given.model.with_suffix(".onnx")))


if __name__ == "__main__":
    start.run(lambda: main(sys.argv[1:]))
