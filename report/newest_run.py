"""Which devices' logs in a mode's folder are of its newest run: an earlier one with more workers leaves folders behind.
Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from config import CONTINUE
from trainer.rendezvous.config_check import join_names
from trainer.run_logs.round_faults import is_count
from utils import RUN_FILE

EARLY = 0.9  # share of the longest log: one that is shorter ends early
Place = tuple[str, str]  # host and device, as in the log tree


@dataclass(frozen=True)
class Left:
    """What a device's folder says of its run.

    Attributes:
        run: its run.json; empty where there is none.
        written_s: when that was written.
    """

    run: Mapping[str, Any]
    written_s: float = 0.0

    @property
    def members(self) -> list[Mapping[str, Any]]:
        """All workers of its run, where they are known."""
        members = self.run.get("members")
        return [each for each in members if isinstance(each, dict)] if isinstance(members, list) else []

    def flag(self, name: str) -> Any:
        """What its run had for a flag of main.py; None where it does not say."""
        config = self.run.get("config")
        return config.get(name) if isinstance(config, dict) else None

    @property
    def job(self) -> Hashable:
        """The same for all workers of a run; None where it says nothing."""
        if not self.members and not is_count(self.run.get("num_workers")):
            return None
        return json.dumps([self.members, self.run.get("num_workers")], sort_keys=True)


@dataclass(frozen=True)
class Chosen:
    """What counts.

    Attributes:
        until: the last round that counts, of those that took part only before the run was resumed; infinite where
            each worker has a round of its own.
        lines: which folders do not count or not to their end, and why.
    """

    places: tuple[Place, ...]
    until: Mapping[Place, float]
    lines: tuple[str, ...] = ()


def of_newest(found: Mapping[Place, Left]) -> Chosen:
    """The devices of the newest run, where the folders say what their runs were; else all. All too where workers may
    come and go: then the folders of one run name different members."""
    newest = _newest(found)
    if newest is None or found[newest].flag("on_worker_death") == CONTINUE:
        return Chosen(tuple(found), {})
    its = found[newest]
    named = {_place(each) for each in its.members}
    before, after = its.run.get("workers_before"), its.run.get("resumed_after")
    earlier = set(map(str, before)) if isinstance(before, list) else set()
    out = {
        place: left
        for place, left in found.items()
        if left.job != its.job and (left.job is not None or (named and place not in named))
    }
    back = {place for place, left in out.items() if earlier & _texts(place, left)}
    last = float(after) if is_count(after) else math.inf
    until = dict.fromkeys(back, last)
    lines = []
    if back:
        lines.append(
            f"{_names(back)} took part in the first part of the run, which was resumed with {len(its.members)} "
            f"worker(s){f' after round {last:.0f}' if last < math.inf else ''}"
        )
    if others := out.keys() - back:
        why = (
            "the run was resumed, so this may be its first part: keep it"
            if its.flag("resume")
            else "this is of an earlier run"
        )
        lines.append(
            f"{_names(others)} left out: {'/'.join(newest)}/{RUN_FILE}, the newest, does not name "
            f"{'it' if len(others) == 1 else 'them'} among its workers; {why}"
        )
    return Chosen(tuple(place for place in found if place not in out or place in back), until, tuple(lines))


def _newest(found: Mapping[Place, Left]) -> Place | None:
    """A device of the newest run. Logs that were copied are as old as the copy; but a run of which another one has
    taken over a device's folder is not the newest."""
    jobs = {place: left.job for place, left in found.items() if left.job is not None}
    taken = {job for place, job in jobs.items() for each in found[place].members if jobs.get(_place(each), job) != job}
    last = [place for place, job in jobs.items() if job not in taken] or list(jobs)
    return max(last, key=lambda place: found[place].written_s, default=None)


def _place(member: Mapping[str, Any]) -> Place:
    return str(member.get("host")), str(member.get("device"))


def _texts(place: Place, left: Left) -> set[str]:
    """What a checkpoint may call a worker: its folder may have another name of the host."""
    return {f"{device} on host {host}" for host, device in (place, _place(left.run))}


def _names(places: Collection[Place]) -> str:
    return join_names(["/".join(place) for place in sorted(places)])


def ends_early(
    ends: Mapping[Place, tuple[int, float]], found: Mapping[Place, Left], in_step: bool
) -> Mapping[Place, str]:
    """Why the logs of some devices may lack their end, in words.

    Args:
        ends: how many rounds the log of each has, and the elapsed seconds at its end.
        in_step: all workers do the same rounds.
    """
    most, longest_s = (max(values, default=0) for values in zip(*ends.values(), strict=True)) if ends else (0, 0.0)
    told = {}
    for place, (rounds, elapsed_s) in ends.items():
        run = found[place].run
        has_ended = rounds == most if in_step else bool(run.get("ended"))
        if elapsed_s < EARLY * longest_s and not has_ended:
            why = "" if not run or run.get("ended") else ", and its run.json does not say that it has ended"
            told[place] = (
                f"its log ends early, after {rounds} round(s) and {elapsed_s:.6g} s, where others go on to "
                f"{longest_s:.6g} s{why}; was it killed, or are its last rounds missing?"
            )
    return told
