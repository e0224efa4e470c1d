"""A summary's reader of rounds: msgspec's way and the standard library's give the same, and neither keeps the steps."""

import json
import tracemalloc

import pytest
from log_tree import esync_round

from report import device_rounds
from trainer.run_logs.round_log import LINES_FILE, WHOLE, logged_rounds

RUN = {"config": {"min_step_time": 0.1, "sample_time": 0.01}}
SOUND = json.dumps(esync_round(2, 9.0, 3, 0.5, loss=1.5, bytes_pushed=7, events=[], emulated_s=0.1))


def both(folder, content):
    """What the two ways make of a log, each with its warnings."""
    (folder / LINES_FILE).write_bytes(content)
    found = []
    for way in (device_rounds.form(RUN), device_rounds.form(RUN)._replace(quick=WHOLE.quick)):
        warnings = []
        rounds = logged_rounds(folder, warnings.append, way)
        for each in rounds.values():
            for key in {*(each.record or {})} & {"loss", "own"}:  # which a summary does not need
                del each.record[key]
        found.append((rounds, warnings))
    return found


@pytest.mark.parametrize("old", ["9.0", "192", "0.5", "0.25", "1.5", "7", "[]", "2", '"2"', '"get_batch"', "{"])
def test_both_ways_read_the_same_whatever_stands_in_a_line(tmp_path, old):
    new = [
        "NaN",
        "1e999",
        "-3",
        '"3"',
        "true",
        "null",
        "64.0",
        "-0.0",
        "1" + 400 * "0",
        "1e15",
        "1000000000000001",
        "[]",
    ]
    new += ["{}", '"1"', '"\\ud800"', '"\xe9"', '"\\x"', '"\x01"', "", "\r", "}", '{"own": "\xe9", ']
    lines = [SOUND, *(SOUND.replace(old, each, 1) for each in new), SOUND[:-40], "", "[]", SOUND]
    for encoding in ("utf-8", "latin-1"):
        quick, slow = both(tmp_path, "\n".join(lines).encode(encoding))
        assert quick == slow
    assert not quick[0][2].fault


@pytest.mark.parametrize(
    "steps", [{}, {"1": {}, "0": {"get_batch": 1}}, {"0": {"mine": 2.5}}, {"00": {"evaluation": 1.0}}]
)
def test_steps_in_another_order_and_stages_of_ones_own_are_read_the_same(tmp_path, steps):
    quick, slow = both(tmp_path, json.dumps({**json.loads(SOUND), "time": steps}).encode())
    assert quick == slow
    assert quick[0][2].stages_s == sum(sum(times.values()) for times in steps.values())


def test_sound_rounds_are_read_quickly():
    record = device_rounds.form(RUN).quick(SOUND.encode())
    assert record == {key: value for key, value in json.loads(SOUND).items() if key != "loss"}


def test_the_memory_of_a_log_does_not_grow_with_its_steps(tmp_path):
    with (tmp_path / LINES_FILE).open("w") as file:
        for number in range(1, 101):
            file.write(json.dumps(esync_round(number, 1e3 * number, 500)) + "\n")
    tracemalloc.start()
    rounds = logged_rounds(tmp_path, pytest.fail, device_rounds.form(RUN))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(rounds) == 100
    assert most < 2_000_000  # the rounds' steps take ten times that
