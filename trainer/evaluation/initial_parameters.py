"""A network's initial parameters from a file: of a saved model, or another .params file of MXNet (--init-from)."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.engine import mx
from trainer.evaluation.saved_model import SavedModel
from trainer.jobs.gluon import GluonNetwork
from trainer.jobs.gluon_blocks import structural_names
from utils import SetupError

_MOST_NAMES = 5  # in the line about parameters that do not fit


def load(network: GluonNetwork, path: Path) -> str:
    """Copies the parameters that fit into an initialized network, and returns a line about all of them. Arrays are
    found by name: the whole one, without the network's prefix, or gluon's `features.0.weight`. If the file has none of
    these names, they are taken in their order, where number and shapes are the network's. Raises SetupError if the file
    cannot be read, or nothing in it fits."""
    arrays = _read(path)
    parameters = list(network.block.collect_params().values())
    names = structural_names(network.block)
    found = _by_name(network.block.prefix, names, arrays) or _by_order(parameters, arrays)
    fitting = [each for each in parameters if each.name in found and found[each.name].shape == each.shape]
    if not fitting:
        raise SetupError(
            f"--init-from {path}: none of its {len(arrays)} arrays fits {network.block.name}, by name or by order and "
            "shape: give a file of the same network (-n), or leave it out"
        )
    network.load({names[each.name]: found[each.name].asnumpy() for each in fitting})
    others = [
        f"{each.name} ({f'{found[each.name].shape} there' if each.name in found else 'missing there'}, {each.shape})"
        for each in parameters
        if each not in fitting
    ]
    line = f"{len(fitting)} of {len(parameters)} initial parameters are from {path}"
    return f"{line}; the network keeps its own of {_listed(others)}" if others else line


def content_hash(path: str) -> str:
    """The SHA-256 of the file's parameters, which all workers compare; "none" without a file."""
    return hashlib.sha256(_parameters_file(Path(path)).read_bytes()).hexdigest() if path else "none"


def _parameters_file(path: Path) -> Path:
    return SavedModel.find(path).parameters if path.suffix == ".json" else path


def _read(path: Path) -> dict[str, mx.nd.NDArray]:
    """The file's arrays, by their names without arg: and aux:."""
    file = _parameters_file(path)
    if not file.is_file():
        raise SetupError(f"--init-from {path}: there is no such file")
    try:
        arrays = mx.nd.load(str(file))
    except (mx.MXNetError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise SetupError(f"--init-from {path}: {file.name} is no .params file of MXNet: {reason}") from None
    if not isinstance(arrays, dict):  # saved without names
        return {str(number): array for number, array in enumerate(arrays)}
    return {name.removeprefix("arg:").removeprefix("aux:"): array for name, array in arrays.items()}


def _by_name(
    own_prefix: str, structural: Mapping[str, str], arrays: Mapping[str, mx.nd.NDArray]
) -> dict[str, mx.nd.NDArray]:
    """The arrays by the network's names, in that way of naming of which the file has most."""
    short = {name: name.removeprefix(own_prefix) for name in structural}
    # Another program's network of the same layers has another prefix.
    prefixes = (name.removesuffix(end) for end in short.values() for name in arrays if name.endswith(end))
    prefix = min(prefixes, key=len, default="")
    without = {name.removeprefix(prefix): array for name, array in arrays.items()}
    found = (
        {name: arrays[name] for name in structural if name in arrays},
        {name: arrays[key] for name, key in structural.items() if key in arrays},
        {name: without[key] for name, key in short.items() if key in without},
    )
    return max(found, key=len)


def _by_order(parameters: Sequence[Any], arrays: Mapping[str, mx.nd.NDArray]) -> dict[str, mx.nd.NDArray]:
    if [each.shape for each in parameters] != [array.shape for array in arrays.values()]:
        return {}
    return {each.name: array for each, array in zip(parameters, arrays.values(), strict=True)}


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMES
    return ", ".join(texts[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
