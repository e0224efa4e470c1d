"""When the global model is evaluated and saved, by the worker or in a process beside it, and what came of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from trainer.evaluation.evaluator_process import Evaluation, EvaluatorProcess
from trainer.progress import EVALUATING, TRAINING
from trainer.run_logs.earlier_runs import NEWEST
from trainer.run_logs.round_log import EVALUATION, SAVING

if TYPE_CHECKING:
    from trainer.loop import Trainer


class Evaluations:
    """Those of a worker.

    Attributes:
        accuracy: the last that was measured.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._context = trainer.context
        self.accuracy: float | None = None
        self._fresh_accuracy: float | None = None  # the same, until it is taken
        self._evaluated_s = 0.0  # when it was, since training began
        self._beside: EvaluatorProcess | None = None  # evaluates in place of this worker
        self._late: list[Evaluation] = []  # of earlier rounds' models, until they are logged

    def begin(self) -> None:
        """Training begins."""
        if self._context.saver is not None:
            self._context.saver.begin()
        if self._context.evaluator is not None and self._trainer.is_evaluator:
            self._beside = self._context.evaluator()

    def end(self) -> None:
        """Training has ended."""
        if self._beside is not None:
            self._beside.close()
        if self._context.saver is not None:
            self._context.saver.end()

    def after_round(self, last: bool, is_stopped: bool = False) -> float | None:
        """Evaluates where that is due, or has it done, and saves the model if it is the best so far, or the last.

        Args:
            last: the job ends with it.
            is_stopped: for a signal, so that nobody waits for one more evaluation.

        Returns:
            The accuracy, where this worker has measured it now.
        """
        evaluate, saver, trainer = self._context.evaluate, self._context.saver, self._trainer
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
        if self._context.eval_every_s:
            return self._trainer.measure.elapsed_s - self._evaluated_s >= self._context.eval_every_s
        return self._trainer.rounds % self._context.eval_every == 0

    def _ask(self, beside: EvaluatorProcess) -> None:
        """Has the model evaluated beside training, unless the one before still is."""
        if not beside.is_free:
            return
        assert self._context.saver is not None
        trainer = self._trainer
        trainer.measure.enter(SAVING)
        with trainer.global_model():
            self._context.saver.save([NEWEST], trainer.rounds, None)
        beside.ask(trainer.rounds)
        self._evaluated_s = trainer.measure.elapsed_s

    def _take(self, beside: EvaluatorProcess, wait: bool) -> None:
        """Takes what was found out beside training about the model of an earlier round."""
        if wait:
            self._trainer.measure.enter(EVALUATION)
        found = beside.take(wait)
        if found is None:
            return
        assert self._context.saver is not None
        self._trainer.measure.enter(SAVING)
        self._late.append(found)
        self.accuracy = self._fresh_accuracy = found.accuracy
        self._context.saver.evaluated(found.accuracy)
        logging.info("the model of round %d has accuracy %.4f", found.round, found.accuracy)

    def take_accuracy(self) -> float | None:
        """The last accuracy, the first time that it is asked for after it was measured."""
        accuracy, self._fresh_accuracy = self._fresh_accuracy, None
        return accuracy

    def take_late(self) -> list[dict[str, Any]]:
        """Accuracies of earlier rounds' models that came since the last time, for the log."""
        late, self._late = self._late, []
        return [each._asdict() for each in late]
