import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from log_tree import NETWORK, ROOT, esync_round, run_program, sync_round, write_device, write_esync, write_sync

import summary
from esync import measure


def summarise(base, *arguments):
    return summary.main(["-b", str(base), "-n", NETWORK, *arguments])


def read(path):
    return json.loads(path.read_text())


# -------------------------------------------------------------------------------------------- what is written


def test_esync_of_two_hosts_is_summarised_round_by_round(tmp_path, capsys):
    folder = write_esync(tmp_path)
    (folder / "worker-0.log").write_text("a process log is no host")
    assert summarise(tmp_path, "-m", "esync") == 0
    assert read(folder / "ESync.json") == {
        "alpha": {
            "gpu0": {
                "accuracy_list": [0.5, 0.8],
                "num_samples_list": [192, 192],
                "self_iters_list": [4, 4],  # three local steps and the aggregation
                "elapsed_time_list": [4.0, 8.0],
                "aggregate_time_list": [0.5, 0.5],
                "accuracy_time_list": [4.0, 8.0],
                "computing_time_list": [3.0, 3.0],
                "bytes_pushed_list": [2_000_000, 2_000_000],
                "bytes_pulled_list": [2_000_000, 2_000_000],
                "rank": 0,
                "num_workers": 2,
                "steps_list": [3, 3],
                "lost_steps_list": [0, 0],
            }
        },
        "beta": {
            "cpu": {
                "accuracy_list": [],
                "num_samples_list": [64, 64],
                "self_iters_list": [2, 2],
                "elapsed_time_list": [5.0, 10.0],
                "aggregate_time_list": [0.5, 0.5],
                "accuracy_time_list": [],
                "computing_time_list": [1.0, 1.0],
                "bytes_pushed_list": [2_000_000, 2_000_000],
                "bytes_pulled_list": [2_000_000, 2_000_000],
                "rank": 1,
                "num_workers": 2,
                "steps_list": [1, 1],
                "lost_steps_list": [0, 0],
            }
        },
    }
    output = capsys.readouterr()
    assert output.out == f"{folder}/ESync.json: 2 device(s) on 2 host(s), 2 rounds\n"
    assert output.err == ""


def test_published_logs_get_the_published_keys_and_what_can_be_worked_out(tmp_path, capsys):
    folder = write_sync(tmp_path)
    assert summarise(tmp_path, "-m", "sync") == 0
    assert read(folder / "Sync.json")["alpha"]["gpu0"] == {
        "accuracy_list": [0.4, 0.8, 0.75],
        "num_samples_list": [64, 64, 64],
        "self_iters_list": [1, 1, 1],
        "elapsed_time_list": [12.0, 24.0, 36.0],
        "aggregate_time_list": [2.0, 2.0, 2.0],
        "accuracy_time_list": [12.0, 24.0, 36.0],
        "computing_time_list": [0.75, 0.75, 0.75],
        "steps_list": [1, 1, 1],
        "lost_steps_list": [0, 0, 0],
    }
    assert capsys.readouterr().err == ""


def test_rounds_as_lines_give_the_same_summary(tmp_path, capsys):
    as_files = write_sync(tmp_path / "files")
    as_lines = write_sync(tmp_path / "lines")
    for device in as_lines.glob("*/*"):
        rounds = sorted(device.glob("iter-*.txt"))
        (device / "rounds.jsonl").write_text("".join(f"{path.read_text()}\n" for path in rounds))
        for path in rounds:
            path.unlink()
    for base in ("files", "lines"):
        assert summarise(tmp_path / base) == 0  # finds the mode by either
    assert read(as_lines / "Sync.json") == read(as_files / "Sync.json")
    assert capsys.readouterr().err == ""


def test_what_is_wrong_in_a_line_is_told_by_its_number(tmp_path, capsys):
    device = write_device(tmp_path / NETWORK / "sync" / "a" / "cpu", [])
    lines = [json.dumps(sync_round(1, 10.0)), '{"num_iters": 2, "num', json.dumps(sync_round(3, 30.0))]
    (device / "rounds.jsonl").write_text("\n".join([*lines, json.dumps(sync_round(4, 40.0))[:-9]]))
    assert summarise(tmp_path, "-m", "sync") == 0
    assert read(tmp_path / NETWORK / "sync" / "Sync.json")["a"]["cpu"]["elapsed_time_list"] == [10.0, 30.0]
    warnings = capsys.readouterr().err
    assert f"{device}/rounds.jsonl, line 2 cannot be read as JSON" in warnings
    assert f"{device}/rounds.jsonl, line 4 cannot be read as JSON" in warnings
    assert "counted without 2 lost round(s)" in warnings


