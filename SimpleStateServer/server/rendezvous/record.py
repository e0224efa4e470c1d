"""A file of what `membership.decide` was asked, and what it answered, to replay a job by
(experiments/fault_drill/replay.py). ESYNC_RECORD names a folder, in which each process has a file; without it there is
none.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from server.messages import Beat, Join, Left
from server.rendezvous.membership import Group, Outcome, decide

_FOLDER = os.environ.get("ESYNC_RECORD", "")
_PATH = Path(_FOLDER, f"decisions-{time.time_ns()}.jsonl")
_groups: dict[str, Group] = {}  # by job, after the last decision here


def recorded(group: Group, event: Join | Beat | Left, now: float, drawn: str) -> Outcome:
    """As `decide`."""
    outcome = decide(group, event, now, drawn=drawn)
    if _FOLDER:
        told = {name: value for name, value in to_builtins(event).items() if name != "token"}
        line: dict[str, Any] = {"kind": type(event).__name__, "event": told, "now": now, "drawn": drawn}
        if group is not _groups.get(event.job, Group()) and group != Group():  # from the journal
            line["group"] = to_builtins(group)
        _groups[event.job] = outcome.group
        with _PATH.open("a") as file:
            file.write(json.dumps(line | decision(outcome)) + "\n")
    return outcome


def decision(outcome: Outcome) -> dict[str, Any]:
    """What the sender is told, and the generation after that."""
    group, answer, reason = outcome
    return {"answer": to_builtins(answer), "reason": reason, "generation": group.generation, "id": group.id}
