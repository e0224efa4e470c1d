"""The logs of a job: of its newest run, a worker at a time, and as devices."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import utils
from esync.measure import LINES_FILE
from esync.metric import ACCURACY
from report.metrics import Device, Event, evaluating_device, sound_events
from report.newest_run import Place, RunFile, of_newest
from trainer.run_logs import rounds as round_logs
from trainer.run_logs.pace import Emulation, RoundPace, pace_of
from trainer.run_logs.rounds import MOST, Round, Warn
from utils import SetupError


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
    """The logs of the newest run (newest_run.py); `warn` gets a line about the others, and about what is left out."""
    there = {(folder.parent.name, folder.name): folder for folder in folders}
    found = {place: _run_file(folder / utils.RUN_FILE, warn) for place, folder in there.items()}
    chosen = of_newest(found)
    for line in chosen.lines:
        warn(f"{next(iter(there.values())).parents[1]}: {line}")
    for place in chosen.places:
        folder, until = there[place], chosen.until.get(place, math.inf)
        try:
            logged = round_logs.logged_rounds(folder, warn, keeps_steps)
        except OSError as error:
            warn(f"{folder} cannot be read: {error.strerror}; left out")
            continue
        logged = {number: one for number, one in logged.items() if number <= until}
        rounds = round_logs.sound_rounds(folder, logged, warn)
        if not rounds:
            warn(f"{folder} holds no readable round (iter-N.txt or {LINES_FILE}); left out")
        elif rounds[-1].elapsed_s <= 0:  # published times are whole seconds
            warn(f"{folder}: the last round ends after 0 s; left out")
        else:
            lost = round_logs.rounds_lost(logged, rounds)
            yield WorkerLog(folder, rounds, found[place], lost, place not in chosen.until)


def _run_file(path: Path, warn: Warn) -> RunFile:
    """A device's run.json; empty where it is missing, as in logs of the published program, or damaged."""
    try:
        run, written_s = (utils.read_json(path), path.stat().st_mtime) if path.exists() else ({}, 0.0)
    except SetupError as error:
        warn(str(error))
        return RunFile({})
    if isinstance(run, dict):
        return RunFile(run, written_s)
    warn(f"{path} is not a JSON object")
    return RunFile({})


def events_of(one: Round, warn: Warn) -> list[Event]:
    """The sound events of a round, at its end."""
    return sound_events([[one.elapsed_s, each.kind, each.text] for each in one.events], one.where, warn)


def device_of(log: WorkerLog, warn: Warn) -> Device:
    """The device of a summary by its logs; `warn` gets the events that are left out."""
    evaluated = [one for one in log.rounds if one.evaluation]
    emulation = Emulation.of_run(log.run)
    about: dict[str, Any] = {name: log.run.get(name) for name in ("rank", "num_workers", "parameter_bytes")}
    about["of_workers"] = log.run_file.flag("of_workers") or None
    return Device(
        log.rounds,
        [one.evaluation[1] for one in evaluated],
        [one.elapsed_s for one in evaluated],
        evaluated[0].evaluation[0] if evaluated else ACCURACY,
        [event for one in log.rounds if one.events for event in events_of(one, warn)],
        pace_of([RoundPace.of(one, emulation) for one in log.rounds]),
        at_target=f" {utils.REACHED} " in str(log.run.get("ended")),
        virtual="virtual" in log.run,
        **{name: value for name, value in about.items() if isinstance(value, int) and 0 <= value <= MOST},
    )


def evaluating(logs: Iterable[WorkerLog]) -> Device:
    """The device that has evaluated (metrics.evaluating_device), or the first one where none has."""
    devices = {log.place: device_of(log, lambda text: None) for log in logs}
    return evaluating_device(devices, lambda text: None) or next(iter(devices.values()))