def test_an_accuracy_keeps_the_time_of_its_own_round(tmp_path):
    rounds = [sync_round(n, 10.0 * n, accuracy) for n, accuracy in enumerate([None, 0.3, None, 0.4, 0.5], start=1)]
    folder = tmp_path / NETWORK / "async"
    write_device(folder / "a" / "cpu", rounds)
    assert summarise(tmp_path, "-m", "async") == 0
    device = read(folder / "Async.json")["a"]["cpu"]
    assert device["accuracy_list"] == [0.3, 0.4, 0.5]
    assert device["accuracy_time_list"] == [20.0, 40.0, 50.0]


def test_local_mode_also_writes_the_final_accuracy_for_the_dotted_line(tmp_path):
    folder = tmp_path / NETWORK / "local"
    write_device(folder / "a" / "gpu0", [sync_round(1, 1.0, 0.9), sync_round(2, 2.0, 0.875)])
    assert summarise(tmp_path, "-m", "local") == 0
    assert (folder / "Local.json").exists()
    assert (tmp_path / NETWORK / "standalone.txt").read_text() == "0.875\n"


def test_local_mode_without_an_accuracy_writes_no_dotted_line(tmp_path, capsys):
    write_device(tmp_path / NETWORK / "local" / "a" / "cpu", [sync_round(1, 1.0)])
    assert summarise(tmp_path, "-m", "local") == 0
    assert not (tmp_path / NETWORK / "standalone.txt").exists()
    assert "has no evaluation, so standalone.txt is not written" in capsys.readouterr().err


def test_without_a_mode_all_that_are_there_are_summarised(tmp_path, capsys):
    write_esync(tmp_path)
    write_sync(tmp_path, "sync-niid")
    (tmp_path / NETWORK / "figures").mkdir()
    assert summarise(tmp_path) == 0
    assert (tmp_path / NETWORK / "esync" / "ESync.json").exists()
    assert (tmp_path / NETWORK / "sync-niid" / "Sync-Non-IID.json").exists()
    output = capsys.readouterr()
    assert "ESync.json: 2 device(s)" in output.out
    assert "Sync-Non-IID.json: 2 device(s)" in output.out
    assert output.err == ""


def test_devices_come_in_natural_order(tmp_path):
    folder = tmp_path / NETWORK / "sync"
    for name in ("cpu10", "cpu2", "cpu"):
        write_device(folder / "a" / name, [sync_round(1, 1.0)])
    assert summarise(tmp_path, "-m", "sync") == 0
    assert list(read(folder / "Sync.json")["a"]) == ["cpu", "cpu2", "cpu10"]


def write_events(base, *events_of_rounds, **extra):
    """WBSP on one device, a round every 10 s; the round's "events" where they are not None."""
    rounds = [
        sync_round(number, 10.0 * number, 0.5, **extra, **({} if events is None else {"events": events}))
        for number, events in enumerate(events_of_rounds, start=1)
    ]
    return write_device(base / NETWORK / "wbsp" / "a" / "cpu", rounds)


def wbsp(base):
    return read(base / NETWORK / "wbsp" / "WBSP.json")["a"]["cpu"]


def test_an_event_keeps_the_time_of_its_round(tmp_path, capsys):
    release, resume = {"kind": "release", "text": "model 1"}, {"kind": "resume", "text": "from round 2"}
    write_events(tmp_path, [release], None, [resume, release])
    assert summarise(tmp_path, "-m", "wbsp") == 0
    assert wbsp(tmp_path)["event_list"] == [
        [10.0, "release", "model 1"],
        [30.0, "resume", "from round 2"],
        [30.0, "release", "model 1"],
    ]
    assert capsys.readouterr().err == ""


def test_every_mode_can_tell_that_its_worker_evaluates_itself(tmp_path, capsys):
    event = {"kind": "evaluator", "text": "evaluated in the worker from 12 s on"}
    write_device(tmp_path / NETWORK / "sync" / "a" / "cpu", [sync_round(1, 12.0, 0.5, events=[event])])
    assert summarise(tmp_path, "-m", "sync") == 0
    device = read(tmp_path / NETWORK / "sync" / "Sync.json")["a"]["cpu"]
    assert device["event_list"] == [[12.0, "evaluator", event["text"]]]
    assert capsys.readouterr().err == ""


def test_steps_that_were_abandoned_dropped_or_are_to_be_done_again_are_lost(tmp_path):
    complete, abandoned = {"forward and backward": 1.0}, {"abandoned": 0.5, "global update": 0.25}
    rounds = [
        sync_round(1, 10.0) | {"time": {"0": complete, "1": complete, "2": abandoned}},
        sync_round(2, 20.0, steps_lost=2) | {"time": {"0": complete, "1": {"global update": 0.25}}},
    ]
    write_device(tmp_path / NETWORK / "wbsp" / "a" / "cpu", rounds)
    assert summarise(tmp_path, "-m", "wbsp") == 0
    assert wbsp(tmp_path)["steps_list"] == [3, 1]  # an entry that holds only the aggregation is no step
    assert wbsp(tmp_path)["lost_steps_list"] == [1, 2]


