"""The logs of a job: of its newest run, a worker at a time, and as devices. An earlier run with more workers leaves
folders behind in a mode's folder."""

import json
import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import utils
from config import CONTINUE
from esync.measure import LINES_FILE
from esync.metric import ACCURACY
from report.metrics import Device, Event, evaluating_device, sound_events
from server.setups import join_names
from trainer.run_logs import rounds as round_logs
from trainer.run_logs.pace import WorkerPace, add_emulated
from trainer.run_logs.rounds import MOST, Round, Warn
from utils import RUN_FILE, SetupError

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


@dataclass(frozen=True)
class WorkerLog:
    """The logs of one worker."""

    folder: Path  # HOST/DEVICE
    rounds: Sequence[Round]  # the sound ones
    run_file: RunFile
    lost: int = 0  # rounds in which it took part, and which are not among these
    is_whole: bool = True  # it took part to the end of the run

    @property
    def place(self) -> Place:
        """Host and device, as in the log tree."""
        return self.folder.parent.name, self.folder.name

    @property
    def name(self) -> str:
        """HOST/DEVICE."""
        return "/".join(self.place)

    @property
    def run(self) -> Mapping[str, Any]:
        """Its run.json; empty where it is missing."""
        return self.run_file.run

    @property
    def elapsed_s(self) -> float:
        """At the end of the last round."""
        return self.rounds[-1].elapsed_s


def read(folders: Iterable[Path], warn: Warn) -> list[WorkerLog]:
    """Reads the workers of a job, sorted by rank; where a rank is unknown, in the order of `folders`. Each of the
    `folders` is HOST/DEVICE. Raises SetupError if no round is readable."""
    logs = list(read_each(folders, warn))
    if not logs:
        raise SetupError("no readable round log (HOST/DEVICE/iter-N.txt or rounds.jsonl); train first")
    ranks = [log.run.get("rank") for log in logs]
    if all(isinstance(rank, int) for rank in ranks) and len(set(ranks)) == len(logs):
        logs.sort(key=lambda log: int(log.run["rank"]))
    return logs


def read_each(folders: Iterable[Path], warn: Warn, keeps_steps: bool = True) -> Iterator[WorkerLog]:
    """The logs of the newest run; `warn` gets a line about the others, and about what is left out."""
    there = {(folder.parent.name, folder.name): folder for folder in folders}
    found = {place: _run_file(folder / RUN_FILE, warn) for place, folder in there.items()}
    chosen = of_newest(found, lambda text: warn(f"{next(iter(there.values())).parents[1]}: {text}"))
    for place, until in chosen.items():
        folder = there[place]
        try:
            logged = round_logs.logged_rounds(folder, warn, keeps_steps)
        except OSError as error:
            warn(f"{folder} cannot be read: {error.strerror}; left out")
            continue
        logged = {number: one for number, one in logged.items() if until is None or number <= until}
        rounds = round_logs.sound_rounds(folder, logged, warn)
        if not rounds:
            warn(f"{folder} holds no readable round (iter-N.txt or {LINES_FILE}); left out")
        elif rounds[-1].elapsed_s <= 0:  # published times are whole seconds
            warn(f"{folder}: the last round ends after 0 s; left out")
        else:
            yield WorkerLog(folder, rounds, found[place], round_logs.rounds_lost(logged, rounds), until is None)


def _run_file(path: Path, warn: Warn) -> RunFile:
    """A device's run.json; empty where it is missing, as in logs of the published program, or damaged."""
    try:
        run, written_s = (utils.read_json(path), path.stat().st_mtime) if path.exists() else ({}, 0.0)
        if isinstance(run, dict):
            return RunFile(run, written_s)
        raise SetupError(f"{path} is not a JSON object")
    except SetupError as error:
        warn(str(error))
        return RunFile({})


# ------------------------------------------------------------------------------------------- the newest run


