"""scripts/fault_drill.sh: which faults can happen to which job and where, what is read of logs, and the tables."""

from __future__ import annotations

import errno
import json
import math
import os
from argparse import Namespace
from pathlib import Path

import pytest

from algorithms import OWNERS, TransportKind
from config import KVSTORE, transport_of
from experiments.fault_drill import drilled_cut, drilled_disk, drilled_tables, fault_drill
from experiments.fault_drill.drilled_job import FLAGS
from experiments.fault_drill.drilled_logs import Logs
from experiments.fault_drill.faults import ALL, AMONG_WORKERS, FAULTS, can_happen
from scripts.launch import hosts_file

ROOT = Path(__file__).resolve().parents[3]
CUTS = [name for name, fault in FAULTS.items() if fault.cut_s and fault.cuts == ALL and not fault.cut_port]
ROW = {"way": "continue", "mode": "esync", "seconds": 20.0, "exit_code": 0, "accuracy": 0.8, "left_running": 0}
CUT = ROW | {
    "fault": "cut-20", "noticed_s": 9.9, "again_s": 10.2, "rounds_lost": 0, "back_s": 0.9, "pause_s": 9.93,
    "rounds_meanwhile": 128, "rounds_missed": 138,
}  # fmt: skip


# By their rings, or at a hub.
CONTINUED = {mode for mode in FLAGS if mode in AMONG_WORKERS or OWNERS[mode].transport is TransportKind.HUB}


def modes_of(fault, way):
    return {mode for mode in FLAGS if can_happen(fault, way, mode)}


def test_a_link_is_cut_in_every_mode_that_can_lose_a_worker():
    assert CUTS == ["cut-5", "cut-20", "cut"] and math.isinf(FAULTS["cut"].cut_s)
    for name in CUTS:
        assert modes_of(name, "continue") == CONTINUED
        assert modes_of(name, "restart") == {*FLAGS}


def test_a_scheduler_dies_where_there_is_one_and_a_hub_where_it_is_the_server():
    on_kvstore = {mode for mode in FLAGS if transport_of(mode) == KVSTORE}
    assert modes_of("scheduler", "restart") == on_kvstore >= {"esync", "async", "dcasgd"}
    assert modes_of("scheduler", "continue") == set()
    assert modes_of("server", "restart") == {*FLAGS}
    assert modes_of("server", "continue") == CONTINUED - {*AMONG_WORKERS}


def test_a_disk_is_filled_where_there_are_checkpoints():
    assert modes_of("disk-full", "restart") == {*FLAGS}
    assert modes_of("disk-full", "continue") == {*AMONG_WORKERS}
    assert modes_of("disk-of-one", "continue") == modes_of("flapping", "continue") == CONTINUED


def test_a_job_of_hosts_has_a_worker_on_each_and_the_logs_of_other_jobs_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(drilled_cut, "ROOT", tmp_path)
    other, old = (tmp_path / "logs" / "lenet" / "esync" / name / "cpu" for name in ("vm", "fault-drill-0"))
    for folder in (other, old):
        folder.mkdir(parents=True)
        (folder / "iter-1.txt").write_text("")
    job = drilled_cut.CutJob.__new__(drilled_cut.CutJob)
    job._network = Namespace(hosts=[Namespace(name=f"h{number}") for number in range(4)], ssh_config="config")
    launcher, logs = job.plan("esync", tmp_path / "drill")
    assert other.exists() and not old.exists()
    assert logs.rounds("worker0") == {}
    hosts = hosts_file.read(Path(launcher[launcher.index("--hosts") + 1]))
    assert [(worker.host, worker.folder) for worker in hosts.workers] == [(f"fault-drill-{n}", "cpu") for n in range(3)]


def test_a_pause_is_the_longest_time_between_rounds_that_ended_after_a_moment(tmp_path):
    write_rounds(tmp_path, 0, (100, 109, 110, 113, 114))
    logs = Logs(tmp_path, tmp_path)
    assert (logs.pause_s("worker0", 109.5), logs.pause_s("worker0", 0), logs.pause_s("worker1", 0)) == (3, 9, 0)


# --------------------------------------------------------------------------------------- where it cannot be done


def test_who_is_not_root_is_told_what_is_left_out_and_all_else_is_done(tmp_path, capsys, monkeypatch):
    def drill(way, mode, name, seconds, folder):
        return ROW | {"way": way, "mode": mode, "fault": name, "again_s": 1.0}

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(fault_drill, "drill", drill)
    arguments = ["--folder", str(tmp_path), "--modes", "esync,sync", "--faults", "worker,cut-5,cut,disk-full"]
    assert fault_drill.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("left out")] == [
        "left out: cut-5, cut: network namespaces need root: run as root",
        "left out: disk-full: mounting a disk needs root",
    ]
    rows = [json.loads(line) for line in (tmp_path / "drill.jsonl").read_text().splitlines()]
    assert {(row["way"], row["mode"], row["fault"]) for row in rows} == {
        (way, mode, "worker") for way in ("continue", "restart") for mode in ("esync", "sync")
    }


def test_without_the_folder_of_tests_no_link_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(drilled_cut, "HELPERS", tmp_path / "helpers")
    assert "tests/helpers/namespaces.py" in drilled_cut.missing()


# ------------------------------------------------------------------------------------------------ the full disk


@pytest.fixture
def disks_can_be_mounted() -> None:
    if why := drilled_disk.missing():
        pytest.skip(why)


