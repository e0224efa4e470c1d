"""scripts/sweep.sh: the runs of a grid, in virtual time and on real processes, and the search of a step size."""

from __future__ import annotations

import csv
import signal
import sys
from pathlib import Path

import pytest
import tiny_data
from cluster_processes import begun, ran, wait_for
from few_images import few_images, on_few_images

import draw
from scripts import run_lines, sweep
from scripts.sweep import LOCAL, VIRTUAL, points
from scripts.sweep_report import SweepLine
from utils import EXIT_BUG, EXIT_FORCED, EXIT_OK, RUN_FILE, STOPPED, read_json, usable_cores

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def place(tmp_path):
    """A folder with a dataset that is learnt at once, and a cluster of two workers."""
    tiny_data.write_mnist(tmp_path / "data" / "mnist")
    (tmp_path / "two.csv").write_text("step_time_s\n0.1\n0.3\n")
    return tmp_path


def of_place(place):
    return ["--dataset", "mnist", "-dd", str(place / "data"), "--log-base", str(place / "logs"), "-n", "mlp"]


def lines_in(place):
    return run_lines.read(place / "logs", SweepLine, "this test")


# -------------------------------------------------------------------------------------------------------- the grid


def test_a_flag_with_several_values_is_a_dimension_of_the_modes_in_which_it_counts():
    grid = points(
        ("esync", "sync", "dcasgd"),
        ["-l", "0.1,0.2", "-ll", "0.5", "-b", "8,16", "--dcasgd-lambda", "1,2", "--cluster", "demo"],
    )
    assert [point.name for point in grid if point.mode == "esync"] == ["esync-b-8", "esync-b-16"]
    assert [point.name for point in grid if point.mode == "sync"] == [
        f"sync-l-{rate}-b-{size}" for rate in ("0.1", "0.2") for size in (8, 16)
    ]
    assert len([point for point in grid if point.mode == "dcasgd"]) == 8
    command = "simulate.py -m esync --cluster demo --network lenet --local-lr 0.5 --batch-size 8 --seed 3"
    assert grid[0].command(VIRTUAL, 3) == command.split()


def test_the_number_of_workers_is_a_dimension_of_the_modes_that_leave_it_open():
    grid = points(("esync", "alone"), ["--cluster", "half", "--fastest", "2,4", "-b", "8"])
    assert [(point.name, point.options) for point in grid] == [
        ("esync-fastest-2", ("--cluster", "half", "--fastest", "2")),
        ("esync-fastest-4", ("--cluster", "half", "--fastest", "4")),
        ("alone", ("--cluster", "half")),
    ]
    (one,) = points(("sync",), ["--fastest=3"])
    assert (one.name, one.options) == ("sync", ("--fastest", "3"))


def test_a_comma_within_a_value_makes_no_list():
    (one,) = points(("sync",), ["--lr-schedule", "step:1,2x0.1", "-n", "mlp"])
    assert one.flags["lr_schedule"] == ("step:1,2x0.1",)
    assert [point.name for point in points(("sync",), ["--lr-schedule=constant,cosine:600"])] == [
        "sync-lr-schedule-constant",
        "sync-lr-schedule-cosine-600",
    ]
    (phases,) = points(("sync-switch",), ["--train-steps", "2", "6", "--switch-order", "10", "--workers", "0.1,0.2"])
    assert (phases.flags["train_steps"], phases.options) == (("2", "6"), ("--workers", "0.1,0.2"))


def test_real_processes_get_the_launcher_s_options_before_the_workers_flags():
    words = "-s 1 -dd there --exchange ring --page 0 --cluster demo -- -l 0.1 --momentum 0.9"
    (one,) = points(("sync",), words.split())
    before = "-m sync --cluster demo --network lenet --exchange ring --data-dir there --page 0 --split-by-class"
    behind = "--learning-rate 0.1 --momentum 0.9 --seed 2"
    assert one.command(LOCAL, 2) == f"scripts/local_cluster.sh {before} -- {behind}".split()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("-gl 0.5 --modes sync", "-gl does nothing in mode sync: it counts in mode "),
        ("--page 0 --modes esync --on local", "--page does nothing in mode esync: it counts in mode sync"),
        ("--seed 3", "--seed is set by the sweep: give --seeds"),
        ("-m sync", "-m is set by the sweep: give --modes"),
        ("-l 0.1,0,x", "invalid float value: '0.1,0,x'"),
        ("--fast 1", "unknown argument --fast"),
        ("--seeds 4..0", "'4..0' is no list of seeds; give whole numbers with commas, such as 0,1,2 or 0..4"),
        ("--modes esync,fast", "'fast' is unknown; choose from esync"),
        ("--on local --jobs 2", "--jobs 2: runs on real processes are measured"),
        ("--cluster nowhere", "nowhere"),
        ("--tune 1", "--tune: scripts/advise.sh"),
        ("--on slurm --array=0-2", "--array: a sweep makes the jobs of all seeds"),
    ],
)
def test_what_is_no_sweep_is_refused_before_anything_runs(place, words, complaint, refused):
    assert complaint in refused(sweep.main, *of_place(place), "--modes", "sync", *words.split())
    assert not (place / "logs").exists()


