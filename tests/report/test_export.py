"""summary.py --csv and --tensorboard, and main.py --tensorboard: the numbers of rounds for other programs."""

from __future__ import annotations

import csv
import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import log_tree
import pytest
import tiny_data

import simulate
import summary
from trainer.run_logs.scalars import RoundNumbers, TensorBoard, check_tensorboard
from utils import EXIT_OK, EXIT_SETUP, SetupError


def rows_of(base: Path, *more: str) -> list[dict[str, str]]:
    assert summary.main(["-b", str(base), "-n", log_tree.NETWORK, "--csv", str(base / "rounds.csv"), *more]) == EXIT_OK
    with (base / "rounds.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def events(folder: Path) -> list[tuple[str, int, float, float]]:
    """Tag, round, seconds since the first event, and value of all scalars of a run of TensorBoard."""
    from tensorboardX.proto import event_pb2

    (path,) = folder.glob("events.out.tfevents.*")
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)  # before a checksum, and behind it comes another
        event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
        found += [(value.tag, event.step, event.wall_time, value.simple_value) for value in event.summary.value]
        at += size + 16
    begin_s = found[0][2]
    return [(tag, step, round(wall_s - begin_s, 3), round(value, 5)) for tag, step, wall_s, value in found]


def test_published_logs_become_a_row_a_round(tmp_path):
    log_tree.write_sync(tmp_path)
    rows = rows_of(tmp_path)
    assert [(row["host"], row["device"], row["round"]) for row in rows] == [
        (*place, str(number)) for place in (("alpha", "gpu0"), ("beta", "cpu")) for number in (1, 2, 3)
    ]
    first, last = rows[0], rows[-1]
    assert (first["seed"], first["network"], first["mode"], first["rank"]) == ("", "lenet", "sync", "")
    assert (first["metric"], first["value"], first["loss"], first["bytes_pushed"]) == ("accuracy", "0.4", "", "")
    assert (last["metric"], last["value"]) == ("", "")
    assert (float(first["total_time"]), first["num_samples"], first["steps"]) == (12.0, "64", "1")
    assert float(last["samples_per_s"]) == pytest.approx(64 / 12)
    assert float(last["waiting_share"]) == pytest.approx(2 / 12)
    assert (float(last["forward_and_backward_s"]), float(last["global_aggregate_s"])) == (0.5, 2.0)


def test_a_row_says_which_of_several_runs_it_is_of_and_one_mode_can_be_chosen(tmp_path):
    for seed in (0, 1):
        log_tree.write_esync(tmp_path / f"seed-{seed}")
        log_tree.write_sync(tmp_path / f"seed-{seed}")
    rows = rows_of(tmp_path, "-m", "esync")
    assert {(row["seed"], row["mode"], row["rank"]) for row in rows} == {
        (seed, "esync", rank) for seed in ("seed-0", "seed-1") for rank in "01"
    }
    assert {(row["steps"], row["bytes_pushed"]) for row in rows} == {("3", "2000000"), ("1", "2000000")}
    assert len(rows_of(tmp_path)) == len(rows) + 12
    assert not [*tmp_path.glob("seed-*/lenet/*/*.json")]  # in place of summaries


def test_rounds_without_the_round_before_have_no_speed():
    numbers = RoundNumbers()
    assert "samples/s" not in numbers.of(log_tree.sync_round(7, 84.0))
    assert numbers.of(log_tree.sync_round(8, 96.0, 0.5, loss=1.5)) == {
        "loss": 1.5, "test_accuracy": 0.5, "local_steps": 1, "samples/s": 64 / 12, "waiting_share": 2 / 12
    }  # fmt: skip
    assert "samples/s" not in numbers.of(log_tree.sync_round(10, 120.0))


def test_a_worker_writes_for_tensorboard_what_its_logs_give_later(tmp_path):
    tiny_data.write_mnist(tmp_path / "data" / "mnist")
    words = ["-m", "esync", "--workers", "0.1,0.3", "-n", "mlp", "-b", "8", "--max-rounds", "4", "--again"]
    words += ["--dataset", "mnist"]
    words += ["-dd", str(tmp_path / "data"), "--log-base", str(tmp_path / "logs"), "--tensorboard"]
    for _ in range(2):  # the second run takes the first one's place
        subprocess.run([sys.executable, simulate.__file__, *words, tmp_path / "live"], check=True)
    later = ["-b", str(tmp_path / "logs"), "-n", "mlp", "--tensorboard", str(tmp_path / "later")]
    assert summary.main(later) == EXIT_OK
    place = Path("mlp", "esync", "virtual-cpu0")
    live = events(tmp_path / "live" / place)
    assert live == events(tmp_path / "later" / place)
    assert {tag for tag, *_ in live} == {"loss", "test_accuracy", "local_steps", "samples/s", "waiting_share"}
    assert [(step, value) for tag, step, _, value in live if tag == "local_steps"] == [(1, 2), (2, 2), (3, 2), (4, 3)]
    # Virtual seconds, whatever the machine took: 0.3 s of the slower worker.
    assert [wall_s for tag, _, wall_s, _ in live if tag == "loss"] == pytest.approx([0.0, 0.3, 0.6, 0.9], abs=0.01)
    assert {path.name for path in (tmp_path / "live" / "mlp" / "esync").iterdir()} == {"virtual-cpu0", "virtual-cpu1"}


def test_what_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys):
    log_tree.write_sync(tmp_path)
    words = ["-b", str(tmp_path), "-n", log_tree.NETWORK]
    assert summary.main([*words, "--csv", str(tmp_path / "none" / "rounds.csv")]) == EXIT_SETUP
    assert "rounds.csv cannot be written: No such file or directory; choose another file" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=r"folder .*/file/board of --tensorboard: Not a directory; choose another"):
        check_tensorboard(tmp_path / "file" / "board")
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert summary.main([*words, "--tensorboard", str(tmp_path / "board")]) == EXIT_SETUP
    assert "--tensorboard needs tensorboardX: pip install -r requirements-tensorboard.txt" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_disk_that_is_full_is_told_and_waited_for_by_no_round(tmp_path, monkeypatch):
    board = TensorBoard(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tensorboardX.event_file_writer.EventsWriter.write_event", full)
    record = {"num_iters": 1, "num_samples": 8, "total_time": 1.0, "loss": 0.5, "time": {}}
    board.write(record)
    board._thread.join(10.0)
    for act in (lambda: board.write(record), board.close):
        with pytest.raises(SetupError, match=f"{tmp_path} cannot be written: see the error above; is the disk full"):
            act()
