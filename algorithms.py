"""THE table of algorithms: a row says all that the rest of the program knows of one. Standard library only.

Flags and what they mean in a mode, the trainer and its transport, what the launchers start, log folders, tables and
figures derive from it. CONTRIBUTING.md shows how to add a row.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# ------------------------------------------------------------------------------------------------ what a row is


class TransportKind(enum.Enum):
    """What an algorithm needs between its processes."""

    NONE = "nothing: one process alone"
    SUM = "the sum over all workers"
    SERVER = "an optimizer on the parameter server"


@dataclass(frozen=True)
class Look:
    """One look in every figure, also in black and white, and for readers who are colour-blind."""

    colour: str  # of Okabe and Ito's palette, then of Paul Tol's dark ones
    line: str | tuple[int, tuple[int, ...]]  # as matplotlib takes it: offset and lengths of the dashes
    marker: str
    hatch: str


@dataclass(frozen=True)
class EventKind:
    """Something that "events" of a round log can tell, and its mark on a curve of accuracy."""

    name: str
    marker: str  # as matplotlib takes it
    size: float  # points, and the width of its edge too
    edge: float = 1.8
    is_hollow: bool = True  # else a tick across the curve
    is_frequent: bool = False  # so it is marked from the first evaluation on only: there are others to see


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What has a name of its own in launchers, logs, tables and figures: an algorithm, or a preset of one."""

    name: str  # in the log tree
    title: str  # as the papers call it
    paper: str = ""
    stem: str  # of its summary's file name
    look: Look
    values: tuple[tuple[str, Any], ...] = ()  # a preset of an algorithm: fields of Config, and what they are set to


@dataclass(frozen=True, kw_only=True)
class Algorithm(Entry):
    """A row. Its name is the value of -m."""

    trainer: str  # module:function that builds it; imported by workers alone, since it needs MXNet
    transport: TransportKind
    flags: tuple[str, ...]  # fields of Config that count in this mode and not in all
    rule: str | None = None  # the state server's policy, with fields of Config in braces; None: there is none
    page_only: bool = False  # the optimizer on the server decides by the rule; a state server is told, for its page
    one_server: bool = False  # whether it must have all of the model on one; else any number of parameter servers
    check: str = ""  # module:function(config, num_workers) that raises SetupError where its flags do not fit together
    presets: tuple[Entry, ...] = ()
    events: tuple[EventKind, ...] = ()  # that its logs can tell

    @property
    def is_distributed(self) -> bool:
        """Whether there are other processes: a scheduler and servers."""
        return self.transport is not TransportKind.NONE

    @property
    def has_state_server(self) -> bool:
        """Whether there is a state server."""
        return self.rule is not None

    @property
    def needs_state_server(self) -> bool:
        """Whether nothing goes on without it."""
        return self.has_state_server and not self.page_only

    @property
    def all_flags(self) -> tuple[str, ...]:
        """Its own, and those of the groups that it is in."""
        groups = (
            (DISTRIBUTED_FLAGS, self.is_distributed),
            (SUM_FLAGS, self.transport is TransportKind.SUM),
            (STATE_SERVER_FLAGS, self.has_state_server),
        )
        return (*self.flags, *(flag for group, is_in in groups if is_in for flag in group))


DISTRIBUTED_FLAGS = ("split_by_class", "evaluate", "start_timeout")
SUM_FLAGS = ("collective",)
STATE_SERVER_FLAGS = ("state_server_ip", "state_server_port", "query_delay")

# --------------------------------------------------------------------------------------------------- the table

RELEASE = EventKind("release", "|", 8, 1.2, is_hollow=False, is_frequent=True)  # a newer global model
SWITCH = EventKind("switch", "|", 22, 2.6, is_hollow=False)  # the next phase began
GREEDY = EventKind("greedy", "*", 14)  # a straggler policy acted
ELASTIC = EventKind("elastic", "d", 12)
RESUME = EventKind("resume", "s", 9)  # the job went on from a checkpoint

