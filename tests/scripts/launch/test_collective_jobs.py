"""Whole jobs without scheduler and parameter servers: real workers, which find each other through the state server."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny_data
from cluster_processes import cluster, device_folders, needs_ipv6, run_cluster, wait_for
from round_records import read_rounds
from state_server_process import running_state_server

import simulate
from trainer.simulation import virtual_cluster
from utils import EXIT_OK, EXIT_PEER_LOST, RUN_FILE, read_json

pytestmark = pytest.mark.cluster
ROUNDS = 6


@pytest.fixture
def data(tmp_path: Path) -> Path:
    tiny_data.write_mnist(tmp_path / "data" / "mnist")
    return tmp_path / "data"


def test_a_ring_trains_the_model_that_a_parameter_server_would(tmp_path: Path, data: Path) -> None:
    flags = ["--max-rounds", str(ROUNDS), "-e", "3", "-b", "8", "--dataset", "mnist"]
    options = ["-m", "sync", "-n", "mlp", "--workers", "0,0.05", "--exchange", "ring", "--data-dir", str(data)]
    output = run_cluster(tmp_path / "real", *options, worker_flags=[*flags, "--evaluator", "0"])
    assert "done; the logs are in" in output and "all 2 workers are connected with each other" in output
    folders = device_folders(tmp_path / "real" / "mlp" / "sync")
    logs = {path.name for path in folders[0].parent.parent.glob("*.log")}
    assert logs == {"state-server.log", "worker0.log", "worker1.log"}
    runs = [read_json(folder / RUN_FILE) for folder in folders]
    found = [(run["rank"], run["num_workers"], run["ended"]) for run in runs]
    assert found == [(rank, 2, f"{ROUNDS} rounds done") for rank in range(2)]
    assert len({run["final_weights_sha256"] for run in runs}) == 1

    (tmp_path / "two.csv").write_text("step_time_s\n0.01\n0.05\n")
    where = ["--cluster", str(tmp_path / "two.csv"), "--log-base", str(tmp_path / "virtual"), "-dd", str(data)]
    _, (one,) = simulate.parse([*where, "-n", "mlp", "-m", "sync", *flags])
    virtual_cluster.VirtualRun(one.job).run()
    for folder in folders:
        virtual = tmp_path / "virtual" / "mlp" / "sync" / "virtual" / folder.name
        assert read_json(virtual / RUN_FILE)["partition_sha256"] == read_json(folder / RUN_FILE)["partition_sha256"]
        losses, expected = ([record["loss"] for record in read_rounds(path, pytest.fail)] for path in (folder, virtual))
        assert losses == pytest.approx(expected, rel=1e-4) and len(losses) == ROUNDS
    accuracies = [record.get("accuracy") for record in read_rounds(folders[0], pytest.fail)]
    assert [accuracy is not None for accuracy in accuracies] == [False, False, True] * 2


@contextlib.contextmanager
def losing_a_worker(folder: Path, data: Path, signal_: signal.Signals, says: str) -> Iterator[Callable[[], None]]:
    """A job whose worker 1 gets a signal after some rounds; gives the check of how the others end."""
    with running_state_server() as server, cluster(folder, num_workers=3, start=False) as processes:
        for rank in range(3):
            flags = ["-m", "esync", "--exchange", "binary-blocks", "-c", "1", "-n", "mlp", "--dataset", "mnist"]
            flags += ["-dd", str(data), "-ld", str(folder), "-port", str(server.port), "-b", "8", "-e", "1000"]
            flags += ["--evaluate", "yes" if rank == 0 else "auto", "--device-name", f"cpu{rank}"]
            processes.start_worker(rank, "main.py", *flags, "--min-step-time", "0.02")
        wait_for((folder / "cpu0" / "iter-3.txt").exists, "round 3")
        lost = processes.running.pop("worker1")

        def check() -> None:
            assert set(processes.exit_codes().values()) == {EXIT_PEER_LOST}
            for name in ("worker0", "worker2"):
                errors = [line for line in processes.log(name).splitlines() if "error" in line]
                assert len(errors) == 1, processes.log(name)
                assert "worker 1 (cpu1 on host " in errors[0] and errors[0].endswith(says)
            assert says in server.log.read_text()
            assert (folder / "cpu0" / "final.json").exists()  # of the worker that evaluates

        try:
            lost.send(signal_)
            yield check
        finally:
            lost.send(signal.SIGKILL)
            lost.reap()


def test_when_a_worker_is_lost_all_others_end_with_a_line_that_names_it(tmp_path: Path, data: Path) -> None:
    """One of a job is frozen, which shows after 10 s; meanwhile one of another job is killed."""
    frozen = ": no sign of life for 10 s: it is frozen, or its host or network is down"
    with losing_a_worker(tmp_path / "frozen", data, signal.SIGSTOP, frozen) as check_frozen:
        killed = " is gone: it was killed or crashed"
        with losing_a_worker(tmp_path / "killed", data, signal.SIGKILL, killed) as check_killed:
            check_killed()
        check_frozen()


@needs_ipv6
def test_workers_and_their_state_server_meet_over_ipv6(tmp_path: Path, data: Path) -> None:
    flags = ["-m", "esync", "-n", "mlp", "-c", "1", "--exchange", "ring", "--dataset", "mnist", "-dd", str(data)]
    flags += ["--max-rounds", "2", "-e", "9", "-ld", str(tmp_path / "logs")]
    with running_state_server(command=("serve",), host="::1") as server, cluster(tmp_path, 2, start=False) as processes:
        for rank, ip in enumerate(("::1", "[::1]")):
            own = ["--device-name", f"cpu{rank}", "-ip", ip, "-port", str(server.port)]
            processes.start_worker(rank, "main.py", *flags, *own)
        assert set(processes.exit_codes().values()) == {EXIT_OK}
    assert "all 2 workers are connected with each other" in processes.log("worker1")
    assert read_json(tmp_path / "logs" / "cpu1" / RUN_FILE)["ended"] == "2 rounds done"
