"""Round logs: what Measure writes is what the published program wrote, and what read_rounds gives back."""

import json
import math
import resource
import shutil
import tracemalloc

import pytest
from log_tree import esync_round

from esync import measure as measure_module
from esync.measure import (
    CHECK_READY,
    CHECKPOINT,
    EVALUATION,
    FORWARD_BACKWARD,
    GET_BATCH,
    GLOBAL_AGGREGATE,
    GLOBAL_UPDATE,
    LINES_FILE,
    Measure,
    iter_file,
)
from esync.metric import ACCURACY
from trainer.run_logs.rounds import Round, logged_rounds, read_rounds
from utils import SetupError, append_line, read_json, write_json


class FakeClock:
    """Time that passes when told to."""

    now = 100.0

    def __call__(self):
        return self.now

    def spend(self, measure, *stages):
        """Seconds in one stage after the other."""
        for stage, seconds in stages:
            measure.enter(stage)
            self.now += seconds


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def warnings():
    return []


def test_a_round_log_maps_each_step_to_seconds_per_stage(tmp_path, clock):
    measure = Measure(tmp_path, clock)
    clock.spend(measure, (GET_BATCH, 1.0), (FORWARD_BACKWARD, 2.0), (GET_BATCH, 0.5))
    measure.next_step()
    clock.spend(measure, (CHECK_READY, 0.25), (GLOBAL_UPDATE, 4.0), (EVALUATION, 8.0))
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


@pytest.mark.parametrize(
    ("stage", "before_s", "takes_s", "told"),
    [
        (FORWARD_BACKWARD, 0.3, 31, "forward and backward takes 31 s, the longest so far 0.3 s"),
        (FORWARD_BACKWARD, 0.3, 29, ""),
        (FORWARD_BACKWARD, None, 40, ""),  # the first one
        (FORWARD_BACKWARD, None, 601, "forward and backward takes 601 s"),
        (GET_BATCH, 0.01, 12, ""),
        (EVALUATION, 1.0, 25, ""),
        (EVALUATION, 25.0, 240, ""),
        (CHECKPOINT, 0.1, 15, ""),
        (GLOBAL_AGGREGATE, 0.1, 3600, ""),  # others are waited for
    ],
)
def test_training_stands_where_a_stage_of_its_own_takes_many_times_the_longest_so_far(
    tmp_path, clock, stage, before_s, takes_s, told
):
    measure = Measure(tmp_path, clock)
    assert measure.standing(-math.inf, 600) == ""
    if before_s is not None:
        clock.spend(measure, (stage, before_s))
        measure.write_round(1)
    clock.spend(measure, (stage, takes_s))
    assert measure.standing(-math.inf, 600.0) == told
    assert measure.standing(clock.now - 1, 600.0) == ""  # an exchange has ended just now, or the process was frozen


def test_what_a_step_took_that_was_given_up_is_not_computing_time(tmp_path, clock):
    measure = Measure(tmp_path, clock)
    clock.spend(measure, (CHECK_READY, 0.25), (GET_BATCH, 1.0), (FORWARD_BACKWARD, 2.0))
    measure.abandon_step()
    clock.now += 8.0  # belongs to no stage
    clock.spend(measure, (GLOBAL_UPDATE, 4.0))
    record = measure.write_round(64)
    assert record["time"] == {"0": {"check ready": 0.25, "abandoned": 3.0, "global update": 4.0}}


def test_rounds_count_from_one_and_only_evaluated_ones_have_an_accuracy(tmp_path, clock):
    measure = Measure(tmp_path, clock)
    measure.write_round(64)
    measure.write_round(64, accuracy=0.0)
    found = [(record.number, record.evaluation) for record in read_rounds(tmp_path, pytest.fail)]
    assert found == [(1, None), (2, (ACCURACY, 0.0))]


def test_rounds_and_steps_are_read_in_the_order_of_their_numbers(tmp_path, clock, warnings):
    measure = Measure(tmp_path, clock)
    for _ in range(11):
        for _ in range(11):
            measure.next_step()
        measure.write_round(1)
    rounds = list(read_rounds(tmp_path, warnings.append))
    assert [record.number for record in rounds] == list(range(1, 12))
    assert list(rounds[0].steps) == list(range(12))


def test_a_gap_and_a_truncated_file_are_named_and_the_rest_is_read(tmp_path, clock, warnings):
    measure = Measure(tmp_path, clock)
    for _ in range(5):
        measure.write_round(1)
    (tmp_path / iter_file(2)).unlink()
    (tmp_path / iter_file(4)).write_text('{"num_iters": 4, "num_sam')
    assert [record.number for record in read_rounds(tmp_path, warnings.append)] == [1, 3, 5]
    gap, truncated = warnings
    assert gap.endswith("1 round(s) missing, the first is round 2")
    assert "iter-4.txt" in truncated