TABLE = (
    Algorithm(
        name="esync",
        title="ESync",
        paper="Li et al., IEEE TSC 15(4), 2022, doi 10.1109/TSC.2020.3044043",
        trainer="trainer.esync:build",
        transport=TransportKind.SUM,
        flags=("local_lr", "global_lr", "policy", "epsilon", "query"),
        rule="{policy}",
        stem="ESync",
        look=Look("#0072B2", "-", "o", ""),
    ),
    Algorithm(
        name="sync",
        title="SSGD",
        paper="Chen et al., 2016, arXiv:1604.00981",
        trainer="trainer.sync:build",
        transport=TransportKind.SUM,
        flags=("learning_rate",),
        stem="Sync",
        look=Look("#D55E00", "--", "s", "//"),
    ),
    Algorithm(
        name="async",
        title="ASGD",
        paper="Dean et al., NIPS 2012",
        trainer="trainer.asynchronous:build",
        transport=TransportKind.SERVER,
        flags=("learning_rate", "use_dcasgd", "dcasgd_lambda"),
        stem="Async",
        look=Look("#009E73", "-.", "^", ".."),
        presets=(
            Entry(
                name="dcasgd",
                title="DC-ASGD",
                paper="Zheng et al., ICML 2017, arXiv:1609.08326",
                values=(("use_dcasgd", 1),),
                stem="DCASGD",
                look=Look("#CC79A7", (0, (4, 1, 1, 1, 1, 1)), "D", "xx"),
            ),
        ),
    ),
    Algorithm(
        name="ssp",
        title="SSP",
        paper="Ho et al., NIPS 2013",
        trainer="trainer.ssp:build",
        transport=TransportKind.SERVER,
        flags=("learning_rate", "staleness"),
        stem="SSP",
        look=Look("#E69F00", (0, (6, 2)), "v", "\\\\"),
    ),
    Algorithm(
        name="local-sgd",
        title="Local SGD",
        paper="McMahan et al., AISTATS 2017, arXiv:1602.05629",
        trainer="trainer.local_sgd:build",
        transport=TransportKind.SUM,
        flags=("local_lr", "global_lr", "sync_every"),
        stem="LocalSGD",
        look=Look("#56B4E9", (0, (2, 1)), "P", "++"),
    ),
    Algorithm(
        name="wbsp",
        title="WBSP",
        paper="Yang et al., Parallel Computing 121, 2024, 103092",
        trainer="trainer.wbsp:build",
        transport=TransportKind.SERVER,
        flags=("local_lr", "wbsp_overlap"),
        rule="wbsp",
        page_only=True,
        one_server=True,
        stem="WBSP",
        look=Look("#882255", (0, (9, 2, 3, 2)), "<", "--"),
        presets=(
            Entry(
                name="wbsp-pcc",
                title="WBSP with overlap",
                values=(("wbsp_overlap", 1),),
                stem="WBSP-PCC",
                look=Look("#666633", (0, (4, 1, 4, 1, 1, 1)), ">", "||"),
            ),
        ),
        events=(RELEASE,),
    ),
    Algorithm(
        name="sync-switch",
        title="Sync-Switch",
        paper="Li et al., ICDCS 2021, arXiv:2104.08364",
        trainer="trainer.sync_switch:build",
        transport=TransportKind.SERVER,
        flags=(
            *("learning_rate", "switch_order", "train_steps", "momentum", "straggler_policy"),
            *("ckpt_frequency", "checkpoint", "resume"),
        ),
        rule="sync-switch-{straggler_policy}",
        page_only=True,
        one_server=True,
        check="trainer.schedule:check_flags",
        stem="SyncSwitch",
        look=Look("#332288", (0, (12, 2)), "X", "oo"),
        events=(SWITCH, GREEDY, ELASTIC, RESUME),
    ),
    Algorithm(
        name="local",
        title="Standalone",
        trainer="trainer.local:build",
        transport=TransportKind.NONE,
        flags=("learning_rate",),
        stem="Local",
        look=Look("#000000", ":", "", ""),
    ),
)

# -------------------------------------------------------------------------------------------- what derives from it

ALGORITHMS = {row.name: row for row in TABLE}
ENTRIES: dict[str, Entry] = {entry.name: entry for row in TABLE for entry in (row, *row.presets)}
OWNERS = {entry.name: row for row in TABLE for entry in (row, *row.presets)}  # the algorithm of each entry
EVENTS = {kind.name: kind for row in TABLE for kind in row.events}


def modes_of(flag: str) -> tuple[str, ...]:
    """The modes in which a field of Config counts: one that no row and no group names counts in all."""
    return tuple(row.name for row in TABLE if flag in row.all_flags) or tuple(ALGORITHMS)


def titles_of(flag: str) -> tuple[str, ...]:
    """The algorithms that have a field of Config for their own; none where it belongs to a group or to all."""
    return tuple(row.title for row in TABLE if flag in row.flags)


def entry_name(mode: str, flags: Mapping[str, Any]) -> str:
    """Under which name a job is filed: that of the preset whose flags are set, else that of the mode."""
    presets = ALGORITHMS[mode].presets
    return next(
        (preset.name for preset in presets if all(flags[field] == value for field, value in preset.values)), mode
    )


def folder_name(entry: str, split_by_class: bool) -> str:
    """Folder of a run in the log tree, which summary.py takes for its mode (dcasgd, esync-niid, ...)."""
    return f"{entry}-niid" if split_by_class else entry
