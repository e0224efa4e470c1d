"""MXNet's shared library by its C interface, without the Python package, whose import takes one to two seconds.

The scheduler needs only this, and a parameter server only this until a worker sends it an optimizer.
"""

import ctypes
import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

from trainer.runtime.environment import set_unless_given
from utils import EXIT_SETUP, SetupError, die_on_error, fail

SET_OPTIMIZER = 0  # the only command of MXNet's workers that reaches a server's Python


class _Feature(ctypes.Structure):
    """`LibFeature` of MXNet's C interface."""

    _fields_ = [("name", ctypes.c_char_p), ("is_enabled", ctypes.c_bool)]


@functools.cache
def library() -> ctypes.CDLL:
    """The library that the Python package loads too. Raises SetupError if MXNet is not installed."""
    package = importlib.util.find_spec("mxnet")
    if package is None or package.origin is None:
        raise SetupError("MXNet is not installed: scripts/setup.sh installs it")
    # MXNet's module that finds it, which imports nothing of MXNet.
    spec = importlib.util.spec_from_file_location("mxnet_libinfo", Path(package.origin).with_name("libinfo.py"))
    assert spec is not None and spec.loader is not None
    libinfo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(libinfo)
    found = ctypes.CDLL(libinfo.find_lib_path()[0], ctypes.RTLD_LOCAL)
    found.MXGetLastError.restype = ctypes.c_char_p
    return found


def _check(code: int) -> None:
    if code:
        raise RuntimeError(library().MXGetLastError().decode(errors="replace"))


def has_kvstore() -> bool:
    """Whether this MXNet was built with the distributed kvstore."""
    features, count = ctypes.POINTER(_Feature)(), ctypes.c_size_t()
    _check(library().MXLibInfoFeatures(ctypes.byref(features), ctypes.byref(count)))
    return any(feature.is_enabled for feature in features[: count.value] if feature.name == b"DIST_KVSTORE")


def check_kvstore(there: bool) -> None:
    """Checks that this MXNet can take part in a distributed job. Raises SetupError if it has no distributed kvstore."""
    if not there:
        version = ctypes.c_int()
        _check(library().MXGetVersion(ctypes.byref(version)))
        major, minor, patch = version.value // 10000, version.value // 100 % 100, version.value % 100
        raise SetupError(
            f"this MXNet {major}.{minor}.{patch} has no distributed kvstore (its wheels for macOS and for Linux on "
            "aarch64 lack it): run this process on Linux on x86_64, or train alone here with -m local"
        )


def begin_engine() -> None:
    """Begins the engine of a parameter server, without threads unless MXNET_ENGINE_TYPE is set: a server waits after
    each operation (kvstore_dist_server.h), which a thread would only be handed."""
    if not set_unless_given("MXNET_ENGINE_TYPE", "NaiveEngine"):
        return
    wait_for_all, stderr = library().MXNDArrayWaitAll, os.dup(2)
    try:
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 2)  # MXNet tells that it is not the usual engine
        _check(wait_for_all())  # any call of the engine
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def serve() -> None:
    """Runs the kvstore of a scheduler or a parameter server until the workers are done, once the cluster is complete.
    An error in a worker's command ends the process: MXNet's own loop would print it, report success to the worker, and
    continue with weights that never change."""
    handle = ctypes.c_void_p()
    _check(library().MXKVStoreCreate(b"dist", ctypes.byref(handle)))
    with_optimizer: Any = None  # MXNet's own KVStore, which runs the optimizer

    def on_command(head: int, body: bytes, _: object) -> None:
        nonlocal with_optimizer
        with die_on_error("a worker's command failed"):
            if head != SET_OPTIMIZER:
                raise ValueError(f"unknown command {head}")
            if with_optimizer is None:  # one for all commands: when one is freed, so is the handle
                from trainer.engine import mx

                with_optimizer = mx.kv.KVStore(mx.base.KVStoreHandle(handle.value))
            from trainer.runtime.unpickling import optimizer_in

            try:
                with_optimizer.set_optimizer(optimizer_in(body))
            except SetupError as error:
                fail(str(error))
                os._exit(EXIT_SETUP)

    command = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(on_command)
    _check(library().MXKVStoreRunServer(handle, command, None))
    # Freed here, not at the interpreter's exit, where ps-lite's threads would outlive what they use.
    if with_optimizer is not None:
        with_optimizer.handle = None  # so it frees nothing
    _check(library().MXKVStoreFree(handle))
    _check(library().MXNotifyShutdown())
