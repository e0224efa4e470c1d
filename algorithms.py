"""The table of algorithms: the files whose heads are its rows, and the presets. CONTRIBUTING.md shows how to add one.

The flags of a mode, the trainer and its transport, what the launchers start, log folders, tables and figures derive
from it. Standard library only: of an algorithm's file the head alone is read here (algorithm_row.py).
"""

import contextlib
import functools
import itertools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from algorithm_row import (
    EVALUATOR,
    HEADS,
    MEMBERS,
    RELEASE,
    RESUME,
    Algorithm,
    EndOfHead,
    Entry,
    EventKind,
    Look,
    TransportKind,
    Workers,
)

__all__ = ["EVALUATOR", "MEMBERS", "RELEASE", "RESUME", "Algorithm", "Entry", "EventKind", "TransportKind", "Workers"]

FOLDER = Path(__file__).resolve().parent / "trainer" / "algorithms"
FILES = (  # of trainer/algorithms/, in the order of tables and figures
    "esync",
    "sync",
    "backup",
    "asynchronous",
    "ssp",
    "local_sgd",
    "lb_bsp",
    "wbsp",
    "async_local",
    "decoupled",
    "sync_switch",
    "local",
)
WATCHED = "watched"  # the state server's policy for a row without a rule, whose workers only tell it what they do

_NESTEROV, _DILOCO_RATES = (("outer_nesterov", 1),), (("outer_momentum", 0.9), ("global_lr", 0.7))
_DILOCO = "Douillard et al., 2023, arXiv:2311.08105"
PRESETS = {  # of an algorithm, in the same order
    "esync": (
        Entry("esync-outer", "ESync, outer Nesterov", "ESyncOuter", _DILOCO, values=_NESTEROV, tuned=_DILOCO_RATES),
        # Mends two weaknesses: near workers compute while the straggler's update travels, and averages of models go
        # as far as they should.
        Entry(
            *("esync-outer-aware", "ESync, outer, upload-aware", "ESyncOuterAware"),
            values=(*_NESTEROV, ("policy", "upload-aware")),
            tuned=_DILOCO_RATES,
        ),
        # The exchange is a smaller part of a longer round.
        Entry("esync-anchor", "ESync, anchor", "ESyncAnchor", given=("anchor",), tuned=(("anchor", "auto"),)),
    ),
    "sync": (
        Entry("without-slow", "SSGD without the slowest", "WithoutSlow", workers=Workers.BUT_SLOWEST),
        Entry("fastest-sync", "SSGD on the fastest", "FastestSync", workers=Workers.K_FASTEST),
    ),
    "async": (
        Entry("dcasgd", "DC-ASGD", "DCASGD", "Zheng et al., ICML 2017, arXiv:1609.08326", values=(("use_dcasgd", 1),)),
        Entry(
            *("ringmaster", "Ringmaster ASGD", "Ringmaster"),
            "Maranjyan, Tyurin and Richtárik, ICML 2025, arXiv:2501.16168",
            given=("max_delay",),
            tuned=(("max_delay", 16),),
        ),
        Entry(
            *("ringleader", "Ringleader ASGD", "Ringleader"),
            "Maranjyan and Richtárik, ICLR 2026, arXiv:2509.22860",
            values=(("table", 1),),
        ),
        Entry("rescaled", "Rescaled ASGD", "Rescaled", "preprint, arXiv:2605.13434", values=(("rescale", 1),)),
    ),
    "local-sgd": (
        Entry("fastest-local", "Local SGD on the fastest", "FastestLocal", workers=Workers.K_FASTEST),
        Entry(
            *("fastest-outer", "Local SGD, outer Nesterov, on the fastest", "FastestOuter", _DILOCO),
            values=_NESTEROV,
            tuned=_DILOCO_RATES,
            workers=Workers.K_FASTEST,
        ),
    ),
    "wbsp": (Entry("wbsp-pcc", "WBSP with overlap", "WBSP-PCC", values=(("wbsp_overlap", 1),)),),
    "local": (Entry("alone", "Alone", "Alone", workers=Workers.FASTEST),),
}
LOOKS = {
    "esync": Look("#0072B2", "-", "o", ""),
    "esync-outer": Look("#FF3366", (0, (2, 1, 2, 4)), "*", "O."),
    "esync-outer-aware": Look("#550055", (0, (1, 1, 6, 1)), "x", "-o"),
    "sync": Look("#D55E00", "--", "s", "//"),
    "without-slow": Look("#661100", (0, (3, 2)), "p", "/o"),
    "fastest-sync": Look("#FFD000", (0, (4, 4)), (3, 1, 0), "/x"),
    "backup": Look("#8800EE", (0, (7, 1, 1, 1)), "H", "\\-"),
    "async": Look("#009E73", "-.", "^", ".."),
    "dcasgd": Look("#CC79A7", (0, (4, 1, 1, 1, 1, 1)), "D", "xx"),
    "ssp": Look("#E69F00", (0, (6, 2)), "v", "\\\\"),
    "local-sgd": Look("#56B4E9", (0, (2, 1)), "P", "++"),
    "fastest-local": Look("#A0FF70", (0, (3, 1, 1, 4)), (4, 1, 0), "+x"),
    "fastest-outer": Look("#00FF90", (0, (7, 2, 2, 2)), (3, 1, 180), "O+"),
    "lb-bsp": Look("#9977FF", (0, (5, 1, 2, 1, 2, 1)), "d", "x-"),
    "wbsp": Look("#882255", (0, (9, 2, 3, 2)), "<", "--"),
    "wbsp-pcc": Look("#666633", (0, (4, 1, 4, 1, 1, 1)), ">", "||"),
    "sync-switch": Look("#332288", (0, (12, 2)), "X", "oo"),
    "local": Look("#000000", ":", "", ""),
    "alone": Look("#111111", (0, (12, 1, 2, 1)), "8", "OO"),
}
# Of the others, in the order of the table. Where it is too short it begins again, and tests/report/test_metrics.py
# fails.
PALETTE = (
    Look("#C8A850", (0, (1, 1)), "h", "**"),
    Look("#D000B0", (0, (5, 3)), "+", "*-"),
    Look("#483028", (0, (3, 1, 3, 1, 9, 1)), "1", "x."),
    Look("#6848D0", (0, (8, 1, 3, 1)), "2", "/."),
    Look("#D80838", (0, (1, 3)), "3", "+."),
    Look("#905888", (0, (6, 1, 6, 1, 2, 1)), ".", "\\o"),
    Look("#583880", (0, (10, 1, 1, 1, 1, 1)), "_", "*/"),
    Look("#5800B8", (0, (2, 2, 8, 2)), "4", "|o"),
    Look("#FC8094", (0, (1, 2, 5, 2)), (5, 2, 0), "|."),
    Look("#240028", (0, (7, 3)), (6, 1, 0), "\\*"),
)


