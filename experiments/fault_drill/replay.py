"""Replays what a state server or hub has decided about a job's members, and compares the decisions byte by byte.

ESYNC_RECORD=FOLDER scripts/cluster.sh ...                        # or a storm: each process writes a file there
python -m experiments.fault_drill.replay FOLDER/decisions-*.jsonl
"""

from __future__ import annotations

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

import trainer  # noqa: F401  (the imports below need it)
from flag_parser import FlagParser
from server.messages import Beat, Join, Left
from server.rendezvous.membership import Group, decide
from server.rendezvous.record import decision
from utils import SetupError

KINDS: dict[str, type[Join | Beat | Left]] = {"Join": Join, "Beat": Beat, "Left": Left}


def replay(lines: Iterable[str], where: str) -> int:
    """Decides all again; returns how many. Raises SetupError at the first decision that is another one."""
    groups: dict[str, Group] = {}
    number = 0
    for number, text in enumerate(lines, start=1):
        line = json.loads(text)
        event = msgspec.convert(line["event"], KINDS[line["kind"]])
        group = msgspec.convert(line["group"], Group) if "group" in line else groups.get(event.job, Group())
        outcome = decide(group, event, line["now"], drawn=line["drawn"])
        groups[event.job] = outcome.group
        then, now = json.dumps({name: line[name] for name in decision(outcome)}), json.dumps(decision(outcome))
        if then != now:
            raise SetupError(f"{where}, line {number}: decided now {now:.400}, then {then:.400}")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Replays each file, which may be packed by gzip."""
    parser = FlagParser("experiments.fault_drill.replay", doc=__doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    for path in parser.parse_args(arguments).files:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            print(f"{path}: {replay(lines, str(path))} decisions, all as they were")
    return 0


if __name__ == "__main__":
    start.run(main)
