"""summary.py --csv and --tensorboard, and main.py --tensorboard: the numbers of rounds for other programs."""

import csv
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import log_tree
import pytest
import tiny_data
from log_tree import events

import simulate
import summary
from trainer.run_logs import scalars
from trainer.run_logs.rounds import Round, of_log
from trainer.run_logs.scalars import RoundNumbers, TensorBoard, check_tensorboard
from utils import EXIT_OK, EXIT_SETUP, SetupError


def logged(about: dict[str, Any]) -> Round:
    return of_log(json.dumps(about))


def rows_of(base: Path, *more: str) -> list[dict[str, str]]:
    assert summary.main(["-b", str(base), "-n", log_tree.NETWORK, "--csv", str(base / "rounds.csv"), *more]) == EXIT_OK
    with (base / "rounds.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_published_logs_become_a_row_a_round(tmp_path):
    log_tree.write_sync(tmp_path)
    rows = rows_of(tmp_path)
    assert [(row["host"], row["device"], row["round"]) for row in rows] == [
        (*place, str(number)) for place in (("alpha", "gpu0"), ("beta", "cpu")) for number in (1, 2, 3)
    ]
    first, last = rows[0], rows[-1]
    words = {"seed": "", "network": "lenet", "mode": "sync", "rank": "", "loss": "", "bytes_pushed": ""}
    words |= {"metric": "accuracy", "value": "0.4", "num_samples": "64", "steps": "1"}
    assert first | words == first
    assert float(first["total_time"]) == 12.0
    assert (last["metric"], last["value"]) == ("", "")
    numbers = {"samples_per_s": 64 / 12, "waiting_share": 2 / 12, "forward_and_backward_s": 0.5}
    numbers |= {"global_aggregate_s": 2.0}
    assert {name: float(last[name]) for name in numbers} == pytest.approx(numbers)


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
    assert "samples/s" not in numbers.of(logged(log_tree.sync_round(7, 84.0)))
    assert numbers.of(logged(log_tree.sync_round(8, 96.0, 0.5, loss=1.5))) == {
        "loss": 1.5, "test_accuracy": 0.5, "local_steps": 1, "samples/s": 64 / 12, "waiting_share": 2 / 12
    }  # fmt: skip
    assert "samples/s" not in numbers.of(logged(log_tree.sync_round(10, 120.0)))


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


def record(number: int, **more: Any) -> dict[str, Any]:
    return {"num_iters": number, "num_samples": 8, "total_time": float(number), "loss": 0.5, "time": {}, **more}


def test_what_the_disk_does_not_take_is_told_once_with_its_own_reason_and_no_round_waits(tmp_path):
    told: list[str] = []
    board = TensorBoard(tmp_path, told.append)
    board.write(logged(record(1)))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    try:
        for number in (2, 3):
            board.write(logged(record(number)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert told == [f"{tmp_path} cannot be written: File too large"]
    with pytest.raises(SetupError, match="file/seed-0/lenet/sync/h-cpu cannot be written: Not a directory"):
        (tmp_path / "file").touch()
        scalars._to_tensorboard(tmp_path / "file", ("seed-0", "lenet", "sync", "h", "cpu", 0), [logged(record(1))])


def test_values_of_earlier_models_come_in_the_order_of_their_rounds_and_once(tmp_path):
    late = {2: [{"round": 1, "accuracy": 0.25}], 4: [{"round": 3, "accuracy": 0.5}]}
    rounds = [record(number, evaluated=late.get(number, [])) for number in range(1, 5)]
    rounds[-1]["accuracy"] = 0.75  # the last model is evaluated in its own round
    board = TensorBoard(tmp_path / "live", pytest.fail)
    for each in rounds:
        board.write(logged(each))
    board.add({"test_accuracy": 1.0}, 5, 5.0)  # the worker that evaluated was lost
    values = [(step, value) for tag, step, _, value in events(tmp_path / "live") if tag == "test_accuracy"]
    assert values == [(1, 0.25), (3, 0.5), (4, 0.75), (5, 1.0)]
    device = tmp_path / "lenet" / "esync" / "h" / "cpu"
    log_tree.write_device(device, rounds)
    assert summary.main(["-b", str(tmp_path), "-n", "lenet", "--tensorboard", str(tmp_path / "later")]) == EXIT_OK
    later = events(tmp_path / "later" / "lenet" / "esync" / "h-cpu")
    assert [(step, value) for tag, step, _, value in later if tag == "test_accuracy"] == values[:3]
