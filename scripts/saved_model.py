"""Evaluates a network that a worker saved, predicts with it, or converts it to ONNX.

A model is named by its description, such as logs/cpu/best.json or final.json.
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import importlib.metadata
import io
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from config import DATASETS, NETWORKS, Config
from esync.metric import ACCURACY, logged_value
from flag_parser import FlagParser
from trainer.datasets.augment import prepared
from trainer.datasets.batches import Prepare
from trainer.datasets.sources import Arrays, Stream
from trainer.evaluation.saved_model import SavedModel, job_file_of
from trainer.jobs.job import job_of, prepare_of
from trainer.jobs.job_file import JobFile, load
from trainer.jobs.network import build, evaluator_of, of_library
from trainer.jobs.user_errors import last_line, users_errors
from trainer.network import JobNetwork, arrays_in, numpy_of
from utils import SetupError, write_atomically

ROOT = Path(__file__).resolve().parent.parent
BATCH_SIZE = 64  # of a prediction
METADATA = "esync"  # key of the description in an ONNX file's metadata


def evaluate(path: Path, dataset: str, data_dir: Path, job_path: Path | None = None) -> str:
    """Evaluates a saved model; returns a line with the metric of its job on the test data. `dataset` is that of the
    built-in test data, `job_path` the job file; by default those of the training. Raises SetupError if the model or the
    data are not available, or they do not fit."""
    model = SavedModel.find(path)
    flags: dict[str, Any] = {"job": job_file_of(model, job_path), "data_dir": str(data_dir), "batch_size": 1}
    for field, value, known in (("network", "", NETWORKS), ("dataset", dataset, DATASETS)):
        if (name := value or model.about[field]) in known:
            flags[field] = name
    config = Config(mode="local", cpu=1, **flags)
    job = job_of(config)
    name = config.dataset if job.file.data is None else job.name
    if job.classes != model.about.get("classes", job.classes):
        raise SetupError(f"{name} has {job.classes} classes, {path} is a model for {model.about['classes']}")
    if job.test is None:
        raise SetupError(f"{job.file.path} has no test samples: give some in data(folder)")
    built = build(config, job, lambda text: None)
    built.network.restore(model.parameters)
    measured = built.metric.checked(evaluator_of(config, job, built)())
    metric, before = logged_value(model.about) or (ACCURACY, None)
    its = "" if metric == built.metric else f"{metric.name} "
    saved = "not known" if before is None else f"{its}{metric.text(before)}"
    count = "" if isinstance(job.test, Stream) else f"{len(job.test)} "
    kind = "images" if job.file.data is None else "samples"
    now = f"{built.metric.name} {built.metric.text(measured)}"
    return f"{now} on the {count}test {kind} of {name}; when it was saved: {saved}"


def predict(path: Path, inputs: Path, output: Path, job_path: Path | None = None) -> str:
    """Writes a saved model's outputs (N, ...) for inputs (N, ...); returns a line about them. Raises SetupError if the
    model or the inputs are not available, or do not fit, or `output` cannot be written."""
    model, arrays = SavedModel.find(path), _read(inputs)
    if output.suffix not in (".npy", ".npz") or not output.parent.is_dir() or output.resolve() == inputs.resolve():
        raise SetupError(f"{output}: name a new .npy or .npz file, in a folder that is there")
    name = job_file_of(model, job_path)
    file = load(Path(name)) if name else JobFile()
    if file.batchify is not None:
        raise SetupError(f"{name} makes batches of samples by batchify(), not of arrays: predict in your own program")
    wanted = [tuple(each["shape"]) for each in model.about.get("inputs", [model.about.get("input")])]
    told = f"{path} takes {' and '.join(_form(('N', *shape)) for shape in wanted) or 'other inputs'}"
    prepare = prepare_of(file)
    if prepare is None and file.data is None:  # images
        prepare = partial(prepared, wanted[0][-1], False)
        if [(each.dtype, each.ndim, each.shape[1:2]) for each in arrays] != [(np.uint8, 4, wanted[0][:1])]:
            given = " and ".join(f"{each.dtype} {each.shape}" for each in arrays)
            raise SetupError(f"{inputs} has {given}, and {told}, as images of uint8 from 0 to 255")
    found = [*_outputs(_network(model, file), file, prepare, arrays, str(inputs), told)]
    forms = [sorted({_form(each.shape[1:]) for each in of_all}) for of_all in zip(*found, strict=True)]
    if several := [form for form in forms if len(form) > 1]:
        raise SetupError(f"the outputs of a sample are {' or '.join(several[0])} by the batch: no array holds them")
    if len(forms) > 1 and output.suffix == ".npy":
        raise SetupError(f"the network has {len(forms)} outputs, and {output} takes one: name a .npz file")
    whole = [np.concatenate(of_all) for of_all in zip(*found, strict=True)]
    content = io.BytesIO()
    if output.suffix == ".npz":
        np.savez(content, *whole)
    else:
        np.save(content, whole[0])
    write_atomically(output, content.getvalue())
    return f"{output}: {' and '.join(f'{each.dtype} {each.shape}' for each in whole)}"


def _read(path: Path) -> list[np.ndarray]:
    """The arrays (N, ...) of a .npy file, or of a .npz file in their order."""
    try:
        file = np.load(path, mmap_mode="r", allow_pickle=False)
        arrays = [file] if isinstance(file, np.ndarray) else [*file.values()]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise SetupError(f"{path} cannot be read as a .npy or .npz file of numbers: {error}") from None
    counts = {len(each) if each.ndim else 0 for each in arrays}
    if len(counts) != 1 or counts == {0} or any(each.dtype.kind not in "buif" for each in arrays):
        given = " and ".join(f"{each.dtype} {each.shape}" for each in arrays) or "nothing"
        raise SetupError(f"{path} has {given}: give numbers (N, ...) of at least one sample, and equally many of each")
    return arrays


def _network(model: SavedModel, file: JobFile) -> JobNetwork:
    if file.network is None:
        return of_library(model.load())
    with users_errors(file.path, "network()"):
        network = of_library(file.network())
        network.restore(model.parameters)
    return network


def _outputs(
    network: JobNetwork, file: JobFile, prepare: Prepare | None, arrays: Sequence[np.ndarray], where: str, told: str
) -> Iterator[list[np.ndarray]]:
    """Yields the outputs of each batch. `prepare` gets zeros as targets."""
    samples, feed = Arrays(tuple(arrays), np.zeros(len(arrays[0]), np.int64)), network.feed(prepare)
    for begin in range(0, len(samples), BATCH_SIZE):
        raw = samples.take(slice(begin, begin + BATCH_SIZE))
        with users_errors(file.path, "prepare(inputs, targets)"):
            batch = feed(raw)
        place = f"{where}, samples {begin} to {begin + raw.size - 1}"
        if fault := batch.fault():
            raise SetupError(f"{place}: {fault}")
        try:
            outputs = [*map(numpy_of, arrays_in(network.outputs(batch)))]
        except Exception as error:  # of any kind: the network's own code
            given = " and ".join(_form(each.shape) for each in batch.inputs)
            raise SetupError(f"{place}, are {given}, and {told}: {last_line(error)}") from None
        if any(each.shape[:1] != (raw.size,) for each in outputs):
            given = " and ".join(_form(each.shape) for each in outputs)
            raise SetupError(f"{place}: the network gives {given}, which is no row for each")
        yield outputs


def _form(shape: Sequence[Any]) -> str:
    """Such as (N, 5)."""
    return f"({', '.join(map(str, shape))})"


def to_onnx(path: Path, output: Path) -> str:
    """Writes a saved model as ONNX, for batches of any size; returns a line about the file. Raises SetupError if the
    model is not available, or no onnx that works with MXNet's exporter is installed."""
    model = SavedModel.find(path)
    if model.parameters.suffix == ".pt":
        raise SetupError(f"{model.parameters} is of torch: torch.onnx.export converts its network")
    check_onnx()
    import onnx  # type: ignore[import-not-found]

    from trainer.engine import mx

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
    commands = parser.add_subparsers(dest="command", required=True, metavar="evaluate | predict | onnx")
    model = FlagParser(add_help=False)
    model.add_argument("model", type=Path, help="the model's description, such as logs/cpu/best.json")
    job = FlagParser(add_help=False)
    job.add_argument("--job", type=Path, metavar="FILE", help="default: the job file of the training, if it had one")
    test = commands.add_parser("evaluate", parents=[model, job], help="the metric of the test data, on the CPU")
    test.add_argument("--dataset", default="", choices=DATASETS, help="default: the dataset of the training")
    test.add_argument("-dd", "--data-dir", type=Path, default=ROOT / "data", help="default: %(default)s")
    use = commands.add_parser("predict", parents=[model, job], help="outputs for inputs, on the CPU")
    use.add_argument("inputs", type=Path, help="a .npy file (N, ...); .npz: of several inputs")
    use.add_argument("output", type=Path, help="a .npy file (N, ...); .npz: of several outputs")
    convert = commands.add_parser("onnx", parents=[model], help="conversion to ONNX")
    convert.add_argument("output", nargs="?", type=Path, help="default: beside the model, such as best.onnx")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """The command: evaluates, predicts or converts."""
    given = parse(arguments)
    if given.command == "evaluate":
        print(evaluate(given.model, given.dataset, given.data_dir, given.job))
    elif given.command == "predict":
        print(predict(given.model, given.inputs, given.output, given.job))
    else:
        print(to_onnx(given.model, given.output or given.model.with_suffix(".onnx")))


if __name__ == "__main__":
    start.run(lambda: main(sys.argv[1:]))