def of_newest(found: Mapping[Place, RunFile], warn: Warn) -> dict[Place, float | None]:
    """The devices of the newest run, if run files tell it; otherwise all. All too where workers may come and go, since
    then the folders of one run name different members. `warn` gets what is left out, wholly or from a round on.

    A device that took part only until the run was resumed has its last round, infinite where workers count rounds of
    their own; all others have None.
    """
    newest = _newest(found)
    if newest is None or found[newest].flag("on_worker_death") == CONTINUE:
        return dict.fromkeys(found)
    its = found[newest]
    named = {_place(each) for each in its.members}
    before, after = its.run.get("workers_before"), its.run.get("resumed_after")
    earlier = {*map(str, before)} if isinstance(before, list) else set()
    chosen: dict[Place, float | None] = {}
    for place, file in found.items():
        if file.job == its.job or (file.job is None and (place in named or not named)):
            chosen[place] = None
        # As a checkpoint names it; its folder may be named after another name of the host.
        elif earlier & {f"{device} on host {host}" for host, device in (place, _place(file.run))}:
            chosen[place] = after if isinstance(after, int) else math.inf
    if until := [place for place, last in chosen.items() if last is not None]:
        last = f" after round {after}" if isinstance(after, int) else ""
        warn(
            f"{_names(until)} took part in the first part of the run, which was resumed with {len(its.members)} "
            f"worker(s){last}"
        )
    if others := found.keys() - chosen:
        why = "the run was resumed, so this may be its first part: keep it"
        warn(
            f"{_names(others)} left out: {'/'.join(newest)}/{RUN_FILE}, the newest, does not name "
            f"{'it' if len(others) == 1 else 'them'} among its workers; "
            f"{why if its.flag('resume') else 'this is of an earlier run'}"
        )
    return chosen


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


def tell_early_ends(logs: Collection[WorkerLog], in_step: bool, warn: Warn) -> None:
    """Warns of logs that may lack their end. With `in_step` all workers do the same rounds."""
    most = max((len(log.rounds) for log in logs), default=0)
    longest_s = max((log.elapsed_s for log in logs), default=0.0)
    for log in logs:
        has_ended = len(log.rounds) == most if in_step else bool(log.run.get("ended"))
        if log.elapsed_s < EARLY * longest_s and not has_ended:
            why = "" if not log.run or log.run.get("ended") else ", and its run.json does not say that it has ended"
            warn(
                f"{log.folder}: its log ends early, after {len(log.rounds)} round(s) and {log.elapsed_s:.6g} s, where "
                f"others go on to {longest_s:.6g} s{why}; was it killed, or are its last rounds missing?"
            )


# ----------------------------------------------------------------------------------------------- as devices


def device_of(log: WorkerLog, warn: Warn) -> Device:
    """The device of a summary by its logs; `warn` gets the events that are left out."""
    evaluated = [one for one in log.rounds if one.evaluation]
    add_emulated(log.rounds, log.run)
    events: list[Event] = []
    for one in log.rounds:
        if one.events:
            said = [[one.elapsed_s, each.kind, each.text] for each in one.events]
            events += sound_events(said, one.where, warn)
    about: dict[str, Any] = {name: log.run.get(name) for name in ("rank", "num_workers", "parameter_bytes")}
    about["of_workers"] = log.run_file.flag("of_workers") or None
    return Device(
        log.rounds,
        [one.evaluation[1] for one in evaluated],
        [one.elapsed_s for one in evaluated],
        evaluated[0].evaluation[0] if evaluated else ACCURACY,
        events,
        WorkerPace(log.rounds).pace,
        at_target=f" {utils.REACHED} " in str(log.run.get("ended")),
        virtual="virtual" in log.run,
        **{name: value for name, value in about.items() if isinstance(value, int) and 0 <= value <= MOST},
    )


def evaluating(logs: Iterable[WorkerLog]) -> Device:
    """The device that has evaluated (metrics.evaluating_device), or the first one where none has."""
    devices = {log.place: device_of(log, lambda text: None) for log in logs}
    return evaluating_device(devices, lambda text: None) or next(iter(devices.values()))
