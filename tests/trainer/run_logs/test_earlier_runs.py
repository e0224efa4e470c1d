"""What is moved where when a run takes the place of another, and how many runs stay."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from trainer.run_logs import earlier_runs
from trainer.run_logs.earlier_runs import KEPT, Notice, clear_mode, date_time, set_aside, targets, to_remove, written
from utils import SetupError

names = st.lists(st.sampled_from([f"2026-11-{day:02}-120000" for day in range(1, 31)]), min_size=1, unique=True)
others = st.lists(st.sampled_from(["best-run", "2026-11-25", "notes", ".lock", "x2026-11-25-120000"]), unique=True)


@given(names, others, st.data())
def test_the_last_runs_stay_with_the_newest_and_so_does_what_is_no_run(runs, foreign, data):
    newest = data.draw(st.sampled_from(runs))  # also of a job that was started long before it trained
    removed = to_remove([*foreign, *runs], newest)
    before = [run for run in runs if run != newest]  # in the order in which they came, whatever their names are
    assert {*runs} - {*removed} == {newest, *before[-(KEPT - 1) :]}
    assert not {*removed} & {*foreign}


def test_a_file_keeps_its_place_in_the_tree_and_what_was_put_away_gets_its_own_again():
    base, run = Path("logs"), Path("logs/earlier/2026-11-25-120000")
    moves = {
        "lenet/sync/h/cpu0/iter-1.txt": "lenet/sync/h/cpu0/iter-1.txt",
        "seed-1/lenet/sync/h/cpu0/run.json": "seed-1/lenet/sync/h/cpu0/run.json",
        "lenet/sync/.worker0.log.before": "lenet/sync/worker0.log",
        "lenet/sync/h/.checkpoints/earlier/worker-0-00000001.ckpt": "lenet/sync/h/.checkpoints/worker-0-00000001.ckpt",
        "lenet/sync/h/.checkpoints/worker-0-00000001.ckpt": "lenet/sync/h/.checkpoints/worker-0-00000001.ckpt",
    }
    assert targets([base / path for path in moves], base, run) == {
        base / path: run / target for path, target in moves.items()
    }


def test_only_what_a_worker_writes_counts_as_its_log(tmp_path):
    mine = {"iter-1.txt", "rounds.jsonl", "run.json", "best.json", "final-symbol.json", "newest-0012.params.tmp"}
    for name in (*mine, "iter-01.txt", "iter-1.txt.bak", "best.onnx", "Sync.json", ".lock", "trace.json"):
        (tmp_path / name).touch()
    assert {path.name for path in written(tmp_path)} == mine
    assert written(tmp_path / "none") == []


def logs(folder: Path, *devices: str) -> list[Path]:
    for device in devices:
        (folder / device).mkdir(parents=True, exist_ok=True)
        (folder / device / "iter-1.txt").write_text(device)
    return [folder / device / "iter-1.txt" for device in devices]


def logs_in(run: Path) -> list[Path]:
    return [*run.glob("*/*/*/*/iter-1.txt")]


def test_runs_that_begin_in_one_second_are_two(tmp_path):
    host, earlier = tmp_path / "mlp" / "sync" / "h", tmp_path / "earlier" / "2026-11-25-120000"
    for _ in range(3):
        set_aside(logs(host, "cpu0"), earlier)
        set_aside(logs(host, "cpu1"), earlier)
    there = {path.name: len(logs_in(path)) for path in earlier.parent.iterdir() if path.is_dir()}
    assert there == {"2026-11-25-120000": 2, "2026-11-25-120000-2": 2, "2026-11-25-120000-3": 2}


def test_the_sixth_run_makes_the_first_go_and_the_line_names_it(tmp_path):
    host = tmp_path / "mlp" / "sync" / "h"
    (tmp_path / "earlier" / "mine").mkdir(parents=True)
    for day in range(1, KEPT + 1):
        set_aside(logs(host, "cpu0"), tmp_path / "earlier" / f"2026-11-0{day}-120000")
    earlier = tmp_path / "earlier" / "2026-11-25-120000"
    notice = Notice(host, earlier)
    assert notice.line() == ""
    set_aside(logs(host, "cpu0"), earlier)
    assert notice.line() == (
        f"the logs of the run before are in {earlier} now; the last 5 runs stay there; removed to make room: "
        "2026-11-01-120000"
    )
    kept = sorted(path.name for path in earlier.parent.iterdir() if path.is_dir())
    assert kept == [*(f"2026-11-0{day}-120000" for day in range(2, KEPT + 1)), earlier.name, "mine"]


@pytest.mark.parametrize("are_drawn", [False, True])
def test_the_last_runs_stay_also_where_local_time_runs_back(tmp_path, are_drawn):
    host, earlier = tmp_path / "mlp" / "sync" / "h", tmp_path / "earlier"
    for number in range(KEPT):  # an earlier version's, whose folders tell when they were changed
        run = earlier / f"2026-11-25-13000{number}"
        run.mkdir(parents=True)
        os.utime(run, (1e9 - number,) * 2)
    names = [f"2026-11-25-1200{number:02}" for number in reversed(range(2 * KEPT))]
    for number, name in enumerate(names):
        set_aside(logs(host, "cpu0"), earlier / name)
        there = {path.name for path in earlier.iterdir() if path.is_dir()}
        old = {f"2026-11-25-13000{each}" for each in range(max(0, KEPT - 1 - number))}
        assert there == old | {*names[max(0, number + 1 - KEPT) : number + 1]}
        if are_drawn:
            (earlier / name / "figures").mkdir()
            os.utime(earlier / names[max(0, number - 2)])  # what changes in a folder later does not make it newer
    set_aside(logs(host, "cpu1"), earlier)  # a worker that was started by hand finds the run of the others
    assert (earlier / names[-1] / "mlp" / "sync" / "h" / "cpu1" / "iter-1.txt").exists()


def test_the_hour_that_autumn_repeats_gives_no_name_twice(monkeypatch):
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        twice = 1792888200.0  # 2026-10-25, 00:30 UTC
        names = [date_time(twice + hours * 3600.0) for hours in (-1, 0, 1, 2)]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert names == ["2026-10-25-013000", "2026-10-25-023000", "2026-10-25-023000-2", "2026-10-25-033000"]
    assert to_remove([*names, *["2026-10-25-023000-2-2"] * KEPT], "")[:4] == names


def test_a_launcher_leaves_a_device_alone_that_another_worker_writes_to(tmp_path):
    mode, earlier = tmp_path / "mlp" / "sync", tmp_path / "earlier" / "2026-11-25-120000"
    logs(mode / "h", "cpu0", "cpu1", "cpu2")
    logs(mode / "gone", "cpu0")
    with (mode / "h" / "cpu2" / ".lock").open("w") as lock:
        earlier_runs.fcntl.flock(lock, earlier_runs.fcntl.LOCK_EX)
        clear_mode(mode, {("h", "cpu0")}, earlier, keeps_checkpoints=False)
    assert sorted(str(path.relative_to(mode)) for path in mode.glob("*/*")) == ["h/cpu0", "h/cpu2"]
    moved = sorted(str(path.relative_to(earlier)) for path in earlier.glob("*/*/*/*"))
    assert moved == ["mlp/sync/gone/cpu0", "mlp/sync/h/cpu1"]


@pytest.mark.parametrize("keeps", [True, False])
def test_checkpoints_go_with_the_run_that_has_written_them(tmp_path, keeps):
    mode, earlier = tmp_path / "mlp" / "sync", tmp_path / "earlier" / "2026-11-25-120000"
    (mode / "h" / ".checkpoints" / "earlier").mkdir(parents=True)
    (mode / "h" / ".checkpoints" / "worker-0-00000001.ckpt").write_text("in place")
    (mode / "h" / ".checkpoints" / "earlier" / "worker-0-00000009.ckpt").write_text("put away")
    clear_mode(mode, set(), earlier, keeps)
    (moved,) = (earlier / "mlp" / "sync" / "h" / ".checkpoints").iterdir()
    assert moved.read_text() == ("put away" if keeps else "in place")


def test_logs_of_processes_stay_until_training_begins_however_often_a_start_fails(tmp_path):
    log, page = tmp_path / "worker0.log", tmp_path / "page.html"
    log.write_text("first run")
    page.write_text("of the first run")
    for text in ("failed", "failed again"):
        earlier_runs.keep_process_logs(tmp_path, goes_on=False)
        assert not page.exists()
        log.write_text(text)
        page.write_text(text)
    assert (tmp_path / ".worker0.log.before").read_text() == "first run"
    earlier_runs.keep_process_logs(tmp_path, goes_on=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        log.name: "first run",
        page.name: "of the first run",
    }
    earlier_runs.keep_process_logs(tmp_path / "new", goes_on=True)  # the checkpoint is elsewhere


def test_a_folder_whose_process_logs_cannot_be_renamed_is_one_line(tmp_path, monkeypatch):
    def refused(path, target):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    (tmp_path / "server0.log").write_text("before")
    monkeypatch.setattr(Path, "replace", refused)
    with pytest.raises(SetupError, match=r"log folder .*: Permission denied; choose another with --log-base"):
        earlier_runs.keep_process_logs(tmp_path, goes_on=False)
    assert (tmp_path / "server0.log").read_text() == "before"


def test_what_cannot_be_moved_stays_and_is_one_line(tmp_path):
    host = tmp_path / "mlp" / "sync" / "h"
    (path,) = logs(host, "cpu0")
    (tmp_path / "earlier").touch()
    with pytest.raises(SetupError, match=r"what an earlier run left in .* cannot be moved to .*: File exists; move it"):
        set_aside([path], tmp_path / "earlier" / "2026-11-25-120000")
    assert path.exists()
