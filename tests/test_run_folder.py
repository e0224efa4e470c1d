"""A worker's log folder: one worker's alone, and what of an earlier run stays in it."""

import os
import time

import pytest

from trainer.command_line import parse
from trainer.run_folder import RunFolder
from utils import RUN_FILE, SetupError, write_json


def folder(tmp_path, *flags):
    return RunFolder(parse(["-m", "sync-switch", "-c", "1", "-ld", str(tmp_path), *flags]))


def test_two_workers_of_one_host_do_not_share_a_log_folder(tmp_path):
    first = folder(tmp_path)
    with pytest.raises(SetupError, match=r"another worker writes its logs .* its own --device-name"):
        folder(tmp_path)
    assert folder(tmp_path, "--device-name", "cpu1").path != first.path


@pytest.mark.parametrize(
    ("flags", "left"),
    [([], {"notes.txt"}), (["--ckpt-frequency", "9", "--resume"], {"notes.txt", "iter-1.txt", RUN_FILE})],
    ids=["new", "resumed"],
)
def test_a_job_that_is_resumed_keeps_its_logs_and_another_one_begins_with_none(tmp_path, flags, left):
    (tmp_path / "cpu").mkdir()
    for name in ("notes.txt", "iter-1.txt", RUN_FILE):
        (tmp_path / "cpu" / name).touch()
    path = folder(tmp_path, *flags).open()
    assert {file.name for file in path.iterdir()} == {".lock", *left}


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
