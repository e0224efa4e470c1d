"""A worker's reports of each round: an entry in its log, a line on the console, and notices for the state server's
page."""

import logging
import math
from collections.abc import Mapping
from typing import Any

from algorithms import EVENTS
from esync.client import draw_job_number, job_id
from esync.metric import logged_value
from esync.progress import FIRST, GROWN, TRAINING, WAITING
from trainer.nan_guard import LOWER
from trainer.run_logs import rounds as round_logs
from trainer.run_logs.pace import EMULATED
from trainer.run_logs.scalars import measured
from trainer.trainer import Trainer
from utils import DIVERGED, JobError, tell_launcher

MANY_FILES = 10_000


class RoundReport:
    """Collects and writes the entries of a round."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._run = trainer.context.run
        self._notes: dict[str, Any] = {}  # for the next entry alone
        self.record: dict[str, Any] = {}  # the newest round's log; empty: this process has logged none
        self._told_s = -math.inf  # seconds from the begin of training to the last console line

    def note_once(self, notes: Mapping[str, Any]) -> None:
        """Entries for the next round's log; lists and numbers are added to others of the same key."""
        self._notes = _added(self._notes, notes)

    def last_loss(self) -> float | None:
        """The loss of the last batch; None if it is not finite and the step was skipped. Called before the model is
        evaluated and saved. Raises JobError if the loss has grown without end, or is not finite and without number
        checks no step is skipped."""
        loss, rounds = self._trainer.passes.loss(), self._trainer.rounds
        is_finite = loss is not None and math.isfinite(loss)
        has_grown = self._trainer.progress.has_diverged(rounds, loss if is_finite else None)
        if has_grown or (loss is not None and not is_finite and not self._trainer.checks.are_on):
            since = f", and {FIRST} in a row are {GROWN:g} times that of the first {FIRST}" if has_grown else ""
            raise JobError(f"{DIVERGED}: the loss of round {rounds} is {loss:g}{since}: {LOWER}")
        return loss if is_finite else None

    def write(self, samples: int, loss: float | None, value: float | None) -> None:
        """Ends the round, of `samples` samples of this worker, in the log and on the console. `value` is that of the
        metric, measured after the round; None: not measured."""
        trainer, pacing = self._trainer, self._run.pacing
        about: dict[str, Any] = {} if loss is None else {"loss": loss}
        if skipped := trainer.checks.skipped(trainer.steps):
            about["bad_steps"] = skipped
        if pacing is not None:
            about[EMULATED] = trainer.emulation.round_s / max(1, trainer.steps)
        traffic = trainer.exchange.take_traffic() if trainer.exchange is not None else {}
        notes, self._notes = _added(_added(self._notes, trainer.notes()), trainer.company.notes()), {}
        evaluated = {} if value is None else trainer.context.task.metric.logged(value)
        events = [event for event in notes.get("events", ()) if not EVENTS[event["kind"]].is_frequent]
        trainer.progress.end_round(trainer.rounds, loss, events)
        self.record = record = trainer.measure.write_round(samples, **evaluated, **about, **traffic, **notes)
        tell_launcher({"trained": True})
        if pacing is not None or self._run.board is not None:
            logged = round_logs.of_record(record)
            if pacing is not None:
                pacing.add(logged)
            if self._run.board is not None:
                self._run.board.write(logged)
        if record["num_iters"] == MANY_FILES and not self._run.logs_lines:
            logging.warning(
                "warning: the log has %d files, one a round, of 4 KB or more each on a disk: --log-form lines writes "
                "all rounds to one file",
                MANY_FILES,
            )
        if value is not None or record["total_time"] - self._told_s >= self._run.tell_every_s:
            self._tell(record["total_time"], loss, value)

    def add(self, value: float | None) -> None:
        """Adds the metric's value to the log of the last round, which is written already."""
        if value is not None:
            self.record |= self._trainer.context.task.metric.logged(value)
            self._trainer.measure.log(self.record)
            total_s = self.record["total_time"]
            if self._run.board is not None:
                self._run.board.add(measured(logged_value(self.record)), self._trainer.rounds, total_s)
            self._tell(total_s, self.record.get("loss"), value)

    def _tell(self, total_s: float, loss: float | None, value: float | None) -> None:
        self._told_s = total_s
        parts = [f"round {self._trainer.rounds}", f"{self._trainer.steps} step(s)", f"{total_s:.1f} s"]
        if loss is not None:
            parts.append(f"loss {loss:.3f}")
        if value is not None:
            metric = self._trainer.context.task.metric
            parts.append(f"{metric.name} {metric.text(value)}")
        if most := self._run.limits.max_seconds:
            parts.append(f"{max(0.0, most - total_s):.0f} s left")
        logging.info(", ".join(parts))


def _added(notes: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The union of both; values of a common key are added."""
    return {**notes, **{key: notes[key] + value if key in notes else value for key, value in more.items()}}


class PageReports:
    """Tells the state server what this worker does, for its page, in modes in which no rule of the server decides.
    Training never waits: a notice takes it a few microseconds. In other modes the trainers tell it themselves, and this
    does nothing; nor without a state server."""

    def __init__(self, trainer: Trainer) -> None:
        algorithm = trainer.context.config.algorithm
        self._trainer = trainer
        self._state = None if algorithm.has_state_server else trainer.context.peers.state_server
        self._waits = algorithm.waits and algorithm.is_distributed

    def announce(self) -> None:
        """All workers agree on the job's name. Each worker that is there when the job begins calls it."""
        if self._state is None:
            return
        trainer, membership = self._trainer, self._trainer.membership
        numbers = trainer.context.peers.gather("names of the job on the state server", draw_job_number())
        if numbers is None:
            logging.warning("there is no status page of this job: a plain MXNet program takes part, or one was lost")
            self._state = None
            return
        self._state.join(job_id(numbers[0]), membership.rank, membership.num_workers, trainer.progress)

    def tell(self, exchange_begins: bool = False) -> None:
        """Reports the last local step; with `exchange_begins` those of the round are done."""
        if self._state is not None:
            if exchange_begins and self._waits:
                self._trainer.progress.activity = WAITING
            self._state.tell(self._trainer.rounds, self._trainer.steps, self._trainer.step_s, 0.0)

    def next_round(self) -> None:
        if self._state is not None:
            self._trainer.progress.activity = TRAINING
            self._state.tell(self._trainer.rounds + 1, 0, self._trainer.step_s, 0.0)

    def end(self) -> None:
        """This worker leaves the job in order."""
        if self._state is not None:
            self._state.leave(self._trainer.rounds)
