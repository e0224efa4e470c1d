"""The one loop: when it evaluates and ends, what it draws and tells. A trainer that waits for nobody, time by hand."""

import logging

import pytest
from one_worker import Batches, HandClock, Steps, a_context, some_batch
from round_records import read_rounds

from esync.progress import Limits
from esync.queries import FORWARD_SHARE
from trainer.command_line import parse
from trainer.datasets.samples import Samples
from trainer.from_flags import run_settings
from trainer.loop import Loop
from trainer.run_logs import round_report


def run(tmp_path, step_s=1.0, passed=lambda trainer: None, **more):
    """Trains with a step of one second; returns why it ended, and the logs of its rounds."""
    trainer = Steps(a_context(some_batch(), **{"clock": HandClock(), **more}), step_s=step_s, passed=passed)
    reason = Loop(trainer).run(lambda: tmp_path)
    return reason, list(read_rounds(tmp_path, pytest.fail))


def evaluations(rounds):
    return [(record["num_iters"], record["accuracy"]) for record in rounds if "accuracy" in record]


def test_the_limit_of_rounds_is_the_last_round_and_it_is_evaluated(tmp_path):
    reason, rounds = run(tmp_path, limits=Limits(5), evaluate=lambda: 0.5, eval_every=2)
    assert (reason, len(rounds)) == ("5 rounds done", 5)
    assert evaluations(rounds) == [(2, 0.5), (4, 0.5), (5, 0.5)]


@pytest.mark.parametrize(("flags", "told"), [(["--quiet"], [1, 3, 5]), (["--quiet", "0"], [1, 2, 3, 4, 5])])
def test_a_quiet_worker_tells_its_first_round_and_those_with_an_evaluation(tmp_path, caplog, flags, told):
    caplog.set_level(logging.INFO)
    every_s = run_settings(parse(["-m", "sync", *flags])).tell_every_s
    _, rounds = run(tmp_path, limits=Limits(5), evaluate=lambda: 0.5, eval_every=3, tell_every_s=every_s)
    lines = [message for message in caplog.messages if message.startswith("round ")]
    assert [int(line.split()[1].strip(",")) for line in lines] == told and len(rounds) == 5


def test_the_limit_of_time_ends_the_round_in_which_it_is_reached(tmp_path):
    reason, rounds = run(tmp_path, limits=Limits(0, 3.0))
    assert (reason, len(rounds)) == ("3.0 s of 3 s passed", 3)


def test_a_target_that_is_just_reached_is_reached(tmp_path):
    accuracies = iter([0.5, 0.625, 0.75, 0.9])
    reason, rounds = run(tmp_path, limits=Limits(0, 0, 0.75), evaluate=lambda: next(accuracies))
    assert reason == "test accuracy 0.7500 reached 0.75"
    assert evaluations(rounds) == [(1, 0.5), (2, 0.625), (3, 0.75), (4, 0.9)]  # a round more, and the end of it


def test_a_job_that_is_done_says_so_and_is_evaluated_also_where_a_signal_came_in_its_last_round(tmp_path):
    reason, rounds = run(tmp_path, limits=Limits(1), stop_requested=lambda: True, evaluate=lambda: 0.5, eval_every=100)
    assert (reason, evaluations(rounds)) == ("1 rounds done", [(1, 0.5)])


def test_after_a_signal_nothing_is_evaluated_any_more(tmp_path):
    came = []
    reason, rounds = run(
        tmp_path,
        passed=lambda trainer: came.append(True) if trainer.rounds == 3 else None,
        stop_requested=lambda: bool(came), evaluate=lambda: 0.5, eval_every=100,
    )  # fmt: skip
    assert reason == "a signal came"
    assert evaluations(rounds) == []


def test_evaluations_by_time_are_that_far_apart_whatever_they_take(tmp_path):
    clock = HandClock()

    def evaluate():
        clock.sleep(2.0)
        return 0.5

    _, rounds = run(tmp_path, limits=Limits(12), evaluate=evaluate, eval_every_s=3.0, clock=clock)
    assert evaluations(rounds) == [(3, 0.5), (6, 0.5), (9, 0.5), (12, 0.5)]


def test_a_test_step_takes_the_shorter_of_two_passes_after_the_one_that_sets_up(tmp_path):
    seconds, told = iter([1.0, 7.0, 4.0, 1.0]), []
    run(tmp_path, step_s=lambda: next(seconds), limits=Limits(1), is_evaluator=lambda step_s: told.append(step_s))
    assert told == [4.0]


class Abandons(Steps):
    """Gives up its second step half-way. `asked_s` has when it asked."""

    def __init__(self, given):
        super().__init__(given, step_s=0.0)
        self.asked_s = []
        self.give_up = self._is_over

    def _is_over(self):
        self.asked_s.append(self.emulation.step_age_s)
        return self.rounds == 1 and self.steps == 1

    def ready(self):
        return self.rounds > 1


def test_a_batch_whose_step_was_given_up_is_the_next_one_again(tmp_path):
    batches = Batches(some_batch(), Samples(*(part[:8] for part in some_batch())))
    trainer = Abandons(a_context(some_batch(), clock=HandClock(), limits=Limits(2), batches=batches))
    Loop(trainer).run(lambda: tmp_path)
    assert batches.drawn == [0, 1, 1]
    assert [record["num_samples"] for record in read_rounds(tmp_path, pytest.fail)] == [16, 8]


def test_a_step_that_is_made_longer_asks_after_the_share_of_its_forward_pass(tmp_path):
    trainer = Abandons(a_context(some_batch(), clock=HandClock(), limits=Limits(2), min_step_s=3.0))
    Loop(trainer).run(lambda: tmp_path)
    assert min(trainer.asked_s) == pytest.approx(3.0 * FORWARD_SHARE)
    assert max(trainer.asked_s) == pytest.approx(3.0)


@pytest.mark.parametrize("as_lines", [False, True])
def test_a_log_of_very_many_files_advises_lines_once(tmp_path, caplog, monkeypatch, as_lines):
    monkeypatch.setattr(round_report, "MANY_FILES", 3)
    run(tmp_path, limits=Limits(5), logs_lines=as_lines)
    said = [record.message for record in caplog.records if "--log-form lines" in record.message]
    assert [text.partition(",")[0] for text in said] == ["warning: the log has 3 files"] * (not as_lines)
