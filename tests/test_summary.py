import itertools
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from log_tree import NETWORK, ROOT, esync_round, run_program, sync_round, write_device, write_esync, write_sync

import summary
from esync import measure
from report.metrics import MODES


def summarise(base, *arguments):
    return summary.main(["-b", str(base), "-n", NETWORK, *arguments])


def read(path):
    return json.loads(path.read_text())


def write(base, rounds, mode="sync", run=None, device="cpu"):
    """The logs of one worker on host a."""
    return write_device(base / NETWORK / mode / "a" / device, rounds, run)


def summed_up(base, mode="sync"):
    """What the summary has of each host."""
    assert summarise(base, "-m", mode) == 0
    return read(base / NETWORK / mode / MODES[mode].file_name)


def of_one(base, rounds, mode="sync", run=None):
    """What the summary has of a worker that has logged these rounds."""
    write(base, rounds, mode, run)
    return summed_up(base, mode)["a"]["cpu"]


def every_10_s(count, *accuracies):
    return [sync_round(n, 10.0 * n, accuracy) for n, accuracy in itertools.zip_longest(range(1, count + 1), accuracies)]


# -------------------------------------------------------------------------------------------- what is written


def test_esync_of_two_hosts_is_summarised_round_by_round(tmp_path, capsys):
    folder = write_esync(tmp_path)
    (folder / "worker-0.log").write_text("a process log is no host")
    of_all = {
        "aggregate_time_list": [0.5, 0.5],
        "bytes_pushed_list": [2_000_000, 2_000_000],
        "bytes_pulled_list": [2_000_000, 2_000_000],
        "num_workers": 2,
        "lost_steps_list": [0, 0],
    }
    assert summed_up(tmp_path, "esync") == {
        "alpha": {
            "gpu0": of_all
            | {
                "accuracy_list": [0.5, 0.8],
                "num_samples_list": [192, 192],
                "self_iters_list": [4, 4],  # three local steps and the aggregation
                "elapsed_time_list": [4.0, 8.0],
                "accuracy_time_list": [4.0, 8.0],
                "computing_time_list": [3.0, 3.0],
                "rank": 0,
                "steps_list": [3, 3],
            }
        },
        "beta": {
            "cpu": of_all
            | {
                "accuracy_list": [],
                "num_samples_list": [64, 64],
                "self_iters_list": [2, 2],
                "elapsed_time_list": [5.0, 10.0],
                "accuracy_time_list": [],
                "computing_time_list": [1.0, 1.0],
                "rank": 1,
                "steps_list": [1, 1],
            }
        },
    }
    output = capsys.readouterr()
    assert output.out == f"{folder}/ESync.json: 2 device(s) on 2 host(s), 2 rounds\n"
    assert output.err == ""