@pytest.mark.usefixtures("disks_can_be_mounted")
def test_a_disk_is_filled_to_the_last_block_and_gone_also_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), drilled_disk.mounted(tmp_path / "disk", mib=1) as disk:
        drilled_disk.fill(disk / "filler")
        assert (disk / "filler").stat().st_size > 1_000_000
        with pytest.raises(OSError) as caught:
            (disk / "log").write_bytes(b"one more")
        assert caught.value.errno == errno.ENOSPC
        drilled_disk.fill(disk / "filler")  # nothing is left to take
        assert 1 / 0
    assert (tmp_path / "disk").is_dir() and not (tmp_path / "disk").is_mount()


@pytest.mark.usefixtures("disks_can_be_mounted")
def test_the_disk_of_a_drill_that_was_killed_is_unmounted_first(tmp_path):
    killed = drilled_disk.mounted(tmp_path, mib=1)
    (killed.__enter__() / "old").touch()
    with drilled_disk.mounted(tmp_path, mib=1) as disk:
        assert [*disk.iterdir()] == []
    assert not tmp_path.is_mount()


# ----------------------------------------------------------------------------------------------------- the logs


def write_rounds(folder, number, times):
    """Rounds 1, 2, ... of a worker, with the seconds in which each was written."""
    own = folder / "host" / f"cpu{number}"
    own.mkdir(parents=True)
    for index, at in enumerate(times, start=1):
        (own / f"iter-{index}.txt").write_text("{}")
        os.utime(own / f"iter-{index}.txt", (at, at))


def test_what_a_cut_has_done_is_read_from_when_the_rounds_were_written(tmp_path):
    together = [1000.0, 1001.0]  # a round a second; the cable is out from 1001.5 to 1010.5
    write_rounds(tmp_path, 0, [*together, 1006.0, 1007.0, 1009.0, 1011.0, 1012.0])
    write_rounds(tmp_path, 1, [*together, 1006.0, 1007.5, 1009.0, 1011.0, 1012.0])
    write_rounds(tmp_path, 2, [*together, 1011.0, 1012.0])
    before = {name: {1, 2} for name in ("worker0", "worker1", "worker2")}
    assert drilled_cut.tell(Logs(tmp_path, tmp_path), before, 1001.5, 1010.5) == {
        "again_s": 6.0,
        "rounds_lost": 0,
        "back_s": 1.5,
        "pause_s": 5.0,
        "rounds_meanwhile": 3,
        "rounds_missed": 3,
    }


def test_a_pause_is_read_from_the_workers_clocks_where_logs_are_written_late(tmp_path):
    for number, ends in enumerate(([1.0, 2.0, 9.0, 9.5, 11.0, 99.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])):
        write_rounds(tmp_path, number, [1000.0] * len(ends))
        for index, end in enumerate(ends, start=1):
            record = {"num_iters": index, "num_samples": 1, "total_time": end, "time": {}}
            (tmp_path / "host" / f"cpu{number}" / f"iter-{index}.txt").write_text(json.dumps(record))
    logs = Logs(tmp_path, tmp_path)
    assert logs.longest_s({"worker0": {1, 2, 3}, "worker1": {1, 2}}) == 1.5
    assert logs.longest_s({"worker0": {1, 2}, "worker1": {1, 2}}) == 7.0


def test_rounds_that_were_done_again_are_lost_and_who_does_not_train_again_is_seen(tmp_path):
    write_rounds(tmp_path, 0, [1000.0, 1001.0, 1011.0, 1012.0])
    write_rounds(tmp_path, 1, [1000.0, 1001.0, 1011.0])
    logs, before = Logs(tmp_path, tmp_path), {"worker0": {1, 2, 3, 4}}
    assert logs.again_s(["worker0"], 1010.0) == 2.0
    assert logs.again_s(["worker0", "worker1"], 1010.0) is None
    assert logs.rounds_lost(before, ["worker0"], 1010.0) == 2


# --------------------------------------------------------------------------------------------------- the tables


def test_the_tables_of_the_page_are_made_of_the_rows_that_were_measured(capsys):
    folder = str(ROOT / "results" / "fault-drill")
    assert fault_drill.main(["--table", "--folder", folder]) == 0
    *parts, summary = capsys.readouterr().out.strip().split("\n\n")
    assert len(parts) == 4  # a table of each way, and what holds of all its jobs
    page = (ROOT / "results" / "fault-drill" / "README.md").read_text()
    for part in (*parts, summary):
        assert part in page


def test_of_a_cut_the_longest_pause_counts_since_the_others_may_go_on_at_first(capsys):
    drilled_tables.table([CUT | {"again_s": 0.1}])
    assert "| cut-20 | 9.9 / 9.93 (0.9) / 0 |" in capsys.readouterr().out.splitlines()


def test_the_summary_has_all_modes_together_and_tells_the_ways_apart(capsys):
    rows = [ROW | {"way": "restart", "mode": mode, "fault": "worker", "again_s": again_s}
            for mode, again_s in (("esync", 1.0), ("sync", 1.2), ("ssp", 2.0))]  # fmt: skip
    drilled_tables.summary([*rows, CUT, CUT | {"mode": "ssp", "pause_s": 8.0}])
    _, _, killed, cut = capsys.readouterr().out.splitlines()
    assert killed == "| the slowest worker is killed |  |  | 1.2 (1.0 to 2.0) of 3 |"
    assert cut == "| a worker's link is cut for 20 s | 9.9 (9.9 to 9.9) of 1 | 8.0 (8.0 to 8.0) of 1 |  |"


@pytest.mark.parametrize(
    ("exit_code", "hosts_lost", "in_order"), [(0, 0, True), (3, 1, True), (0, 1, False), (3, 0, False), (2, 1, False)]
)
def test_only_a_host_that_is_cut_off_to_the_end_ends_its_job_with_code_3(exit_code, hosts_lost, in_order):
    assert drilled_tables.is_in_order(CUT | {"exit_code": exit_code, "hosts_lost": hosts_lost}) is in_order
