"""Jobs that go on from their checkpoints, in virtual time: what is the same as in a job that was never stopped."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_data
from log_tree import events
from round_records import read_rounds

import simulate
import summary
from algorithms import ENTRIES, OWNERS, TABLE, TransportKind, Workers
from config import CONTINUE, END, Config, modes_of
from esync import measure
from trainer.run_logs import earlier_runs
from trainer.simulation import virtual_cluster
from trainer.survival import checkpoints, trainer_state
from trainer.survival.checkpoint_manager import check_folder
from trainer.survival.checkpoint_rounds import SERVER, worker_name
from utils import EXIT_OK, RUN_FILE, Incomplete, SetupError

ALONE = "step_time_s\n0.1\n"
TWO = "step_time_s,state_server_round_trip_s\n0.1,0.02\n0.3,0.02\n"
# Of sums where times decide nothing.
OF_SUMS = [row.name for row in TABLE if row.transport is TransportKind.SUM and not row.has_state_server]
# Presets that choose workers train in the modes of others.
EVERY = [mode for mode, entry in ENTRIES.items() if entry.workers is Workers.ALL]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tiny_data.write_mnist(tmp_path / "data" / "mnist")
    (tmp_path / "one.csv").write_text(ALONE)
    (tmp_path / "two.csv").write_text(TWO)
    return tmp_path


def run(place: Path, name: str, mode: str, rounds: int, *more: str, cluster: str = "one.csv") -> str:
    """Trains a job of that name to a number of rounds, with a checkpoint every two; returns the hash of all weights."""
    words = ["--cluster", str(place / cluster), "-n", "mlp", "-b", "8", "--log-base", str(place / name), "-m", mode]
    words += ["-dd", str(place / "data"), "--dataset", "mnist", "--max-rounds", str(rounds), "--ckpt-frequency", "2"]
    words += [] if "--optimizer" in more else ["--momentum", "0.9"]
    if OWNERS[mode].transport is TransportKind.HUB:  # MXNet's own server keeps nothing in a checkpoint
        words += ["--exchange", "hub"]
    if OWNERS[mode].name == "sync-switch":
        words += ["--train-steps", "3", "60"]
    if OWNERS[mode].name == "backup":
        words += ["--backup", "0"]
    _, (one,) = simulate.parse([*words, *more])
    return virtual_cluster.VirtualRun(one.job).run()


def folder_of(place: Path, name: str, mode: str) -> Path:
    return place / name / "mlp" / mode / "virtual"


def checkpoint(place: Path, name: str, mode: str, whose: str, round_: int) -> Path:
    return folder_of(place, name, mode) / ".checkpoints" / f"{whose}-{round_:08d}.ckpt"


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("mode", EVERY)
def test_a_worker_that_goes_on_ends_with_the_same_weights_to_the_bit(place: Path, mode: str) -> None:
    """Model, momentum, what the server keeps, batches: one worker, so that no time decides on anything."""
    whole = run(place, "whole", mode, 8)
    run(place, "parts", mode, 4)
    assert run(place, "parts", mode, 8, "--resume") == whole
    logged = records(folder_of(place, "parts", mode) / "cpu0")
    assert [record["num_iters"] for record in logged] == list(range(1, 9))
    assert logged[4]["events"][0] == {"kind": "resume", "text": "resumed after round 4"}
    assert logged[4]["total_time"] > logged[3]["total_time"]


DRAWS = """
import random
import mxnet as mx
import numpy as np
def prepare(inputs, targets):
    noise = np.random.normal(0, 0.1, inputs.shape) * random.random()
    return mx.nd.array(inputs / 255 + noise) + mx.nd.random.normal(0, 0.1, shape=inputs.shape), targets
def network():
    layers = mx.gluon.nn.HybridSequential()
    layers.add(mx.gluon.nn.Dense(8, activation="relu"), mx.gluon.nn.Dropout(0.5), mx.gluon.nn.Dense(4))
    return layers
"""
OWN_LOOP = """
def train(worker):
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for inputs, targets in worker.batches:
        with mx.autograd.record():
            losses = loss_of(worker.network(inputs + np.random.rand()), targets)
        losses.backward()
        worker.step(len(targets), losses)
