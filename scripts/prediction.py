"""What a saved network gives for the inputs of a file."""

import io
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trainer.datasets.batches import Prepare
from trainer.datasets.sources import Arrays
from trainer.evaluation.saved_model import SavedModel, job_file_of
from trainer.jobs.builtin import prepared
from trainer.jobs.job import prepare_of
from trainer.jobs.job_file import JobFile, load
from trainer.jobs.job_network import JobNetwork
from trainer.jobs.network import of_library
from trainer.jobs.user_errors import last_line, users_errors
from trainer.network import arrays_in, numpy_of
from utils import SetupError, write_atomically

BATCH_SIZE = 64


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