@pytest.mark.parametrize("run", [None, {"virtual": {"cluster": "demo"}}, {"rank": 0}])
def test_a_summary_says_that_its_seconds_are_virtual(tmp_path, run):
    write_device(tmp_path / NETWORK / "sync" / "a" / "cpu", [sync_round(1, 12.0, 0.9)], run)
    assert summarise(tmp_path, "-m", "sync") == 0
    path = tmp_path / NETWORK / "sync" / "Sync.json"
    is_virtual = "virtual" in (run or {})
    assert read(path)["a"]["cpu"].get("virtual") == (True if is_virtual else None)
    reached = summary.read_summary(path, pytest.fail)["a", "cpu"].reached(0.8)
    assert reached.low_s == (12.0 if is_virtual else 0.0)


# ------------------------------------------------------------------------------- logs that are not as they should be


def test_a_gap_and_a_truncated_file_are_named_and_the_rest_is_summarised(tmp_path, capsys):
    folder = tmp_path / NETWORK / "sync"
    device = write_device(folder / "a" / "cpu", [sync_round(n, 10.0 * n) for n in (1, 3, 4)])
    (device / "iter-4.txt").write_text('{"num_iters": 4, "num_sam')
    assert summarise(tmp_path, "-m", "sync") == 0
    assert read(folder / "Sync.json")["a"]["cpu"]["elapsed_time_list"] == [10.0, 30.0]
    warnings = capsys.readouterr().err
    assert f"{device}: 1 round(s) missing, the first is round 2" in warnings
    assert f"{device}/iter-4.txt cannot be read as JSON" in warnings
    assert "counted without 2 lost round(s)" in warnings


def test_rounds_in_which_a_worker_took_no_part_are_not_missing(tmp_path, capsys):
    folder = tmp_path / NETWORK / "sync"
    rounds = [sync_round(n, 10.0 * n) for n in (3, 4, 7)]
    rounds[0]["missed"], rounds[2]["missed"] = 2, 2
    write_device(folder / "a" / "cpu", rounds)
    assert summarise(tmp_path, "-m", "sync") == 0
    assert read(folder / "Sync.json")["a"]["cpu"]["elapsed_time_list"] == [30.0, 40.0, 70.0]
    assert capsys.readouterr().err == ""


def test_hidden_folders_are_no_hosts(tmp_path, capsys):
    folder = write_esync(tmp_path)
    shutil.copytree(folder / "alpha", folder / ".alpha-arriving")
    assert summarise(tmp_path, "-m", "esync") == 0
    assert list(read(folder / "ESync.json")) == ["alpha", "beta"]
    assert capsys.readouterr().err == ""


def test_empty_host_and_device_folders_are_named_and_the_rest_is_summarised(tmp_path, capsys):
    folder = write_esync(tmp_path)
    (folder / "gamma").mkdir()
    (folder / "alpha" / "gpu1").mkdir()
    assert summarise(tmp_path, "-m", "esync") == 0
    assert list(read(folder / "ESync.json")) == ["alpha", "beta"]
    assert list(read(folder / "ESync.json")["alpha"]) == ["gpu0"]
    assert capsys.readouterr().err == (
        f"warning: {folder}/alpha/gpu1 holds no readable round (iter-N.txt or rounds.jsonl); left out\n"
        f"warning: {folder}/gamma holds no device's folder; left out\n"
    )


def test_bytes_that_some_rounds_lack_are_left_out_and_told(tmp_path, capsys):
    folder = tmp_path / NETWORK / "esync"
    counted = {"bytes_pushed": 10, "bytes_pulled": 20}
    write_device(folder / "a" / "cpu", [esync_round(1, 1.0, 1, **counted), esync_round(2, 2.0, 1, bytes_pulled=20)])
    assert summarise(tmp_path, "-m", "esync") == 0
    device = read(folder / "ESync.json")["a"]["cpu"]
    assert "bytes_pushed_list" not in device
    assert device["bytes_pulled_list"] == [20, 20]
    assert "bytes_pushed is missing in 1 of 2 rounds" in capsys.readouterr().err


def test_an_event_of_an_unknown_kind_is_told_by_file_name_and_the_others_are_kept(tmp_path, capsys):
    sound = {"kind": "switch", "text": "BSP to ASP"}
    device = write_events(tmp_path, [sound], [{"kind": "swap", "text": ""}, sound])
    assert summarise(tmp_path, "-m", "wbsp") == 0
    assert wbsp(tmp_path)["event_list"] == [[10.0, "switch", "BSP to ASP"], [20.0, "switch", "BSP to ASP"]]
    [warning] = capsys.readouterr().err.splitlines()
    assert warning.startswith(
        f"warning: {device}/iter-2.txt: 1 event(s) left out: an event's kind is 'swap', but should"
    )


