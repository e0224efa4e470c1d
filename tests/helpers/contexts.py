"""A trainer's context from fields of all its groups. Not a test itself."""

import pkgutil
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from algorithms import ALGORITHMS
from config import Config
from trainer.context import Context, LearningTask, Peers, RunSettings
from trainer.emulation import Slowdown, Speed
from trainer.engine import mx
from trainer.jobs.gluon import GluonNetwork
from trainer.trainer import Trainer

GROUPS = {"task": LearningTask, "peers": Peers, "run": RunSettings}


def context_of(**given: Any) -> Context:
    """Puts each field into its group, and those of Speed into `run.speed`. `network` may be a gluon Block."""
    config = given.pop("config", None) or Config()
    if isinstance(given.get("network"), mx.gluon.Block):
        given["network"] = GluonNetwork(given["network"], mx.cpu())
    speed = {field.name: given.pop(field.name) for field in fields(Speed) if field.name in given}
    given["speed"] = Speed(**speed)
    names = {name: {field.name for field in fields(group)} for name, group in GROUPS.items()}
    assert not given.keys() - set().union(*names.values()), given.keys()
    groups = {
        name: group(**{key: value for key, value in given.items() if key in names[name]})
        for name, group in GROUPS.items()
    }
    return Context(config, **groups)


def emulate(context: Context, *trace: Slowdown) -> None:
    """Gives the worker a straggler trace."""
    context.run.speed = replace(context.run.speed, trace=trace)


def by_flags(mode: str, kind: type[Trainer] | None = None, **flags: Any) -> Callable[[Context], Trainer]:
    """Makes trainers of a mode, or of a kind of it, by these flags of its algorithm, or by the context's where none is
    given."""
    row = ALGORITHMS[mode]
    door = kind or pkgutil.resolve_name(f"{row.module}:{row.trainer}")

    def make(context: Context) -> Trainer:
        settings = row.settings(**flags) if flags or context.config.mode != mode else context.config.settings
        made: Trainer = door(context, settings)
        return made

    return make
