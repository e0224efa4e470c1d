"""A process that evaluates beside training: what it answers, what the loop asks it, and where its answers are found."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from cluster_processes import wait_for
from contexts import by_flags
from few_images import few_images
from one_worker import HandClock, a_context, network_with_statistics, some_batch
from ready import FEED
from round_records import read_rounds

import models
from config import Config
from esync.measure import EVALUATION, iter_file
from esync.progress import Limits
from trainer.engine import mx
from trainer.evaluation.evaluator import Evaluator
from trainer.evaluation.evaluator_process import NICE, Evaluation, EvaluatorProcess
from trainer.evaluation.saved_model import ModelSaver
from trainer.jobs.gluon import GluonNetwork
from trainer.jobs.job import job_of
from trainer.jobs.network import build
from trainer.loop import Loop
from trainer.run_logs.earlier_runs import NEWEST, saved_files
from utils import read_json, write_json

ROOT = Path(__file__).resolve().parents[3]
ABOUT = {"input": {"shape": [1, 28, 28], "divide_by": 255}}


def answer_of(process):
    """Waits for the process's answer."""
    found = []
    wait_for(lambda: found.append(process.take()) or found[-1] or process.has_ended, "an answer, or the end")
    return found[-1]


def test_the_process_answers_with_the_accuracy_of_the_saved_model_and_its_end_is_noticed(tmp_path, caplog):
    network = GluonNetwork(models.build("lenet", (1, 28, 28), 10, mx.cpu(), seed=0), mx.cpu())
    saver = ModelSaver(tmp_path, network, ABOUT)
    saver.save([NEWEST], 7, None)
    config = Config(dataset="mnist", data_dir=str(few_images()), validation=500, network="lenet")
    process = EvaluatorProcess()
    try:
        assert process.take() is None and not process.is_free
        process.begin(config, saver.path_of(NEWEST))
        process.wait_until_ready(lambda: False)
        assert process.is_free
        process.ask(7)
        assert not process.is_free
        found = answer_of(process)
        test = partial(job_of(config).test_batches, FEED, 64, 0)
        assert found[:3] == (7, Evaluator(network, test)(), "") and found.busy_s > 0
        assert process.is_free
        group = Path(f"/proc/{process.pid}/autogroup")
        assert not group.exists() or group.read_text().endswith(f"nice {NICE}\n")  # not only within its session
        nice = os.getpriority(os.PRIO_PROCESS, 0) + NICE
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(nice, 19)  # the kernel's most
        for path in saved_files(tmp_path, NEWEST):
            path.unlink()
        process.ask(8)
        assert answer_of(process) is None and process.has_ended
        assert not process.is_free
    finally:
        process.close()
    assert "this worker evaluates itself" in caplog.text


NOISY = r"""
import os, subprocess, sys
import mxnet as mx
import numpy as np
from contexts import by_flags

print('[3, 0.5]')
os.write(1, b'no end of line')
subprocess.Popen(["sleep", "0.3"])
calls = []

def network():
    print("{}")
    return mx.gluon.nn.Dense(1)

def data(folder):
    samples = np.arange(8, dtype="float32").reshape(4, 2)
    return (samples, samples[:, :1]), (samples, samples[:, :1])

loss = mx.gluon.loss.L2Loss()

def score(targets, outputs):
    calls.append(1)
    if len(calls) == 8:
        os._exit(0)
    print(b"\xff", None, flush=True)
    if len(calls) == 7:
        sys.stdout.close()
    return [0.0, 0.0, 0.25, float("nan"), sys, 0.75, 1.0][len(calls) - 1]

metric = score
"""


def test_what_a_job_file_prints_is_no_answer_and_whatever_ends_the_process_is_noticed(tmp_path):
    job = tmp_path / "noisy.py"
    job.write_text(NOISY)
    config = Config(job=str(job), cpu=1, batch_size=2)
    network = build(config, job_of(config), mx.cpu()).network
    saver = ModelSaver(tmp_path, network, {})
    process = EvaluatorProcess()
    try:
        process.begin(config, saver.path_of(NEWEST))
        process.wait_until_ready(lambda: False)
        saver.save([NEWEST], 1, None)
        answers = []
        while not process.has_ended:
            process.ask(len(answers) + 1)
            answers.append(answer_of(process))
        assert [found and found.value for found in answers] == [0.25, None, None, 0.75, 1.0, None]
        assert ["nan, which is no finite number" in answers[1].fault, "gives a module" in answers[2].fault] == [
            True,
            True,
        ]
    finally:
        process.close()


