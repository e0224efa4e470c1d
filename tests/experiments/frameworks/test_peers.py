"""experiments/frameworks: the tables by hand, a user's lines, and flags that this project's programs take."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from experiments.frameworks import peers, processes
from scripts.launch import local_cluster
from trainer import command_line
from trainer.run_logs.rounds import of_record


def a_run(turn, way, rate, target=None, target_s=None):
    about = {"turn": turn, "set": "equal", "network": "mlp", "way": way, "target": target, "target_s": target_s}
    return {**about, "samples_per_s": rate, "cpu_s": 0.05, "mb": 0.1018, "mib": 360, "lines": 20}


def test_the_table_has_medians_ranges_and_the_ratios_of_the_same_turn():
    rows = [a_run("1", "DDP", 100), a_run("1", "gluon", 50), a_run("2", "DDP", 200), a_run("2", "gluon", 300)]
    rows += [a_run("3", "gluon", 9, 0.85, 12.4), a_run("4", "gluon", 9, 0.85), a_run("5", "gluon", 9, 0.85, 20)]
    _, _, ddp, gluon = peers.table(rows).splitlines()
    same = "0.050 (0.050 to 0.050) | 0.102 (0.102 to 0.102) | 360 (360 to 360)"
    assert ddp == f"| DDP | 150 (100 to 200) | 1.00 (1.00 to 1.00) | {same} | - | 20 |"
    assert gluon == f"| gluon | 175 (50 to 300) | 1.00 (0.50 to 1.50) | {same} | 20 (12 to missed) | 20 |"


def test_a_users_lines_are_those_of_loop_and_network_or_of_the_job_file():
    ways = ("-m local", "-m local --job", "torch_loop", "ddp", "gluon_loop")
    assert [peers.lines_of(way.split(), "mlp") for way in ways] == [0, 6, 7 + 6 + 6, 7 + 7 + 6, 14 + 5]


def test_a_target_is_held_from_the_third_evaluation_whose_mean_is_there():
    curve = [(1.0, 0.5), (2.0, 0.9), (3.0, 0.7), (4.0, 0.8), (5.0, 0.6)]
    assert (peers.held_s(curve, 0.79), peers.held_s(curve, 0.69), peers.held_s(curve, 0.81)) == (4.0, 3.0, None)


def test_a_rate_is_from_the_end_of_a_round_to_the_end_of_the_last():
    log = [of_record({"num_samples": 64 * number, "total_time": number}) for number in range(1, 5)]
    assert peers.rate_of(log, 2.5) == 64 * (3 + 4) / 2


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, ways in peers.WAYS.items() for way in ways.values()])
def test_flags_are_such_as_the_programs_take(name, way):
    if way.startswith("-m "):
        given = argparse.Namespace(network="lenet", target=None, seed=0)
        (program, *flags), _ = processes.of_project(given, way.split(), peers.STEP_S[name], Path("logs"))
        local_cluster.parse(flags) if program.endswith(".sh") else command_line.parse(flags[1:], pytest.fail)
