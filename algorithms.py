"""The table of algorithms: a row says all that the rest of the program knows of one. Standard library only.

The flags of a mode, the trainer and its transport, what the launchers start, log folders, tables and figures derive
from it. CONTRIBUTING.md shows how to add a row.
"""

import enum
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

# ------------------------------------------------------------------------------------------------ what a row is


class TransportKind(enum.Enum):
    """What an algorithm needs between its processes."""

    NONE = "nothing: one process alone"
    SUM = "the sum over all workers"
    HUB = "a server part of its own, on the hub"


class Workers(enum.Enum):
    """Which workers of a cluster take part."""

    ALL = "all workers"
    FASTEST = "the fastest worker"
    K_FASTEST = "the K fastest workers"
    BUT_SLOWEST = "all workers but the slowest"

    @property
    def takes_number(self) -> bool:
        """Whether --fastest says how many they are."""
        return self in (Workers.ALL, Workers.K_FASTEST)

    def among(self, step_times_s: Sequence[float], k: int = 0) -> tuple[int, ...]:
        """Their places in a cluster, ascending, by its workers' step times. Of equally fast workers the first counts as
        the fastest, and the last as the slowest. `k`: of --fastest; 0: all, or of K_FASTEST half, rounded up."""
        count = len(step_times_s)
        by_speed = sorted(range(count), key=step_times_s.__getitem__)  # stable: equal ones keep their order
        number = {
            Workers.ALL: k or count,
            Workers.FASTEST: 1,
            Workers.K_FASTEST: k or (count + 1) // 2,
            Workers.BUT_SLOWEST: count - 1,
        }
        return tuple(sorted(by_speed[: number[self]]))


@dataclass(frozen=True)
class Look:
    """One look in every figure, also in black and white, and for colour-blind readers; no two share a part of it."""

    colour: str  # of Okabe and Ito's palette, then of Paul Tol's dark ones, then as far from all others as possible
    line: str | tuple[int, tuple[int, ...]]  # as matplotlib takes it: offset and lengths of the dashes
    marker: str | tuple[int, int, int]  # a letter, or corners, style and degrees of a star
    hatch: str


# Of the entries without a look of their own, in the order of the table. Where it is too short it begins again, and
# tests/report/test_metrics.py fails.
PALETTE = (
    Look("#C8A850", (0, (1, 1)), "h", "**"),
    Look("#D000B0", (0, (5, 3)), "+", "*-"),
    Look("#483028", (0, (3, 1, 3, 1, 9, 1)), "1", "x."),
    Look("#6848D0", (0, (8, 1, 3, 1)), "2", "/."),
    Look("#D80838", (0, (1, 3)), "3", "+."),
    Look("#905888", (0, (6, 1, 6, 1, 2, 1)), ".", "\\o"),
    Look("#583880", (0, (10, 1, 1, 1, 1, 1)), "_", "*/"),
    Look("#5800B8", (0, (2, 2, 8, 2)), "4", "|o"),
)


@dataclass(frozen=True)
class EventKind:
    """An event that a round log can name, and its mark on a curve of accuracy."""

    name: str
    marker: str  # as matplotlib takes it
    size: float  # points; so is `edge`
    edge: float = 1.2
    is_hollow: bool = True  # else a tick across the curve
    is_frequent: bool = False  # marked from the first evaluation on only


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An algorithm, or a preset of one: it has a name of its own in launchers, logs, tables and figures."""

    name: str  # in the log tree
    title: str  # as the papers call it
    paper: str = ""  # several are separated by "; "; each ends with its arXiv: or doi: number, where it has one
    stem: str  # of its summary's file name
    own_look: Look | None = None  # None: the palette's next
    values: tuple[tuple[str, Any], ...] = ()  # of a preset: fields of Config, and what they are set to
    tuned: tuple[tuple[str, Any], ...] = ()  # fields and their first values: the user's flags may set others
    given: tuple[str, ...] = ()  # of a preset: fields that make it with any value but zero; `tuned` has their first
    # A preset can let only some workers take part. These train in the algorithm's mode, and the launcher files their
    # logs under the preset's name.
    workers: Workers = Workers.ALL
    fastest: int = 0  # K of NAME-kK

    @property
    def look(self) -> Look:
        """Its own, or the palette's."""
        return self.own_look or LOOKS[self.name]


