"""Sync-Switch on a real cluster: a job that is killed goes on."""

import signal

import pytest
from cluster_processes import cluster, free_ports, wait_for
from few_images import on_few_images
from round_records import read_rounds

pytestmark = pytest.mark.cluster


def start_workers(processes, port, folder, *more):
    for rank in range(2):
        flags = ["-m", "sync-switch", "-c", "1", "-n", "lenet", "-e", "1000", "-l", "0.003", "--min-step-time", "0.06"]
        flags += ["-ld", str(folder), "--device-name", f"cpu{rank}", "-port", str(port)]
        flags += ["--train-steps", "20", "80", "--momentum", "0.5"]
        flags += ["--ckpt-frequency", "10", "--checkpoint", str(folder / "kept"), *on_few_images(), *more]
        processes.start_worker(rank, "main.py", *flags)


def test_a_job_that_was_killed_goes_on_in_its_phase_and_ends_at_the_same_step(tmp_path):
    log_dir, (port,) = tmp_path / "logs", free_ports(1)
    with cluster(tmp_path / "first", num_workers=2, hub="sync-switch") as processes:
        start_workers(processes, port, log_dir)
        wait_for((log_dir / "kept" / "server-00000060.ckpt").exists, "the checkpoint of round 60")
        for process in processes.running.values():
            process.send(signal.SIGKILL)
    with cluster(tmp_path / "second", num_workers=2, hub="sync-switch") as processes:
        start_workers(processes, port, log_dir, "--resume")
        assert set(processes.exit_codes().values()) == {0}, processes.log("worker0")
    logs = [list(read_rounds(log_dir / f"cpu{rank}", pytest.fail)) for rank in range(2)]
    assert max(record["batches"] for rounds in logs for record in rounds) == 200
    for rounds in logs:
        events = {event["text"]: record for record in rounds for event in record.get("events", [])}
        (first,) = (record for text, record in events.items() if text.startswith("resumed"))
        assert f"resumed after round {first['num_iters'] - 1}" in events
        assert first["num_iters"] > 40
        assert first["total_time"] > rounds[first["num_iters"] - 2]["total_time"]  # time goes on where it was
