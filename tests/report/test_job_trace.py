"""The trace of a job, by the rules of Chrome's trace events: by hand, and from logs as the trainers write them."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from log_tree import NETWORK, ROOT, esync_round, sync_round, write_device, write_esync

import utils
from report import job_logs, trace
from scripts import why
from trainer.run_logs import measure

STAGES = {value for name, value in vars(measure).items() if name.isupper() and isinstance(value, str)}
KEYS = {"X": {"ts", "dur", "cat", "args"}, "M": {"args"}, "i": {"ts", "s", "args"}, "C": {"ts", "args"}}


def check(path: Path) -> list[dict]:
    """The events of a trace, which follows the format's rules."""
    content = json.loads(path.read_text())
    assert set(content) == {"displayTimeUnit", "otherData", "traceEvents"}
    now: dict[tuple[int, int], int] = defaultdict(int)
    open_slices: dict[tuple[int, int], list[int]] = defaultdict(list)  # where those end that are not over
    named = set()
    for event in content["traceEvents"]:
        track, kind = (event["pid"], event["tid"]), event["ph"]
        assert event["name"] and {*KEYS[kind]} <= event.keys(), event
        if kind == "M":
            named.add((event["name"], track))
            continue
        assert ("thread_name", track) in named and any(name == "process_name" for name, _ in named)
        assert kind != "i" or event["s"] == "t"
        assert kind != "C" or all(isinstance(value, (int, float)) for value in event["args"].values())
        assert isinstance(event["ts"], int) and event["ts"] >= 0
        if kind == "X":
            assert event["ts"] >= now[track]
            now[track] = event["ts"]
            assert isinstance(event["dur"], int) and event["dur"] >= 0
            ends, end = open_slices[track], event["ts"] + event["dur"]
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
            assert not ends or end <= ends[-1], f"{event} is neither inside of the slice before nor behind it"
            ends.append(end)
    return content["traceEvents"]


def of_track(events: list[dict], name: str) -> list[dict]:
    (track,) = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["args"].get("name") == name}
    return [event for event in events if (event["pid"], event["tid"]) == track and event["ph"] != "M"]


def written(folder: Path, limit: int = trace.MAX_SLICES) -> tuple[trace.TraceSummary, list[dict]]:
    devices = sorted(path for path in folder.glob("*/*") if path.is_dir())
    told = trace.write(folder / "trace.json", job_logs.read(devices, pytest.fail), "a job", True, pytest.fail, limit)
    return told, check(folder / "trace.json")


def test_a_round_encloses_the_stages_of_its_steps_which_end_when_it_ends(tmp_path):
    """Three steps of 0.125 + 1 s, the aggregation of 0.625 s and an evaluation of 0.125 s, in a round of 8 s."""
    folder = write_device(tmp_path / "alpha" / "cpu0", [esync_round(1, 8.0, 3, 0.5)], {"rank": 0})
    told, events = written(folder.parents[1])
    first, *stages, counter = of_track(events, "cpu0 (rank 0)")
    assert (first["name"], first["ts"], first["dur"]) == ("round 1", 0, 8_000_000)
    assert (first["args"]["steps"], first["args"]["num_samples"]) == (3, 192)
    assert [stage["name"] for stage in stages[-3:]] == ["check ready", "global update", "evaluation"]
    assert {stage["name"] for stage in stages} <= STAGES
    assert stages[0]["ts"] == 8_000_000 - 3 * 1_125_000 - 750_000
    assert sum(stage["dur"] for stage in stages) == 3 * 1_125_000 + 750_000
    assert [stage["ts"] for stage in stages[1:]] == [stage["ts"] + stage["dur"] for stage in stages[:-1]]
    assert (counter["ph"], counter["ts"], counter["args"]) == ("C", 8_000_000, {"accuracy": 0.5})
    assert told == trace.TraceSummary(slices=16, until_s=None, apart_s=0.0)