@dataclass(frozen=True, kw_only=True)
class Algorithm(Entry):
    """A row. Its name is the value of -m."""

    trainer: str  # module:function that builds it; imported by workers, and with a hub by that
    server: str = ""  # module:class or function of its server part on the hub; imported by the hub
    # Of the kind HUB: an optimizer of MXNet's can take the place of the server part, where none of these flags is given
    # (of a tuple all); None: it never can
    on_kvstore: tuple[tuple[str, ...], ...] | None = None
    transport: TransportKind
    flags: tuple[str, ...]  # fields of Config that count in this mode and not in all
    rule: str | None = None  # the state server's policy, with fields of Config in braces; None: there is none
    page_only: bool = False  # the server part on the hub decides by the rule; a state server is told, for its page
    shares_batch: bool = False  # the rule decides on the sizes of the workers' batches
    waits: bool = True  # a worker waits for others in its exchanges
    # module:function(config, num_workers) that raises SetupError where its flags do not fit together; num_workers is
    # None where it is not known yet.
    check: str = ""
    presets: tuple[Entry, ...] = ()
    events: tuple[EventKind, ...] = ()  # that its logs can tell

    @property
    def is_distributed(self) -> bool:
        """Whether there are other processes, such as a hub."""
        return self.transport is not TransportKind.NONE

    @property
    def has_kvstore(self) -> bool:
        """Whether MXNet's kvstore can carry its arrays."""
        return self.transport is TransportKind.SUM or self.on_kvstore is not None

    @property
    def has_state_server(self) -> bool:
        return self.rule is not None

    @property
    def needs_state_server(self) -> bool:
        """Whether its workers cannot train without it."""
        return self.has_state_server and not self.page_only

    @property
    def all_flags(self) -> tuple[str, ...]:
        """Its own flags, and those of its groups."""
        groups = (
            (DISTRIBUTED_FLAGS, self.is_distributed),
            (SUM_FLAGS, self.transport is TransportKind.SUM),
            (STATE_SERVER_FLAGS, self.has_state_server),
        )
        return (*self.flags, *(flag for group, is_in in groups if is_in for flag in group))


DISTRIBUTED_FLAGS = ("exchange", "split_by_class", "evaluate", "start_timeout", "min_workers", "leave")
STEP_FLAGS = ("momentum", "weight_decay", "clip_norm", "lr_schedule")  # where trainer/steps.py takes the steps
OWN_STEP_FLAGS = ("optimizer", *STEP_FLAGS)  # where it takes them on the workers
SUM_FLAGS = ("job_name", "compression", "fault_timeout")
STATE_SERVER_FLAGS = ("state_server_ip", "state_server_port", "query_delay")
WATCHED = "watched"  # the state server's policy for a row without a rule, whose workers only tell it what they do

# --------------------------------------------------------------------------------------------------- the table

RELEASE = EventKind("release", "|", 6, 0.9, is_hollow=False, is_frequent=True)  # a newer global model
SWITCH = EventKind("switch", "|", 15, 2.0, is_hollow=False)  # the next phase began
GREEDY = EventKind("greedy", "*", 9)  # this straggler policy acted
ELASTIC = EventKind("elastic", "d", 8)
MEMBERS = EventKind("members", "P", 6.5)  # workers were lost, or joined
RESUME = EventKind("resume", "s", 6)  # the job continued from a checkpoint
EVALUATOR = EventKind("evaluator", "^", 7)  # the worker evaluates itself from here on; of every row

