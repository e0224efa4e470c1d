"""A worker's log folder: one worker's alone, and what of an earlier run stays in it."""

import errno
import logging
import os
import time

import pytest

from scripts.launch import job_options
from trainer.command_line import parse
from trainer.run_logs import earlier_runs
from trainer.run_logs.run_folder import RunFolder
from utils import RUN_FILE, SetupError, write_json


def folder(tmp_path, *flags):
    return RunFolder(parse(["-m", "sync-switch", "-c", "1", "-ld", str(tmp_path), *flags]))


def left_in(path, *names):
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
        (path / name).write_text(name)


def test_two_workers_of_one_host_do_not_share_a_log_folder(tmp_path):
    first = folder(tmp_path)
    with pytest.raises(SetupError, match=r"another worker writes its logs .* its own --device-name"):
        folder(tmp_path)
    assert folder(tmp_path, "--device-name", "cpu1").path != first.path


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_without_locks_is_named_once_and_the_job_begins(tmp_path, monkeypatch, caplog, code):
    def flock(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(earlier_runs.fcntl, "flock", flock)
    monkeypatch.setattr(earlier_runs, "_cannot_lock", {})
    with job_options.claimed(tmp_path):
        folder(tmp_path)
        folder(tmp_path)  # another worker's, or this one's
    (line,) = caplog.messages
    assert line.startswith(f"warning: the file system of {tmp_path} cannot lock files ({os.strerror(code)})")


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_job_that_is_resumed_keeps_its_logs_and_another_one_removes_them_and_says_so(tmp_path, caplog, is_resumed):
    caplog.set_level(logging.INFO)
    left_in(tmp_path / "cpu", "notes.txt", "iter-1.txt", RUN_FILE)
    path = folder(tmp_path, *(["--ckpt-frequency", "9", "--resume"] if is_resumed else [])).open()
    left = {"notes.txt", *(["iter-1.txt", RUN_FILE] if is_resumed else [])}
    assert {file.name for file in path.iterdir()} == {".lock", *left}
    said = f"what an earlier run left in {tmp_path / 'cpu'} is removed (the launchers and worker.sh keep"
    assert [line.startswith(said) for line in caplog.messages] == [True] * (not is_resumed)


def test_workers_that_are_started_by_hand_one_after_the_other_move_what_they_left_to_one_place(tmp_path, caplog):
    place, earlier = tmp_path / "mlp" / "sync" / "host", tmp_path / "earlier"
    flags = ["--earlier", str(earlier)]

    def job():
        workers = [folder(place, *flags, "--device-name", name) for name in ("cpu0", "cpu1")]
        for worker in workers:  # training begins when all are there
            worker.open()
            left_in(worker.path, "iter-1.txt", "best-0001.params", RUN_FILE)
            worker.close()

    with caplog.at_level(logging.INFO):
        job()
        assert not earlier.exists()
        job()
        job()  # in the same second, and yet another run
    runs = sorted(path for path in earlier.iterdir() if path.is_dir())
    assert len(runs) == 2
    for run in runs:
        for name in ("cpu0", "cpu1"):
            there = {path.name for path in (run / "mlp" / "sync" / "host" / name).iterdir()}
            assert there == {"iter-1.txt", "best-0001.params", RUN_FILE}
    assert caplog.messages[0] == f"the logs of the run before are in {runs[0]} now; the last 5 runs stay there"


def test_a_start_that_fails_before_training_moves_nothing(tmp_path):
    place = tmp_path / "mlp" / "sync" / "host"
    left_in(place / "cpu", "iter-1.txt")
    folder(place, "--earlier", str(tmp_path / "earlier"))
    assert (place / "cpu" / "iter-1.txt").exists() and not (tmp_path / "earlier").exists()


def test_a_job_that_is_started_again_without_a_checkpoint_fills_no_place_of_an_earlier_run(tmp_path):
    place, run = tmp_path / "mlp" / "sync" / "host", tmp_path / "earlier" / "2026-11-25-120000"
    left_in(place / "cpu", "iter-1.txt")
    first = folder(place, "--earlier", str(run))
    first.open()
    assert (run / "mlp" / "sync" / "host" / "cpu" / "iter-1.txt").exists()
    write_json(first.path / RUN_FILE, {"config": {"earlier": str(run)}})
    left_in(first.path, "iter-2.txt")
    first.close()
    folder(place, "--earlier", str(run)).open()
    assert [path.name for path in first.path.iterdir()] == [".lock"]
    assert [path.name for path in run.parent.iterdir() if path.is_dir()] == [run.name]


@pytest.mark.parametrize(
    ("earlier", "complaint"),
    [
        ("earlier", "earlier is no folder; move it"),
        ("x", "no folder of earlier runs"),
        ("y/earlier", "not in the log"),
    ],
)
def test_a_place_for_earlier_runs_that_cannot_be_is_one_line_at_the_start(tmp_path, earlier, complaint):
    (tmp_path / "earlier").touch()
    place = tmp_path / "mlp" / "sync" / "host"
    left_in(place / "cpu", "iter-1.txt")
    with pytest.raises(SetupError, match=complaint):
        folder(place, "--earlier", str(tmp_path / earlier))
    assert (place / "cpu" / "iter-1.txt").exists()


def test_a_worker_that_comes_back_to_its_job_keeps_its_logs_and_one_that_comes_to_another_does_not(tmp_path):
    mine = folder(tmp_path)
    log, run = mine.path / "iter-1.txt", mine.path / RUN_FILE

    def is_kept(job_age_s, begun_s_ago=50.0, **more):
        write_json(run, {"rank": 0, "ended": None, **more})
        os.utime(run, (time.time() - begun_s_ago,) * 2)
        log.write_text("{}")
        mine.open(job_age_s)
        return log.exists()

    assert is_kept(100.0)
    assert not is_kept(100.0, ended="20 rounds done")  # that job is over
    assert not is_kept(100.0, begun_s_ago=200.0)  # and that one was there long before
    assert not is_kept(None)  # all have begun together
