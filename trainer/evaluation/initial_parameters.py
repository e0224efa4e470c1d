"""A network's initial parameters from a file: of a saved model, another .params file of MXNet, or one with a state_dict
of torch (--init-from)."""

import hashlib
from pathlib import Path

import numpy as np

from trainer.evaluation.saved_model import SavedModel
from trainer.network import JobNetwork
from utils import SetupError

_MOST_NAMES = 5  # in the line about parameters that do not fit


def load(network: JobNetwork, path: Path) -> str:
    """Copies the parameters that fit into an initialized network, and returns a line about all of them. Arrays are
    found by name, in each way of naming that the library has. If the file has none of these names, they are taken in
    their order, where number and shapes are the network's. Raises SetupError if the file cannot be read, or nothing in
    it fits."""
    arrays, state = _read(path), network.state()
    found = network.found_in(arrays)
    if not found and [each.shape for each in state.values()] == [array.shape for array in arrays.values()]:
        found = dict(zip(state, arrays.values(), strict=True))
    fitting = {name: found[name] for name, own in state.items() if name in found and found[name].shape == own.shape}
    if not fitting:
        raise SetupError(
            f"--init-from {path}: none of its {len(arrays)} arrays fits the network, by name or by order and "
            "shape: give a file of the same network (-n), or leave it out"
        )
    network.load(fitting)
    others = [
        f"{name} ({f'{found[name].shape} there' if name in found else 'missing there'}, {own.shape})"
        for name, own in state.items()
        if name not in fitting
    ]
    line = f"{len(fitting)} of {len(state)} initial parameters are from {path}"
    if not others:
        return line
    more = f" and {len(others) - _MOST_NAMES} more" if len(others) > _MOST_NAMES else ""
    return f"{line}; the network keeps its own of {', '.join(others[:_MOST_NAMES])}{more}"


def content_hash(path: str) -> str:
    """The SHA-256 of the file's parameters, which all workers compare; "none" without a file."""
    return hashlib.sha256(_parameters_file(Path(path)).read_bytes()).hexdigest() if path else "none"


def _parameters_file(path: Path) -> Path:
    return SavedModel.find(path).parameters if path.suffix == ".json" else path


def _read(path: Path) -> dict[str, np.ndarray]:
    file = _parameters_file(path)
    if not file.is_file():
        raise SetupError(f"--init-from {path}: there is no such file")
    try:
        if file.suffix in (".pt", ".pth", ".bin"):
            from trainer.jobs import torch_network

            return torch_network.read(file)
        from trainer.jobs import gluon

        return gluon.read(file)
    except ValueError as error:
        raise SetupError(f"--init-from {path}: {file.name} is {error}") from None
