"""Bounds the log: no client can fill it with lines. Standard library only: the rendezvous of processes uses it too.

Of each kind the first lines are logged at once, later ones now and then, with the number of those that were left out.
"""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from server.answers import JSON, Answer

PAUSE_S = 10.0  # between two lines of a kind in the long run
AT_ONCE = 100  # lines of a kind
MAX_KINDS = 1000  # beyond, all are forgotten

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Kind:
    allowed: float  # lines
    since: float
    left_out: int = 0


class LogLimit(logging.Filter):
    """A filter of a handler or a logger.

    The kind of a line is its format, which clients cannot vary; or its attribute `once`: then the first line of the
    kind is the only one at once. `clock`: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[object, _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is logged; adds the number of those left out before it. DEBUG logs all of its own."""
        if record.levelno <= logging.DEBUG:
            return True
        now = self._clock()
        once = getattr(record, "once", None)
        name, at_once = (record.msg, AT_ONCE) if once is None else (once, 1)
        if name not in self._kinds and len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        kind = self._kinds.setdefault(name, _Kind(at_once, now))
        kind.allowed = min(at_once, kind.allowed + (now - kind.since) / PAUSE_S)
        kind.since = now
        if kind.allowed < 1:
            kind.left_out += 1
            return False
        if kind.left_out:
            record.msg = f"{record.msg} ({kind.left_out} more since the last such line)"
        kind.allowed, kind.left_out = kind.allowed - 1, 0
        return True


def note_refusal(address: str, what: str, answer: Answer) -> None:
    """Logs an answer that is no 200. `address` is the sender's; `what` is method and path."""
    why = json.loads(answer.body).get("error", "") if answer.content_type == JSON else ""
    once = (address, what, answer.status)
    log.warning("%s from %s: %d: %s", what, address, answer.status, why, extra={"once": once})
