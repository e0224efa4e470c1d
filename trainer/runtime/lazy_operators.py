"""Imports MXNet in a third of the time: its operator functions are made when they are first called.

MXNet 1.9.1's import writes Python source for each operator, once for arrays and once for symbols, and compiles all
2,500 texts: 1.2 s of 1.8 s (one core of 2026). A worker calls some tens of them.
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

INITIALISERS = ("_init_op_module", "_init_np_op_module")  # of mxnet.base: they make the functions of a module


def import_mxnet() -> None:
    """Imports the package `mxnet`, unless it is imported, with operator functions that are made on demand."""
    if "mxnet" in sys.modules:
        return
    spec = importlib.util.find_spec("mxnet")
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("No module named 'mxnet'", name="mxnet")
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
