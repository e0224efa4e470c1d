"""The workers' logs of a drilled job: their rounds, and what the job leaves behind."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from algorithms import MEMBERS
from experiments.fault_drill.faults import NAMES
from trainer.run_logs.rounds import Round, read_rounds

BATCH = 64
CHECKPOINT_EVERY = 5  # rounds
ROUNDS_BEFORE = 2 * CHECKPOINT_EVERY  # of each worker, before a fault
MORE_ROUNDS = 2
LONGEST_S = 60.0  # from a fault until all train again
END_S = 60.0  # for the job to end, beyond its own seconds
POLL_S = 0.01
NOTICED = re.compile(
    r" is gone|was killed by signal|did not answer|is frozen|ended with exit code|closed its connection"
    r"|cannot be written"
)

Lines = Sequence[tuple[float, str]]  # of output, with their times


def wait_for(condition: Callable[[], object], longest_s: float, is_over: Callable[[], bool] = lambda: False) -> bool:
    """Whether a condition held in time, before the job was over."""
    give_up = time.time() + longest_s
    while time.time() < give_up:
        if condition():
            return True
        if is_over():
            return bool(condition())
        time.sleep(POLL_S)
    return False


def noticed_s(lines: Lines, began: float) -> float | None:
    """Seconds from a fault until another process reported it."""
    return next((round(at - began, 2) for at, line in lines if at > began and NOTICED.search(line)), None)


class Logs:
    """The workers' logs.

    Args:
        base: in the command lines of the job's processes, and of no others.
        folder: holds those of the hosts.
        place: pattern of a worker's folder in it.
    """

    def __init__(self, base: Path, folder: Path, place: str = "*/cpu{number}") -> None:
        self._base, self.folder, self._place = base, folder, place

    def rounds(self, worker: str) -> dict[int, float]:
        """The rounds in a worker's log, with the time of each."""
        found = {}
        for path in self.folder.glob(f"{self._place.format(number=worker[-1])}/iter-*.txt"):
            with contextlib.suppress(OSError):  # a round that is repeated
                found[int(path.stem[5:])] = path.stat().st_mtime
        return found

    def all_rounds(self) -> dict[str, set[int]]:
        return {name: {*self.rounds(name)} for name in NAMES}

    def again_s(self, workers: Sequence[str], since: float) -> float | None:
        """Seconds until all of these had done two more rounds; None: they have not."""
        later = [sorted(at for at in self.rounds(name).values() if at > since) for name in workers]
        if any(len(times) < MORE_ROUNDS for times in later):
            return None
        return round(max((times[MORE_ROUNDS - 1] for times in later), default=since) - since, 2)

    def pause_s(self, worker: str, since: float) -> float:
        """The longest time between two rounds of which the later one came after `since`, without the last round, which
        waits for the evaluation of the final model."""
        times = sorted(self.rounds(worker).values())[:-1]
        return round(max((later - sooner for sooner, later in pairwise(times) if later > since), default=0.0), 2)

    def longest_s(self, before: Mapping[str, Collection[int]]) -> float:
        """The longest time between two rounds of a worker of which the later one is not among its earlier rounds, by
        the workers' clocks, as their logs may be written late."""
        found = [0.0]
        for name, earlier in before.items():
            for folder in self.folder.glob(self._place.format(number=name[-1])):
                ends = {each.number: each.elapsed_s for each in read_rounds(folder, lambda text: None)}
                found += [
                    ends[b] - ends[a] for a, b in pairwise([*ends][:-1]) if b > max(earlier)
                ]  # the last evaluates
        return round(max(found), 2)

    def rounds_lost(self, before: Mapping[str, Collection[int]], workers: Sequence[str], since: float) -> int:
        """How many of the earlier rounds some of these workers have repeated."""
        first = {name: min(number for number, at in self.rounds(name).items() if at > since) for name in workers}
        return max(0, *(max(before[name]) + 1 - first[name] for name in workers))

    # --------------------------------------------------------------------------------------- what it has left

    def left(self) -> dict[str, Any]:
        """The numbers of a job that has ended.

        Returns:
            steps: logged local steps of all workers; steps_lost: those of them that are not in the model; trained_s:
            seconds from the first round to the last, with all pauses; missing: rounds that are missing in a worker's
            log, below its last; events: of workers that were lost or joined.
        """
        records, found = [*self._records()], [self.rounds(name) for name in NAMES]
        times = [at for each in found for at in each.values()]
        events = [event for one in records for event in one.events]
        return {
            "accuracy": self.accuracy(),
            "steps": sum(one.samples // BATCH for one in records),
            "steps_lost": sum(one.steps_lost or 0 for one in records),
            "trained_s": round(max(times, default=0.0) - min(times, default=0.0), 2),
            "missing": sum(max(each) - len(each) for each in found if each),
            "events": [event.text for event in events if event.kind in (MEMBERS.name, "resume")],
            "left_running": self.left_running(),
        }

    def _records(self) -> Iterator[Round]:
        for folder in sorted(self.folder.glob(self._place.format(number="*"))):
            yield from read_rounds(folder, lambda text: None)

    def accuracy(self) -> float | None:
        """The last one of any worker."""
        found = [(one.elapsed_s, one.evaluation[1]) for one in self._records() if one.evaluation]
        return max(found)[1] if found else None

    def left_running(self) -> int:
        """Processes of the job that outlive it."""
        count = 0
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                count += str(self._base).encode() in (process / "cmdline").read_bytes()
        return count
