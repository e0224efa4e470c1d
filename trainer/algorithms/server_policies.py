"""Decides where the uploads are: the rules of WBSP and of Sync-Switch on the parameter server.

The rules are the state server's own (SimpleStateServer/server/policies/), pure functions on its table. What they must
know of a worker travels with its upload.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from trainer import state_server_path  # noqa: F401  (the imports below need it)

# isort: split
from server.policies import POLICIES, Decision
from server.state import Row, Table
from server.worker import Action

__all__ = ["Action", "Decision", "Decisions", "Upload"]


class Upload(NamedTuple):
    """What a worker says of itself with an upload.

    Attributes:
        wants_stop: it wants all to stop.
        steps: local steps that the upload is of.
        samples: in these steps.
        step_s: seconds of the last one.
        transmission_s: seconds of this worker's own push and pull, smoothed, as far as they are known.
    """

    wants_stop: bool
    steps: int
    samples: int
    step_s: float
    transmission_s: float

    @classmethod
    def read(cls, numbers: Sequence[float]) -> Upload:
        """Of the numbers of a command."""
        wants_stop, steps, samples, step_s, transmission_s = list(numbers)[: len(cls._fields)]
        return cls(bool(wants_stop), round(steps), round(samples), float(step_s), float(transmission_s))


class Decisions:
    """A rule, and the table that it decides by.

    Args:
        rule: the policy's name.
        now: when the job begins, in seconds on the clock of all times that follow.
    """

    def __init__(self, rule: str, num_workers: int, now: float) -> None:
        self._policy = POLICIES[rule]
        self._table = Table(num_workers, self._policy.delay, started=now)

    def enter(self, rank: int, round_: int, now: float) -> None:
        """A worker begins a round."""
        self._table.put(self._row(rank).entering(round_, now))

    def uploaded(self, rank: int, upload: Upload, now: float) -> None:
        """A worker has done steps in its round."""
        row, steps = self._row(rank), upload.steps
        row = row.stepping(row.local_iteration + steps, upload.step_s, upload.samples // steps, now)
        self._table.put(row._replace(heard=now, counted=True, transmission_time=upload.transmission_s))

    def decide(self, rank: int, now: float) -> Decision:
        """What the worker that has uploaded is told, by the rule."""
        decision = self._policy.decide(self._table, rank, now)
        self._table.put(self._row(rank).answered(decision, now))
        return decision

    def go_on_without(self, rank: int) -> None:
        """No decision counts on this worker any more."""
        self._table.put(self._row(rank)._replace(counted=False))

    def stop_counting_on_the_silent(self, now: float) -> None:
        """For a rule under which a worker that has not uploaded for long, since it evaluates, would hold up others."""
        for row in self._table.stop_counting_on_the_silent(now):
            logging.warning("worker %d is silent; no decision counts on it until its next upload", row.rank)

    def _row(self, rank: int) -> Row:
        return self._table.rows[rank]
