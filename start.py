"""The first import of a program, which ends with `run`: Ctrl-C is no traceback, --help needs no package, and a missing
one is one line. The import itself changes how this process ends."""

# Of C: signal.py takes longer to import, and Ctrl-C meanwhile would be a traceback.
import _signal as signal  # type: ignore[import-not-found]
import os
import sys


def _leave(*_: object) -> None:
    os._exit(130)


def _exchange(handler: object, other: object) -> None:
    """Changes what Ctrl-C does, unless that is not `handler`: with nohup it is ignored, say."""
    if signal.getsignal(signal.SIGINT) is handler:
        signal.signal(signal.SIGINT, other)


_exchange(signal.default_int_handler, _leave)  # before the imports below, which take longer than Python's own start
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # scripts/common.sh

from collections.abc import Callable  # noqa: E402
from importlib.machinery import ModuleSpec  # noqa: E402
from types import ModuleType, TracebackType  # noqa: E402
from typing import Any, NoReturn  # noqa: E402

from utils import EXIT_FORCED, EXIT_SETUP, PACKAGES, JobError, missing_package  # noqa: E402


class _AnyKind(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name != "__struct_config__":  # msgspec's own
            raise AttributeError(name)
        return _Anything

    def __neg__(cls) -> Any:
        return cls


class _Anything(metaclass=_AnyKind):
    """In place of what a package holds, for definitions that nothing calls."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __init_subclass__(cls, **_: object) -> None: ...


class _StandIn(ModuleType):
    """A package that is not installed."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(_Anything, name)


class _StandIns:
    """The finder and loader of such packages."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.partition(".")[0] in PACKAGES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


def _is_of_settings(error: BaseException, at: TracebackType | None) -> bool:
    """Whether matplotlib cannot be imported, since it cannot read a matplotlibrc or a style of the user."""
    while isinstance(error, (UnicodeError, OSError)) and at is not None:
        if at.tb_frame.f_globals.get("__name__") in ("matplotlib", "matplotlib.style"):
            return True
        at = at.tb_next
    return False


def _tell(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    told = missing_package(error)
    if _is_of_settings(error, at):
        told = f"matplotlib cannot read your matplotlibrc or a style of yours: {error}"
    if not told:
        return sys.__excepthook__(kind, error, at)
    print(f"error: {told}", file=sys.stderr, flush=True)
    os._exit(EXIT_SETUP)


def run(main: Callable[[], int | None]) -> NoReturn:
    """Runs a program and ends the process with its code; after Ctrl-C, which it sees as KeyboardInterrupt, with 130."""
    code: int | None = EXIT_FORCED
    try:
        _exchange(_leave, signal.default_int_handler)
        code = main()
    except KeyboardInterrupt:
        pass
    except JobError as error:
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    finally:
        _exchange(signal.default_int_handler, _leave)
    sys.exit(code)


sys.excepthook = _tell
for _name in ("stdout", "stderr"):
    if getattr(sys, _name) is None:  # closed by the caller
        setattr(sys, _name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
if {"-h", "--help"} & {*sys.argv}:
    sys.meta_path.append(_StandIns())