TABLE = (
    Algorithm(
        name="esync",
        title="ESync",
        paper="Li et al., TSC 2022, doi:10.1109/TSC.2020.3044043",
        trainer="trainer.algorithms.esync:build",
        transport=TransportKind.SUM,
        flags=(
            *("local_lr", "global_lr", "outer_momentum", "outer_nesterov", "normalise"),
            "estimate_statistics",
            *OWN_STEP_FLAGS,
            *("policy", "epsilon", "anchor", "query"),
        ),
        rule="{policy}",
        events=(MEMBERS,),
        check="trainer.algorithms.flag_checks:of_averaging",
        stem="ESync",
        own_look=Look("#0072B2", "-", "o", ""),
        presets=(
            Entry(
                name="esync-outer",
                title="ESync, outer Nesterov",
                paper="Douillard et al., 2023, arXiv:2311.08105",
                values=(("outer_nesterov", 1),),
                tuned=(("outer_momentum", 0.9), ("global_lr", 0.7)),
                stem="ESyncOuter",
                own_look=Look("#FF3366", (0, (2, 1, 2, 4)), "*", "O."),
            ),
            # Mends two weaknesses: near workers compute while the straggler's update travels, and averages of models go
            # as far as they should.
            Entry(
                name="esync-outer-aware",
                title="ESync, outer, upload-aware",
                values=(("outer_nesterov", 1), ("policy", "upload-aware")),
                tuned=(("outer_momentum", 0.9), ("global_lr", 0.7)),
                stem="ESyncOuterAware",
                own_look=Look("#550055", (0, (1, 1, 6, 1)), "x", "-o"),
            ),
            # The exchange is a smaller part of a longer round.
            Entry(
                name="esync-anchor",
                title="ESync, anchor",
                given=("anchor",),
                tuned=(("anchor", "auto"),),
                stem="ESyncAnchor",
            ),
        ),
    ),
    Algorithm(
        name="sync",
        title="SSGD",
        paper="Chen et al., 2016, arXiv:1604.00981",
        trainer="trainer.algorithms.sync:build",
        transport=TransportKind.SUM,
        flags=("learning_rate", *OWN_STEP_FLAGS),
        events=(MEMBERS,),
        stem="Sync",
        own_look=Look("#D55E00", "--", "s", "//"),
        presets=(
            Entry(
                name="without-slow",
                title="SSGD without the slowest",
                workers=Workers.BUT_SLOWEST,
                stem="WithoutSlow",
                own_look=Look("#661100", (0, (3, 2)), "p", "/o"),
            ),
            Entry(
                name="fastest-sync",
                title="SSGD on the fastest",
                workers=Workers.K_FASTEST,
                stem="FastestSync",
                own_look=Look("#FFD000", (0, (4, 4)), (3, 1, 0), "/x"),
            ),
        ),
    ),
    Algorithm(
        name="backup",
        title="Backup workers",
        paper="Chen et al., 2016, arXiv:1604.00981",
        trainer="trainer.algorithms.backup:build",
        server="trainer.algorithms.backup:BackupServer",
        transport=TransportKind.HUB,
        flags=("learning_rate", *STEP_FLAGS, "backup"),
        events=(MEMBERS,),
        check="trainer.algorithms.backup_versions:check_flags",
        stem="Backup",
        own_look=Look("#8800EE", (0, (7, 1, 1, 1)), "H", "\\-"),
    ),
    Algorithm(
        name="async",
        title="ASGD",
        paper="Dean et al., NIPS 2012",
        trainer="trainer.algorithms.asynchronous:build",
        server="trainer.algorithms.asynchronous:server",
        transport=TransportKind.HUB,
        on_kvstore=(
            *(("max_delay",), ("table",), ("rescale",), ("dcasgd_adaptive",), ("lr_schedule",)),
            ("use_dcasgd", "momentum"),  # with which MXNet's own fails
        ),
        flags=(
            *("learning_rate", *STEP_FLAGS, "use_dcasgd", "dcasgd_lambda", "dcasgd_adaptive"),
            *("max_delay", "table", "rescale"),
        ),
        check="trainer.algorithms.flag_checks:of_asgd",
        events=(MEMBERS,),
        waits=False,
        stem="Async",
        own_look=Look("#009E73", "-.", "^", ".."),
        presets=(
            Entry(
                name="dcasgd",
                title="DC-ASGD",
                paper="Zheng et al., ICML 2017, arXiv:1609.08326",
                values=(("use_dcasgd", 1),),
                stem="DCASGD",
                own_look=Look("#CC79A7", (0, (4, 1, 1, 1, 1, 1)), "D", "xx"),
            ),
            Entry(
                name="ringmaster",
                title="Ringmaster ASGD",
                paper="Maranjyan, Tyurin and Richtárik, ICML 2025, arXiv:2501.16168",
                given=("max_delay",),
                tuned=(("max_delay", 16),),
                stem="Ringmaster",
            ),
            Entry(
                name="ringleader",
                title="Ringleader ASGD",
                paper="Maranjyan and Richtárik, ICLR 2026, arXiv:2509.22860",
                values=(("table", 1),),
                stem="Ringleader",
            ),
            Entry(
                name="rescaled",
                title="Rescaled ASGD",
                paper="preprint, arXiv:2605.13434",
                values=(("rescale", 1),),
                stem="Rescaled",
            ),
        ),
    ),
    Algorithm(
        name="ssp",
        title="SSP",
        paper="Ho et al., NIPS 2013",
        trainer="trainer.algorithms.ssp:build",
        server="trainer.algorithms.ssp:SSPServer",
        transport=TransportKind.HUB,
        flags=("learning_rate", *STEP_FLAGS, "staleness"),
        events=(MEMBERS,),
        stem="SSP",
        own_look=Look("#E69F00", (0, (6, 2)), "v", "\\\\"),
    ),
    Algorithm(
        name="local-sgd",
        title="Local SGD",
        paper="McMahan et al., AISTATS 2017, arXiv:1602.05629",
        trainer="trainer.algorithms.local_sgd:build",
        transport=TransportKind.SUM,
        flags=(
            *("local_lr", "global_lr", "outer_momentum", "outer_nesterov"),
            *("estimate_statistics", *OWN_STEP_FLAGS, "sync_every"),
        ),
        check="trainer.algorithms.flag_checks:of_averaging",
        events=(MEMBERS,),
        stem="LocalSGD",
        own_look=Look("#56B4E9", (0, (2, 1)), "P", "++"),
        presets=(
            Entry(
                name="fastest-local",
                title="Local SGD on the fastest",
                workers=Workers.K_FASTEST,
                stem="FastestLocal",
                own_look=Look("#A0FF70", (0, (3, 1, 1, 4)), (4, 1, 0), "+x"),
            ),
            Entry(
                name="fastest-outer",
                title="Local SGD, outer Nesterov, on the fastest",
                paper="Douillard et al., 2023, arXiv:2311.08105",
                values=(("outer_nesterov", 1),),
                tuned=(("outer_momentum", 0.9), ("global_lr", 0.7)),
                workers=Workers.K_FASTEST,
                stem="FastestOuter",
                own_look=Look("#00FF90", (0, (7, 2, 2, 2)), (3, 1, 180), "O+"),
            ),
        ),
    ),
    Algorithm(
        name="lb-bsp",
        title="LB-BSP",
        paper="Chen et al., SoCC 2020; OmniLearn, arXiv:2503.17469",
        trainer="trainer.algorithms.lb_bsp:build",
        transport=TransportKind.SUM,
        flags=("learning_rate", *OWN_STEP_FLAGS),
        rule="lb-bsp",
        shares_batch=True,
        stem="LBBSP",
        own_look=Look("#9977FF", (0, (5, 1, 2, 1, 2, 1)), "d", "x-"),
    ),
    Algorithm(
        name="wbsp",
        title="WBSP",
        paper="Yang et al., Parallel Computing 121, 2024, 103092",
        trainer="trainer.algorithms.wbsp:build",
        server="trainer.algorithms.wbsp:WBSPServer",
        transport=TransportKind.HUB,
        flags=("local_lr", *OWN_STEP_FLAGS, "wbsp_overlap"),
        rule="wbsp",
        page_only=True,
        waits=False,
        stem="WBSP",
        own_look=Look("#882255", (0, (9, 2, 3, 2)), "<", "--"),
        presets=(
            Entry(
                name="wbsp-pcc",
                title="WBSP with overlap",
                values=(("wbsp_overlap", 1),),
                stem="WBSP-PCC",
                own_look=Look("#666633", (0, (4, 1, 4, 1, 1, 1)), ">", "||"),
            ),
        ),
        events=(RELEASE, MEMBERS),
    ),
    Algorithm(
        name="async-local",
        title="Async local SGD",
        paper="Liu et al., 2024, arXiv:2401.09135",
        trainer="trainer.algorithms.async_local:build",
        server="trainer.algorithms.async_local:AsyncLocalServer",
        transport=TransportKind.HUB,
        flags=(
            *("local_lr", "global_lr", "outer_momentum", *OWN_STEP_FLAGS),
            *("sync_every", "dylu", "delay_momentum", "probe"),
        ),
        tuned=(("outer_momentum", 0.9), ("global_lr", 0.5)),
        waits=False,
        events=(MEMBERS,),
        stem="AsyncLocal",
    ),
    Algorithm(
        name="decoupled",
        title="Quorum merge",
        paper="Douillard et al., 2026, arXiv:2604.21428",
        trainer="trainer.algorithms.decoupled:build",
        server="trainer.algorithms.decoupled:QuorumServer",
        transport=TransportKind.HUB,
        flags=("local_lr", "global_lr", "outer_momentum", *OWN_STEP_FLAGS, "sync_every", "quorum", "grace"),
        tuned=(("outer_momentum", 0.9), ("global_lr", 0.7)),  # as in the paper
        rule="quorum",
        page_only=True,
        waits=False,
        check="trainer.algorithms.inbox:check_flags",
        stem="Decoupled",
        events=(RELEASE, MEMBERS),
    ),
    Algorithm(
        name="sync-switch",
        title="Sync-Switch",
        paper="Li et al., ICDCS 2021, arXiv:2104.08364",
        trainer="trainer.algorithms.sync_switch:build",
        server="trainer.algorithms.sync_switch:SyncSwitchServer",
        transport=TransportKind.HUB,
        flags=(
            *("learning_rate", *STEP_FLAGS, "switch_order", "train_steps", "straggler_policy"),
            *("phase_lr", "phase_lr_schedule", "phase_momentum", "phase_batch_size"),
        ),
        rule="sync-switch-{straggler_policy}",
        page_only=True,
        check="trainer.algorithms.schedule:check_flags",
        stem="SyncSwitch",
        own_look=Look("#332288", (0, (12, 2)), "X", "oo"),
        events=(SWITCH, GREEDY, ELASTIC, RESUME, MEMBERS),
    ),
    Algorithm(
        name="local",
        title="Standalone",
        trainer="trainer.algorithms.local:build",
        transport=TransportKind.NONE,
        flags=("learning_rate", *OWN_STEP_FLAGS),
        stem="Local",
        own_look=Look("#000000", ":", "", ""),
        presets=(
            Entry(
                name="alone",
                title="Alone",
                workers=Workers.FASTEST,
                stem="Alone",
                own_look=Look("#111111", (0, (12, 1, 2, 1)), "8", "OO"),
            ),
        ),
    ),
)

