"""Whole jobs as users start them: scripts/local_cluster with real processes, real data, the real state server."""

import functools
import itertools
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from cluster_processes import DATA, DEADLINE_S, ROOT, cluster, device_folders, free_ports, run_cluster, wait_for
from few_images import few_images, on_few_images
from recording_state_server import passing_on
from round_records import read_rounds
from state_server_process import running_state_server

import summary
from esync.measure import COMPUTING_STAGES, LINES_FILE
from scripts import saved_model
from trainer.datasets import loading
from trainer.run_logs.earlier_runs import saved_files
from trainer.run_logs.rounds import iter_files
from utils import EXIT_OK, RUN_FILE, read_json

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", autouse=True)
def data_that_are_read_once():
    """Every saved network is tried on the same test images."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "load", functools.cache(loading.load))
        yield


# ------------------------------------------------------------------------- one job of a mode, looked at by many tests


@dataclass(frozen=True)
class LaunchPlan:
    """What is run: a few rounds, evaluated twice."""

    rounds: int
    every: int  # rounds between two evaluations
    flags: tuple[str, ...]  # of main.py
    options: tuple[str, ...] = ()
    step_times: str = "0,0.1,0.12"  # also on a busy machine the first is the fastest, and evaluates
    evaluator: int = 0  # the fastest
    network: str = "lenet"


PLANS = {
    "esync": LaunchPlan(8, 4, ("-ll", "0.001"), ("--data-dir", str(DATA)), step_times="0.4,0.04,0.12", evaluator=1),
    "sync-niid": LaunchPlan(24, 12, ("-l", "0.001"), ("-m", "sync", "--split-by-class")),
    "dcasgd": LaunchPlan(40, 20, ("-l", "0.001"), ("--servers", "2"), step_times="0,0.05,0.06", network="mlp"),
    "ssp": LaunchPlan(40, 20, ("-l", "0.0006"), step_times="0,0.05,0.06", network="mlp"),
}


@dataclass(frozen=True)
class Done:
    """A job that has ended: what it printed and logged."""

    plan: LaunchPlan
    output: str
    folders: list[Path]  # of the workers, by rank
    runs: list[dict[str, Any]]
    logs: list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Callable[[str], Done]:
    """The job of a mode; it is run once."""
    base = tmp_path_factory.mktemp("logs")

    @functools.cache
    def run(mode):
        plan = PLANS[mode]
        flags = ["--max-rounds", str(plan.rounds), "-e", str(plan.every), "--evaluator", "0", *plan.flags]
        own = ["-m", mode.removesuffix("-niid"), "-n", plan.network, "--workers", plan.step_times]
        output = run_cluster(base, *own, *plan.options, worker_flags=flags)
        folders = device_folders(base / plan.network / mode)
        runs = [read_json(folder / RUN_FILE) for folder in folders]
        return Done(plan, output, folders, runs, [list(read_rounds(folder, pytest.fail)) for folder in folders])

    return run


every_mode = pytest.mark.parametrize("mode", PLANS)


@every_mode
def test_a_cluster_trains_and_leaves_complete_logs(job, mode):
    done = job(mode)
    rounds = done.plan.rounds
    assert len(re.findall(r"worker 0 \| round \d+, \d+ step", done.output)) == rounds  # one line a round, of rank 0
    assert re.search(r"^the job's status page: http://127\.0\.0\.1:\d+/$", done.output, re.M)
    page = (done.folders[0].parents[1] / "page.html").read_text()
    left = json.loads(re.search(r'<script id="status" type="application/json">(.*?)</script>', page)[1])
    assert (left["state"], left["states"], left["round"]) == ("ended", {"ended": 3}, rounds)
    assert left["samples"] == sum(record["num_samples"] for records in done.logs for record in records)
    assert [folder.name for folder in done.folders] == ["cpu0", "cpu1", "cpu2"]
    for rank, (folder, run, records) in enumerate(zip(done.folders, done.runs, done.logs, strict=True)):
        assert list(iter_files(folder)) == list(range(1, rounds + 1))
        assert (run["rank"], run["num_workers"], run["ended"]) == (rank, 3, f"{rounds} rounds done")
        members = [(member["rank"], member["device"]) for member in run["members"]]
        assert members == [(0, "cpu0"), (1, "cpu1"), (2, "cpu2")]
        model_bytes = run["parameter_bytes"]
        assert all(model_bytes <= record["bytes_pushed"] < model_bytes + 100 for record in records)
        assert all(record["bytes_pulled"] == record["bytes_pushed"] for record in records)
        steps = {(record["num_samples"], len(record["time"])) for record in records}
        if mode != "esync":  # its workers take as many as they are told
            assert steps == {(64, 1)}


@every_mode
def test_the_workers_begin_with_the_same_weights_and_share_the_data_out(job, mode):
    runs = job(mode).runs
    assert len({run["initial_weights_sha256"] for run in runs}) == 1
    assert len({run["partition_sha256"]["all by rank"] for run in runs}) == 1
    assert len({run["partition_sha256"]["this worker"] for run in runs}) == 3


@every_mode
def test_the_fastest_worker_evaluates_and_has_learnt(job, mode):
    done = job(mode)
    evaluated = [[record["num_iters"] for record in records if "accuracy" in record] for records in done.logs]
    expected = [[], [], []]
    expected[done.plan.evaluator] = [done.plan.every, done.plan.rounds]
    assert evaluated == expected
    last = done.logs[done.plan.evaluator][-1]
    assert last["accuracy"] > 0.25  # chance is 0.1
    assert f"accuracy {last['accuracy']:.4f}" in done.output  # also on the console, for any evaluator


@every_mode
def test_the_saved_network_is_the_one_that_was_evaluated(job, mode):
    done = job(mode)
    evaluator, *others = sorted(done.folders, key=lambda folder: folder != done.folders[done.plan.evaluator])
    assert_saved_models_are_those_evaluated(evaluator, others)


def assert_saved_models_are_those_evaluated(evaluator, others):
    """The worker that evaluated has the last and the best model, the others none; loaded, it is as good as logged."""
    accuracies = [record["accuracy"] for record in read_rounds(evaluator, pytest.fail) if "accuracy" in record]
    assert read_json(evaluator / "best.json")["accuracy"] == max(accuracies)
    assert read_json(evaluator / "final.json")["accuracy"] == accuracies[-1]
    where = {"fashion-mnist": DATA, "mnist": few_images()}[read_json(evaluator / "final.json")["dataset"]]
    assert f"accuracy {accuracies[-1]:.4f} on" in saved_model.evaluate(evaluator / "final.json", "", where)
    assert not any(saved_files(folder) for folder in others)


def test_esync_gives_the_fast_workers_more_local_steps(job):
    steps = [[len(record["time"]) - 1 for record in records][1:] for records in job("esync").logs]  # 1 has no times yet
    assert set(steps[0]) == {1}  # the straggler never takes a second one
    middle = [sorted(worker)[len(worker) // 2] for worker in steps]
    assert middle[1] > middle[2] > middle[0]


def test_a_split_by_class_is_summarised_as_a_mode_of_its_own(job):
    done = job("sync-niid")
    mode_folder = done.folders[0].parents[1]
    assert summary.main(["-b", str(mode_folder.parents[1]), "-n", "lenet", "-m", "sync-niid"]) == EXIT_OK
    (path,) = mode_folder.glob("*.json")
    assert path.name == "Sync-Non-IID.json"
    ((_, devices),) = json.loads(path.read_text()).items()
    assert [len(devices[f"cpu{rank}"]["num_samples_list"]) for rank in range(3)] == [done.plan.rounds] * 3


# ---------------------------------------------------------------------------------------------- jobs of their own


def test_with_a_backup_worker_the_slow_one_is_not_waited_for_and_all_end_with_the_same_model(tmp_path):
    flags = ["--max-rounds", "30", "-e", "1000", "-l", "0.001"]
    output = run_cluster(tmp_path, "-m", "backup", "--workers", "0.04,0.04,0.5", worker_flags=flags)
    folders = device_folders(tmp_path / "lenet" / "backup")
    *fast, slow = (list(read_rounds(folder, pytest.fail)) for folder in folders)
    assert [(len(records), records[-1]["version"]) for records in fast] == [(30, 30)] * 2
    assert 2 <= len(slow) < 15 and slow[-1]["version"] == 30
    lost = [sum(record.get("steps_lost", 0) for record in records) for records in (*fast, slow)]
    assert lost == [0, 0, len(slow)]
    runs = [read_json(folder / RUN_FILE) for folder in folders]
    assert len({run["final_weights_sha256"] for run in runs}) == 1
    assert len({run["initial_weights_sha256"] for run in runs} | {runs[0]["final_weights_sha256"]}) == 2
    assert "done; the logs are in" in output


@pytest.mark.parametrize("mode", ["wbsp-pcc", "sync-switch"])
def test_all_workers_stop_where_nobody_waits_for_a_round_of_all(tmp_path, mode):
    flags = ["--target-accuracy", "0.12", "--eval-seconds", "1", "-l", "0.003", "-ll", "0.003"]
    output = run_cluster(tmp_path, "-m", mode, "--workers", "0.02,0.2", worker_flags=flags)
    first, *others = device_folders(tmp_path / "lenet" / mode)
    assert "reached 0.12" in read_json(first / RUN_FILE)["ended"]
    assert {read_json(folder / RUN_FILE)["ended"] for folder in others} == {"another worker asked for it"}
    assert "done; the logs are in" in output
    # Evaluations come by the clock, whatever rounds lie between; the last one is when it ends.
    evaluated = [record["total_time"] for record in read_rounds(first, pytest.fail) if "accuracy" in record]
    assert evaluated[0] >= 1
    assert all(after - before >= 1 for before, after in itertools.pairwise(evaluated[:-1]))
    assert_saved_models_are_those_evaluated(first, others)
    if mode == "wbsp-pcc":
        happened = [event for record in read_rounds(first, pytest.fail) for event in record.get("events", [])]
        assert {event["kind"] for event in happened} - {"evaluator"} == {"release"}


def test_a_state_server_that_comes_back_costs_no_round_and_is_told_what_it_has_lost(tmp_path):
    (port,) = free_ports(1)
    with cluster(tmp_path, num_workers=2) as processes, passing_on(port) as recorder:
        with running_state_server(port):
            for rank, step_time in enumerate(("0.02", "0.2")):
                flags = ["-m", "esync", "-c", "1", "-n", "lenet", "-e", "3", "--max-rounds", "12", *on_few_images()]
                flags += ["-ld", str(tmp_path), "-port", str(recorder.port), "--device-name", f"cpu{rank}"]
                flags += ["--min-step-time", step_time]
                processes.start_worker(rank, "main.py", *flags)
            wait_for((tmp_path / "cpu1" / "iter-4.txt").exists, "round 4")
        assert all(process.exit_code is None for process in processes.running.values())
        with running_state_server(port) as server:
            assert set(processes.exit_codes().values()) == {0}, processes.log("worker0")
            status = requests.get(f"{server.url}/status.json", timeout=10).json()
    logs = [list(read_rounds(tmp_path / f"cpu{rank}", pytest.fail)) for rank in range(2)]
    for rank, rounds in enumerate(logs):
        assert len(rounds) == 12
        assert "12 rounds done" in read_json(tmp_path / f"cpu{rank}" / RUN_FILE)["ended"]
        told = recorder.of(rank, "REPORT", "QUERY")
        assert told[-1]["doing"] == "ended"
        assert told[-1]["total"]["samples"] == sum(record["num_samples"] for record in rounds)
        assert told[-1]["total"]["steps"] == sum(len(record["time"]) - 1 for record in rounds)
        steps = [step for record in rounds for step in record["time"].values()]
        computing = sum(step.get(stage, 0) for step in steps for stage in COMPUTING_STAGES)
        assert told[-1]["total"]["computing"] == pytest.approx(computing, rel=0.05)
        assert told[-1]["elapsed"] >= rounds[-1]["total_time"]
    evaluating = [message["status"]["round"] for message in recorder.heard if message.get("doing") == "evaluating"]
    assert sorted(set(evaluating)) == [3, 6, 9, 12]
    accuracies = [[record["accuracy"], record["num_iters"]] for record in logs[0] if "accuracy" in record]
    assert [point[1:] for point in status["accuracies"]] == accuracies  # of which one or two are from before
    assert status["samples"] == sum(record["num_samples"] for rounds in logs for record in rounds)
    settings = recorder.heard[0]["settings"]
    assert (settings["title"], settings["limits"]) == ("ESync", {"rounds": 12})


def test_resnet18_trains_with_esync_and_averages_its_running_statistics(tmp_path):
    flags = ["--max-rounds", "2", "--evaluate", "no", "-ll", "0.0005", "-b", "16"]
    flags += ["--normalise", "1"]
    job = ["-m", "esync", "-n", "resnet18-v1", "--workers", "0,0.5"]
    run_cluster(tmp_path, *job, worker_flags=flags)
    for folder in device_folders(tmp_path / "resnet18-v1" / "esync"):
        run = read_json(folder / RUN_FILE)
        assert run["parameter_bytes"] == 4 * 11_184_970  # weights and running statistics: all of it travels
        beside = 4 + 4 + 4  # the vote to stop, this worker's part of FedNova's tau_eff, and what is missing
        records = read_rounds(folder, pytest.fail)
        assert all(record["bytes_pushed"] == run["parameter_bytes"] + beside for record in records)


def test_standalone_training_reaches_a_target_and_stops(tmp_path):
    flags = ["-m", "local", "-c", "1", "-n", "lenet", "-e", "50", "--target-accuracy", "0.6"]
    command = [sys.executable, "main.py", *flags, *on_few_images(), "-ld", str(tmp_path)]
    earlier = tmp_path / "cpu" / "iter-1.txt"
    earlier.parent.mkdir()
    earlier.write_text("{}")  # of a run with another form of logs
    done = subprocess.run(command, cwd=ROOT, check=True, timeout=DEADLINE_S, capture_output=True, text=True)
    models = saved_files(earlier.parent)
    assert {path.name for path in {*earlier.parent.iterdir()} - {*models}} == {".lock", LINES_FILE, RUN_FILE}
    rounds = list(read_rounds(tmp_path / "cpu", pytest.fail))
    accuracies = [record["accuracy"] for record in rounds if "accuracy" in record]
    *before, reached, _ = accuracies  # a round is under way when the target is reached, and its end is evaluated too
    assert max(before, default=0) < 0.6 <= reached
    assert "reached 0.6" in read_json(tmp_path / "cpu" / RUN_FILE)["ended"]
    told = [line for line in done.stdout.splitlines() if re.search(r"\| round \d+, ", line)]
    assert sum("accuracy" in line for line in told) == len(accuracies)
    silent = len(rounds) - len(accuracies)  # rounds that were not evaluated are told once a second
    assert 1 <= sum("accuracy" not in line for line in told) <= min(silent, rounds[-1]["total_time"] + 1)


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_one_worker_ends_the_job_cleanly_on_all(tmp_path, signal_):
    # SIGINT: synchronous, agreed in the round; SIGTERM: asynchronous, agreed by the votes on the server.
    mode = "sync" if signal_ == signal.SIGINT else "async"
    with cluster(tmp_path, num_workers=2) as processes:
        for rank in range(2):
            flags = ["-m", mode, "-c", "1", "-n", "lenet", "-e", "1000", "-ld", str(tmp_path), *on_few_images()]
            flags += ["--device-name", f"cpu{rank}", "--min-step-time", "0.02", "--evaluate", ("yes", "no")[rank]]
            processes.start_worker(rank, "main.py", *flags)
        wait_for((tmp_path / "cpu1" / "iter-5.txt").exists, "round 5")
        processes.running["worker1"].send(signal_)
        assert set(processes.exit_codes().values()) == {0}, processes.log("worker1")
    counts = []
    for rank in range(2):
        assert read_json(tmp_path / f"cpu{rank}" / RUN_FILE)["ended"]
        counts.append(len(list(read_rounds(tmp_path / f"cpu{rank}", pytest.fail))))
        assert f"ended after round {counts[-1]}" in processes.log(f"worker{rank}")
    assert [read_json(path)["round"] for path in tmp_path.glob("cpu?/final.json")] == [counts[0]]
    if mode == "sync":
        assert counts[0] == counts[1]
