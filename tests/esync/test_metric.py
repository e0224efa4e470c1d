"""Metrics other than accuracy: names, directions, and what a worker's loop makes of them."""

import json

import numpy as np
import pytest
from one_worker import HandClock, Steps, a_context, network_with_statistics, some_batch
from round_records import read_rounds

from config import Config
from esync.metric import ACCURACY, Metric, logged_value
from esync.progress import Limits
from trainer.evaluation.evaluator_process import Evaluation
from trainer.evaluation.saved_model import ModelSaver
from trainer.from_flags import target_of
from trainer.loop import Loop
from utils import JobOver, SetupError, read_json

RMSE, LIKELIHOOD = Metric("rmse", more_is_better=False), Metric("log-likelihood")


@pytest.mark.parametrize("name", ["", " rmse", "rmse ", "r" * 41, "rmse\n", "<b>rmse", "größe", "a:b", 5, None])
def test_a_name_that_a_page_or_a_log_could_not_show_is_refused(name):
    with pytest.raises(SetupError, match="use 1 to 40 letters"):
        Metric(name)


@pytest.mark.parametrize("name", ["R2", "MAP@10 (val) % +/-", "top_5.acc", "r" * 40])
def test_a_usual_name_is_one(name):
    assert logged_value(json.loads(json.dumps(Metric(name, False).logged(-1.5)))) == (Metric(name, False), -1.5)


def test_an_accuracy_is_a_share_of_which_more_is_better_and_keeps_its_published_key():
    with pytest.raises(SetupError, match="give an error another name"):
        Metric("accuracy", more_is_better=False)
    assert ACCURACY.logged(0.5) == {"accuracy": 0.5}
    with pytest.raises(SetupError, match=r"accuracy is 85, which is no number from 0 to 1; give such"):
        ACCURACY.checked(85.0)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), None, "0.5", True, np.zeros(3), 10**400])
def test_what_is_no_finite_number_is_named_with_its_metric(value):
    with pytest.raises(SetupError, match=r"^the metric rmse is .{2,60}, which is no finite number$"):
        RMSE.checked(value)


@pytest.mark.parametrize("value", [-3, 2.5, np.float32(0.5), np.int64(4)])
def test_numbers_of_every_kind_are_values(value):
    found = RMSE.checked(value)
    assert (found, type(found)) == (value, float)


def test_a_mean_that_is_the_target_but_for_rounding_reaches_it():
    mean = sum([0.8070, 0.7914, 0.8016]) / 3
    assert mean < 0.8
    assert ACCURACY.reached(mean, 0.8)
    assert not ACCURACY.reached(0.79999, 0.8)


def test_a_target_is_reached_in_the_metrics_own_direction():
    assert [RMSE.reached(value, 0.5) for value in (0.6, 0.5, 0.4)] == [False, True, True]
    assert [LIKELIHOOD.reached(value, -0.5) for value in (-0.6, -0.5, -0.4)] == [False, True, True]
    assert (RMSE.best([3.0, 1.0, 2.0]), LIKELIHOOD.best([-3.0, -1.0])) == (1.0, -1.0)
    assert RMSE.is_better(1e9, None) and not RMSE.is_better(1.0, 1.0)


def test_a_target_that_the_metric_cannot_have_is_refused():
    assert target_of(Config(target=0.0), RMSE) == 0.0
    assert target_of(Config(target_accuracy=0.5), ACCURACY) == target_of(Config(target=0.5), ACCURACY) == 0.5
    with pytest.raises(SetupError, match="metric of this job is rmse: give its value as --target"):
        target_of(Config(target_accuracy=0.5), RMSE)
    with pytest.raises(SetupError, match="--target 80 is no number from 0 to 1"):
        target_of(Config(target=80.0), ACCURACY)


def run(folder, values, metric=RMSE, target=None, evaluator=None, rounds=None):
    """Trains with an evaluation after each round of a second; returns why it ended, and the logs."""
    network, given = network_with_statistics(), iter(values)
    context = a_context(
        some_batch(),
        clock=HandClock(),
        network=network,
        evaluate=lambda: next(given),
        metric=metric,
        limits=Limits(rounds or len(values), target=target, metric=metric),
        saver=ModelSaver(folder, network, {"input": {"shape": [1, 8, 8]}}, metric),
        evaluator=evaluator,
    )
    reason = Loop(Steps(context)).run(lambda: folder)
    return reason, list(read_rounds(folder, pytest.fail))


def test_an_error_ends_the_job_and_chooses_the_best_model_from_above_and_each_log_says_what_it_is(tmp_path, caplog):
    caplog.set_level("INFO")
    reason, rounds = run(tmp_path, [12.5, -0.25, 3.0, -0.5, -0.5, 7.0], target=-0.5)
    assert reason == "test rmse -0.5 reached -0.5"
    assert [record["metric"]["value"] for record in rounds] == [12.5, -0.25, 3.0, -0.5, -0.5]
    alone = json.loads((tmp_path / "iter-1.txt").read_text())
    assert alone["metric"] == {"name": "rmse", "more_is_better": False, "value": 12.5}
    assert "accuracy" not in alone
    best, final = (read_json(tmp_path / f"{kind}.json") for kind in ("best", "final"))
    assert (best["round"], logged_value(best)) == (4, (RMSE, -0.5))
    assert logged_value(final) == (RMSE, -0.5)
    assert ", rmse 12.5" in caplog.text


