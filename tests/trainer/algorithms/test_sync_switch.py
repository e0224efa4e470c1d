"""Sync-Switch on real clusters: phases, stragglers, checkpoints."""

import signal

import pytest
from cluster_processes import cluster, device_folders, end_of, free_ports, run_cluster, wait_for
from few_images import on_few_images
from recording_state_server import passing_on
from round_records import read_rounds
from state_server_process import running_state_server

from utils import read_json

pytestmark = pytest.mark.cluster


def no_warnings(text):
    raise AssertionError(text)


def rounds_of(mode_folder):
    """By rank, the round logs of a job."""
    return [list(read_rounds(folder, no_warnings)) for folder in device_folders(mode_folder)]


def events(rounds):
    return [(event["kind"], event["text"]) for record in rounds for event in record.get("events", [])]


def test_a_job_ends_by_itself_with_exactly_the_steps_of_its_phases(tmp_path):
    order, steps = "101", ("4", "20", "3")
    flags = ["--switch-order", order, "--train-steps", *steps, "-l", "0.003", "-e", "1000"]
    run_cluster(tmp_path, "-m", "sync-switch", "--workers", "0,0,0.3", worker_flags=flags)
    workers = rounds_of(tmp_path / "lenet" / "sync-switch")
    total = 3 * sum(map(int, steps))
    assert sum(map(len, workers)) == total
    assert max(record["batches"] for rounds in workers for record in rounds) == total
    ways = {"0": "ASP", "1": "BSP"}
    switches = [f"phase {number} of {len(order)}: {ways[way]}" for number, way in enumerate(order[1:], start=2)]
    assert [text for kind, text in events(workers[0]) if kind == "switch"] == switches
    # Under BSP all have the pace of the slowest, under ASP the fast ones go ahead.
    bsp = sum(int(count) for way, count in zip(order, steps, strict=True) if way == "1")
    assert len(workers[0]) - bsp > 2 * (len(workers[2]) - bsp) > 0
    for folder in device_folders(tmp_path / "lenet" / "sync-switch"):
        assert read_json(folder / "run.json")["ended"] == f"all {total // 3} steps of {len(order)} phase(s) done"


def start_workers(processes, port, folder, *more):
    for rank in range(2):
        flags = ["-m", "sync-switch", "-c", "1", "-n", "lenet", "-e", "1000", "-l", "0.003", "--min-step-time", "0.06"]
        flags += on_few_images()
        flags += ["-ld", str(folder), "--device-name", f"cpu{rank}", "-port", str(port)]
        flags += ["--train-steps", "20", "80", "--momentum", "0.5"]
        flags += ["--ckpt-frequency", "10", "--checkpoint", str(folder / "kept"), *more]
        processes.start_worker(rank, "main.py", *flags)


def test_a_job_that_was_killed_goes_on_in_its_phase_and_ends_at_the_same_step(tmp_path):
    log_dir = tmp_path / "logs"
    with running_state_server() as server, passing_on(server.port) as recorder:
        with cluster(tmp_path / "first", num_workers=2, hub="sync-switch") as processes:
            start_workers(processes, recorder.port, log_dir)
            wait_for((log_dir / "kept" / "server-00000060.ckpt").exists, "the checkpoint of round 60")
            for process in processes.running.values():
                process.send(signal.SIGKILL)
        told_before = len(recorder.heard)
        with cluster(tmp_path / "second", num_workers=2, hub="sync-switch") as processes:
            start_workers(processes, recorder.port, log_dir, "--resume")
            assert set(processes.exit_codes().values()) == {0}, processes.log("worker0")
    logs = [list(read_rounds(log_dir / f"cpu{rank}", no_warnings)) for rank in range(2)]
    assert max(record["batches"] for rounds in logs for record in rounds) == 200
    for rounds in logs:
        (first,) = (record for record in rounds if "resume" in dict(events([record])))
        assert events([first])[0][1] == f"resumed after round {first['num_iters'] - 1}"
        assert first["num_iters"] > 40
        assert first["total_time"] > rounds[first["num_iters"] - 2]["total_time"]  # time goes on where it was
    assert_told(recorder.heard[:told_before], recorder.heard[told_before:], logs)


def assert_told(first_job, second_job, rounds):
    """What the state server heard of a job under BSP, then ASP, and of its resumption."""
    assert [message["settings"]["resumed"] for message in (first_job[0], second_job[0])] == [0, 1]
    assert "limits" not in first_job[0]["settings"]  # its steps are no rounds of a worker under ASP
    assert {message["msg_type"] for message in first_job + second_job} == {"REPORT"}  # no QUERY
    for rank in range(2):
        first, second = (
            [m for m in job if m["sender"].startswith(f"worker-{rank}-")] for job in (first_job, second_job)
        )
        ways = [message["way"] for message in first]
        assert ways == sorted(ways, reverse=True)  # BSP, then ASP
        assert "BSP" in ways
        training = [message for message in first if message["doing"] == "training"]
        under_bsp, under_asp = ([m for m in training if m["way"] == way] for way in ("BSP", "ASP"))
        assert all(("decision" in message) == (message["status"]["local_iteration"] == 1) for message in under_bsp)
        assert not any("decision" in message for message in under_asp[1:])  # the first may have waited for its turn
        alive = [message for message in second if message["way"] == "ASP" and message["doing"] == "training"]
        assert len(alive) >= 2  # it is there
        assert second[0]["status"]["round"] > 40
        last = second[-1]
        assert (last["doing"], last["status"]["round"]) == ("ended", len(rounds[rank]))
        assert last["total"]["samples"] == sum(record["num_samples"] for record in rounds[rank])


def test_what_cannot_be_resumed_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "kept").mkdir()
    (port,) = free_ports(1)
    with cluster(tmp_path / "job", num_workers=2, hub="sync-switch") as processes:
        start_workers(processes, port, tmp_path, "--resume")
        for rank in range(2):
            assert end_of(processes.running[f"worker{rank}"]) == 2
            assert f"--resume: there is no checkpoint in {tmp_path / 'kept'}" in processes.log(f"worker{rank}")