@pytest.mark.parametrize(
    "spoilt",
    [
        *({"events": each} for each in (7, "switch", ["switch"], [{"text": ""}], [{"kind": [], "text": ""}])),
        *({"steps_lost": each} for each in (-1, 1.5, "2", True)),
        *({"bytes_pushed": -1}, {"evaluated": [3]}, {"missed": {}}),
    ],
)
def test_an_entry_of_another_shape_costs_its_round_alone_and_is_named(tmp_path, capsys, spoilt):
    (key,) = spoilt
    rounds = [sync_round(1, 10.0), sync_round(2, 20.0, **spoilt), sync_round(3, 30.0)]
    device = write_device(tmp_path / NETWORK / "wbsp" / "a" / "cpu", rounds)
    assert summarise(tmp_path, "-m", "wbsp") == 0
    assert wbsp(tmp_path)["elapsed_time_list"] == [10.0, 30.0]
    first, _ = capsys.readouterr().err.splitlines()
    assert (
        first.startswith(f"warning: {device}/iter-2.txt is not a round log (Expected ") or "missing required" in first
    )
    assert f"$.{key}" in first and first.endswith("; round 2 left out")


def test_a_malformed_event_in_a_summary_costs_only_itself(tmp_path):
    write_events(tmp_path, [{"kind": "switch", "text": ""}])
    assert summarise(tmp_path, "-m", "wbsp") == 0
    path, warnings = tmp_path / NETWORK / "wbsp" / "WBSP.json", []
    content = read(path)
    content["a"]["cpu"]["event_list"].append([20.0, "swap", ""])
    path.write_text(json.dumps(content))
    device = summary.read_summary(path, warnings.append)["a", "cpu"]
    assert device.events == [(10.0, "switch", "")]
    assert warnings == [
        f"{path}: a/cpu: 1 event(s) left out: an event's kind is 'swap', "
        "but should be one of members, release, switch, greedy, elastic, resume, evaluator"
    ]


@pytest.mark.parametrize("accuracy", ["NaN", '"high"', "null", "-0.5"])
def test_an_accuracy_that_is_no_number_is_told_and_left_out(tmp_path, capsys, accuracy):
    folder = tmp_path / NETWORK / "sync"
    device = write_device(folder / "a" / "cpu", [sync_round(1, 10.0, 0.4), sync_round(2, 20.0, 0.5)])
    text = (device / "iter-2.txt").read_text()
    (device / "iter-2.txt").write_text(text.replace('"accuracy": 0.5', f'"accuracy": {accuracy}'))
    assert summarise(tmp_path, "-m", "sync") == 0
    assert read(folder / "Sync.json")["a"]["cpu"]["accuracy_list"] == [0.4]
    assert "after 20.0 s is no number" in capsys.readouterr().err


# JSON text in place of a number that can be
IMPOSSIBLE = ["NaN", "Infinity", "1e999", "-3", '"3"', "true", "{}", "null", "1" + 400 * "0"]


def damaged(base, old, new, number=3, other=True):
    """SSGD's logs of two workers, rounds of 10 s, with another text in a round of the first."""
    folder = base / NETWORK / "sync" / "a"
    rounds = [sync_round(each, 10.0 * each, 0.1 * each) for each in range(1, 7)]
    path = write_device(folder / "cpu0", rounds) / f"iter-{number}.txt"
    if other:
        write_device(folder / "cpu1", [sync_round(each, 10.0 * each) for each in range(1, 7)])
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize("value", IMPOSSIBLE)
@pytest.mark.parametrize(
    ("old", "name"),
    [('"total_time": 30.0', "total_time"), ('"num_samples": 64', "num_samples"), ('"get_batch": 0.25', "time")],
)
def test_an_impossible_number_costs_its_round_alone_and_is_named(tmp_path, capsys, old, name, value):
    path = damaged(tmp_path, old, f"{old.rpartition(' ')[0]} {value}")
    assert summarise(tmp_path, "-m", "sync") == 0
    devices = read(tmp_path / NETWORK / "sync" / "Sync.json")["a"]
    assert devices["cpu0"]["elapsed_time_list"] == [10.0, 20.0, 40.0, 50.0, 60.0]
    assert len(devices["cpu1"]["elapsed_time_list"]) == 6
    warning = capsys.readouterr().err.splitlines()[0]
    assert warning.startswith(f"warning: {path} is not a round log (")
    assert name in warning
    assert warning.endswith("; round 3 left out")


@pytest.mark.parametrize("value", [*IMPOSSIBLE, "1.7", "80"])
def test_an_impossible_accuracy_costs_itself_alone_and_is_named(tmp_path, capsys, value):
    path = damaged(tmp_path, '"accuracy": 0.4', f'"accuracy": {value}', number=4)
    assert summarise(tmp_path, "-m", "sync") == 0
    device = read(tmp_path / NETWORK / "sync" / "Sync.json")["a"]["cpu0"]
    assert device["accuracy_time_list"] == [10.0, 20.0, 30.0, 50.0, 60.0]
    assert len(device["num_samples_list"]) == 6
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {path}: accuracy ")
    assert warning.endswith(" after 40.0 s is no number from 0 to 1; left out")


