"""Imports MXNet. No other module may import it first.

`import mxnet` with DMLC_ROLE=scheduler or server becomes that role and never returns, so the variable is hidden
meanwhile.

MXNet 1.9.1's import writes Python source for each operator, once for arrays and once for symbols, and compiles all
2,500 texts: 1.2 s of 1.8 s (one core of 2026). A worker calls some tens of them, so here they are made when they are
first called.
"""

import contextlib
import ctypes
import importlib.util
import inspect
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from trainer.runtime import numpy_names
from trainer.runtime.environment import prepare_environment, role_hidden
from utils import SetupError

INITIALISERS = ("_init_op_module", "_init_np_op_module")  # of mxnet.base: they make the functions of a module


def _import_mxnet() -> None:
    """Imports the package `mxnet`, unless it is imported, with operator functions that are made on demand."""
    if "mxnet" in sys.modules:
        return
    spec = importlib.util.find_spec("mxnet")
    if spec is None or spec.loader is None:
        return  # the import itself says that there is no such module
    # The package's own code makes all operators by mxnet.base at once, so that module is imported and changed before.
    package = importlib.util.module_from_spec(spec)
    sys.modules["mxnet"] = package
    try:
        base = importlib.import_module("mxnet.base")
        for name in INITIALISERS:
            setattr(base, name, _on_demand(getattr(base, name)))
        spec.loader.exec_module(package)
    except BaseException:
        del sys.modules["mxnet"]
        raise


def _on_demand(initialise: Callable[..., None]) -> Callable[..., None]:
    """The initialiser with another `make_op_func`."""

    def initialise_on_demand(*args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(initialise).bind(*args, **kwargs)
        bound.arguments["make_op_func"] = partial(_made_when_called, bound.arguments["make_op_func"])
        initialise(*bound.args, **bound.kwargs)

    return initialise_on_demand


def _made_when_called(make: Callable[..., Callable[..., Any]], handle: Any, name: str, func_name: str) -> Any:
    """A substitute for the function that `make(handle, name, func_name)` returns."""
    made: Callable[..., Any] | None = None

    def operator(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        if made is None:
            made = make(handle, name, func_name)
        return made(*args, **kwargs)

    operator.__name__ = func_name
    operator.__doc__ = f"MXNet's operator {name}: mxnet.apache.org/versions/1.9.1/api says what it takes."
    return operator


numpy_names.restore()

# Removes a line of cuDNN's autotuner from every log; an explicit setting wins.
os.environ.setdefault("MXNET_CUDNN_AUTOTUNE_DEFAULT", "0")

if sys.flags.optimize > 1:
    raise SetupError("MXNet needs the docstrings that PYTHONOPTIMIZE=2 or -OO leaves out: unset it")
# glibc's malloc would give the passes' scratch memory back to the system, and get it with page faults in the next step:
# up to a tenth of LeNet's time, by what else the process has allocated and freed. Other C libraries have no mallopt.
with contextlib.suppress(AttributeError):
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that is allowed
    ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, 64 << 20)

prepare_environment(has_parameter_server=False)  # processes that join a parameter server prepare ps-lite's variables
with role_hidden(), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its import; PYTHONWARNINGS=error would end it
    _import_mxnet()

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

# Of a job that diverges. Numbers that are not finite are found and told by nan_guard.py.
warnings.filterwarnings("ignore", "overflow|invalid value", RuntimeWarning, r"trainer\.")

__all__ = ["array_of", "device_context", "memory_of", "mx", "shared_with_mxnet"]


def device_context(use_cpu: bool, gpu: int) -> mx.Context:
    """The one device that this process trains on. Raises SetupError if there is no such GPU, or this MXNet was built
    without CUDA."""
    if use_cpu:
        return mx.cpu()
    try:
        count = mx.context.num_gpus()
    except mx.MXNetError:  # no driver at all
        count = 0
    if gpu >= count:
        found = f"{count} GPU(s) found" if count else "no GPU found (or this MXNet was built without CUDA)"
        raise SetupError(f"GPU {gpu} is not there: {found}; choose another with -g, or train on the CPU with -c 1")
    return mx.gpu(gpu)


def array_of(numbers: np.ndarray, context: mx.Context | None = None) -> mx.nd.NDArray:
    """A device's copy of a numpy array, of the same type; by default the CPU's. Four times as fast as `mx.nd.array`,
    which counts in each step."""
    array = mx.nd.empty(numbers.shape, ctx=context, dtype=numbers.dtype)
    array._sync_copyfrom(numbers)
    return array


def memory_of(array: mx.nd.NDArray) -> np.ndarray:
    """A computed array's own memory on the CPU, of its type (n,). It stays valid while the array lives and MXNet does
    not use it: an inference pass may move weights elsewhere."""
    library, pointer = mx.base._LIB, ctypes.c_void_p()
    array.wait_to_read()
    # Restores the default layout if oneDNN has chosen another one.
    mx.base.check_call(library.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    assert pointer.value is not None
    dtype = np.dtype(array.dtype)
    return np.frombuffer((ctypes.c_char * (array.size * dtype.itemsize)).from_address(pointer.value), dtype)


def shared_with_mxnet(numbers: np.ndarray) -> mx.nd.NDArray:
    """An array of MXNet whose memory is that of a contiguous numpy array. MXNet knows nothing of what numpy does there,
    so a change comes after a wait for MXNet."""
    return mx.nd.from_numpy(numbers.view())  # makes the view read-only, not the array
