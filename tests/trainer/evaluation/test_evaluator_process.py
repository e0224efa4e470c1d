"""A process that evaluates beside training: what it answers, what the loop asks it, and where its answers are found."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from cluster_processes import wait_for
from few_images import few_images
from one_worker import HandClock, a_context, network_with_statistics, some_batch
from ready import FEED

import models
from config import Config
from trainer.algorithms.local import LocalTrainer
from trainer.engine import mx
from trainer.evaluation.evaluator import Evaluator
from trainer.evaluation.evaluator_process import NICE, Evaluation, EvaluatorProcess
from trainer.evaluation.saved_model import ModelSaver
from trainer.jobs.job import job_of
from trainer.loop import Loop
from trainer.progress import Limits
from trainer.run_logs.earlier_runs import NEWEST, saved_files
from trainer.run_logs.measure import EVALUATION, iter_file
from trainer.run_logs.round_log import read_rounds
from utils import read_json, write_json

ABOUT = {"input": {"shape": [1, 28, 28], "divide_by": 255}}


def test_the_process_answers_with_the_accuracy_of_the_saved_model_and_its_end_is_noticed(tmp_path, caplog):
    network = models.build("lenet", (1, 28, 28), 10, mx.cpu(), seed=0)
    ModelSaver(tmp_path, network, ABOUT).save([NEWEST], 7, None)
    config = Config(dataset="mnist", data_dir=str(few_images()), validation=500, network="lenet")
    process = EvaluatorProcess(config, tmp_path / f"{NEWEST}.json")
    try:
        assert process.take() is None and process.is_free
        process.ask(7)
        assert not process.is_free
        found = process.take(wait=True)
        test = partial(job_of(config).test_batches, FEED, 64, 0)
        assert found == Evaluation(7, Evaluator(network, test)())
        assert process.is_free
        group = Path(f"/proc/{process.pid}/autogroup")
        assert not group.exists() or group.read_text().endswith(f"nice {NICE}\n")  # not only within its session
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0) + NICE
        for path in saved_files(tmp_path, NEWEST):
            path.unlink()
        process.ask(8)
        wait_for(lambda: process.take() is None and process.has_ended, "the end of the process is noticed")
        assert not process.is_free
    finally:
        process.close()
    assert "this worker evaluates itself" in caplog.text


class Slow:
    """Stands for a process that answers a number of rounds after the request."""

    def __init__(self, rounds, accuracies, ends_after=1000):
        self.asked, self._rounds, self._accuracies, self._ends_after = [], rounds, list(accuracies), ends_after
        self._left, self.has_ended, self.is_closed = 0, False, False

    @property
    def is_free(self):
        return not self._left and not self.has_ended

    def ask(self, round_):
        self.asked.append(round_)
        self._left = self._rounds

    def take(self, wait=False):
        if not self._left:
            return None
        self._left = 0 if wait else self._left - 1
        if self._left:
            return None
        self.has_ended = len(self.asked) >= self._ends_after
        return None if self.has_ended else Evaluation(self.asked[-1], self._accuracies[len(self.asked) - 1])

    def close(self):
        self.is_closed = True


def run(folder, process, own=0.5, **more):
    """Trains with rounds of a second; returns why it ended and the logs of the rounds."""
    network, clock = network_with_statistics(), HandClock()
    given = {"clock": clock, "network": network, "saver": ModelSaver(folder, network, ABOUT), "min_step_s": 1.0}
    given |= {"evaluate": lambda: own, "evaluator": lambda: process, **more}
    reason = Loop(LocalTrainer(a_context(some_batch(), **given), 0.01)).run(lambda: folder)
    assert process.is_closed and not saved_files(folder, NEWEST)
    return reason, list(read_rounds(folder, pytest.fail))


def evaluations(rounds):
    return [(record["num_iters"], record["accuracy"]) for record in rounds if "accuracy" in record]


def test_training_goes_on_meanwhile_and_each_accuracy_is_that_of_the_round_whose_model_it_is(tmp_path):
    process = Slow(rounds=2, accuracies=[0.25, 0.75, 0.5, 0.625])
    _, rounds = run(tmp_path, process, limits=Limits(9))
    assert process.asked == [1, 3, 5, 7]  # what is due while it is busy is left out
    assert evaluations(rounds) == [(1, 0.25), (3, 0.75), (5, 0.5), (7, 0.625), (9, 0.5)]  # the last by itself
    assert [number for number, record in enumerate(rounds, 1) if EVALUATION in record["time"]["0"]] == [9]
    best, final = (read_json(tmp_path / f"{kind}.json") for kind in ("best", "final"))
    assert (best["round"], best["accuracy"], best["parameters"]) == (3, 0.75, "best-0003.params")
    assert (final["round"], final["accuracy"]) == (9, 0.5)


def test_a_target_ends_training_when_its_answer_comes(tmp_path):
    process = Slow(rounds=3, accuracies=[0.25, 0.9, 0.75])
    reason, rounds = run(tmp_path, process, limits=Limits(0, 0, 0.8))
    assert reason == "test accuracy 0.9000 reached 0.8"
    # The answer of 0.9 came in round 7, the next model was saved then; a round more, as with evaluations of its own.
    assert evaluations(rounds) == [(1, 0.25), (4, 0.9), (7, 0.75), (8, 0.5)]


def test_the_answer_that_is_under_way_at_the_end_is_waited_for_unless_a_signal_came(tmp_path):
    _, rounds = run(tmp_path, Slow(rounds=100, accuracies=[0.25]), limits=Limits(3))
    assert evaluations(rounds) == [(1, 0.25), (3, 0.5)]
    (tmp_path / "stopped").mkdir()
    process = Slow(rounds=100, accuracies=[0.25])
    _, rounds = run(tmp_path / "stopped", process, eval_every=2, stop_requested=lambda: bool(process.asked))
    assert (process.asked, len(rounds), evaluations(rounds)) == ([2], 3, [])


def test_where_the_process_has_ended_the_worker_evaluates_itself(tmp_path):
    process = Slow(rounds=1, accuracies=[0.25, 0.75], ends_after=2)
    _, rounds = run(tmp_path, process, limits=Limits(5))
    assert process.asked == [1, 2]
    assert evaluations(rounds) == [(1, 0.25), (3, 0.5), (4, 0.5), (5, 0.5)]


def test_a_log_whose_late_accuracies_have_another_shape_is_read_without_them(tmp_path):
    for number, found in enumerate(([], [{"round": 1, "accuracy": 0.5}], "none", [{"round": 2}], 3), start=1):
        record = {"num_iters": number, "num_samples": 1, "total_time": number, "time": {}, "evaluated": found}
        write_json(tmp_path / iter_file(number), record)
    assert evaluations(read_rounds(tmp_path, pytest.fail)) == [(1, 0.5)]