# -------------------------------------------------------------------------------------------- what derives from it

ALGORITHMS = {row.name: row for row in TABLE}
ENTRIES: dict[str, Entry] = {entry.name: entry for row in TABLE for entry in (row, *row.presets)}
OWNERS = {entry.name: row for row in TABLE for entry in (row, *row.presets)}  # each entry's algorithm
LOOKS = dict(zip((name for name, entry in ENTRIES.items() if not entry.own_look), itertools.cycle(PALETTE)))
EVENTS = {kind.name: kind for kind in (*(kind for row in TABLE for kind in row.events), EVALUATOR)}


def filed_as(entry: str, k: int) -> str:
    """The name under which a job is filed: NAME-kK with --fastest K, where the entry does not say who takes part."""
    return f"{entry}-k{k}" if k and ENTRIES[entry].workers is Workers.ALL else entry


@functools.cache
def entry_of(name: str) -> Entry | None:
    """The entry of a name in the log tree; None: there is none. All NAME-kK of an entry have one look, which is its own
    with a line and a hatch that say so. NAME-k is that of a study, which searches K."""
    if name in ENTRIES:
        return ENTRIES[name]
    base, _, k = name.rpartition("-k")
    if base not in ENTRIES or (k and not (k.isdecimal() and filed_as(base, int(k)) == name)):
        return None
    entry = ENTRIES[base]
    return replace(
        entry,
        name=name,
        title=f"{entry.title}, on {k or 'the fastest'}",
        stem=f"{entry.stem}-k{k}",
        own_look=replace(entry.look, line=(0, (1, 2)), hatch=entry.look.hatch + "o"),
        workers=Workers.K_FASTEST,
        fastest=int(k or 0),
    )


