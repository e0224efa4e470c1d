"""Arrays of zeros that stay zeros, for a network that computes nothing: a tenth of the time of MXNet's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trainer.engine import mx


def _if(is_zero: Callable[[Any], bool], method: str) -> Callable[[Zeros, Any], Any]:
    """The method of MXNet's arrays, which is not called where the result is zeros."""
    of_mxnet: Any = getattr(mx.nd.NDArray, method, None)  # None: only --help is asked for, without packages

    def of_zeros(self: Zeros, other: Any) -> Any:
        if not is_zero(other):
            return of_mxnet(self, other)
        return self if method.startswith("__i") else Zeros(self.shape)

    return of_zeros


def _are_zeros(other: Any) -> bool:
    return type(other) is Zeros


def _is_number(other: Any) -> bool:
    return type(other) is Zeros or isinstance(other, (int, float))


def _is_divisor(other: Any) -> bool:
    return isinstance(other, (int, float)) and other != 0


class Zeros(mx.nd.NDArray):  # type: ignore[misc]
    """An array on the CPU, float32, to which only zeros are written.

    Sums, differences, products and copies need no call of MXNet. Each other operation makes an array of MXNet's own,
    and works on that.
    """

    __slots__ = ("_made", "shape")
    writable = True
    dtype = np.float32
    context = ctx = mx.cpu()
    __class__ = property(lambda self: mx.nd.NDArray)  # of the views that MXNet makes

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._made: mx.nd.NDArray | None = None

    def __del__(self) -> None: ...

    @property
    def handle(self) -> Any:
        """MXNet's."""
        if self._made is None:
            self._made = mx.nd.zeros(self.shape)
            self._made.wait_to_read()  # before its memory is looked at
        return self._made.handle

    __add__ = __radd__ = _if(_are_zeros, "__add__")
    __sub__ = _if(_are_zeros, "__sub__")
    __mul__ = __rmul__ = _if(_is_number, "__mul__")
    __truediv__ = _if(_is_divisor, "__truediv__")
    __iadd__ = _if(_are_zeros, "__iadd__")
    __isub__ = _if(_are_zeros, "__isub__")
    __imul__ = _if(_is_number, "__imul__")
    __itruediv__ = _if(_is_divisor, "__itruediv__")

    def __setitem__(self, key: Any, value: Any) -> None:
        if not _are_zeros(value):
            super().__setitem__(key, value)

    def copy(self) -> Zeros:
        return Zeros(self.shape)

    def copyto(self, other: Any) -> Any:
        return other if _are_zeros(other) else super().copyto(other)

    def reshape(self, *shape: Any, **more: Any) -> Any:
        wanted = shape[0] if len(shape) == 1 else shape
        if wanted in (-1, (-1,)):
            return Zeros((self.size,))
        if isinstance(wanted, tuple) and all(size > 0 for size in wanted):
            return Zeros(wanted)
        return super().reshape(*shape, **more)

    def zeros_like(self) -> Zeros:
        return Zeros(self.shape)

    def as_in_context(self, context: mx.Context) -> Any:
        return self if context == self.context else super().as_in_context(context)

    def wait_to_read(self) -> None:
        if self._made is not None:
            self._made.wait_to_read()

    def asnumpy(self) -> np.ndarray:
        return np.zeros(self.shape, np.float32)
