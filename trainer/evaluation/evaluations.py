"""When the global model is evaluated and saved, by the worker or in a process beside it."""

import logging
from typing import Any

from trainer.evaluation.evaluator_process import Evaluation, EvaluatorProcess
from trainer.progress import EVALUATING, TRAINING
from trainer.run_logs.earlier_runs import NEWEST
from trainer.run_logs.measure import EVALUATION, SAVING
from trainer.trainer import Trainer

ROUNDING = 1e-6  # of a place on the grid: sums of seconds are a little less or more


class Evaluations:
    """A worker's evaluations, whose results are in the trainer's `evaluated`."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._run = trainer.context.run
        self._evaluate = trainer.context.task.evaluate
        self._metric = trainer.context.task.metric
        self._state_server = trainer.context.peers.state_server
        self._cell = 0  # the last evaluation's place on the grid of seconds that were not spent on evaluations
        self._spent_s = 0.0  # on evaluations
        self._beside: EvaluatorProcess | None = None  # evaluates in place of this worker, from its first evaluation on
        self._late: list[Evaluation] = []  # of earlier rounds' models, until they are logged

    def begin(self) -> None:
        if self._run.saver is not None:
            self._run.saver.begin()

    def end(self) -> None:
        if self._beside is not None:
            self._beside.close()
        if self._run.saver is not None:
            self._run.saver.end()

    def after_round(self, last: bool, is_stopped: bool = False) -> float | None:
        """Evaluates where that is due, here or beside training; saves the model if it is the best so far, or the last.

        Args:
            last: the job ends with this round.
            is_stopped: by a signal, so without one more evaluation.

        Returns:
            The metric's value, where this worker has measured it now.

        Raises:
            SetupError: the metric's function has returned no value of it.
        """
        evaluate, saver, trainer = self._evaluate, self._run.saver, self._trainer
        if not trainer.is_evaluator or trainer.has_left or (evaluate is None and saver is None):  # others may do it
            return None
        if self._beside is not None:
            self._take(self._beside, wait=last and not is_stopped)
        is_due = evaluate is not None and (self._is_due() or (last and not is_stopped))
        if not (is_due or last):
            return None
        if self._run.evaluator is not None and not last:
            if self._beside is None:
                self._beside = self._run.evaluator()
            if not self._beside.has_ended:
                self._ask(self._beside)
                return None
        value = None
        with trainer.global_model():
            if evaluate is not None and is_due:
                self._tell_evaluation()
                began_s = trainer.measure.elapsed_s
                self._mark()
                found = evaluate()
                self._spent_s += trainer.measure.elapsed_s - began_s
                value = None if found is None else self._metric.checked(found, trainer.rounds)
                trainer.progress.activity = TRAINING
                self._measured(trainer.rounds, value)
            if saver is not None and (kinds := saver.due(value, last)):
                trainer.measure.enter(SAVING)
                saver.save(kinds, trainer.rounds, value)
        return value

    def _tell_evaluation(self) -> None:
        self._trainer.measure.enter(EVALUATION)
        self._trainer.progress.activity = EVALUATING
        if self._state_server is not None:
            self._state_server.tell_doing()  # at once: in most modes all workers wait for the evaluation

    def _is_due(self) -> bool:
        if self._run.eval_every_s:
            return self._cell_now() > self._cell
        return self._trainer.rounds % self._run.eval_every == 0

    def _cell_now(self) -> int:
        """The place on the grid, so that algorithms with long rounds are evaluated as often as others."""
        return int((self._trainer.measure.elapsed_s - self._spent_s) / self._run.eval_every_s + ROUNDING)

    def _mark(self) -> None:
        """Remembers the place of the evaluation that begins."""
        if self._run.eval_every_s:
            self._cell = self._cell_now()

    def _ask(self, beside: EvaluatorProcess) -> None:
        """Has the model evaluated beside training, unless the previous evaluation still runs."""
        if not beside.is_free:
            return
        assert self._run.saver is not None
        trainer = self._trainer
        trainer.measure.enter(SAVING)
        with trainer.global_model():
            is_saved = self._run.saver.save([NEWEST], trainer.rounds, None)
        if is_saved:  # else its disk is full, and the next evaluation may find room
            beside.ask(trainer.rounds)
        self._mark()

    def _take(self, beside: EvaluatorProcess, wait: bool) -> None:
        """Takes the metric's value of an earlier round's model from the process beside training."""
        if wait:
            self._tell_evaluation()
        found = beside.take(wait)
        self._trainer.progress.activity = TRAINING
        if found is None:
            return
        assert self._run.saver is not None
        self._trainer.measure.enter(SAVING)
        value = self._metric.checked(found.value, found.round)
        self._late.append(found._replace(value=value))
        self._measured(found.round, value)
        self._run.saver.evaluated(value)
        logging.info("the model of round %d has %s %s", found.round, self._metric.name, self._metric.text(value))

    def _measured(self, round_: int, value: float | None) -> None:
        self._trainer.evaluated.measured(value)
        if value is not None:
            self._trainer.progress.measured(round_, value)

    def take_late(self) -> list[dict[str, Any]]:
        """Returns and clears the new values of earlier rounds' models, for the log."""
        late, self._late = self._late, []
        return [{"round": each.round, **self._metric.logged(each.value)} for each in late]
