"""What a state server keeps of the generations of workers, in a folder, and what a restarted one makes of it."""

import errno
import os
from pathlib import Path

import pytest

from server.messages import Beat, Call, Join, Left, Response
from server.rendezvous.groups import Rendezvous
from server.rendezvous.journal import Journal
from server.rendezvous.membership import Group
from server.row import Device

LAUNCHER = "aa"


def server(folder: Path, launcher: str = LAUNCHER, begins_anew: bool = False) -> Rendezvous:
    made = Rendezvous()
    made.journal = Journal(folder, launcher, begins_anew)
    return made


def ask(server: Rendezvous, number: int, after: Response | None = None, now: float = 0.0) -> Response:
    """A worker of two asks for the others; `after`: it comes back from there."""
    place = {} if after is None else {name: getattr(after.place, name) for name in after.place.__struct_fields__}
    about = ("10.0.0.1", 4000 + number, Device("h", f"cpu{number}"), 1, 5.0)
    return server.handle(Join(f"w{number}", "a", 2, *about, **place), now)  # type: ignore[arg-type]


def begin(folder: Path) -> tuple[Response, Response]:
    """Both have started; their server has been killed."""
    first = server(folder)
    ask(first, 0)
    answers = ask(first, 1), ask(first, 0)
    first.journal.close()  # type: ignore[union-attr]
    return answers


def test_a_restarted_server_is_the_old_one_and_repeats_a_start_that_was_lost(tmp_path: Path) -> None:
    one, zero = begin(tmp_path)
    assert one.place is not None and zero.place is not None
    restarted = server(tmp_path)
    assert ask(restarted, 1).place == one.place
    assert "is at work" in ask(restarted, 7).reason
    assert restarted.handle(Beat("w0", "a", 1, 0, zero.place.members, id="f"), 0.0).action is Call.REGROUP
    assert ask(restarted, 1, after=one).action is Call.WAIT and ask(restarted, 0, after=zero).action is Call.START


def test_the_record_is_there_before_a_worker_hears_of_its_generation_and_goes_with_the_job(tmp_path: Path) -> None:
    begun = server(tmp_path)
    ask(begun, 0)
    assert not (tmp_path / "a.json").exists()
    assert ask(begun, 1).place.id in (tmp_path / "a.json").read_text()  # type: ignore[union-attr]
    begun.handle(Left("w1", "a"), 0.0)
    assert '"left":[1]' in (tmp_path / "a.json").read_text().replace(" ", "")
    begun.handle(Left("w0", "a"), 0.0)
    assert not tmp_path.exists()


@pytest.mark.parametrize(("launcher", "begins_anew"), [("bb", False), ("", True)])
def test_a_job_of_another_launcher_or_that_is_told_to_have_ended_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, launcher: str, begins_anew: bool
) -> None:
    begin(tmp_path)
    new = server(tmp_path, launcher, begins_anew)
    ask(new, 5)
    assert ask(new, 6).action is Call.START
    (aside,) = tmp_path.glob("a.json.before-*")
    assert f"the record of an earlier job was renamed to {aside}" in caplog.text


def test_by_hand_no_worker_begins_a_job_beside_the_record_of_one(tmp_path: Path) -> None:
    begin(tmp_path)
    restarted = server(tmp_path, launcher="")
    for now in range(40):
        assert ask(restarted, 5, now=float(now)).action is ask(restarted, 6, now=float(now)).action is Call.WAIT
    assert "If all have ended, start the state server with --begin-anew" in ask(restarted, 6, now=40.0).reason


def test_a_full_disk_ends_no_job_and_leaves_no_record_that_is_older_than_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, zero = begin(tmp_path)
    restarted = server(tmp_path)

    def is_full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ask(restarted, 1, after=one)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", is_full)
        second = ask(restarted, 0, after=zero)
    assert second.action is Call.START and not (tmp_path / "a.json").exists()
    assert f"no record of the workers' generations is kept in {tmp_path}: No space left on device" in caplog.text
    restarted.journal.close()  # type: ignore[union-attr]
    third = server(tmp_path)
    assert "waits to hear from worker 1 (cpu1 on host h" in ask(third, 0, after=second).reason
    assert ask(third, 1, after=one).reason.startswith("worker 1 of 2 in generation 2")


@pytest.mark.parametrize("why", ["another state server uses it", "Not a directory"])
def test_a_folder_that_cannot_be_had_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture, why: str) -> None:
    folder = tmp_path / "journal"
    if why.startswith("another"):
        held = server(folder)
        held.journal.write("b", Group())  # type: ignore[union-attr]
    else:
        held = tmp_path.joinpath("file").write_text("")
        folder = tmp_path / "file" / "journal"
    second = server(folder)
    ask(second, 0)
    assert ask(second, 1).action is Call.START and not (folder / "a.json").exists()
    assert f"is kept in {folder}: {why}" in caplog.text and held is not None