def test_the_process_ends_with_a_worker_that_is_killed_at_once():
    code = "from trainer.evaluation.evaluator_process import EvaluatorProcess as E; import time; e = E(); "
    code += "print(e.pid, flush=True); time.sleep(60)"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE
    ) as worker:
        pid = int(worker.stdout.readline())
        worker.kill()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of the evaluator")


class Slow:
    """Stands for a process that answers a number of rounds after the request."""

    def __init__(self, rounds, accuracies, ends_after=1000, busy_s=0.0, sticks_at=0):
        self.asked, self._rounds, self._accuracies, self._ends_after = [], rounds, list(accuracies), ends_after
        self._busy_s, self.cost_s, self._sticks_at = busy_s, busy_s, sticks_at
        self._left, self.has_ended, self.has_begun = 0, False, False

    @property
    def is_free(self):
        return not self._left and not self.has_ended

    def begin(self, config, model):
        self.has_begun = True

    def wait_until_ready(self, gives_up):
        assert self.has_begun and not gives_up()

    def ask(self, round_):
        self.asked.append(round_)
        self._left = self._rounds

    def take(self):
        if not self._left:
            return None
        self._left -= self.asked[-1] != self._sticks_at
        if self._left:
            return None
        self.has_ended = len(self.asked) >= self._ends_after
        return None if self.has_ended else self._answer()

    def _answer(self):
        return Evaluation(self.asked[-1], self._accuracies[len(self.asked) - 1], busy_s=self._busy_s)

    def close(self):
        self.has_ended = True


def run(folder, process, own=0.5, **more):
    """Trains with rounds of a second; returns why it ended and the logs of the rounds."""
    network, clock = network_with_statistics(), HandClock()
    given = {"clock": clock, "network": network, "saver": ModelSaver(folder, network, ABOUT), "min_step_s": 1.0}
    given |= {"evaluate": lambda: own, "evaluator": process, **more}
    reason = Loop(by_flags("local", learning_rate=0.01)(a_context(some_batch(), **given))).run(lambda: folder)
    assert process.has_ended and not saved_files(folder, NEWEST)
    return reason, list(read_rounds(folder, pytest.fail))


def evaluations(rounds):
    return [(record["num_iters"], record["accuracy"]) for record in rounds if "accuracy" in record]


def test_training_goes_on_meanwhile_and_each_accuracy_is_that_of_the_round_whose_model_it_is(tmp_path):
    process = Slow(rounds=2, accuracies=[0.25, 0.75, 0.5, 0.625])
    _, rounds = run(tmp_path, process, limits=Limits(9))
    assert process.asked == [1, 3, 5, 7]  # what is due while it is busy is left out
    assert evaluations(rounds) == [(1, 0.25), (3, 0.75), (5, 0.5), (7, 0.625), (9, 0.5)]  # the last by itself
    assert [number for number, record in enumerate(rounds, 1) if EVALUATION in record["time"]["0"]] == [9]
    assert rounds[-1]["time"]["0"][EVALUATION] == 0  # training has ended
    best, final = (read_json(tmp_path / f"{kind}.json") for kind in ("best", "final"))
    assert (best["round"], best["accuracy"], best["parameters"]) == (3, 0.75, "best-0003.params")
    assert (final["round"], final["accuracy"]) == (9, 0.5)


def test_a_target_ends_training_when_its_answer_comes(tmp_path):
    process = Slow(rounds=2, accuracies=[0.25, 0.9, 0.75])
    reason, rounds = run(tmp_path, process, limits=Limits(0, 0, 0.8))
    assert reason == "test accuracy 0.9000 reached 0.8"
    # The answer of 0.9 came in round 5, the next model was saved then; a round more, as with evaluations of its own.
    assert evaluations(rounds) == [(1, 0.25), (3, 0.9), (5, 0.75), (6, 0.5)]