def owner_of(name: str) -> Algorithm:
    """The algorithm of an entry's name in the log tree. Raises KeyError if there is no such entry."""
    return OWNERS[name if name in OWNERS else name.rpartition("-k")[0]]


def modes_of(flag: str) -> tuple[str, ...]:
    """The modes in which a field of Config counts: one that no row and no group names counts in all."""
    return tuple(row.name for row in TABLE if flag in row.all_flags) or tuple(ALGORITHMS)


def titles_of(flag: str) -> tuple[str, ...]:
    """Titles of the algorithms whose own flag a field of Config is; none where it belongs to a group or to all."""
    return tuple(row.title for row in TABLE if flag in row.flags)


def entry_name(mode: str, flags: Mapping[str, Any], workers: Workers = Workers.ALL) -> str:
    """The name under which a job is filed: that of the preset whose flags are set, else the mode. `workers` are those
    that a launcher has chosen; none of them is told, so to main.py all take part."""
    made = [
        preset
        for preset in ALGORITHMS[mode].presets
        if preset.workers is workers
        and all(flags[field] == value for field, value in preset.values)
        and all(flags[field] for field in preset.given)
    ]
    return max(made, key=lambda preset: len(preset.values) + len(preset.given)).name if made else mode


def folder_name(entry: str, split_by_class: bool) -> str:
    """Folder of a run in the log tree, which summary.py takes for its mode (dcasgd, esync-niid, ...)."""
    return f"{entry}-niid" if split_by_class else entry