def write_lines(folder, clock, rounds, **more):
    measure = Measure(folder, clock, as_lines=True, **more)
    for number in range(rounds):
        clock.spend(measure, (GET_BATCH, 1.0))
        measure.write_round(64, **({"accuracy": 0.5} if number % 2 else {}), loss=1.5)


def test_rounds_as_lines_are_the_same_rounds_in_one_file(tmp_path, clock, warnings):
    for form in ("lines", "files"):
        (tmp_path / form).mkdir()
        measure = Measure(tmp_path / form, FakeClock(), as_lines=form == "lines")
        for _ in range(12):
            measure.write_round(64, accuracy=0.5, bytes_pushed=7)
    assert [path.name for path in (tmp_path / "lines").iterdir()] == [LINES_FILE]
    lines = (tmp_path / "lines" / LINES_FILE).read_text().splitlines()
    assert lines == [(tmp_path / "files" / iter_file(number)).read_text() for number in range(1, 13)]
    where = [record.where for record in read_rounds(tmp_path / "lines", warnings.append)]
    assert where[2] == f"{tmp_path}/lines/{LINES_FILE}, line 3"
    assert warnings == []


def test_a_crash_in_the_middle_of_a_line_loses_that_line_alone(tmp_path, clock):
    write_lines(tmp_path, clock, 3)
    whole = (tmp_path / LINES_FILE).read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in range(last, len(whole)):
        warnings = []
        (tmp_path / LINES_FILE).write_bytes(whole[:end])
        numbers = [record.number for record in read_rounds(tmp_path, warnings.append)]
        complete = end == len(whole) - 1  # without the line's end only
        assert numbers == ([1, 2, 3] if complete else [1, 2])
        assert len(warnings) == (0 if complete or end == last else 1)
        assert all(f"{LINES_FILE}, line 3 cannot be read as JSON" in warning for warning in warnings)


@pytest.mark.parametrize("cut", [1, 10, 50])
def test_a_run_that_goes_on_after_a_crash_writes_its_rounds_behind_the_broken_line(tmp_path, clock, warnings, cut):
    write_lines(tmp_path, clock, 3)
    whole = (tmp_path / LINES_FILE).read_bytes()
    (tmp_path / LINES_FILE).write_bytes(whole[:-cut])
    done = list(read_rounds(tmp_path, lambda _: None))[-1]
    write_lines(tmp_path, clock, 2, rounds_before=done.number, elapsed_before_s=done.elapsed_s)
    found = list(read_rounds(tmp_path, warnings.append))
    numbers = [record.number for record in found]
    assert numbers == list(range(1, done.number + 3))
    assert [record.elapsed_s for record in found] == [float(number) for number in numbers]
    assert warnings == []  # the round that was cut off was done again


def test_a_folder_with_both_forms_is_read_once_each_round_with_a_warning(tmp_path, clock, warnings):
    write_lines(tmp_path, clock, 4)
    files = Measure(tmp_path, clock, rounds_before=2, elapsed_before_s=2.0)  # rounds 3, 4 and 5
    for _ in range(3):
        files.write_round(32)
    found = {record.number: record.samples for record in read_rounds(tmp_path, warnings.append)}
    assert found == {1: 64, 2: 64, 3: 32, 4: 32, 5: 32}
    assert warnings == [f"{tmp_path} holds rounds in {LINES_FILE} and in iter-N.txt; each is read once"]


SOUND = json.dumps(esync_round(2, 9.0, 3, 0.5, loss=1.5, bytes_pushed=7, events=[], emulated_s=0.1))
# What may stand there in place of a number, and which of these are none in a JSON file
BAD = ["NaN", "1e999", "-3", '"3"', "true", "null", "1" + 400 * "0", "1000000000000001", "[]", "{}", '"\\ud800"', ""]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        *((other, "") for other in ("[]", "3", '{"num_iters": 1}', '{"num_iters": true}')),
        ('{"num_samples": 1, "total_time": 1, "time": []}', ""),
        ('{"num_samples": Infinity, "total_time": 1, "time": {}}', ""),
        *((SOUND.replace("192", bad), "Expected `int`") for bad in BAD[:9]),
    ],
)
def test_a_round_of_another_shape_or_with_a_bad_number_is_named_and_left_out(tmp_path, clock, warnings, content, why):
    write_lines(tmp_path, clock, 1)
    append_line(tmp_path / LINES_FILE, content)
    write_lines(tmp_path, clock, 1, rounds_before=2)
    assert [record.number for record in read_rounds(tmp_path, warnings.append)] == [1, 3]
    (tmp_path / LINES_FILE).unlink()
    (tmp_path / iter_file(1)).write_text(content)
    assert list(read_rounds(tmp_path, warnings.append)) == []
    for place, warning in zip((f"{LINES_FILE}, line 2", iter_file(1)), warnings, strict=True):
        assert f"{place} is not a round log ({why}" in warning