def test_accuracies_in_percent_are_left_out_in_one_line_and_not_rescaled(tmp_path, capsys):
    rounds = [sync_round(number, 10.0 * number, each) for number, each in enumerate([0.9, 30, 55.5, 80], start=1)]
    device = write_device(tmp_path / NETWORK / "sync" / "a" / "cpu", rounds)
    assert summarise(tmp_path, "-m", "sync") == 0
    assert read(tmp_path / NETWORK / "sync" / "Sync.json")["a"]["cpu"]["accuracy_list"] == []
    (warning,) = capsys.readouterr().err.splitlines()
    assert f"{device}: 4 of 4 accuracies left out; the first: {device}/iter-1.txt: accuracy 0.9 after 10.0 s" in warning
    assert warning.endswith("is in percent, as are most of them: write shares from 0 to 1; left out")


@pytest.mark.parametrize(
    ("times", "kept"),
    [
        ([1, 2, 3, 4, 5, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]),  # run back: 64 samples/s, not 96
        ([1, 2, 3000, 4, 5], [1, 2, 4, 5]),
        ([1, 2, 0.5, 4, 5], [1, 2, 4, 5]),
        ([900, 2, 3, 4], [2, 3, 4]),
        ([0, 0, 1, 1, 99, 1, 2], [0, 0, 1, 1, 1, 2]),  # published times are whole seconds
        ([5, 3], [5]),
    ],
)
def test_rounds_whose_time_contradicts_the_others_are_left_out(tmp_path, capsys, times, kept):
    rounds = [sync_round(number, float(each)) for number, each in enumerate(times, start=1)]
    device = write_device(tmp_path / NETWORK / "sync" / "a" / "cpu", rounds)
    assert summarise(tmp_path, "-m", "sync") == 0
    assert read(tmp_path / NETWORK / "sync" / "Sync.json")["a"]["cpu"]["elapsed_time_list"] == kept
    assert f"warning: {device}/iter-" in capsys.readouterr().err


def test_times_in_milliseconds_are_told(tmp_path, capsys):
    in_ms = {"0": {"get_batch": 250.0, "forward and backward": 500.0}}
    folder = tmp_path / NETWORK / "sync" / "a"
    write_device(folder / "stages", [sync_round(number, float(number)) | {"time": in_ms} for number in (1, 2)])
    write_device(folder / "total", [sync_round(number, 3000.0 * number) for number in (1, 2)])
    assert summarise(tmp_path, "-m", "sync") == 0
    assert list(read(tmp_path / NETWORK / "sync" / "Sync.json")["a"]) == ["total"]
    told = capsys.readouterr().err
    assert f"{folder}/stages/iter-1.txt: its stages take 750 s, in a round of 1 s: are they milliseconds?" in told
    assert f"{folder}/total: total_time is 6000 s at the end, and the stages of all rounds take 5.5 s" in told


@pytest.mark.parametrize("content", [b"[" * 100_000, b"", b"\xff\xfe\x00\xd8", b"\0" * 50])
def test_a_file_that_cannot_be_read_costs_its_round_alone(tmp_path, capsys, content):
    path = damaged(tmp_path, "{", "{")
    path.write_bytes(content)
    assert summarise(tmp_path, "-m", "sync") == 0
    assert len(read(tmp_path / NETWORK / "sync" / "Sync.json")["a"]["cpu0"]["elapsed_time_list"]) == 5
    assert capsys.readouterr().err.startswith(f"warning: {path} cannot be read as JSON: ")


def test_a_folder_in_place_of_a_log_costs_its_round_alone(tmp_path, capsys):
    path = damaged(tmp_path, "{", "{")
    path.unlink()
    path.mkdir()
    (path.parent / "rounds.jsonl").mkdir()
    assert summarise(tmp_path, "-m", "sync") == 0
    assert len(read(tmp_path / NETWORK / "sync" / "Sync.json")["a"]["cpu0"]["elapsed_time_list"]) == 5
    assert f"{path} cannot be read: Is a directory; round 3 left out" in capsys.readouterr().err


def test_many_bad_rounds_of_a_device_are_one_line_with_their_number_and_the_first(tmp_path, capsys):
    rounds = [sync_round(number, 10.0 * number) for number in range(1, 200)]
    device = write_device(tmp_path / NETWORK / "sync" / "a" / "cpu", rounds)
    for number in range(50, 150):
        (device / f"iter-{number}.txt").write_text("{")
    assert summarise(tmp_path, "-m", "sync") == 0
    first, _ = capsys.readouterr().err.splitlines()
    assert first.startswith(f"warning: {device}: 100 of 199 rounds left out; the first: {device}/iter-50.txt cannot")


