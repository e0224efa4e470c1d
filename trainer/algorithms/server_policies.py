"""Runs the policies of WBSP, the quorum merge and Sync-Switch on the hub.

The policies are the state server's (SimpleStateServer/server/policies/), pure functions on its table. The numbers that
they need of a worker travel with its upload.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from server.messages import Settings
from server.policies import POLICIES, Decision, Policy, merging
from server.row import Action, Row
from server.state import Table

__all__ = ["Action", "Decision", "Policy", "PolicyRunner", "UploadReport", "merging"]


class UploadReport(NamedTuple):
    """The numbers that travel with a worker's upload."""

    steps: int  # local steps in the upload
    samples: int  # in these steps
    step_s: float  # seconds of the last step
    transmission_s: float  # seconds of this worker's own push and pull, smoothed; 0: not known yet


class PolicyRunner:
    """A policy, or the one of this name, and the table of workers on which it decides. All times are of one clock, in
    seconds."""

    def __init__(self, policy: Policy | str, num_workers: int, now: float) -> None:
        self._policy = POLICIES[policy] if isinstance(policy, str) else policy
        self._table = Table(Settings(num_workers, self._policy.name), self._policy, now)

    def enter(self, rank: int, round_: int, now: float) -> None:
        self._table.put(self._row(rank).entering(round_, now))

    def uploaded(self, rank: int, upload: UploadReport, now: float) -> None:
        row, steps = self._row(rank), upload.steps
        row = row.stepping(row.local_iteration + steps, upload.step_s, upload.samples // steps, now)
        self._table.put(row._replace(heard=now, counted=True, transmission_time=upload.transmission_s))

    def decide(self, rank: int, now: float) -> Decision:
        """The policy's decision on a worker that has uploaded."""
        decision = self._policy.decide(self._table, rank, now)
        self._table.put(self._row(rank).answered(decision, now))
        return decision

    def remove_worker(self, rank: int) -> None:
        """Excludes a lost worker from all decisions."""
        self._table.put(self._row(rank)._replace(counted=False))

    def exclude_silent(self, now: float) -> None:
        """Excludes workers that have not uploaded for long, such as one that evaluates, until their next upload."""
        for row in self._table.stop_counting_on_the_silent(now):
            logging.warning("worker %d is silent; no decision counts on it until its next upload", row.rank)

    def _row(self, rank: int) -> Row:
        return self._table.rows[rank]