@pytest.mark.parametrize("as_lines", [False, True])
def test_rounds_that_the_disk_does_not_take_are_written_when_there_is_room(
    tmp_path, clock, warnings, caplog, monkeypatch, as_lines
):
    caplog.set_level("INFO")
    (tmp_path / "disk").touch()
    measure = Measure(tmp_path / "disk", clock, as_lines=as_lines)
    for _ in range(3):
        measure.write_round(64)
    assert measure.unwritten().startswith("the logs of 3 round(s) are lost: ")
    (tmp_path / "disk").unlink()
    (tmp_path / "disk").mkdir()
    measure.write_round(64)
    assert measure.unwritten() == ""
    full, again = caplog.messages
    assert full.startswith("warning: ") and "File exists; training goes on" in full
    assert again == "the rounds' logs are written again, and none is missing"
    monkeypatch.setattr(measure_module, "MOST_KEPT", 2 * len(json.dumps(measure.write_round(64))))
    (tmp_path / "disk").rename(tmp_path / "away")
    (tmp_path / "disk").touch()
    for _ in range(4):
        measure.write_round(64)
    (tmp_path / "disk").unlink()
    (tmp_path / "away").rename(tmp_path / "disk")
    assert measure.unwritten() == "the logs of 2 round(s) are lost: too many were kept"
    assert [record.number for record in read_rounds(tmp_path / "disk", warnings.append)] == [1, 2, 3, 4, 5, 8, 9]


@pytest.mark.parametrize("as_lines", [False, True])
def test_a_folder_that_somebody_removes_is_made_again_and_the_next_rounds_are_in_it(
    tmp_path, clock, warnings, caplog, as_lines
):
    (tmp_path / "logs" / "cpu").mkdir(parents=True)
    measure = Measure(tmp_path / "logs" / "cpu", clock, as_lines=as_lines)
    measure.write_round(64)
    shutil.rmtree(tmp_path / "logs")
    for _ in range(2):
        measure.write_round(64)
    assert measure.unwritten() == ""
    folder = tmp_path / "logs" / "cpu"
    assert [record.number for record in read_rounds(folder, warnings.append)] == [2, 3]
    assert caplog.messages == [f"warning: {folder} was removed: what was in it is lost, and it is made again"]


def test_a_line_that_is_cut_is_taken_back_and_told_with_its_own_reason(tmp_path):
    append_line(tmp_path / "log", "short")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    try:
        with pytest.raises(SetupError, match="log cannot be written: File too large"):  # the disk has room
            append_line(tmp_path / "log", "x" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (tmp_path / "log").read_text() == "short\n"


@pytest.mark.parametrize("old", ["9.0", "192", "0.25", "7", "[]", "2", '"2"', "{"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_whatever_stands_in_a_line_costs_that_round_at_most(tmp_path, warnings, old, encoding):
    new = ['"\xe9"', '"\\x"', '"\x01"', "\r", "}", '{"own": "\xe9", ', *BAD]
    lines = [
        SOUND,
        *(SOUND.replace(old, each, 1) for each in new),
        SOUND[:-40],
        "",
        "[]",
        SOUND.replace('"num_iters": 2', '"num_iters": 99'),
    ]
    (tmp_path / LINES_FILE).write_bytes("\n".join(lines).encode(encoding))
    logged = logged_rounds(tmp_path, warnings.append)
    assert isinstance(logged[99], Round) and logged[99].samples == 192
    assert all(each.startswith(f"{tmp_path / LINES_FILE}, line ") for each in logged.values() if isinstance(each, str))


def test_steps_in_another_order_and_stages_of_ones_own_are_read(tmp_path):
    steps = {"1": {"global update": 0.5}, "0": {"get_batch": 1, "mine": 2.5}}
    (tmp_path / iter_file(2)).write_text(json.dumps({**json.loads(SOUND), "time": steps}))
    one = logged_rounds(tmp_path, pytest.fail)[2]
    assert list(one.steps) == [0, 1]
    assert (one.entries, one.complete, one.computing_s, one.aggregation_s, one.stages_s) == (2, 0, 1.0, 0.5, 4.0)


def test_the_memory_of_a_log_without_steps_does_not_grow_with_them(tmp_path):
    with (tmp_path / LINES_FILE).open("w") as file:
        for number in range(1, 101):
            file.write(json.dumps(esync_round(number, 1e3 * number, 500)) + "\n")
    tracemalloc.start()
    rounds = logged_rounds(tmp_path, pytest.fail, keeps_steps=False)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [one.complete for one in rounds.values()] == [500] * 100
    assert most < 2_000_000  # the rounds' steps take ten times that


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