"""
STREAM = """
def data(folder):
    def batches(rank, num_workers, seed):
        while True:
            yield np.random.rand(8, 3) * mx.nd.random.uniform().asscalar(), np.array([random.randrange(4)] * 8)
    return batches, None
"""


@pytest.mark.parametrize(
    ("mode", "more", "cluster"),
    [
        *((mode, "", "one.csv") for mode in ("esync", "async", "decoupled")),
        *(("sync", more, "two.csv") for more in ("", OWN_LOOP, STREAM)),
    ],
    ids=["esync", "async", "decoupled", "sync", "own loop", "stream"],
)
def test_what_layers_and_a_users_code_draw_at_random_is_the_same_in_a_job_that_goes_on(
    place: Path, mode: str, more: str, cluster: str
) -> None:
    (place / "job.py").write_text(DRAWS + more)
    whole, _, resumed = (
        run(place, name, mode, rounds, "--job", str(place / "job.py"), *flags, cluster=cluster)
        for name, rounds, flags in (("whole", 5, ()), ("parts", 3, ()), ("parts", 5, ("--resume",)))
    )
    assert resumed == whole


@pytest.mark.parametrize("mode", ["async", "sync-switch", "wbsp-pcc"])
def test_what_a_job_did_after_its_checkpoint_is_done_again(place: Path, mode: str) -> None:
    """As after a kill: the checkpoint is of round 4, the logs go to round 7."""
    whole = run(place, "whole", mode, 8)
    run(place, "parts", mode, 7)
    for whose in (SERVER, worker_name(0)):
        for round_ in (6, 7):
            checkpoint(place, "parts", mode, whose, round_).unlink()
    assert run(place, "parts", mode, 8, "--resume", "--ckpt-keep", "9") == whole
    logged = records(folder_of(place, "parts", mode) / "cpu0")
    assert [record["num_iters"] for record in logged] == list(range(1, 9))
    assert logged[4]["steps_lost"] == 3


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_other_optimizers_and_changed_images_go_on_to_the_bit(place: Path, optimizer: str) -> None:
    more = ("--optimizer", optimizer, "--augment", "1", "--lr-schedule", "warmup:40")
    whole = run(place, "whole", "local", 8, *more)
    run(place, "parts", "local", 4, *more)
    assert run(place, "parts", "local", 8, "--resume", *more) == whole


@pytest.mark.parametrize("mode", OF_SUMS)
def test_all_workers_go_back_to_a_round_that_all_have_whole(place: Path, mode: str, caplog) -> None:
    whole = run(place, "whole", mode, 6, cluster="two.csv")
    run(place, "parts", mode, 4, cluster="two.csv")
    damaged = checkpoint(place, "parts", mode, worker_name(1), 4)
    content = bytearray(damaged.read_bytes())
    content[-5] ^= 1
    damaged.write_bytes(content)
    assert run(place, "parts", mode, 6, "--resume", cluster="two.csv") == whole
    assert f"{damaged} is damaged" in caplog.text and "the one before it is taken" in caplog.text
    for rank in (0, 1):
        logged = records(folder_of(place, "parts", mode) / f"cpu{rank}")
        assert [record["num_iters"] for record in logged] == list(range(1, 7))
        assert logged[2]["events"][0]["text"] == "resumed after round 2"


@pytest.mark.parametrize("mode", [mode for mode in EVERY if OWNERS[mode].is_distributed])
def test_in_every_mode_several_workers_go_on_from_what_is_whole_and_draw_the_batches_that_follow(
    place: Path, mode: str
) -> None:
    """Only the oldest checkpoint of rank 0 is whole, and only the newest ones of worker 1 and of the server."""
    run(place, "job", mode, 6, cluster="two.csv")
    for whose, whole in ((worker_name(0), 0), (worker_name(1), -1), (SERVER, -1)):
        paths = sorted((folder_of(place, "job", mode) / ".checkpoints").glob(f"{whose}-*.ckpt"))
        for path in {*paths} - {*paths[whole:][:1]}:
            path.write_bytes(path.read_bytes()[:-1])
    before = [records(folder_of(place, "job", mode) / f"cpu{rank}") for rank in (0, 1)]
    run(place, "job", mode, 12, "--resume", cluster="two.csv")
    for rank in (0, 1):
        logged = records(folder_of(place, "job", mode) / f"cpu{rank}")
        (first,) = (record for record in logged if record.get("events", [{"kind": ""}])[0]["kind"] == "resume")
        kept = logged[: first["num_iters"] - 1]
        assert kept == before[rank][: len(kept)] and len(kept) >= 2
        assert [record["num_iters"] for record in logged] == list(range(1, len(logged) + 1))
        assert len(logged) > len(before[rank])
    assert max(len(records(folder_of(place, "job", mode) / f"cpu{rank}")) for rank in (0, 1)) == 12


def test_only_the_last_checkpoints_stay_and_another_job_sets_them_aside(place: Path) -> None:
    run(place, "job", "sync", 9, "--ckpt-keep", "2")
    folder = folder_of(place, "job", "sync") / ".checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["worker-0-00000008.ckpt", "worker-0-00000009.ckpt"]
    run(place, "job", "sync", 2)
    assert sorted(path.name for path in folder.iterdir()) == ["earlier", "worker-0-00000002.ckpt"]
    assert len(list((folder / "earlier").iterdir())) == 2


def test_a_checkpoint_of_another_job_is_refused_with_both_values(place: Path) -> None:
    run(place, "job", "sync", 4)
    with pytest.raises(SetupError, match="is of a job with seed 0, here it is 1: give the same, or start without"):
        run(place, "job", "sync", 8, "--resume", "--seed", "1")


def test_where_nothing_was_saved_there_is_nothing_to_resume(place: Path) -> None:
    with pytest.raises(SetupError, match=r"--resume: there is no checkpoint in .*\.checkpoints"):
        run(place, "job", "sync", 8, "--resume")


@pytest.mark.parametrize("mode", ["local", "sync", "esync", "dcasgd"])
def test_with_auto_one_command_starts_a_job_and_starts_it_again(place: Path, mode: str) -> None:
    whole = run(place, "whole", mode, 8)
    run(place, "parts", mode, 4, "--resume", "auto")
    logged = records(folder_of(place, "parts", mode) / "cpu0")
    assert [record["num_iters"] for record in logged] == [1, 2, 3, 4] and "events" not in logged[0]
    assert run(place, "parts", mode, 8, "--resume", "auto") == whole
    assert records(folder_of(place, "parts", mode) / "cpu0")[4]["events"][0]["text"] == "resumed after round 4"


@pytest.mark.parametrize("mode", ["sync", "dcasgd"])
def test_auto_resumes_if_one_worker_has_a_checkpoint_and_begins_if_none_has_a_whole_one(place: Path, mode: str) -> None:
    def resumes(rounds: int) -> bool:
        run(place, "job", mode, rounds, "--resume", "auto", cluster="two.csv")
        return "resumed after" in str(records(folder_of(place, "job", mode) / "cpu0"))

    run(place, "job", mode, 4, cluster="two.csv")
    for round_ in (2, 4):
        checkpoint(place, "job", mode, worker_name(1), round_).unlink(missing_ok=True)
    assert resumes(6)
    for path in (folder_of(place, "job", mode) / ".checkpoints").glob("*.ckpt"):
        path.write_bytes(b"damaged")
    assert not resumes(3)
    logged = records(folder_of(place, "job", mode) / "cpu0")
    assert logged[0]["num_iters"] == 1 and len(logged) <= 3


@pytest.mark.parametrize("is_away", [True, False], ids=["no folder", "takes nothing"])
def test_a_folder_that_takes_no_checkpoint_any_more_costs_one_warning_and_no_training(
    place: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    """As where its disk is mounted read-only again: nothing can be made there, renamed or removed."""
    folder = place / "checkpoints"

    def no_more(self: checkpoints.Checkpoints, round_: int, tree: object) -> None:
        if round_ == 4:
            folder.rename(place / "gone") if is_away else None
            for name in ("mkdir", "unlink", "replace") if not is_away else ():
                monkeypatch.setattr(Path, name, in_folder_read_only(getattr(Path, name)))
            folder.write_text("") if is_away else None
        rule(self, round_, tree)

    def in_folder_read_only(method: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(path: Path, *given: Any, **more: Any) -> Any:
            if path.is_relative_to(folder):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return method(path, *given, **more)

        return refuse

    rule = checkpoints.Checkpoints.save
    monkeypatch.setattr(checkpoints.Checkpoints, "save", no_more)
    run(place, "job", "local", 8, "--checkpoint", str(folder))
    assert len(records(folder_of(place, "job", "local") / "cpu0")) == 8
    lines = [line for line in caplog.messages if "cannot be written: " in line and "checkpoint" in line]
    assert len(lines) == 1 and lines[0].endswith("training goes on without it")


def test_a_worker_that_comes_back_to_a_job_needs_no_folder_for_checkpoints(tmp_path) -> None:
    (tmp_path / "worker-1-00000001.ckpt").touch()
    (tmp_path / ".probe").mkdir()  # so that nothing can be written there
    about = {"mode": "sync", "exchange": "ring", "checkpoint": tmp_path, "on_worker_death": CONTINUE}
    assert "checkpoints cannot be written to" in check_folder(Config(**about))
    with pytest.raises(SetupError, match="checkpoints cannot be written to"):
        check_folder(Config(**{**about, "on_worker_death": END}))


def test_every_mode_has_the_flags() -> None:
    for flag in ("ckpt_frequency", "ckpt_keep", "checkpoint", "resume"):
        assert set(modes_of(flag)) == {row.name for row in OWNERS.values()}


def test_a_job_whose_logs_the_disk_never_takes_trains_to_its_end_and_says_what_is_missing(
    place: Path, monkeypatch
) -> None:
    def full(path: Path, line: str) -> None:
        raise SetupError(f"{path} cannot be written: No space left on device")

    monkeypatch.setattr(measure, "append_line", full)
    with pytest.raises(Incomplete, match=r"done, but .*: the logs of 4 round\(s\) are lost: .*rounds.jsonl cannot be"):
        run(place, "job", "local", 4)
    assert checkpoint(place, "job", "local", worker_name(0), 4).exists()


def test_on_the_board_of_a_job_that_goes_on_each_round_is_once_as_in_its_logs(place: Path) -> None:
    """Killed behind a checkpoint, and again, when the newest checkpoint is lost."""
    more = ("--tensorboard", str(place / "live"))
    for number, (rounds, lost) in enumerate(((5, [5]), (10, [10, 8]), (11, []))):
        run(place, "job", "esync", rounds, *more, *(["--resume"] if number else []), cluster="two.csv")
        for round_, rank in ((round_, rank) for round_ in lost for rank in (0, 1)):
            checkpoint(place, "job", "esync", worker_name(rank), round_).unlink()
    assert summary.main(["-b", str(place / "job"), "-n", "mlp", "--tensorboard", str(place / "later")]) == EXIT_OK
    for name in ("virtual-cpu0", "virtual-cpu1"):
        live = events(place / "live" / "mlp" / "esync" / name)
        assert [step for tag, step, *_ in live if tag == "loss"] == list(range(1, 12))
        assert live == events(place / "later" / "mlp" / "esync" / name)


def test_rounds_that_are_done_again_leave_the_log_also_behind_a_gap_and_on_a_full_disk(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Path, "write_bytes", None)  # it takes no room
    lines = tmp_path / "rounds.jsonl"
    lines.write_text("".join(f'{{"num_iters": {number}}}\n' for number in (1, 2, 5, 6, 7)))
    trainer_state._drop_after(tmp_path, 5)
    assert [json.loads(line)["num_iters"] for line in lines.read_text().splitlines()] == [1, 2, 5]


def test_checkpoints_are_not_taken_for_logs_that_an_earlier_job_left(place: Path) -> None:
    run(place, "job", "sync", 2)
    folder = folder_of(place, "job", "sync")
    assert earlier_runs.left_by_others(folder.parent, {("virtual", "cpu0")}) == []
    assert [path.name for path in summary.folders(folder)] == ["cpu0"]


@pytest.mark.parametrize(
    ("mode", "before", "after"),
    [
        *((row.name, 3, 2) for row in TABLE if row.is_distributed),
        *((mode, 2, 3) for mode in ("esync", "sync", "dcasgd", "ssp", "wbsp")),
    ],
)
def test_in_every_mode_another_number_of_workers_goes_on(place: Path, mode: str, before: int, after: int) -> None:
    """Those that are new among workers that wait for each other begin behind the same round as the others."""
    for workers in (2, 3):
        (place / f"{workers}.csv").write_text("\n".join([*TWO.split(), "0.2,0.02"][: 1 + workers]))
    run(place, "job", mode, 8, cluster="3.csv")  # leaves logs that are not this job's
    run(place, "job", mode, 6, cluster=f"{before}.csv")
    run(place, "job", mode, 12, "--resume", cluster=f"{after}.csv")
    first_rounds = []
    for rank in range(after):
        about = json.loads((folder_of(place, "job", mode) / f"cpu{rank}" / RUN_FILE).read_text())
        assert about["num_workers"] == after
        logged = records(folder_of(place, "job", mode) / f"cpu{rank}")
        resumed = [record for record in logged if record.get("events", [{"kind": ""}])[0]["kind"] == "resume"]
        first_rounds += [record["num_iters"] for record in resumed]
        assert 6 < logged[-1]["num_iters"] <= 12
        assert (logged[0]["num_iters"] == 1) == (rank < before)
        if rank >= before:
            assert logged[0]["missed"] == logged[0]["num_iters"] - 1
    if OWNERS[mode].waits:
        assert len(first_rounds) == after and len(set(first_rounds)) == 1
    told: list[str] = []
    counted = summary.summarise_mode(folder_of(place, "job", mode).parent, told.append)
    assert len(counted) == 3
    assert not any("remove" in line or "left out" in line for line in told), told
    checkpoints = folder_of(place, "job", mode) / ".checkpoints"
    assert not list(checkpoints.glob(f"worker-{after}-*.ckpt"))  # another job would take it for its own


@pytest.mark.parametrize("took_part", [True, False])
def test_a_workers_logs_and_not_its_checkpoint_say_whether_it_took_part(place: Path, took_part: bool) -> None:
    """As where other hosts come, and ranks go by their addresses: a worker that took part finds no checkpoint of its
    rank; a new one finds that of another worker under its rank, and logs of an earlier job."""
    before = "two.csv" if took_part else "one.csv"
    run(place, "job", "sync", 9, cluster="two.csv")
    run(place, "job", "sync", 4, cluster=before)
    for round_ in (2, 4):
        mine, others = (checkpoint(place, "job", "sync", worker_name(rank), round_) for rank in (1, 0))
        if took_part:
            mine.unlink()
        else:
            mine.write_bytes(others.read_bytes())
    run(place, "job", "sync", 8, "--resume", cluster="two.csv")
    logged = records(folder_of(place, "job", "sync") / "cpu1")
    assert [record["num_iters"] for record in logged] == list(range(1 if took_part else 5, 9))
    assert logged[-1]["total_time"] < 9 * 0.3
    assert [record.get("missed", 0) for record in logged if "missed" in record] == ([] if took_part else [4])


def test_a_worker_that_is_back_says_which_rounds_it_has_missed(place: Path) -> None:
    run(place, "job", "sync", 3, cluster="two.csv")
    run(place, "job", "sync", 5, "--resume", cluster="one.csv")
    run(place, "job", "sync", 7, "--resume", cluster="two.csv")
    folder = folder_of(place, "job", "sync") / "cpu1"
    logged = [(record["num_iters"], record.get("missed", 0)) for record in records(folder)]
    assert logged == [(1, 0), (2, 0), (3, 0), (6, 2), (7, 0)]
    assert [*read_rounds(folder, pytest.fail)]
