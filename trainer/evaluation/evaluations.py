"""When the global model is evaluated and saved, by the worker or in a process beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from trainer.evaluation.evaluator_process import Evaluation, EvaluatorProcess
from trainer.evaluation.saved_model import ModelSaver
from trainer.progress import EVALUATING, TRAINING, Progress
from trainer.run_logs.earlier_runs import NEWEST
from trainer.run_logs.round_log import EVALUATION, SAVING, Measure


class Settings(Protocol):
    """When and how to evaluate; trainer/context.py has the attributes."""

    evaluate: Callable[[], float | None] | None
    eval_every: int
    eval_every_s: float
    evaluator: Callable[[], EvaluatorProcess] | None
    saver: ModelSaver | None


class Evaluated(Protocol):
    """The training whose model is evaluated; Trainer documents the methods."""

    rounds: int
    is_evaluator: bool
    has_left: bool
    measure: Measure
    progress: Progress

    def global_model(self) -> AbstractContextManager[None]: ...
    def evaluation_begins(self) -> None: ...


class Evaluations:
    """A worker's evaluations.

    Attributes:
        accuracy: the newest.
    """

    def __init__(self, trainer: Evaluated, settings: Settings) -> None:
        self._trainer = trainer
        self._settings = settings
        self.accuracy: float | None = None
        self._fresh_accuracy: float | None = None  # the same, until it is taken
        self._evaluated_s = 0.0  # when the last evaluation was, in seconds since training began
        self._beside: EvaluatorProcess | None = None  # evaluates in place of this worker
        self._late: list[Evaluation] = []  # of earlier rounds' models, until they are logged

    def begin(self) -> None:
        if self._settings.saver is not None:
            self._settings.saver.begin()
        if self._settings.evaluator is not None and self._trainer.is_evaluator:
            self._beside = self._settings.evaluator()

    def end(self) -> None:
        if self._beside is not None:
            self._beside.close()
        if self._settings.saver is not None:
            self._settings.saver.end()

    def after_round(self, last: bool, is_stopped: bool = False) -> float | None:
        """Evaluates where that is due, here or beside training; saves the model if it is the best so far, or the last.

        Args:
            last: the job ends with this round.
            is_stopped: by a signal, so without one more evaluation.

        Returns:
            The accuracy, where this worker has measured it now.
        """
        evaluate, saver, trainer = self._settings.evaluate, self._settings.saver, self._trainer
        if evaluate is None or not trainer.is_evaluator or trainer.has_left:  # then another one does it
            return None
        if self._beside is not None:
            self._take(self._beside, wait=last and not is_stopped)
        is_due = self._is_due() or (last and not is_stopped)
        if not (is_due or last):
            return None
        if self._beside is not None and not self._beside.has_ended and not last:
            self._ask(self._beside)
            return None
        accuracy = None
        with trainer.global_model():
            if is_due:
                trainer.measure.enter(EVALUATION)
                trainer.progress.doing = EVALUATING
                trainer.evaluation_begins()
                accuracy = evaluate()
                trainer.progress.doing = TRAINING
                self.accuracy = self._fresh_accuracy = accuracy
                self._evaluated_s = trainer.measure.elapsed_s
            if saver is not None and (kinds := saver.due(accuracy, last)):
                trainer.measure.enter(SAVING)
                saver.save(kinds, trainer.rounds, accuracy)
        return accuracy

    def _is_due(self) -> bool:
        if self._settings.eval_every_s:
            return self._trainer.measure.elapsed_s - self._evaluated_s >= self._settings.eval_every_s
        return self._trainer.rounds % self._settings.eval_every == 0

    def _ask(self, beside: EvaluatorProcess) -> None:
        """Has the model evaluated beside training, unless the previous evaluation still runs."""
        if not beside.is_free:
            return
        assert self._settings.saver is not None
        trainer = self._trainer
        trainer.measure.enter(SAVING)
        with trainer.global_model():
            self._settings.saver.save([NEWEST], trainer.rounds, None)
        beside.ask(trainer.rounds)
        self._evaluated_s = trainer.measure.elapsed_s

    def _take(self, beside: EvaluatorProcess, wait: bool) -> None:
        """Takes the accuracy of an earlier round's model from the process beside training."""
        if wait:
            self._trainer.measure.enter(EVALUATION)
        found = beside.take(wait)
        if found is None:
            return
        assert self._settings.saver is not None
        self._trainer.measure.enter(SAVING)
        self._late.append(found)
        self.accuracy = self._fresh_accuracy = found.accuracy
        self._settings.saver.evaluated(found.accuracy)
        logging.info("the model of round %d has accuracy %.4f", found.round, found.accuracy)

    def take_accuracy(self) -> float | None:
        """Returns the newest accuracy and clears it."""
        accuracy, self._fresh_accuracy = self._fresh_accuracy, None
        return accuracy

    def take_late(self) -> list[dict[str, Any]]:
        """Returns and clears the new accuracies of earlier rounds' models, for the log."""
        late, self._late = self._late, []
        return [each._asdict() for each in late]
