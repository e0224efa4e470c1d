"""Reads the optimizer that comes to a parameter server. MXNet sends it as a pickle, which may name any function of any
module and have it called; and whoever reaches the server's port can send one.

Here a pickle can name MXNet's optimizers and schedules of learning rates alone. It may build them with any arguments,
give them any attributes and have them called, so none of them does more with those than compute.
"""

import importlib
import io
import pickle
from typing import Any

import numpy as np

from trainer.engine import mx
from utils import SetupError, printable

# Of the classes of these modules, those with this base.
BASES = {
    "mxnet.lr_scheduler": mx.lr_scheduler.LRScheduler,
    "mxnet.optimizer": mx.optimizer.Optimizer,
    "mxnet.optimizer.contrib": mx.optimizer.Optimizer,
    "mxnet.optimizer.optimizer": mx.optimizer.Optimizer,
}
PYTHON_2 = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # as the protocols that MXNet uses have it


def _empty(kind: type, *_: object) -> Any:
    """In place of copyreg's function, which would call any base."""
    return object.__new__(kind)


def _latin1(text: str, encoding: str) -> bytes:
    """In place of _codecs.encode, which would import any encoding."""
    if encoding != "latin1":
        raise ValueError(encoding)
    return str.encode(text, "latin1")


class _NumberType:
    """In place of numpy's dtype: a pickle can tell a real one that its numbers are addresses of objects."""

    def __init__(self, name: str, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.name = f"{state[1]}{self.name}"  # the order of bytes


def _number(kind: _NumberType, content: bytes) -> Any:
    """In place of numpy's function for a single number, such as a learning rate."""
    return np.frombuffer(content, np.dtype(kind.name))[0]


class _Array(np.ndarray):
    """In place of numpy's array, for the same reason: frombuffer takes no type with objects."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, is_fortran, content = state
        values = np.frombuffer(content, np.dtype(kind.name)).reshape(shape, order="F" if is_fortran else "C")
        super().__setstate__((1, values.shape, values.dtype, False, values.tobytes()))


def _empty_array(*_: object) -> _Array:
    """In place of numpy's function for an array whose content follows in the pickle."""
    return _Array(0)


REPLACED = {
    ("builtins", "object"): object,  # only named: the base of every class
    ("copyreg", "_reconstructor"): _empty,
    ("_codecs", "encode"): _latin1,
    ("numpy", "dtype"): _NumberType,
    ("numpy", "ndarray"): None,  # only named: whoever could call it would give it any type and memory
    # numpy 2 calls it _core.
    **{(f"numpy.{core}.multiarray", "scalar"): _number for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _empty_array for core in ("core", "_core")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = PYTHON_2.get(module, module)
        if (known, name) in REPLACED:
            return REPLACED[known, name]
        if base := BASES.get(known):
            found = getattr(importlib.import_module(known), name, None)
            if isinstance(found, type) and issubclass(found, base):
                return found
        raise SetupError(
            f"what came to this server as its optimizer names {printable(f'{module}.{name}', 200)}, which is in none "
            "that this server takes, and was not run: another program reaches this port (docs/hosts.md), or sends "
            "an optimizer of its own"
        )


def optimizer_in(content: bytes) -> mx.optimizer.Optimizer:
    """The optimizer in a pickle. Raises SetupError where it names something else than an optimizer may hold, or is
    none."""
    try:
        found = _Unpickler(io.BytesIO(content)).load()
    except SetupError:
        raise
    except Exception as error:  # a broken pickle raises anything
        raise SetupError(f"what came to this server as its optimizer cannot be read: {printable(str(error))}") from None
    if not isinstance(found, mx.optimizer.Optimizer):
        raise SetupError(f"what came to this server as its optimizer is a {printable(type(found).__name__)}")
    return found
