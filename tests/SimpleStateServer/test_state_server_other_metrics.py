"""A job whose metric is not the accuracy: its messages, its curve, what the page gets."""

from typing import Any

import pytest
from scripted_job import ScriptedJob

from esync.metric import NAME
from server import wire
from server.errors import BadMessage, Conflict
from server.messages import Limits, Metric, Reset, Settings

RMSE = Metric("rmse", more_is_better=False)


def understood(**fields: Any) -> Any:
    """The RESET with these fields, as it comes over the wire."""
    message = {"msg_type": "RESET", "sender": "a", "job": "a", "num_workers": 1, "policy": "journal", **fields}
    return wire.understand(message)


@pytest.mark.parametrize("name", ["R2", "a" * 40, "top 5 @(x)%/+-_.", "a" * 41, " a", "a ", "", "<i>", "a\n", "ä"])
def test_the_names_that_workers_can_have_are_those_that_the_server_takes(name: str) -> None:
    fields = {"metric": {"name": name, "more_is_better": True}}
    if NAME.fullmatch(name):
        assert understood(**fields).settings.metric.name == name
    else:
        with pytest.raises(BadMessage) as refused:
            understood(**fields)
        assert refused.value.field == "name"


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"limits": {"target": 3}}, "target"),
        ({"limits": {"accuracy": 0.5}, "metric": {"name": "rmse", "more_is_better": False}}, "accuracy"),
        ({"limits": {"target": 1e400}, "metric": {"name": "rmse", "more_is_better": False}}, "target"),
        ({"metric": {"name": "rmse"}}, "more_is_better"),
        ({"metric": {"name": "rmse", "more_is_better": "no"}}, "more_is_better"),
        ({"metric": "rmse"}, "metric"),
    ],
)
def test_a_reset_whose_metric_makes_no_sense_is_refused_with_the_field(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(BadMessage) as refused:
        understood(**fields)
    assert refused.value.field == wrong


def test_a_job_tells_values_of_its_own_metric_alone() -> None:
    job, plain = ScriptedJob(1, metric=RMSE), ScriptedJob(1)
    for wrong, name in ((job, "accuracy"), (plain, "value")):
        with pytest.raises(BadMessage) as refused:
            wrong.report(0, 1, 0.5, **{name: 0.5})
        assert refused.value.field == name
    with pytest.raises(BadMessage):
        job.report(0, 1, 0.5, accuracies=((1, 0.5, 0.5),))
    assert job.job.curve.points == plain.job.curve.points == ()
    assert job.job.rows[0].heard is None  # nothing of it was taken over
    with pytest.raises(Conflict, match="metric Metric"):  # the same reset by another metric is of another job
        job.handlers.reset(Reset("server-0", "a", Settings(1, "journal", 0.5)), 1.0)


def test_the_best_is_that_of_the_metrics_direction_also_after_a_restart() -> None:
    job = ScriptedJob(1, metric=RMSE, resumed=1, limits=Limits(target=-2.0))
    for round, value in ((5, 30.0), (6, -1.5), (7, 2.0)):
        job.report(0, round, float(round), value=value)
    shown = job.status(8.0)
    assert shown["metric"] == {"name": "rmse", "more_is_better": False}
    assert [point[1:] for point in shown["values"]] == [[30.0, 4], [-1.5, 5], [2.0, 6]]
    assert shown["best"][1] == -1.5
    assert (shown["end"]["accuracy"], shown["end"]["target"]) == (None, -2.0)
    assert "accuracies" not in shown
    job.report(0, 8, 9.0, elapsed=9.0, values=((1, 1.0, 90.0), (2, 2.0, -7.5)))
    assert job.status(9.0)["best"][1] == -7.5


def test_an_accuracy_is_shown_as_before() -> None:
    job = ScriptedJob(1, limits=Limits(accuracy=0.9))
    job.report(0, 2, 1.0, accuracy=0.5)
    shown = job.status(2.0)
    assert shown["metric"] == {"name": "accuracy", "more_is_better": True}
    assert (shown["accuracies"], shown["end"]["accuracy"]) == ([[1.0, 0.5, 1]], 0.9)
