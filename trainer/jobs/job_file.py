"""Reads a job file: what it defines of network, data, loss, metric and loop."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trainer.jobs.sources import libraries
from trainer.jobs.user_errors import UserError, users_errors

MODULE = "__job__"  # its name as a module, which no file has
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "network": (),
    "data": ("folder",),
    "prepare": ("inputs", "targets"),
    "batchify": ("samples",),
    "labels": ("train",),
    "train": ("worker",),
}


@dataclass(frozen=True, kw_only=True)
class JobFile:
    """What a job file defines; None: it leaves that out."""

    path: Path | None = None
    network: Callable[[], Any] | None = None
    data: Callable[[str], Any] | None = None
    loss: Callable[[Any, Any], Any] | None = None
    metric: Any = None
    more_is_better: bool | None = None
    prepare: Callable[..., Any] | None = None
    batchify: Callable[[list[Any]], Any] | None = None
    labels: Callable[[Any], Any] | None = None
    train: Callable[[Any], None] | None = None


def load(path: Path) -> JobFile:
    """Runs a job file as a module. Raises SetupError if it cannot be read, one of its modules has a name that is taken,
    or it defines something that is none of a job."""
    if "mxnet" in libraries(path):
        importlib.import_module("trainer.engine")  # first: no other module may import MXNet before
    folder = str(path.absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(MODULE, path.absolute())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # pickle and dataclasses look there
    arguments, sys.argv = sys.argv, [str(path)]  # a parser of the file's own finds no flags of this program
    try:
        with users_errors(path, "as a module"):
            spec.loader.exec_module(module)
    finally:
        sys.argv = arguments
    found = {field.name: getattr(module, field.name, None) for field in fields(JobFile) if field.name != "path"}
    if all(value is None for value in found.values()):
        raise UserError(f"{path.name} defines none of {', '.join(found)} (docs/own-job.md)")
    for name, value in found.items():
        if value is not None and (fault := _fault(name, value)):
            raise UserError(f"{path.name}: {fault}")
    if found["train"] is not None and found["loss"] is not None:
        raise UserError(f"{path.name} defines loss and train(worker): the own loop has its own loss; leave one out")
    return JobFile(path=path, **found)


def _fault(name: str, value: Any) -> str:
    """What is wrong with one of the file's names, in words; empty if nothing is."""
    if name == "more_is_better":
        return "" if isinstance(value, bool) else f"more_is_better is {value!r}: give True or False"
    mx, torch = (sys.modules.get(library) for library in ("mxnet", "torch"))
    networks = (*((mx.gluon.Block,) if mx else ()), *((torch.nn.Module,) if torch else ()))
    if name == "metric" and mx and isinstance(value, mx.metric.EvalMetric):
        several = isinstance(value, mx.metric.CompositeEvalMetric)
        return "metric is a CompositeEvalMetric: give a metric of one number" if several else ""
    if name in ("loss", "metric") and inspect.isclass(value):
        return f"{name} is the class {value.__name__}: make it an object, {value.__name__}()"
    if name == "loss" and isinstance(value, networks):
        return ""
    wanted = _FUNCTIONS.get(name, ("targets", "outputs") if name == "metric" else ("outputs", "targets"))
    more = {"random": None} if name == "prepare" and takes_random(value) else {}
    signature = f"{name}({', '.join(wanted)})"
    if not callable(value) or isinstance(value, networks):
        return f"{name} is a {type(value).__name__}: write a function {signature}"
    try:
        inspect.signature(value).bind(*wanted, **more)
    except TypeError as error:
        return f"{name} cannot be called as {signature}: {error}"
    except ValueError:  # without a signature, such as a function in C
        return ""
    first = next(iter(inspect.signature(value).parameters), "")
    if len(wanted) == 2 and first == wanted[1]:
        return f"{name} gets ({', '.join(wanted)}), in this order, and its first parameter is called {first}"
    return ""


def takes_random(prepare: Callable[..., Any]) -> bool:
    """Whether prepare() has a parameter for the generator of random changes."""
    try:
        return "random" in inspect.signature(prepare).parameters
    except (TypeError, ValueError):  # no function, or one without a signature, such as a function in C
        return False