def test_at_the_end_no_answer_is_waited_for_and_time_stands_while_the_worker_evaluates(tmp_path):
    clock = HandClock()
    more = {"clock": clock, "evaluate": lambda: clock.sleep(25) or 0.5}
    _, rounds = run(tmp_path, Slow(rounds=100, accuracies=[0.25]), limits=Limits(2), **more)
    assert evaluations(rounds) == [(2, 0.5)]
    assert [record["total_time"] for record in rounds] == [1, 2]
    (tmp_path / "stopped").mkdir()
    process = Slow(rounds=100, accuracies=[0.25])
    _, rounds = run(tmp_path / "stopped", process, eval_every=2, stop_requested=lambda: bool(process.asked))
    assert (process.asked, len(rounds), evaluations(rounds)) == ([2], 3, [])


def test_where_the_process_has_ended_the_worker_evaluates_itself_and_its_log_says_so(tmp_path):
    process = Slow(rounds=1, accuracies=[0.25, 0.75], ends_after=2)
    _, rounds = run(tmp_path, process, limits=Limits(5))
    assert process.asked == [1, 2]
    assert evaluations(rounds) == [(1, 0.25), (3, 0.5), (4, 0.5), (5, 0.5)]
    (event,) = rounds[2]["events"]
    assert event == {"kind": "evaluator", "text": "evaluated in the worker from 3 s on"}


@pytest.mark.parametrize("interval", [{"eval_every": 3}, {"eval_every_s": 3.0}])
def test_after_two_missed_evaluations_in_a_row_the_worker_evaluates_itself(tmp_path, caplog, interval):
    process = Slow(rounds=5, accuracies=[0.25, 0.75])
    _, rounds = run(tmp_path, process, limits=Limits(9), **interval)
    # One interval is missed: where seconds count, it is made good as soon as the process is ready.
    assert process.asked == ([3, 8] if "eval_every_s" in interval else [3])
    assert [record.get("events") for record in rounds] == [None] * 9
    (tmp_path / "slower").mkdir()
    process = Slow(rounds=7, accuracies=[0.25])
    _, rounds = run(tmp_path / "slower", process, limits=Limits(13), **interval)
    assert process.asked == [3]
    assert evaluations(rounds) == [(9, 0.5), (12, 0.5), (13, 0.5)]
    told = [number for number, record in enumerate(rounds, 1) if "events" in record]
    assert (told, caplog.text.count("has not answered for 6 s")) == ([9], 1)


def test_evaluations_after_each_of_short_rounds_are_as_many_as_a_core_can_do(tmp_path):
    """Each costs 5 s of a core, and a round takes one second: the process sets the pace."""
    process = Slow(rounds=6, accuracies=[0.25] * 9, busy_s=5.0)
    _, rounds = run(tmp_path, process, limits=Limits(26))
    assert process.asked == [1, 7, 13, 19, 25]
    assert [record.get("events") for record in rounds] == [None] * 26
    (tmp_path / "starved").mkdir()
    process = Slow(rounds=6, accuracies=[0.25] * 9, busy_s=5.0, sticks_at=7)
    _, rounds = run(tmp_path / "starved", process, limits=Limits(159))
    assert evaluations(rounds) == [(1, 0.25), (157, 0.5), (158, 0.5), (159, 0.5)]  # those of the worker cost nothing


def test_late_accuracies_of_another_shape_cost_their_round_and_are_named(tmp_path):
    for number, found in enumerate(([], [{"round": 1, "accuracy": 0.5}], "none", [{"round": 2}], 3), start=1):
        record = {"num_iters": number, "num_samples": 1, "total_time": number, "time": {}, "evaluated": found}
        write_json(tmp_path / iter_file(number), record)
    told: list[str] = []
    rounds = read_rounds(tmp_path, told.append)
    assert [record["num_iters"] for record in rounds] == [1, 2, 4] and evaluations(rounds) == [(1, 0.5)]
    assert ["iter-3.txt" in told[0], "iter-5.txt" in told[1], len(told)] == [True, True, 2]
