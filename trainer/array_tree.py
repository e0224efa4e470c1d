"""Trees of dictionaries, lists, plain values and arrays as bytes with a checksum. Numpy and standard library only."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_MAGIC = b"ESync checkpoint 1 "


class Damaged(Exception):
    """A file is not a complete checkpoint."""


def encode(tree: Any) -> bytes:
    """The bytes of a tree of dictionaries with text keys, lists, plain values and arrays."""
    parts: list[bytes] = []
    size = 0

    def place(array: np.ndarray) -> dict[str, Any]:
        nonlocal size
        content, begin = np.ascontiguousarray(array).tobytes(), size
        parts.append(content)
        size += len(content)
        return {"array": [array.dtype.str, list(array.shape), begin]}

    head = json.dumps(_with_arrays(tree, place)).encode()
    rest = b"".join([head, b"\n", *parts])
    return _MAGIC + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def decode(content: bytes) -> Any:
    """Reads the bytes of `encode`; tuples come back as lists. Raises Damaged if the bytes are not complete, or not of
    `encode`."""
    line, _, rest = content.partition(b"\n")
    if not line.startswith(_MAGIC):
        raise Damaged("is not a checkpoint")
    if hashlib.sha256(rest).hexdigest().encode() != line[len(_MAGIC) :]:
        raise Damaged("is damaged: its SHA-256 is another one than was written")
    head, _, numbers = rest.partition(b"\n")

    def read(value: Any) -> Any:
        if isinstance(value, list):
            return [read(each) for each in value]
        if not isinstance(value, dict):
            return value
        if value.keys() == {"array"}:
            kind, shape, offset = value["array"]
            return np.frombuffer(numbers, np.dtype(kind), math.prod(shape), offset).reshape(shape).copy()
        return {name: read(each) for name, each in value.items()}

    return read(json.loads(head))


def _with_arrays(tree: Any, replaced: Callable[[np.ndarray], Any]) -> Any:
    """The tree with each array `replaced`; tuples become lists."""
    if isinstance(tree, Mapping):
        return {name: _with_arrays(each, replaced) for name, each in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_with_arrays(each, replaced) for each in tree]
    return replaced(tree) if isinstance(tree, np.ndarray) else tree


def copied(tree: Any) -> Any:
    """The tree with copies of its arrays."""
    return _with_arrays(tree, lambda array: array.copy())


def is_finite(tree: Any) -> bool:
    """Whether all floating-point arrays of a tree are finite."""
    if isinstance(tree, Mapping):
        return all(map(is_finite, tree.values()))
    if isinstance(tree, (list, tuple)):
        return all(map(is_finite, tree))
    return not isinstance(tree, np.ndarray) or tree.dtype.kind != "f" or bool(np.isfinite(tree).all())