def test_a_round_that_is_there_twice_counts_once_and_is_told(tmp_path, capsys):
    device = write_device(tmp_path / NETWORK / "sync" / "a" / "cpu", [])
    lines = [json.dumps(sync_round(number, 10.0 * number)) for number in (1, 2, 2, 3)]
    (device / "rounds.jsonl").write_text("\n".join(lines))
    assert summarise(tmp_path, "-m", "sync") == 0
    assert read(tmp_path / NETWORK / "sync" / "Sync.json")["a"]["cpu"]["num_samples_list"] == [64, 64, 64]
    (warning,) = capsys.readouterr().err.splitlines()
    assert f"{device}/rounds.jsonl, line 3: round 2 is there once more, and the last counts" in warning


def test_a_number_of_a_round_that_no_job_has_is_no_gap(tmp_path, capsys):
    path = damaged(tmp_path, "{", "{")
    shutil.copy(path, path.with_name(f"iter-{10**40}.txt"))
    assert summarise(tmp_path, "-m", "sync") == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert f"iter-{10**40}.txt is not a round log (no job has so many rounds)" in warning


def test_a_device_whose_log_ends_early_is_told(tmp_path, capsys):
    path = damaged(tmp_path, "{", "{")
    for number in (4, 5, 6):
        path.with_name(f"iter-{number}.txt").unlink()
    assert summarise(tmp_path, "-m", "sync") == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert f"{path.parent}: its log ends early, after 3 round(s) and 30 s, where others go on to 60 s" in warning


def test_an_impossible_number_in_a_summary_costs_its_round_alone(tmp_path):
    write_sync(tmp_path)
    assert summarise(tmp_path, "-m", "sync") == 0
    path, warnings = tmp_path / NETWORK / "sync" / "Sync.json", []
    content = read(path)
    gpu, cpu = content["alpha"]["gpu0"], content["beta"]["cpu"]
    gpu["accuracy_list"][1], cpu["elapsed_time_list"][1] = 1.7, float("nan")
    path.write_text(json.dumps(content))
    devices = summary.read_summary(path, warnings.append)
    assert devices["alpha", "gpu0"].curve == [(12.0, 0.4), (36.0, 0.75)]
    assert [one.elapsed_s for one in devices["beta", "cpu"].rounds] == [12.0, 36.0]
    assert warnings == [
        f"{path}: alpha/gpu0: 1 of 3 accuracies left out: no number from 0 to 1",
        f"{path}: beta/cpu: 1 of 3 rounds left out, the first is 2: a number in it cannot be",
    ]


# ------------------------------------------------------------------------------------------- whose logs count


def members(count):
    return [{"rank": rank, "host": "a", "device": f"cpu{rank}"} for rank in range(count)]


def write_worker(base, rank, of, **run):
    """A worker's logs of six rounds in a job of `of` workers."""
    folder = base / NETWORK / "sync" / "a" / f"cpu{rank}"
    about = {"rank": rank, "num_workers": of, "members": members(of), "ended": "6 rounds done", **run}
    return write_device(folder, [sync_round(number, 10.0 * number) for number in range(1, 7)], about)


def test_logs_of_an_earlier_larger_job_do_not_count(tmp_path, capsys):
    for rank in range(4):
        run = write_worker(tmp_path, rank, of=2 if rank < 2 else 4) / "run.json"
        os.utime(run, (rank, rank))  # as those of files that were copied: they say nothing
    folder = tmp_path / NETWORK / "sync"
    assert summarise(tmp_path, "-m", "sync") == 0
    assert list(read(folder / "Sync.json")["a"]) == ["cpu0", "cpu1"]
    assert capsys.readouterr().err == (
        f"warning: {folder}: a/cpu2, a/cpu3 left out: a/cpu1/run.json, the newest, does not name them among its "
        "workers; this is of an earlier run\n"
    )


def test_of_two_runs_on_other_devices_the_newer_counts(tmp_path):
    for rank, age_s in ((0, 100), (1, 100), (2, 200)):
        run = write_worker(tmp_path, rank, of=2, **({"members": [members(3)[2]]} if rank == 2 else {})) / "run.json"
        os.utime(run, (age_s, age_s))
    assert summarise(tmp_path, "-m", "sync") == 0
    assert list(read(tmp_path / NETWORK / "sync" / "Sync.json")["a"]) == ["cpu2"]


