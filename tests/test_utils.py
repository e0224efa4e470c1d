"""Round logs: what Measure writes is what the published program wrote, and what read_rounds gives back."""

import json

import pytest

from utils import (
    CHECK_READY,
    EVALUATION,
    FORWARD_BACKWARD,
    GET_BATCH,
    GLOBAL_UPDATE,
    Measure,
    SetupError,
    iter_file,
    mode_name,
    read_json,
    read_rounds,
    write_json,
)


class FakeClock:
    """Time that passes when told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def warnings():
    return []


def test_a_round_log_maps_each_step_to_seconds_per_stage(tmp_path, clock):
    measure = Measure(tmp_path, clock)
    for stage, seconds in ((GET_BATCH, 1.0), (FORWARD_BACKWARD, 2.0), (GET_BATCH, 0.5)):
        measure.enter(stage)
        clock.now += seconds
    measure.next_step()
    for stage, seconds in ((CHECK_READY, 0.25), (GLOBAL_UPDATE, 4.0), (EVALUATION, 8.0)):
        measure.enter(stage)
        clock.now += seconds
    measure.write_round(64, accuracy=0.5, bytes_pushed=7)
    assert json.loads((tmp_path / "iter-1.txt").read_text()) == {
        "num_iters": 1,
        "num_samples": 64,
        "total_time": 15.75,
        "accuracy": 0.5,
        "bytes_pushed": 7,
        "time": {
            "0": {"get_batch": 1.5, "forward and backward": 2.0},
            "1": {"check ready": 0.25, "global update": 4.0, "evaluation": 8.0},
        },
    }


def test_what_a_step_took_that_was_given_up_is_not_computing_time(tmp_path, clock):
    measure = Measure(tmp_path, clock)
    for stage, seconds in ((CHECK_READY, 0.25), (GET_BATCH, 1.0), (FORWARD_BACKWARD, 2.0)):
        measure.enter(stage)
        clock.now += seconds
    measure.abandon_step()
    clock.now += 8.0  # belongs to no stage
    measure.enter(GLOBAL_UPDATE)
    clock.now += 4.0
    record = measure.write_round(64, accuracy=None)
    assert record["time"] == {"0": {"check ready": 0.25, "abandoned": 3.0, "global update": 4.0}}


def test_rounds_count_from_one_and_only_evaluated_ones_have_an_accuracy(tmp_path, clock, warnings):
    measure = Measure(tmp_path, clock)
    measure.write_round(64, accuracy=None)
    measure.write_round(64, accuracy=0.0)
    first, second = read_rounds(tmp_path, warnings.append)
    assert (first["num_iters"], second["num_iters"]) == (1, 2)
    assert "accuracy" not in first
    assert second["accuracy"] == 0.0
    assert warnings == []


def test_rounds_and_steps_are_read_in_the_order_of_their_numbers(tmp_path, clock, warnings):
    measure = Measure(tmp_path, clock)
    for _ in range(11):
        for _ in range(11):
            measure.next_step()
        measure.write_round(1, accuracy=None)
    rounds = list(read_rounds(tmp_path, warnings.append))
    assert [record["num_iters"] for record in rounds] == list(range(1, 12))
    assert list(rounds[0]["time"]) == [str(step) for step in range(12)]


def test_a_gap_and_a_truncated_file_are_named_and_the_rest_is_read(tmp_path, clock, warnings):
    measure = Measure(tmp_path, clock)
    for _ in range(5):
        measure.write_round(1, accuracy=None)
    (tmp_path / iter_file(2)).unlink()
    (tmp_path / iter_file(4)).write_text('{"num_iters": 4, "num_sam')
    assert [record["num_iters"] for record in read_rounds(tmp_path, warnings.append)] == [1, 3, 5]
    gap, truncated = warnings
    assert "iter-2.txt" in gap
    assert "iter-4.txt" in truncated


@pytest.mark.parametrize("content", ["[]", "3", '{"num_iters": 1}', '{"num_samples": 1, "total_time": 1, "time": []}',
     '{"num_samples": Infinity, "total_time": 1, "time": {}}'])
def test_a_file_of_another_shape_is_named_and_left_out(tmp_path, warnings, content):
    (tmp_path / iter_file(1)).write_text(content)
    assert list(read_rounds(tmp_path, warnings.append)) == []
    assert "iter-1.txt" in warnings[0]


def test_a_json_file_is_replaced_whole(tmp_path):
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1}


def test_a_missing_or_broken_json_file_is_named(tmp_path):
    with pytest.raises(SetupError, match=r"gone\.json"):
        read_json(tmp_path / "gone.json")
    (tmp_path / "half.json").write_text('{"a":')
    with pytest.raises(SetupError, match=r"half\.json"):
        read_json(tmp_path / "half.json")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("esync", False), "esync"),
        (("dcasgd", True), "dcasgd-niid"),
        (("wbsp-pcc", True), "wbsp-pcc-niid"),
    ],
)
def test_a_run_is_filed_under_the_mode_that_the_summary_knows(arguments, name):
    assert mode_name(*arguments) == name