def test_runs_in_virtual_time_take_all_cores_and_real_ones_have_the_machine_for_themselves():
    assert [sweep.parse(["--on", each])[0].jobs for each in ("virtual", "local")] == [len(usable_cores()), 1]


# -------------------------------------------------------------------------------------------------- in virtual time


@pytest.mark.cluster
def test_a_sweep_in_virtual_time_is_made_once_and_ends_with_a_table_and_a_figure(tmp_path, capsys):
    (tmp_path / "data").symlink_to(few_images())
    (tmp_path / "two.csv").write_text("step_time_s\n0.1\n0.3\n")
    words = [*of_place(tmp_path), "--modes", "sync", "--cluster", str(tmp_path / "two.csv"), "--jobs", "2"]
    words += ["-l", "0.003,1e30", "--max-rounds", "25", "--target-accuracy", "0.3", "--seeds"]
    assert sweep.main([*words, "0..2", "--dry-run"]) == EXIT_OK
    assert "2 point(s), 3 seed(s), 6 run(s), 0 done already" in capsys.readouterr().out
    assert not (tmp_path / "logs").exists()
    assert sweep.main([*words, "0..2"]) == EXIT_OK
    table = {line.split("  ")[0]: line.split() for line in capsys.readouterr().out.splitlines() if "SSGD -" in line}
    assert table["SSGD -l 0.003"][3] == table["SSGD -l 1e30"][3] == "3"
    assert table["SSGD -l 0.003"][-2:] == ["0,", "0"]
    assert table["SSGD -l 1e30"][-5:] == ["0", "of", "3", "3,", "0"]
    lines = lines_in(tmp_path)
    assert [line.diverged for line in lines].count(True) == 3
    assert all(line.best >= 0.3 and 0 < line.reached(0.3).by_s <= line.seconds for line in lines if line.has_model)
    assert "| SSGD -l 0.003 | 3 |" in (tmp_path / "logs" / "sweep.md").read_text()
    assert (tmp_path / "logs" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "logs" / "sweep.csv").open(newline="") as file:
        assert {(row["-l"], row["outcome"]) for row in csv.DictReader(file)} == {
            ("0.003", "ended"), ("1e30", "diverged")
        }  # fmt: skip
    assert draw.main(["-b", str(tmp_path / "logs" / "sync-l-0.003"), "-n", "mlp"]) == EXIT_OK
    # Runs that are there are not made again, also those that diverged; one that fails is named, and is made again.
    (tmp_path / "data").unlink()
    capsys.readouterr()
    for _ in range(2):
        assert sweep.main([*words, "0..3"]) == EXIT_BUG
        said = capsys.readouterr()
        assert "8 run(s), 6 done already; about" in said.out
        assert "SSGD -l 0.003, seed 3 failed: " in said.err
        assert [line.split()[-1] for line in said.out.splitlines() if line.startswith("SSGD -")] == ["1", "1"]
    assert [line for line in lines_in(tmp_path) if not line.failed] == lines


# ------------------------------------------------------------------------------------------------ on real processes


@pytest.mark.cluster
def test_a_sweep_on_real_processes_is_interrupted_and_goes_on(tmp_path):
    words = ["--on", "local", "--modes", "esync", "--seeds", "0,1", "--workers", "0.02,0.1", "--exchange", "ring"]
    words += ["-n", "mlp", "-ll", "0.003", *on_few_images(), "--max-rounds", "20", "--log-base", str(tmp_path / "logs")]
    command = [sys.executable, str(ROOT / "scripts" / "sweep.py"), *words]
    first = begun(*command, PYTHONPATH=str(ROOT))
    folder = tmp_path / "logs" / "esync" / "seed-0" / "mlp" / "esync"
    wait_for(lambda: [*folder.glob("*/cpu1/iter-2.txt")], "the second round of the first run", 60)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=60)
    assert first.returncode == EXIT_FORCED, said
    assert "stopped; the same command continues" in said
    assert STOPPED in {read_json(path)["ended"] for path in folder.glob(f"*/*/{RUN_FILE}")}
    assert not (tmp_path / "logs" / run_lines.RUNS_FILE).exists()
    assert not (tmp_path / "logs" / "esync" / "seed-1").exists()
    second = ran(*command, PYTHONPATH=str(ROOT))
    assert second.returncode == EXIT_OK, second.stdout + second.stderr
    lines = lines_in(tmp_path)
    assert [(line.seed, line.ended) for line in lines] == [(0, "20 rounds done"), (1, "20 rounds done")]
    assert all(0 < len(line.curve) <= 20 and line.samples_per_s > 0 and line.took_s > line.seconds for line in lines)
    assert "2 of 2: ESync, seed 1: accuracy" in second.stdout
