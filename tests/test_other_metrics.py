"""A job by another metric than accuracy, from its training to the figures: job file, state server, logs, tables."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import draw
import simulate
import summary
from esync.metric import Metric, logged_value
from report import device_json, metrics
from scripts import why
from trainer.run_logs.rounds import Round
from trainer.simulation import virtual_cluster
from utils import EXIT_OK, RUN_FILE, SetupError, read_json

RMSE = Metric("rmse", more_is_better=False)
JOB = """
import numpy as np
from mxnet import gluon

def network():
    return gluon.nn.Dense(1, in_units=3)

def data(folder):
    x = np.random.default_rng(0).normal(size=(160, 3)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [3.0]], "float32")
    return (x[:128], y[:128]), (x[128:], y[128:])

loss = gluon.loss.L2Loss()

def rmse(targets, outputs):
    return np.sqrt(np.mean((targets - outputs) ** 2))

metric = rmse
more_is_better = False
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A folder with the job file `line.py` and the logs of it under ESync, SSGD and on one device."""
    place = tmp_path_factory.mktemp("other")
    (place / "line.py").write_text(JOB)
    for mode in ("esync", "sync", "local"):
        run(place, "-m", mode, "--max-seconds", "6")
    return place


def run(place: Path, *more: str, base: str = "logs") -> Path:
    """One run in this process; returns the log folder of the worker that evaluates."""
    given = ["--job", str(place / "line.py"), "--workers", "0.1,0.3", "-b", "8", "-l", "0.01", "-ll", "0.01"]
    _, (one,) = simulate.parse([*given, "--log-base", str(place / base), *more])
    virtual_cluster.VirtualRun(one.job).run()
    return Path(one.job.config.log_dir) / "cpu0"


def copy(tree: Path, to: Path) -> Path:
    """The logs in a folder of their own, to be changed."""
    shutil.copytree(tree / "logs", to / "logs")
    return to / "logs"


def test_a_target_ends_the_job_from_above_and_the_run_says_what_it_measures(tree):
    folder = run(tree, "-m", "sync", "--target", "0.75", "--max-seconds", "60", base="to-target")
    about = read_json(folder / RUN_FILE)
    assert re.fullmatch(r"test rmse 0\.\d+ reached 0\.75", about["ended"])
    assert about["metric"] == {"name": "rmse", "more_is_better": False}
    metric, best = logged_value(read_json(folder / "best.json"))
    assert metric == RMSE and 0 < best <= 0.75
    with pytest.raises(SetupError, match="metric of this job is rmse"):
        run(tree, "-m", "esync", "--target-accuracy", "0.5", base="to-target")


@pytest.mark.usefixtures("unpainted")
def test_summary_table_and_figures_are_in_the_metrics_direction_and_name(tree, capsys):
    assert summary.main(["-b", str(tree / "logs"), "-n", "line"]) == EXIT_OK
    written = read_json(tree / "logs" / "line" / "esync" / "ESync.json")["virtual"]["cpu0"]
    assert written["metric"] == {"name": "rmse", "more_is_better": False}
    assert len(written["metric_list"]) == len(written["metric_time_list"]) > 3
    assert not any("accuracy" in key for key in written)
    assert draw.main(["-b", str(tree / "logs"), "-n", "line"]) == EXIT_OK
    said = capsys.readouterr().out
    sync = read_json(tree / "logs" / "line" / "sync" / "Sync.json")["virtual"]["cpu0"]["metric_list"]
    target = f"{min(sync):g}"  # SSGD is the slowest here: the best that all reached is its best
    assert f"final rmse  best rmse  s to {target}" in said
    assert re.search(rf"as time to test rmse {re.escape(target)}:\nESync, i.i.d.: \d\.\dx \(ESync", said)
    assert (tree / "logs" / "line" / "figures" / "rmse-iid.png").exists()
    assert draw.main(["-b", str(tree / "logs"), "-n", "line", "--target", "-1"]) == EXIT_OK
    assert "neither reached -1; at best ESync 0." in capsys.readouterr().out


def test_why_compares_the_times_to_a_value_of_the_metric(tree, capsys):
    arguments = ["-b", str(tree / "logs"), "-n", "line", "-m", "sync", "--target", "2"]
    assert why.main(arguments) == EXIT_OK
    said = capsys.readouterr().out
    assert "s to rmse 2\n" in said
    first = re.search(r"as measured +\S+ +(\S+)\n", said)[1]
    assert 0 < float(first) < 6


@pytest.mark.usefixtures("unpainted")
def test_logs_of_several_metrics_are_not_mixed_and_a_line_says_so(tree, tmp_path, capsys):
    base = copy(tree, tmp_path)
    for path in (base / "line" / "local").rglob("rounds.jsonl"):
        path.write_text(re.sub(r'"metric": \{[^}]*\}', '"accuracy": 0.5', path.read_text()))
    assert summary.main(["-b", str(base), "-n", "line"]) == EXIT_OK
    assert draw.main(["-b", str(base), "-n", "line"]) == EXIT_OK
    said = capsys.readouterr()
    assert "Standalone left out of the curves and times of rmse: its logs have accuracy" in said.err
    assert "no line of training on one device: its file has accuracy, not rmse" in said.err
    row = next(line.split() for line in said.out.splitlines() if line.startswith("Standalone"))
    assert row[4:7] == ["-", "-", "-"]


def test_a_summary_of_another_metric_is_read_back_as_it_was_and_impossible_values_are_left_out():
    made = metrics.Device([Round(samples=8, entries=1, elapsed_s=2.0, aggregation_s=0.5)], [-3.5], [2.0], RMSE, [])
    text = json.dumps(device_json.written(made))
    assert device_json.read(json.loads(text), "here", pytest.fail) == made
    with pytest.raises(ValueError, match="accuracy_list"):
        device_json.read({**json.loads(text), "metric": {"name": 5}}, "here", pytest.fail)
