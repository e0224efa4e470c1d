"""Selects the devices of the newest run in a mode's folder: an earlier run with more workers leaves folders behind.
Pure."""

import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from config import CONTINUE
from trainer.rendezvous.config_check import join_names
from utils import RUN_FILE

EARLY = 0.9  # a log shorter than this share of the longest one ends early
Place = tuple[str, str]  # host and device, as in the log tree


@dataclass(frozen=True)
class RunFile:
    """The run.json of a device's folder: its content, empty where there is none, and when it was written."""

    run: Mapping[str, Any]
    written_s: float = 0.0

    @property
    def members(self) -> list[Mapping[str, Any]]:
        members = self.run.get("members")
        return [each for each in members if isinstance(each, dict)] if isinstance(members, list) else []

    def flag(self, name: str) -> Any:
        """The value of a flag of main.py; None where unknown."""
        config = self.run.get("config")
        return config.get(name) if isinstance(config, dict) else None

    @property
    def job(self) -> Hashable:
        """A key that all workers of a run share; None where unknown."""
        if not self.members and not isinstance(self.run.get("num_workers"), int):
            return None
        return json.dumps([self.members, self.run.get("num_workers")], sort_keys=True)


class NewestRun(NamedTuple):
    """The devices of the newest run."""

    places: Sequence[Place]
    # Last round of the run, of devices that took part only until it was resumed; infinite where workers count rounds of
    # their own
    until: Mapping[Place, float]
    lines: Sequence[str] = ()  # warnings about folders that are left out, wholly or from a round on


def of_newest(found: Mapping[Place, RunFile]) -> NewestRun:
    """The devices of the newest run, if run files tell it; otherwise all. All too where workers may come and go, since
    then the folders of one run name different members."""
    newest = _newest(found)
    if newest is None or found[newest].flag("on_worker_death") == CONTINUE:
        return NewestRun([*found], {})
    its = found[newest]
    named = {_place(each) for each in its.members}
    before, after = its.run.get("workers_before"), its.run.get("resumed_after")
    earlier = {*map(str, before)} if isinstance(before, list) else set()
    others, until, lines = [], {}, []
    for place, file in found.items():
        if file.job == its.job or (file.job is None and (place in named or not named)):
            continue
        # As a checkpoint names it; its folder may be named after another name of the host.
        if earlier & {f"{device} on host {host}" for host, device in (place, _place(file.run))}:
            until[place] = after if isinstance(after, int) else math.inf
        else:
            others.append(place)
    if until:
        last = f" after round {after}" if isinstance(after, int) else ""
        lines.append(
            f"{_names(until)} took part in the first part of the run, which was resumed with {len(its.members)} "
            f"worker(s){last}"
        )
    if others:
        why = "the run was resumed, so this may be its first part: keep it"
        lines.append(
            f"{_names(others)} left out: {'/'.join(newest)}/{RUN_FILE}, the newest, does not name "
            f"{'it' if len(others) == 1 else 'them'} among its workers; "
            f"{why if its.flag('resume') else 'this is of an earlier run'}"
        )
    return NewestRun([place for place in found if place not in others], until, lines)


def _newest(found: Mapping[Place, RunFile]) -> Place | None:
    """A device of the newest run. A copied log has the time of the copy, so the time decides only among runs of which
    no other run has taken over a device's folder."""
    jobs = {place: file.job for place, file in found.items() if file.job is not None}
    taken = {job for place, job in jobs.items() for each in found[place].members if jobs.get(_place(each), job) != job}
    last = [place for place, job in jobs.items() if job not in taken] or list(jobs)
    return max(last, key=lambda place: found[place].written_s, default=None)


def _place(member: Mapping[str, Any]) -> Place:
    return str(member.get("host")), str(member.get("device"))


def _names(places: Iterable[Place]) -> str:
    return join_names(["/".join(place) for place in sorted(places)])


def ends_early(
    ends: Mapping[Place, tuple[int, float]], found: Mapping[Place, RunFile], in_step: bool
) -> Mapping[Place, str]:
    """Warnings about devices whose logs may lack their end. `ends` are the number of rounds in each log, and the
    elapsed seconds at its end. With `in_step` all workers do the same rounds."""
    most, longest_s = (max(values, default=0) for values in zip(*ends.values(), strict=True)) if ends else (0, 0.0)
    warnings = {}
    for place, (rounds, elapsed_s) in ends.items():
        run = found[place].run
        has_ended = rounds == most if in_step else bool(run.get("ended"))
        if elapsed_s < EARLY * longest_s and not has_ended:
            why = "" if not run or run.get("ended") else ", and its run.json does not say that it has ended"
            warnings[place] = (
                f"its log ends early, after {rounds} round(s) and {elapsed_s:.6g} s, where others go on to "
                f"{longest_s:.6g} s{why}; was it killed, or are its last rounds missing?"
            )
    return warnings
