"""What `membership.decide` was asked and answered, to replay a job by: a file of each process in the folder that
ESYNC_RECORD names; none without it."""

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from server.messages import Beat, Join, Left
from server.rendezvous.membership import Group, Outcome, decide

_folder = os.environ.get("ESYNC_RECORD")
_path = Path(_folder, f"decisions-{time.time_ns()}.jsonl") if _folder else None
log = logging.getLogger(__name__)
_groups: dict[str, Group] = {}  # by job, after the last decision here


def recorded(group: Group, event: Join | Beat | Left, now: float, drawn: str) -> Outcome:
    """As `decide`."""
    global _path
    outcome = decide(group, event, now, drawn=drawn)
    if _path is not None:
        told = {name: value for name, value in to_builtins(event).items() if name != "token"}
        line: dict[str, Any] = {"kind": type(event).__name__, "event": told, "now": now, "drawn": drawn}
        if group is not _groups.get(event.job, Group()) and group != Group():  # from the journal
            line["group"] = to_builtins(group)
        _groups[event.job] = outcome.group
        try:
            with _path.open("a") as file:
                file.write(json.dumps(line | decision(outcome)) + "\n")
        except OSError as error:  # the job does not depend on it
            log.warning("ESYNC_RECORD: %s cannot be written (%s): it ends here", _path, error.strerror)
            _path = None
    return outcome


def decision(outcome: Outcome) -> dict[str, Any]:
    """What the sender is told, and the generation after that."""
    group, answer, reason = outcome
    return {"answer": to_builtins(answer), "reason": reason, "generation": group.generation, "id": group.id}
