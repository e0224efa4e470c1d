"""Logs refused requests: each kind at once, then only how often it came again, so that no client can fill the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

from server.answers import JSON, Answer

PAUSE_S = 10.0  # between two lines of a kind
MAX_KINDS = 1000  # beyond, all are forgotten

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Kind:
    told: float
    more: int = 0


class Refusals:
    """Logs refusals at a bounded rate.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kinds: dict[tuple[str, str, int], _Kind] = {}

    def note(self, address: str, what: str, answer: Answer) -> None:
        """Logs an answer that is no 200.

        Args:
            address: of the sender.
            what: method and path.
        """
        now = self._clock()
        if len(self._kinds) > MAX_KINDS:
            self._kinds.clear()
        kind = self._kinds.setdefault((address, what, answer.status), _Kind(-PAUSE_S))
        if now - kind.told < PAUSE_S:
            kind.more += 1
            return
        again = f" ({kind.more} more since the last such line)" if kind.more else ""
        why = json.loads(answer.body).get("error", "") if answer.content_type == JSON else ""
        log.warning("%s from %s: %d: %s%s", what, address, answer.status, why, again)
        kind.told, kind.more = now, 0
