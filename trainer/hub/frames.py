"""What travels between a process and the hub, or the rendezvous: a message of JSON, and the bytes of float32 arrays.

length of the JSON, 4 bytes | JSON: [message, [shape of each array, ...]] | the arrays, little-endian
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from trainer.hub.server_part import Arrays, Message

LENGTH = struct.Struct("!I")
LONGEST, LONGEST_OF_STRANGER = 1 << 22, 1 << 12  # bytes of a message; of one whose token is not known yet
PIECE = 1 << 18  # bytes: what is sent at once, so that each piece that goes shows a living connection
_PACKED = 1 << 14  # bytes below which an array goes out together with others


class NotAFrame(Exception):
    """The other side sends something else. The text says what."""


def outgoing(message: Message, arrays: Arrays = ()) -> Iterator[bytearray | memoryview]:
    """The pieces of a frame. Raises TypeError where an array is not float32."""
    text = msgspec.json.encode([message, [array.shape for array in arrays]])
    packed = bytearray(LENGTH.pack(len(text)) + text)
    for array in arrays:
        if array.dtype != np.float32:
            raise TypeError(f"arrays to the hub are float32, not {array.dtype}")
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        if content.nbytes < _PACKED:
            packed += content
            continue
        if packed:
            yield packed
            packed = bytearray()
        for begin in range(0, content.nbytes, PIECE):
            yield content[begin : begin + PIECE]
    if packed:
        yield packed


def length_in(head: bytes | bytearray, longest: int = LONGEST) -> int:
    """Of the JSON. Raises NotAFrame where it is too long."""
    (length,) = LENGTH.unpack(head)
    if not 0 < length <= longest:
        raise NotAFrame(f"it sends no message of this program ({bytes(head)!r})")
    return int(length)


def read(text: bytes | bytearray) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """The message, and the shapes of the arrays that follow. Raises NotAFrame."""
    try:
        return msgspec.json.decode(text, type=tuple[dict[str, Any], list[tuple[int, ...]]])
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotAFrame(f"it sends no message of this program ({error})") from None


def num_numbers(shapes: list[tuple[int, ...]]) -> int:
    """In arrays of these shapes."""
    return sum(math.prod(shape) for shape in shapes)


def bytes_of(array: np.ndarray) -> memoryview:
    """The memory of a new array, to read into."""
    return array.reshape(-1).view(np.uint8).data
