"""When the global model is evaluated and saved, by the worker or in a process beside it."""

import logging
from collections.abc import Callable
from typing import Any

from algorithms import EVALUATOR
from esync.measure import EVALUATION, SAVING
from esync.progress import EVALUATING, TRAINING
from trainer.evaluation.evaluator_process import Evaluation, EvaluatorProcess, evaluated
from trainer.run_logs.earlier_runs import FINAL, NEWEST
from trainer.run_logs.rounds import EVALUATED
from trainer.trainer import Trainer
from utils import JobOver, PeerLost

ROUNDING = 1e-6  # of a place on the grid: sums of seconds are a little less or more
MOST_MISSED = 2  # intervals in a row for which the process beside training is not ready: then the worker evaluates
SELDOM = 15  # where evaluations are due more often than a core can evaluate: an interval, in multiples of their cost


class Evaluations:
    """A worker's evaluations, whose results are in the trainer's `progress`."""

    def __init__(self, trainer: Trainer, note_once: Callable[[dict[str, list[Any]]], None]) -> None:
        """`note_once` takes entries for the next round's log: values of earlier rounds' models, and an event."""
        self._trainer, self._note_once = trainer, note_once
        self._run = trainer.context.run
        self._evaluate = trainer.context.task.evaluate
        self._metric = trainer.context.task.metric
        self._state_server = trainer.context.peers.state_server
        self._beside = self._run.evaluator if self._evaluate is not None else None  # evaluates in place of this worker
        self._is_prepared = self._took_over = False
        self._cell = 0  # the last evaluation's place on the grid
        self._began_s = 0.0  # when it began
        self._cost_s = 0.0  # of an evaluation, in core time
        self._spent_s = 0.0  # on evaluations
        self._told = ""  # why there was no value, the last time

    def prepare(self, gives_up: Callable[[], bool]) -> None:
        """This worker evaluates from now on. Waits for the process beside it, unless this worker gives up."""
        if self._beside is not None and self._run.saver is not None and not self._is_prepared:
            self._is_prepared = True
            self._beside.begin(self._trainer.context.config, self._run.saver.path_of(NEWEST))
            self._beside.wait_until_ready(gives_up)
            self._cost_s = self._beside.cost_s

    def begin(self) -> None:
        if self._run.saver is not None:
            self._run.saver.begin()

    def end(self) -> None:
        if self._run.evaluator is not None:
            self._run.evaluator.close()
        if self._run.saver is not None:
            self._run.saver.end()

    def after_round(self) -> float | None:
        """Evaluates where that is due, here or beside training, and saves the model if it is the best so far. Returns
        the metric's value, where this worker has measured it now."""
        if self._evaluate is None or not self._is_at_work:
            return None
        self._take()
        if not self._is_due():
            return None
        if self._beside is not None and self._ask(self._beside):
            return None
        return self._evaluate_and_save()

    def after_last(self, is_stopped: bool) -> float | None:
        """Saves the last model; evaluates it unless a signal has stopped this worker. Returns as `after_round`."""
        if not self._is_at_work:
            return None
        self._take()
        value = self._evaluate_and_save(last=True, is_stopped=is_stopped)
        self._take()  # what has come meanwhile
        return value

    def rescue(self, error: BaseException) -> None:
        """Saves the last model of a job that an error ends. A worker that does not evaluate does so for an error of its
        own: then the one that evaluates may not hear of it in time; and where it was to stop anyway. A worker without
        which the job goes on saves none."""
        is_mine = self._trainer.is_evaluator or bool(self._trainer.stop_request())
        is_others = isinstance(error, JobOver) or (isinstance(error, PeerLost) and not is_mine)
        if self._run.saver is None or is_others:
            return
        try:
            with self._trainer.global_model():
                self._run.saver.save([FINAL], self._trainer.rounds, None)
        except Exception as other:  # the error that ends the job is the one to tell
            logging.warning("warning: the last model cannot be saved: %s", other)

    @property
    def _is_at_work(self) -> bool:
        return self._trainer.is_evaluator and not self._trainer.has_left  # else others may do it

    def _evaluate_and_save(self, last: bool = False, is_stopped: bool = False) -> float | None:
        trainer, saver, value = self._trainer, self._run.saver, None
        with trainer.global_model():
            if self._evaluate is not None and not is_stopped:
                trainer.measure.enter(EVALUATION)
                trainer.progress.activity = EVALUATING
                if self._state_server is not None:
                    self._state_server.tell_doing()  # at once: in most modes all workers wait for the evaluation
                began_s = trainer.measure.elapsed_s
                self._mark()
                value = self._measured(evaluated(trainer.rounds, self._evaluate, self._metric))
                self._spent_s += trainer.measure.elapsed_s - began_s
                trainer.progress.activity = TRAINING
            if saver is not None and (kinds := saver.due(value, last)):
                trainer.measure.enter(SAVING)
                saver.save(kinds, trainer.rounds, value)
        return value

    def _is_due(self) -> bool:
        if self._took_over and self._is_too_often and not self._is_late(1):
            return False
        if self._run.eval_every_s:
            return self._cell_now() > self._cell
        return self._trainer.rounds % self._run.eval_every == 0

    def _cell_now(self) -> int:
        """The place on the grid of seconds that were not spent on evaluations, so that algorithms with long rounds are
        evaluated as often as others."""
        every_s = self._run.eval_every_s
        return int((self._trainer.measure.elapsed_s - self._spent_s) / every_s + ROUNDING) if every_s else 0

    @property
    def _wanted_s(self) -> float:
        """Seconds between two evaluations, as asked for."""
        round_s = self._trainer.measure.elapsed_s / self._trainer.rounds
        return self._run.eval_every_s or self._run.eval_every * round_s

    @property
    def _is_too_often(self) -> bool:
        """Whether evaluations are due more often than a free core can evaluate, such as after each of short rounds."""
        return self._wanted_s < self._cost_s

    def _is_late(self, intervals: int) -> bool:
        """Whether so many intervals have passed since the last evaluation began."""
        interval_s = SELDOM * self._cost_s if self._is_too_often else self._wanted_s
        return self._trainer.measure.elapsed_s - self._began_s >= (intervals - ROUNDING) * interval_s

    def _mark(self) -> None:
        """Remembers the place of the evaluation that begins."""
        self._cell, self._began_s = self._cell_now(), self._trainer.measure.elapsed_s

    def _ask(self, beside: EvaluatorProcess) -> bool:
        """Has the model evaluated beside training; returns False if the process there cannot keep up, or has ended."""
        if not (beside.is_free or beside.has_ended):
            if not self._is_late(MOST_MISSED):
                return True
            beside.close()
            logging.warning(
                "warning: the evaluator has not answered for %.3g s, since other work slows it; this worker evaluates "
                "itself, and training waits for it",
                self._trainer.measure.elapsed_s - self._began_s,
            )
        if beside.has_ended:
            self._beside, self._took_over = None, True
            text = f"evaluated in the worker from {self._trainer.measure.elapsed_s:.0f} s on"
            self._note_once({"events": [{"kind": EVALUATOR.name, "text": text}]})
            return False
        trainer = self._trainer
        assert self._run.saver is not None
        trainer.measure.enter(SAVING)
        with trainer.global_model():
            is_saved = self._run.saver.save([NEWEST], trainer.rounds, None)
        if is_saved:  # else its disk is full, and the next evaluation may find room
            beside.ask(trainer.rounds)
        self._mark()
        return True

    def _take(self) -> None:
        """Takes the metric's value of an earlier round's model from the process beside training."""
        if self._beside is None or (found := self._beside.take()) is None:
            return
        if (value := self._measured(found)) is None:
            return
        assert self._run.saver is not None
        self._trainer.measure.enter(SAVING)
        self._note_once({EVALUATED: [{"round": found.round, **self._metric.logged(value)}]})
        self._run.saver.evaluated(value)
        logging.info("the model of round %d has %s %s", found.round, self._metric.name, self._metric.text(value))

    def _measured(self, found: Evaluation) -> float | None:
        """Returns the value. Where there is none the fault is told, once while it stays the same."""
        if found.fault != self._told:
            self._told = found.fault
            if found.fault:
                logging.warning("warning: no evaluation after round %d: %s", found.round, found.fault)
        self._cost_s = found.busy_s or self._cost_s
        self._trainer.progress.measured(found.round, found.value)
        return found.value
