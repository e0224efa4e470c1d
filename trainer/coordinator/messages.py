"""A worker's messages to the state server: RESET, REPORT and QUERY, with all that it has not told yet."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from typing import NamedTuple

from trainer.clock import Clock
from trainer.coordinator.protocol import Message
from trainer.progress import MAX_EVENTS, MAX_POINTS, Progress


class Told(NamedTuple):
    """A worker's progress; ordered by time. Of an earlier generation of workers the server takes none."""

    generation: int
    round: int
    steps: int
    step_s: float
    transmission_s: float


class Messages:
    """One worker's messages. Threads may share it."""

    def __init__(self, clock: Clock, rule: Message, limits: Mapping[str, float], device: Message) -> None:
        """`rule`: fields of RESET that tell the job's rule; `limits`: rounds, seconds and the metric's target at which
        the job will end; `device`: where this worker runs."""
        self._clock, self._rule, self._limits, self._device = clock, rule, limits, device
        # The job's id, in which this worker is of `rank`, as one of `num_workers` in a `generation` of them
        self.job, self.rank, self.num_workers, self.generation = "", 0, 0, 1
        self.progress = Progress()
        self._lock = clock.lock()
        self.latest: Told | None = None  # of what was told
        self.told = (0, 0)  # how many of the progress's events and evaluations have an answer
        self.answered = 0  # the last round of which a message of this generation has an answer
        self.is_heard = True  # whether the last notice was answered
        self._name = _name_of(device)

    def reset(self, resumed: bool) -> Message:
        metric, limits = self.progress.metric, dict(self._limits)
        about = {"msg_type": "RESET", "num_workers": self.num_workers, **self._rule, "resumed": int(resumed)}
        if not metric.is_accuracy:
            about["metric"] = metric.about()
        elif "target" in limits:
            limits["accuracy"] = limits.pop("target")
        return {**about, **({"limits": limits} if limits else {}), **_of_generation(self.generation)}

    def report(self, status: Told) -> Message:
        about = {"msg_type": "REPORT", "status": self._to_wire(status), "device": self._device}
        return {**about, **_of_generation(status.generation), "doing": self.progress.activity}

    def report_with_all(self, status: Told) -> Message:
        """With the curve so far, perhaps empty, where this worker evaluates."""
        curve = self.progress.curve
        points = {} if curve is None else {self._keys[1]: [list(point) for point in curve.points()]}
        return {**self.report(status), **points}

    @property
    def _keys(self) -> tuple[str, str]:
        """Of a value of the metric, and of all."""
        return ("accuracy", "accuracies") if self.progress.metric.is_accuracy else ("value", "values")

    def note(self, round_: int, steps: int, step_s: float, transmission_s: float, generation: int = 0) -> Told:
        """Notes the progress. Questions may overtake each other: the latest status is that of the last step."""
        status = Told(generation or self.generation, round_, steps, step_s, transmission_s)
        with self._lock:
            if self.latest is None or status[:3] >= self.latest[:3]:
                self.latest = status
        return status

    def _to_wire(self, status: Told) -> Message:
        return {
            "rank": self.rank,
            "local_iteration": status.steps,
            "round": status.round,
            "computation_time": status.step_s,
            "transmission_time": status.transmission_s,
            "timestamp": self._clock.timestamp(),
        }

    def complete(self, message: Message) -> Message:
        sender = f"worker-{self.rank}-{self._name}"
        envelope = {"sender": sender, "receiver": "state-server", "job": self.job, **message}
        if "status" not in message:
            return envelope
        if (missed := message["status"]["round"] - 1 - self.answered) > 0:
            envelope["missed"] = missed
        events = self.progress.events[self.told[0] :][-MAX_EVENTS:]
        # A server that did not hear the last notice is told the whole curve after this message.
        untold = self.progress.evaluations[self.told[1] :] if self.is_heard else []
        more: Message = {"events": [list(event) for event in events]} if events else {}
        if untold:
            more |= {self._keys[0]: untold[-1].value, "evaluated": untold[-1].round}
        if len(untold) > 1 and message["msg_type"] == "REPORT":
            more[self._keys[1]] = [list(point) for point in untold[:-1][-MAX_POINTS:]]
        return more | envelope | self.progress.to_wire()

    def query(self, status: Told, samples: int) -> Message:
        message: Message = {"msg_type": "QUERY", "status": self._to_wire(status), "samples": samples}
        return message | _of_generation(status.generation)


def _name_of(device: Message) -> str:
    """Others do not know it: a rank speaks for one sender. With a token a process that takes the place of a lost one on
    the same device has the same one."""
    token = os.environ.get("ESYNC_TOKEN")
    return hashlib.sha256(f"{token} {device}".encode()).hexdigest()[:16] if token else secrets.token_hex(8)


def _of_generation(generation: int) -> Message:
    """Only told once there is more than one."""
    return {"generation": generation} if generation > 1 else {}