def test_workers_of_the_first_part_of_a_resumed_job_count_up_to_its_end(tmp_path, capsys):
    before = [f"cpu{rank} on host a" for rank in range(4)]
    for rank in range(4):
        more = {"workers_before": before, "resumed_after": 4, "config": {"resume": 1}}
        write_worker(tmp_path, rank, of=2 if rank < 2 else 4, **(more if rank < 2 else {}))
    assert summarise(tmp_path, "-m", "sync") == 0
    devices = read(tmp_path / NETWORK / "sync" / "Sync.json")["a"]
    assert [len(device["num_samples_list"]) for device in devices.values()] == [6, 6, 4, 4]
    (warning,) = capsys.readouterr().err.splitlines()
    assert "a/cpu2, a/cpu3 took part in the first part of the run, which was resumed with 2 worker(s) after" in warning
    assert "remove" not in warning


def test_logs_that_may_be_of_a_resumed_job_are_not_called_anothers(tmp_path, capsys):
    for rank in range(3):
        write_worker(tmp_path, rank, of=2 if rank < 2 else 3, config={"resume": int(rank < 2)})
    assert summarise(tmp_path, "-m", "sync") == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.endswith("the run was resumed, so this may be its first part: keep it")


def test_a_worker_whose_run_file_is_lost_counts_if_the_others_name_it(tmp_path):
    for rank in range(3):
        write_worker(tmp_path, rank, of=2)
    for rank in (1, 2):
        (tmp_path / NETWORK / "sync" / "a" / f"cpu{rank}" / "run.json").unlink()
    assert summarise(tmp_path, "-m", "sync") == 0
    assert list(read(tmp_path / NETWORK / "sync" / "Sync.json")["a"]) == ["cpu0", "cpu1"]


def test_the_size_of_the_model_goes_into_the_summary(tmp_path):
    folder = tmp_path / NETWORK / "sync"
    write_device(folder / "a" / "cpu", [sync_round(1, 10.0)], {"rank": 0, "num_workers": 1, "parameter_bytes": 246824})
    assert summarise(tmp_path, "-m", "sync") == 0
    assert read(folder / "Sync.json")["a"]["cpu"]["parameter_bytes"] == 246824


@pytest.mark.parametrize("text", ['{"rank": 0, "num', "[0]", '{"rank": "none"}', '{"rank": -1, "parameter_bytes": -8}'])
def test_a_damaged_run_file_costs_only_the_rank(tmp_path, text):
    folder = tmp_path / NETWORK / "sync"
    (write_device(folder / "a" / "cpu", [sync_round(1, 10.0)]) / "run.json").write_text(text)
    assert summarise(tmp_path, "-m", "sync") == 0
    assert "rank" not in read(folder / "Sync.json")["a"]["cpu"]


def test_the_missing_logs_of_a_host_are_noticed(tmp_path, capsys):
    folder = tmp_path / NETWORK / "sync"
    write_device(folder / "a" / "cpu", [sync_round(1, 10.0)], {"rank": 1, "num_workers": 3})
    write_device(folder / "a" / "gpu0", [sync_round(1, 10.0)], {"rank": 0, "num_workers": 3})
    assert summarise(tmp_path, "-m", "sync") == 0
    warning = capsys.readouterr().err
    assert "the job had 3 worker(s), the logs are of rank(s) 0, 1; copy the logs of all hosts there" in warning


def test_what_an_earlier_run_left_is_noticed(tmp_path, capsys):
    folder = write_esync(tmp_path)
    write_device(folder / "beta" / "gpu7", [esync_round(1, 1.0, 1)], {"rank": 1, "num_workers": 2})
    assert summarise(tmp_path, "-m", "esync") == 0
    assert (
        "rank(s) 0, 1, 1; copy the logs of all hosts there, and remove what other runs left" in capsys.readouterr().err
    )


def test_a_mode_without_logs_does_not_keep_the_others_from_their_summaries(tmp_path, capsys):
    write_esync(tmp_path)
    (tmp_path / NETWORK / "sync").mkdir()
    assert summarise(tmp_path) == 0
    assert (tmp_path / NETWORK / "esync" / "ESync.json").exists()
    assert f"warning: {tmp_path / NETWORK / 'sync'} holds no readable round log" in capsys.readouterr().err


def test_a_folder_of_logs_that_is_no_mode_is_named(tmp_path, capsys):
    write_esync(tmp_path)
    write_device(write_sync(tmp_path, "sync-old") / "x" / "cpu", [])
    (write_device(tmp_path / NETWORK / "lines" / "a" / "cpu", []) / "rounds.jsonl").write_text("{}\n")
    assert summarise(tmp_path) == 0
    warnings = capsys.readouterr().err
    assert f"{tmp_path / NETWORK / 'sync-old'} is no mode of this program; left out" in warnings
    assert f"{tmp_path / NETWORK / 'lines'} is no mode of this program; left out" in warnings


