"""Errors of a job file's own code: one line for the console, and the traceback from that file on."""

import contextlib
import functools
import logging
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType

from trainer.jobs.sources import OWN_MODULES, ROOT
from utils import JobError, SetupError

NUMPY = (
    "MXNet's numpy semantics (npx.set_np, use_np, F.np) are not for job files: leave them out, and take mx.nd "
    "for mx.np, and hybrid_forward's F for npx; numpy itself is fine"
)
MOST_CHARACTERS = 300  # of an error's own message
_LIBRARIES = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}


class UserError(SetupError):
    """An error of a job file's code; its traceback was logged."""


@contextlib.contextmanager
def users_errors(file: Path | None, function: str = "", place: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Raises UserError in place of errors of a job file's code, and of its exits. All others pass unchanged; without a
    file no error is its own. `function` is what this program calls: then every error is the file's. Without it, errors
    in a function of the file's folder are, and those that name a batch (network.shapes_told). `place` is such as
    "worker 0, round 3, step 1"."""
    try:
        yield
        if function and _uses_numpy():
            raise SetupError(NUMPY)
    except UserError:
        raise
    except SetupError as error:
        if file is None or not function:
            raise
        raise UserError(f"{file.name}, {function}: {error}") from None
    except JobError:
        raise
    except (Exception, SystemExit) as error:
        if file is None:
            raise
        own = _from_file(error.__traceback__, file.absolute())
        batch, uses_numpy = getattr(error, "batch", ""), _uses_numpy(error)
        if own is None and not batch and not function and not uses_numpy:
            raise
        if own is not None and not uses_numpy:
            _log_once("".join(traceback.format_exception(type(error), error, own, chain=False)).rstrip())
        where = [file.name, function or (f"{own.tb_frame.f_code.co_name}()" if own is not None else "the network")]
        if own is not None:
            where.append(f"line {_last_line(own, file)}")
        if told := place():
            where.append(told)
        if batch:
            where.append(f"on {batch}")
        raise UserError(f"{', '.join(where)}: {NUMPY if uses_numpy else _message(error)}") from None


_log_once = functools.cache(partial(logging.error, "%s"))  # a metric may fail in every evaluation


def _from_file(frames: TracebackType | None, file: Path) -> TracebackType | None:
    """The part of a traceback that begins in the job file, or in a module of its folder."""
    while frames is not None and not _is_own(Path(frames.tb_frame.f_code.co_filename), file):
        frames = frames.tb_next
    return frames


def _is_own(code: Path, file: Path) -> bool:
    """Whether code is the user's: the folder may also be one that has this program, or libraries, in it."""
    if code == file or not code.is_relative_to(file.parent):
        return code == file
    is_program = code.is_relative_to(ROOT) and code.relative_to(ROOT).parts[0].removesuffix(".py") in OWN_MODULES
    return not is_program and not any(map(code.is_relative_to, _LIBRARIES))


def _last_line(own: TracebackType, file: Path) -> int:
    """The line of the job file in which its innermost function was."""
    lines = [line for frame, line in traceback.walk_tb(own) if Path(frame.f_code.co_filename) == file.absolute()]
    return lines[-1] if lines else own.tb_lineno


def _uses_numpy(error: BaseException | None = None) -> bool:
    """Whether the file has switched MXNet to its numpy semantics, which ends here, or has met their operators."""
    mx = sys.modules.get("mxnet")
    is_on = mx is not None and mx.util.is_np_array()
    if mx is not None:
        mx.npx.reset_np()
    return is_on or any(name in str(error) for name in ("npx.set_np", "as_np_ndarray", "as_nd_ndarray"))


def last_line(error: BaseException) -> str:
    """An error's first line; of MXNet's, which begin with its own traceback, the last."""
    lines = str(error).strip().splitlines() or [""]
    return lines[-1 if lines[0].startswith("Traceback") else 0].strip()


def _message(error: BaseException) -> str:
    name = type(error).__name__
    text = last_line(error).removeprefix(f"{name}: ")
    return f"{name}: {text[:MOST_CHARACTERS]}" if text else name