def test_a_job_that_is_resumed_by_another_metric_looks_for_its_best_model_anew(tmp_path):
    run(tmp_path, [0.25])
    saver = ModelSaver(tmp_path, None, {}, LIKELIHOOD)
    saver.begin()
    assert saver.due(-9.0, last=False) == ["best"]
    saver = ModelSaver(tmp_path, None, {}, RMSE)
    saver.begin()
    assert (saver.due(0.5, last=False), saver.due(0.125, last=False)) == ([], ["best"])


def test_a_value_that_is_none_is_a_warning_once_and_no_evaluation(tmp_path, caplog):
    nan = float("nan")
    _, rounds = run(tmp_path, [0.5, nan, nan, "0.25", 0.125, nan])
    assert [logged_value(record) for record in rounds] == [(RMSE, 0.5), None, None, None, (RMSE, 0.125), None]
    assert (read_json(tmp_path / "best.json")["round"], read_json(tmp_path / "final.json")["round"]) == (5, 6)
    told = [record.getMessage() for record in caplog.records if "no evaluation" in record.getMessage()]
    assert [text.split(":")[1] for text in told] == [
        " no evaluation after round 2", " no evaluation after round 4", " no evaluation after round 6"
    ]  # fmt: skip


@pytest.mark.parametrize("error", [RuntimeError("of the network"), SystemExit(3)])
def test_the_last_model_of_a_job_that_an_error_ends_is_saved(tmp_path, error):
    def values():
        yield 0.5
        yield 0.25
        raise error

    with pytest.raises((type(error), RuntimeError)):
        run(tmp_path, values(), rounds=5)
    assert (read_json(tmp_path / "best.json")["round"], read_json(tmp_path / "final.json")["round"]) == (2, 3)
    assert [record["metric"]["value"] for record in read_rounds(tmp_path, pytest.fail)] == [0.5, 0.25]


def test_a_worker_without_which_the_job_goes_on_saves_no_last_model(tmp_path):
    def leave_out(trainer):
        if trainer.rounds == 2:
            raise JobOver("the others go on")

    network = network_with_statistics()
    saver = ModelSaver(tmp_path, network, {"input": {"shape": [1, 8, 8]}})
    context = a_context(some_batch(), clock=HandClock(), network=network, evaluate=lambda: 0.5, saver=saver)
    with pytest.raises(JobOver):
        Loop(Steps(context, passed=leave_out)).run(lambda: tmp_path)
    assert (tmp_path / "best.json").exists() and not (tmp_path / "final.json").exists()


def test_a_job_that_ends_in_its_first_round_saves_no_model(tmp_path):
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, (1 / number for number in (0,)), rounds=5)
    assert not (tmp_path / "final.json").exists()


class AtOnce:
    """Stands for a process beside training, which answers in the round after the request."""

    has_ended, asked, cost_s = False, 0, 0.0

    @property
    def is_free(self):
        return not self.asked

    begin = wait_until_ready = close = lambda self, *about: None  # nothing is loaded, and no process ends

    def ask(self, round_):
        self.asked = round_

    def take(self):
        round_, self.asked = self.asked, 0
        return Evaluation(round_, 10.0 / round_) if round_ else None


def test_values_that_come_later_belong_to_the_round_of_their_model(tmp_path):
    _, rounds = run(tmp_path, [9.0, 9.0, 9.0], evaluator=AtOnce())
    assert [logged_value(record) for record in rounds] == [(RMSE, 10.0), (RMSE, 5.0), (RMSE, 9.0)]
    assert read_json(tmp_path / "best.json")["round"] == 2


def log(folder, *entries):
    folder.mkdir(exist_ok=True)
    for number, entry in enumerate(entries, start=1):
        record = {"num_iters": number, "num_samples": 1, "total_time": number, "time": {}, **entry}
        (folder / f"iter-{number}.txt").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"accuracy": 0.5}, "accuracy 0.5 after 1.0 s is of the metric accuracy, and the last is rmse; left out"),
        (RMSE.logged(float("nan")), "rmse nan after 1.0 s is no finite number; left out"),
        ({"metric": 3}, "metric 3 after 1.0 s is no metric with its name and direction; left out"),
        ({"metric": {"name": "<b>", "more_is_better": True, "value": 1}}, "is no metric with its name and direction"),
    ],
)
def test_a_logged_value_that_does_not_count_is_named(tmp_path, entry, complaint):
    log(tmp_path, entry, RMSE.logged(0.5), {"evaluated": [{"round": 2, **RMSE.logged(0.25)}]})
    warnings = []
    first, second, _ = read_rounds(tmp_path, warnings.append)
    assert (logged_value(first), logged_value(second)) == (None, (RMSE, 0.25))
    (warning,) = warnings
    assert complaint in warning