def test_earlier_runs_are_no_network_and_each_is_a_log_tree(tmp_path, capsys):
    write_esync(tmp_path / "earlier" / "2026-11-25-120000")
    (tmp_path / "mlp").mkdir()
    for base, network in ((tmp_path, "earlier"), (tmp_path / "earlier", NETWORK)):
        assert summary.main(["-b", str(base), "-n", network]) == 2
        assert f"{tmp_path / 'earlier'} holds earlier runs, each of them a log tree (2026" in capsys.readouterr().err
    assert summarise(tmp_path) == 2
    assert f"{tmp_path} holds mlp: choose with -n" in capsys.readouterr().err
    assert summarise(tmp_path / "earlier" / "2026-11-25-120000") == 0


def test_an_empty_mode_leaves_an_earlier_summary_alone(tmp_path, capsys):
    folder = tmp_path / NETWORK / "esync"
    (folder / "alpha" / "cpu").mkdir(parents=True)
    (folder / "ESync.json").write_text("{}")
    assert summarise(tmp_path, "-m", "esync") == 2
    assert (folder / "ESync.json").read_text() == "{}"


def test_a_summary_that_cannot_be_written_ends_in_one_line(tmp_path, capsys):
    folder = write_esync(tmp_path)
    (folder / "ESync.json.tmp").mkdir()  # in the way of the file that is written first
    assert summarise(tmp_path, "-m", "esync") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert f"{folder}/ESync.json.tmp" in error


# ------------------------------------------------------------------------------------------------ as a program


def test_the_published_command_line_works():
    flags = summary.tree_parser("").parse_args(["-b", "/path/to/logs", "-n", "resnet18-v1"])
    assert flags.base == Path("/path/to/logs")
    assert flags.network == "resnet18-v1"


def test_a_real_run_prints_what_it_wrote(tmp_path):
    folder = write_esync(tmp_path)
    result = run_program("summary.py", "-b", tmp_path, "-n", NETWORK, "-m", "esync")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{folder}/ESync.json: 2 device(s) on 2 host(s), 2 rounds\n"


def test_a_real_run_on_an_empty_tree_ends_with_one_line_and_exit_code_2(tmp_path):
    folder = tmp_path / NETWORK / "esync"
    folder.mkdir(parents=True)
    result = run_program("summary.py", "-b", tmp_path, "-n", NETWORK, "-m", "esync")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        f"error: {folder} holds no readable round log (HOST/DEVICE/iter-N.txt or rounds.jsonl); "
        "train first, or copy the log folders of all hosts there\n"
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("-b", "{base}/nowhere"), "{base}/nowhere is not a folder; give the one that holds NETWORK/MODE/HOST"),
        (("-b", "{base}", "-n", "lenett"), "{base}/lenett is not a folder; {base} holds lenet: choose with -n"),
        (("-b", "{base}", "-n", NETWORK, "-m", "async"), "{base}/lenet holds no folder async, but esync; train first"),
    ],
)
def test_a_wrong_folder_is_named_with_what_is_there(tmp_path, capsys, arguments, complaint):
    write_esync(tmp_path)
    assert summary.main([argument.format(base=tmp_path) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert complaint.format(base=tmp_path) in error
    assert error.count("\n") == 1


def test_an_unknown_mode_is_refused_with_the_known_ones(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        summarise(tmp_path, "-m", "esink")
    assert end.value.code == 2
    assert "esync-niid" in capsys.readouterr().err


def test_summary_needs_nothing_but_the_standard_library():
    program = (
        "import sys\n"
        "for name in ('mxnet', 'django', 'numpy', 'matplotlib', 'requests'): sys.modules[name] = None\n"
        "import summary\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


def test_the_reader_knows_the_stages_that_the_writer_uses(tmp_path):
    now = iter([0.0, 0.0, 1.0, 3.0, 7.0, 15.0, 15.0, 15.0]).__next__
    made = measure.Measure(write_device(tmp_path / NETWORK / "sync" / "a" / "cpu", []), clock=now)
    for stage in (measure.GET_BATCH, measure.FORWARD_BACKWARD, measure.GLOBAL_AGGREGATE):
        made.enter(stage)  # at 1, 3 and 7 s
    made.write_round(64)  # ends at 15 s
    assert summarise(tmp_path, "-m", "sync") == 0
    device = read(tmp_path / NETWORK / "sync" / "Sync.json")["a"]["cpu"]
    assert device["computing_time_list"] == [6.0]  # 2 s get_batch, 4 s forward and backward
    assert device["aggregate_time_list"] == [8.0]
    assert device["elapsed_time_list"] == [15.0]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_nobody_reads_to_its_end_costs_no_summary_and_no_words(tmp_path, unbuffered):
    write_esync(tmp_path)
    write_sync(tmp_path)
    command = [sys.executable, "summary.py", "-b", tmp_path, "-n", NETWORK]
    reader, pipe = os.pipe()
    os.close(reader)  # as head does before the end
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, cwd=ROOT, stdout=pipe, stderr=subprocess.PIPE, env=environment, timeout=60)
    os.close(pipe)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")
    assert len([*tmp_path.glob(f"{NETWORK}/*/*.json")]) == 2