def test_published_logs_get_the_published_keys_and_what_can_be_worked_out(tmp_path, capsys):
    write_sync(tmp_path)
    assert summed_up(tmp_path)["alpha"]["gpu0"] == {
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
    device = write(tmp_path, [])
    lines = [json.dumps(sync_round(1, 10.0)), '{"num_iters": 2, "num', json.dumps(sync_round(3, 30.0))]
    (device / "rounds.jsonl").write_text("\n".join([*lines, json.dumps(sync_round(4, 40.0))[:-9]]))
    assert summed_up(tmp_path)["a"]["cpu"]["elapsed_time_list"] == [10.0, 30.0]
    warnings = capsys.readouterr().err
    for line in (2, 4):
        assert f"{device}/rounds.jsonl, line {line} cannot be read as JSON" in warnings
    assert "counted without 2 lost round(s)" in warnings


@pytest.mark.parametrize("accuracies", [(0.9, 0.875), ()])
def test_local_mode_also_writes_the_final_accuracy_for_the_dotted_line_if_there_is_one(tmp_path, capsys, accuracies):
    of_one(tmp_path, every_10_s(2, *accuracies), "local")
    line = tmp_path / NETWORK / "standalone.txt"
    assert (line.read_text() if line.exists() else "") == ("0.875\n" if accuracies else "")
    told = "has no evaluation, so standalone.txt is not written" in capsys.readouterr().err
    assert told is not bool(accuracies)


def test_without_a_mode_all_that_are_there_are_summarised(tmp_path, capsys):
    write_esync(tmp_path)
    write_sync(tmp_path, "sync-niid")
    (tmp_path / NETWORK / "figures").mkdir()
    assert summarise(tmp_path) == 0
    output = capsys.readouterr()
    for path in ("esync/ESync.json", "sync-niid/Sync-Non-IID.json"):
        assert (tmp_path / NETWORK / path).exists()
        assert f"{path}: 2 device(s)" in output.out
    assert output.err == ""


def test_devices_come_in_natural_order(tmp_path):
    for name in ("cpu10", "cpu2", "cpu"):
        write(tmp_path, [sync_round(1, 1.0)], device=name)
    assert list(summed_up(tmp_path)["a"]) == ["cpu", "cpu2", "cpu10"]


def with_events(*of_rounds):
    """A round every 10 s; its "events" where they are not None."""
    return [
        one | ({} if events is None else {"events": events})
        for one, events in zip(every_10_s(len(of_rounds)), of_rounds, strict=True)
    ]


@pytest.mark.parametrize("mode", ["wbsp", "sync"])  # every one can tell that its worker evaluates itself
def test_an_event_keeps_the_time_of_its_round(tmp_path, capsys, mode):
    told = (("release", "model 1"), ("resume", "from round 2"), ("evaluator", "in the worker from 12 s on"))
    release, resume, evaluator = ({"kind": kind, "text": text} for kind, text in told)
    assert of_one(tmp_path, with_events([release], None, [resume, evaluator]), mode)["event_list"] == [
        [at, *about] for at, about in zip((10.0, 30.0, 30.0), told, strict=True)
    ]
    assert capsys.readouterr().err == ""


def test_steps_that_were_abandoned_dropped_or_are_to_be_done_again_are_lost(tmp_path):
    complete, abandoned = {"forward and backward": 1.0}, {"abandoned": 0.5, "global update": 0.25}
    rounds = [
        sync_round(1, 10.0) | {"time": {"0": complete, "1": complete, "2": abandoned}},
        sync_round(2, 20.0, steps_lost=2) | {"time": {"0": complete, "1": {"global update": 0.25}}},
    ]
    device = of_one(tmp_path, rounds, "wbsp")
    assert device["steps_list"] == [3, 1]  # an entry that holds only the aggregation is no step
    assert device["lost_steps_list"] == [1, 2]


@pytest.mark.parametrize("run", [None, {"virtual": {"cluster": "demo"}}, {"rank": 0}])
def test_a_summary_says_that_its_seconds_are_virtual(tmp_path, run):
    is_virtual = "virtual" in (run or {})
    assert of_one(tmp_path, [sync_round(1, 12.0, 0.9)], run=run).get("virtual") == (True if is_virtual else None)
    reached = summary.read_summary(tmp_path / NETWORK / "sync" / "Sync.json", pytest.fail)["a", "cpu"].reached(0.8)
    assert reached.low_s == (12.0 if is_virtual else 0.0)


# ------------------------------------------------------------------------------- logs that are not as they should be


def test_a_gap_and_a_truncated_file_are_named_and_the_rest_is_summarised(tmp_path, capsys):
    device = write(tmp_path, [sync_round(n, 10.0 * n) for n in (1, 3, 4)])
    (device / "iter-4.txt").write_text('{"num_iters": 4, "num_sam')
    assert summed_up(tmp_path)["a"]["cpu"]["elapsed_time_list"] == [10.0, 30.0]
    warnings = capsys.readouterr().err
    assert f"{device}: 1 round(s) missing, the first is round 2" in warnings
    assert f"{device}/iter-4.txt cannot be read as JSON" in warnings
    assert "counted without 2 lost round(s)" in warnings


def test_rounds_in_which_a_worker_took_no_part_are_not_missing(tmp_path, capsys):
    rounds = [sync_round(3, 30.0, missed=2), sync_round(4, 40.0), sync_round(7, 70.0, missed=2)]
    assert of_one(tmp_path, rounds)["elapsed_time_list"] == [30.0, 40.0, 70.0]
    assert capsys.readouterr().err == ""


def test_hidden_folders_are_no_hosts(tmp_path, capsys):
    folder = write_esync(tmp_path)
    shutil.copytree(folder / "alpha", folder / ".alpha-arriving")
    assert list(summed_up(tmp_path, "esync")) == ["alpha", "beta"]
    assert capsys.readouterr().err == ""


def test_empty_host_and_device_folders_are_named_and_the_rest_is_summarised(tmp_path, capsys):
    folder = write_esync(tmp_path)
    (folder / "gamma").mkdir()
    (folder / "alpha" / "gpu1").mkdir()
    its = summed_up(tmp_path, "esync")
    assert {host: list(devices) for host, devices in its.items()} == {"alpha": ["gpu0"], "beta": ["cpu"]}
    assert capsys.readouterr().err == (
        f"warning: {folder}/alpha/gpu1 holds no readable round (iter-N.txt or rounds.jsonl); left out\n"
        f"warning: {folder}/gamma holds no device's folder; left out\n"
    )


def test_bytes_that_some_rounds_lack_are_left_out_and_told(tmp_path, capsys):
    rounds = [esync_round(1, 1.0, 1, bytes_pushed=10, bytes_pulled=20), esync_round(2, 2.0, 1, bytes_pulled=20)]
    device = of_one(tmp_path, rounds, "esync")
    assert "bytes_pushed_list" not in device
    assert device["bytes_pulled_list"] == [20, 20]
    assert "bytes_pushed is missing in 1 of 2 rounds" in capsys.readouterr().err


def test_an_event_of_an_unknown_kind_is_told_by_file_name_and_the_others_are_kept(tmp_path, capsys):
    sound = {"kind": "switch", "text": "BSP to ASP"}
    device = of_one(tmp_path, with_events([sound], [{"kind": "swap", "text": ""}, sound]), "wbsp")
    assert device["event_list"] == [[10.0, "switch", "BSP to ASP"], [20.0, "switch", "BSP to ASP"]]
    [warning] = capsys.readouterr().err.splitlines()
    assert "a/cpu/iter-2.txt: 1 event(s) left out: an event's kind is 'swap', but should" in warning


@pytest.mark.parametrize(
    "spoilt",
    [
        *({"events": each} for each in (7, "switch", ["switch"], [{"text": ""}], [{"kind": [], "text": ""}])),
        *({"steps_lost": each} for each in (-1, 1.5, "2", True)),
        *({"bytes_pushed": -1}, {"evaluated": [3]}, {"missed": {}}),
    ],
)
def test_an_entry_of_another_shape_costs_its_round_alone_and_is_named(tmp_path, capsys, spoilt):
    rounds = every_10_s(3)
    rounds[1] |= spoilt
    assert of_one(tmp_path, rounds, "wbsp")["elapsed_time_list"] == [10.0, 30.0]
    first, _ = capsys.readouterr().err.splitlines()
    assert "a/cpu/iter-2.txt is not a round log (Expected " in first or "missing required" in first
    assert f"$.{next(iter(spoilt))}" in first and first.endswith("; round 2 left out")


def test_a_malformed_event_in_a_summary_costs_only_itself(tmp_path):
    write(tmp_path, with_events([{"kind": "switch", "text": ""}]), "wbsp")
    content, warnings = summed_up(tmp_path, "wbsp"), []
    content["a"]["cpu"]["event_list"].append([20.0, "swap", ""])
    path = tmp_path / NETWORK / "wbsp" / "WBSP.json"
    path.write_text(json.dumps(content))
    device = summary.read_summary(path, warnings.append)["a", "cpu"]
    assert device.events == [(10.0, "switch", "")]
    assert warnings == [
        f"{path}: a/cpu: 1 event(s) left out: an event's kind is 'swap', "
        "but should be one of members, release, switch, greedy, elastic, resume, evaluator"
    ]


# JSON text in place of a number that can be
IMPOSSIBLE = ["NaN", "Infinity", "1e999", "-3", '"3"', '"high"', "true", "{}", "null", "1" + 400 * "0"]


def damaged(base, old, new, number=3):
    """SSGD's logs of two workers, rounds of 10 s, with another text in a round of the first."""
    path = write(base, every_10_s(6, *(0.1 * each for each in range(1, 7))), device="cpu0") / f"iter-{number}.txt"
    write(base, every_10_s(6), device="cpu1")
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
    devices = summed_up(tmp_path)["a"]
    assert devices["cpu0"]["elapsed_time_list"] == [10.0, 20.0, 40.0, 50.0, 60.0]
    assert len(devices["cpu1"]["elapsed_time_list"]) == 6
    warning = capsys.readouterr().err.splitlines()[0]
    assert warning.startswith(f"warning: {path} is not a round log (")
    assert name in warning and warning.endswith("; round 3 left out")


@pytest.mark.parametrize("value", [*IMPOSSIBLE, "1.7", "80", "-0.5"])
def test_an_impossible_accuracy_costs_itself_alone_and_is_named(tmp_path, capsys, value):
    path = damaged(tmp_path, '"accuracy": 0.4', f'"accuracy": {value}', number=4)
    device = summed_up(tmp_path)["a"]["cpu0"]
    assert device["accuracy_time_list"] == [10.0, 20.0, 30.0, 50.0, 60.0]
    assert len(device["num_samples_list"]) == 6
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {path}: accuracy ")
    assert warning.endswith(" after 40.0 s is no number from 0 to 1; left out")


def test_accuracies_in_percent_are_left_out_in_one_line_and_not_rescaled(tmp_path, capsys):
    assert of_one(tmp_path, every_10_s(4, 0.9, 30, 55.5, 80))["accuracy_list"] == []
    (warning,) = capsys.readouterr().err.splitlines()
    device = tmp_path / NETWORK / "sync" / "a" / "cpu"
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
    assert of_one(tmp_path, rounds)["elapsed_time_list"] == kept
    assert f"warning: {tmp_path / NETWORK}/sync/a/cpu/iter-" in capsys.readouterr().err


def test_times_in_milliseconds_are_told(tmp_path, capsys):
    in_ms = {"0": {"get_batch": 250.0, "forward and backward": 500.0}}
    stages = write(tmp_path, [sync_round(n, float(n)) | {"time": in_ms} for n in (1, 2)], device="stages")
    total = write(tmp_path, [sync_round(n, 3000.0 * n) for n in (1, 2)], device="total")
    assert list(summed_up(tmp_path)["a"]) == ["total"]
    told = capsys.readouterr().err
    assert f"{stages}/iter-1.txt: its stages take 750 s, in a round of 1 s: are they milliseconds?" in told
    assert f"{total}: total_time is 6000 s at the end, and the stages of all rounds take 5.5 s" in told


@pytest.mark.parametrize("content", [b"[" * 100_000, b"", b"\xff\xfe\x00\xd8", b"\0" * 50, None])
def test_a_file_that_cannot_be_read_costs_its_round_alone(tmp_path, capsys, content):
    path = damaged(tmp_path, "{", "{")
    if content is None:  # folders in place of logs
        path.unlink()
        path.mkdir()
        (path.parent / "rounds.jsonl").mkdir()
    else:
        path.write_bytes(content)
    assert len(summed_up(tmp_path)["a"]["cpu0"]["elapsed_time_list"]) == 5
    why = "cannot be read as JSON: " if content is not None else "cannot be read: Is a directory; round 3 left out"
    assert f"warning: {path} {why}" in capsys.readouterr().err


def test_many_bad_rounds_of_a_device_are_one_line_with_their_number_and_the_first(tmp_path, capsys):
    device = write(tmp_path, every_10_s(199))
    for number in range(50, 150):
        (device / f"iter-{number}.txt").write_text("{")
    assert summarise(tmp_path, "-m", "sync") == 0
    first, _ = capsys.readouterr().err.splitlines()
    assert first.startswith(f"warning: {device}: 100 of 199 rounds left out; the first: {device}/iter-50.txt cannot")


def test_a_round_that_is_there_twice_counts_once_and_is_told(tmp_path, capsys):
    device = write(tmp_path, [])
    lines = [json.dumps(sync_round(number, 10.0 * number)) for number in (1, 2, 2, 3)]
    (device / "rounds.jsonl").write_text("\n".join(lines))
    assert summed_up(tmp_path)["a"]["cpu"]["num_samples_list"] == [64, 64, 64]
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
    content, warnings = summed_up(tmp_path), []
    content["alpha"]["gpu0"]["accuracy_list"][1] = 1.7
    content["beta"]["cpu"]["elapsed_time_list"][1] = float("nan")
    path = tmp_path / NETWORK / "sync" / "Sync.json"
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
    """A worker's logs of six rounds in a job of `of` workers; returns its run file."""
    about = {"rank": rank, "num_workers": of, "members": members(of), "ended": "6 rounds done", **run}
    return write(base, every_10_s(6), run=about, device=f"cpu{rank}") / "run.json"


def test_logs_of_an_earlier_larger_job_do_not_count(tmp_path, capsys):
    for rank in range(4):
        os.utime(write_worker(tmp_path, rank, of=2 if rank < 2 else 4), (rank, rank))  # as of files that were copied
    assert list(summed_up(tmp_path)["a"]) == ["cpu0", "cpu1"]
    assert capsys.readouterr().err == (
        f"warning: {tmp_path / NETWORK}/sync: a/cpu2, a/cpu3 left out: a/cpu1/run.json, the newest, does not name them "
        "among its workers; this is of an earlier run\n"
    )


def test_of_two_runs_on_other_devices_the_newer_counts(tmp_path):
    for rank, age_s in ((0, 100), (1, 100), (2, 200)):
        run = write_worker(tmp_path, rank, of=2, **({"members": [members(3)[2]]} if rank == 2 else {}))
        os.utime(run, (age_s, age_s))
    assert list(summed_up(tmp_path)["a"]) == ["cpu2"]


def test_workers_of_the_first_part_of_a_resumed_job_count_up_to_its_end(tmp_path, capsys):
    before = [f"cpu{rank} on host a" for rank in range(4)]
    for rank in range(4):
        more = {"workers_before": before, "resumed_after": 4, "config": {"resume": 1}}
        write_worker(tmp_path, rank, of=2 if rank < 2 else 4, **(more if rank < 2 else {}))
    assert [len(device["num_samples_list"]) for device in summed_up(tmp_path)["a"].values()] == [6, 6, 4, 4]
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
    runs = [write_worker(tmp_path, rank, of=2) for rank in range(3)]
    for run in runs[1:]:
        run.unlink()
    assert list(summed_up(tmp_path)["a"]) == ["cpu0", "cpu1"]


@pytest.mark.parametrize("text", ['{"rank": 0, "num', "[0]", '{"rank": "none"}', '{"rank": -1, "parameter_bytes": -8}'])
def test_a_damaged_run_file_costs_only_the_rank(tmp_path, text):
    (write(tmp_path, every_10_s(1)) / "run.json").write_text(text)
    assert "rank" not in summed_up(tmp_path)["a"]["cpu"]


def test_the_missing_logs_of_a_host_and_what_an_earlier_run_left_are_noticed(tmp_path, capsys):
    for rank, device in ((1, "cpu"), (0, "gpu0")):
        write(tmp_path, every_10_s(1), run={"rank": rank, "num_workers": 3}, device=device)
    summed_up(tmp_path)
    missing = "the job had 3 worker(s), the logs are of rank(s) 0, 1; copy the logs of all hosts there"
    assert missing in capsys.readouterr().err
    write_device(write_esync(tmp_path) / "beta" / "gpu7", [esync_round(1, 1.0, 1)], {"rank": 1, "num_workers": 2})
    summed_up(tmp_path, "esync")
    too_many = "rank(s) 0, 1, 1; copy the logs of all hosts there, and remove what other runs left"
    assert too_many in capsys.readouterr().err


def test_a_mode_without_logs_and_folders_that_are_no_mode_are_named_and_the_others_are_summed_up(tmp_path, capsys):
    write_esync(tmp_path)
    (tmp_path / NETWORK / "sync").mkdir()
    write_device(write_sync(tmp_path, "sync-old") / "x" / "cpu", [])
    (write(tmp_path, [], "lines") / "rounds.jsonl").write_text("{}\n")
    assert summarise(tmp_path) == 0
    assert (tmp_path / NETWORK / "esync" / "ESync.json").exists()
    warnings = capsys.readouterr().err
    assert f"warning: {tmp_path / NETWORK / 'sync'} holds no readable round log" in warnings
    for other in ("sync-old", "lines"):
        assert f"{tmp_path / NETWORK / other} is no mode of this program; left out" in warnings


def test_earlier_runs_are_no_network_and_each_is_a_log_tree(tmp_path, capsys):
    write_esync(tmp_path / "earlier" / "2026-11-25-120000")
    (tmp_path / "mlp").mkdir()
    for base, network in ((tmp_path, "earlier"), (tmp_path / "earlier", NETWORK)):
        assert summary.main(["-b", str(base), "-n", network]) == 2
        assert f"{tmp_path / 'earlier'} holds earlier runs, each of them a log tree (2026" in capsys.readouterr().err
    assert summarise(tmp_path) == 2
    assert f"{tmp_path} holds mlp: choose with -n" in capsys.readouterr().err
    assert summarise(tmp_path / "earlier" / "2026-11-25-120000") == 0


def test_an_empty_mode_is_an_error_and_leaves_an_earlier_summary_alone(tmp_path, capsys):
    folder = tmp_path / NETWORK / "esync"
    (folder / "alpha" / "cpu").mkdir(parents=True)
    (folder / "ESync.json").write_text("{}")
    assert summarise(tmp_path, "-m", "esync") == 2
    assert (folder / "ESync.json").read_text() == "{}"
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1] == (
        f"error: {folder} holds no readable round log (HOST/DEVICE/iter-N.txt or rounds.jsonl); "
        "train first, or copy the log folders of all hosts there"
    )


def test_a_summary_that_cannot_be_written_ends_in_one_line(tmp_path, capsys):
    folder = write_esync(tmp_path)
    (folder / "ESync.json.tmp").mkdir()  # in the way of the file that is written first
    assert summarise(tmp_path, "-m", "esync") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert f"{folder}/ESync.json.tmp" in error


# ------------------------------------------------------------------------------------------------ as a program


def test_a_real_run_prints_what_it_wrote(tmp_path):
    folder = write_esync(tmp_path)
    result = run_program("summary.py", "-b", tmp_path, "-n", NETWORK)  # the published command line
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{folder}/ESync.json: 2 device(s) on 2 host(s), 2 rounds\n"


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
    made = measure.Measure(write(tmp_path, []), clock=now)
    for stage in (measure.GET_BATCH, measure.FORWARD_BACKWARD, measure.GLOBAL_AGGREGATE):
        made.enter(stage)  # at 1, 3 and 7 s
    made.write_round(64)  # ends at 15 s
    device = summed_up(tmp_path)["a"]["cpu"]
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