def test_hosts_are_processes_and_workers_their_tracks_with_clocks_of_their_own(tmp_path):
    told, events = written(write_esync(tmp_path))
    names = {(e["pid"], e["args"]["name"]) for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert names == {(1, "host alpha"), (1, "gpu0 (rank 0)"), (2, "host beta"), (2, "cpu (rank 1)")}
    assert told.apart_s == pytest.approx(1.5)  # 5 and 10 s after 4 and 8 s
    assert told.slices == sum(event["ph"] == "X" for event in events)


def test_events_are_marks_at_the_end_of_their_round(tmp_path):
    release = {"kind": "release", "text": "release 4"}
    write_device(tmp_path / "alpha" / "cpu0", [sync_round(1, 3.0, events=[release, {"kind": "party", "text": ""}])])
    told = []
    logs = job_logs.read([tmp_path / "alpha" / "cpu0"], pytest.fail)
    marks = [event for event in trace.events(logs, None, told.append) if event["ph"] == "i"]
    assert [(mark["name"], mark["ts"], mark["args"]["text"]) for mark in marks] == [("release", 3_000_000, "release 4")]
    assert len(told) == 1 and "party" in told[0]


def test_what_no_stage_counts_is_a_gap_at_the_beginning_and_what_is_lost_is_one_between_rounds(tmp_path):
    device = write_device(tmp_path / "alpha" / "cpu0", [sync_round(n, 4.0 * n) for n in (1, 2, 4)])  # 2.75 s of stages
    told = []
    events = list(trace.events(job_logs.read([device], told.append), None, pytest.fail))
    spans = [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "round"]
    assert spans == [("round 1", 0, 4_000_000), ("round 2", 4_000_000, 8_000_000), ("round 4", 13_250_000, 16_000_000)]
    assert "round 3" in told[0]


def test_times_that_were_cut_to_whole_seconds_still_nest(tmp_path):
    """As the published program logs: rounds of 2.75 s that end after 2, 5 and 8 s."""
    write_device(tmp_path / "alpha" / "cpu0", [sync_round(n, float(int(2.75 * n))) for n in range(1, 40)])
    _, events = written(tmp_path)
    assert max(e["ts"] + e["dur"] for e in events if e["ph"] == "X") / 1e6 == pytest.approx(2.75 * 39, abs=1.0)


def test_a_trace_of_too_many_slices_ends_on_all_tracks_before(tmp_path):
    for device, round_s in (("cpu0", 3.0), ("cpu1", 6.0)):
        write_device(tmp_path / "alpha" / device, [sync_round(n, round_s * n) for n in range(1, 11)])
    told, events = written(tmp_path, limit=40)
    assert told.slices <= 40 and told.until_s == 21.0
    for device, rounds in (("cpu0", 7), ("cpu1", 3)):
        assert sum(event.get("cat") == "round" for event in of_track(events, device)) == rounds


def test_without_mxnet_and_numpy_there_is_a_trace_and_a_table_of_where_time_went(tmp_path):
    write_esync(tmp_path)
    absent = "sys.modules.update(mxnet=None, numpy=None, greenlet=None)"
    program = f"import sys; {absent}; from scripts import why; sys.exit(why.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "-b", str(tmp_path), "-n", NETWORK, "--logs-only"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    path = tmp_path / NETWORK / "esync" / "trace.json"
    assert f"{path}: " in done.stdout and "1500.0 ms apart" in done.stdout
    assert check(path)
    line = next(line for line in done.stdout.splitlines() if "beta/cpu" in line)
    assert line.split()[:5] == ["1", "beta/cpu", "12.8", "2", "4250.0"]  # 128 samples in 10 s; a step and 3.25 s more


def test_a_place_for_the_trace_that_cannot_be_written_is_an_error(tmp_path, capsys):
    write_esync(tmp_path)
    nowhere = tmp_path / "nowhere" / "trace.json"
    assert why.main(["-b", str(tmp_path), "-n", NETWORK, "--logs-only", "--trace", str(nowhere)]) == utils.EXIT_SETUP
    assert f"{nowhere}.tmp cannot be written" in capsys.readouterr().err