def row_of(file: str) -> Algorithm:
    """The row of an algorithm's file, of which the head alone is run."""
    name = f"trainer.algorithms.{file}"
    if name not in sys.modules and name not in HEADS:
        head = ModuleType(name)  # without a spec, as `end_of_head` knows
        with contextlib.suppress(EndOfHead):
            SourceFileLoader(name, str(FOLDER / f"{file}.py")).exec_module(head)
        HEADS[name] = {each: value for each, value in vars(head).items() if not each.startswith("__")}
    row: Algorithm = HEADS[name]["ROW"] if name in HEADS else sys.modules[name].ROW
    return replace(row, module=name)


def _all() -> Iterator[Entry]:
    """The rows, each with its presets behind it, in their looks."""
    palette = itertools.cycle(PALETTE)
    for row in map(row_of, FILES):
        for entry in (row, *PRESETS.get(row.name, ())):
            yield replace(entry, look=LOOKS.get(entry.name) or next(palette))


ENTRIES = {entry.name: entry for entry in _all()}
TABLE = tuple(entry for entry in ENTRIES.values() if isinstance(entry, Algorithm))
ALGORITHMS = {row.name: row for row in TABLE}
OWNERS = {entry.name: row for row in TABLE for entry in (row, *PRESETS.get(row.name, ()))}  # each entry's algorithm
EVENTS = {kind.name: kind for kind in (MEMBERS, *(kind for row in TABLE for kind in row.events), EVALUATOR)}


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
        look=entry.look._replace(line=(0, (1, 2)), hatch=entry.look.hatch + "o"),
        workers=Workers.K_FASTEST,
        fastest=int(k or 0),
    )


def owner_of(name: str) -> Algorithm:
    """The algorithm of an entry's name in the log tree. Raises KeyError if there is no such entry."""
    return OWNERS[name if name in OWNERS else name.rpartition("-k")[0]]


def entry_name(mode: str, flags: Mapping[str, Any], workers: Workers = Workers.ALL) -> str:
    """The name under which a job is filed: that of the preset whose flags are set, else the mode. `workers` are those
    that a launcher has chosen; none of them is told, so to main.py all take part."""
    made = [
        preset
        for preset in PRESETS.get(mode, ())
        if preset.workers is workers
        and all(flags[field] == value for field, value in preset.values)
        and all(flags[field] for field in preset.given)
    ]
    return max(made, key=lambda preset: len(preset.values) + len(preset.given)).name if made else mode


def folder_name(entry: str, split_by_class: bool) -> str:
    """Folder of a run in the log tree, which summary.py takes for its mode (dcasgd, esync-niid, ...)."""
    return f"{entry}-niid" if split_by_class else entry
