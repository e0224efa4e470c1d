"""A worker's log folder: one worker's alone, and what of an earlier run stays in it."""

import pytest

from trainer.command_line import parse
from trainer.run_folder import RunFolder
from utils import RUN_FILE, SetupError


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
