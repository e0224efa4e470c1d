"""Real jobs without a parameter server whose workers are lost, come, and leave, while the others go on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import requests
import tiny_data
from cluster_processes import Processes, cluster, end_of, wait_for
from round_records import read_rounds
from state_server_process import running_state_server

import summary
from algorithms import MEMBERS
from report import metrics
from trainer.hub.wire import SILENT
from utils import EXIT_BUG, EXIT_INCOMPLETE, EXIT_PEER_LOST, LEFT, RUN_FILE, STOPPED, read_json

pytestmark = pytest.mark.cluster


class Job:
    """Workers of one job; each has a log folder of its own."""

    def __init__(self, folder: Path, processes: Processes, port: int, *flags: str) -> None:
        self.logs = folder / "logs" / "host"
        tiny_data.write_mnist(folder / "data" / "mnist")
        self._processes = processes
        self.flags = ["-c", "1", "-n", "mlp", "--dataset", "mnist", "-b", "8", "--on-worker-death", "continue"]
        self.flags += ["-dd", str(folder / "data"), "-ld", str(self.logs), "-port", str(port), *flags]

    def start(self, worker: int, step_s: float, *flags: str) -> None:
        own = ["--device-name", f"cpu{worker}", "--min-step-time", str(step_s), *flags]
        self._processes.start_worker(worker, "main.py", *self.flags, *own)

    def wait_for_round(self, worker: int, round_: int) -> None:
        wait_for(lambda: self.newest(worker) >= round_, f"round {round_} of worker {worker}")

    def newest(self, worker: int) -> int:
        return max((int(path.stem[5:]) for path in (self.logs / f"cpu{worker}").glob("iter-*.txt")), default=0)

    def kill(self, worker: int) -> None:
        lost = self._processes.running.pop(f"worker{worker}")
        lost.send(signal.SIGKILL)
        lost.reap()

    def events(self, worker: int) -> list[str]:
        records = read_rounds(self.logs / f"cpu{worker}", pytest.fail)
        events = [event for record in records for event in record.get("events", [])]
        assert {event["kind"] for event in events} <= {MEMBERS.name}
        return [event["text"] for event in events]

    def run(self, worker: int) -> dict:
        return read_json(self.logs / f"cpu{worker}" / RUN_FILE)


def test_a_job_of_esync_goes_on_without_rank_0_takes_it_in_again_and_lets_another_one_go(tmp_path: Path) -> None:
    """Worker 0 is rank 0 and evaluates; it is killed, and started again later; worker 1 leaves."""
    with running_state_server() as server, cluster(tmp_path, num_workers=3, start=False) as processes:
        flags = ["-m", "esync", "--exchange", "ring", "-e", "2"]
        job = Job(tmp_path, processes, server.port, *flags)
        job.start(0, 0.01)
        job.start(1, 0.03, "--leave", "1")
        job.start(2, 0.05)
        job.wait_for_round(2, 4)
        job.kill(0)
        lost_at = job.newest(0)
        job.wait_for_round(2, job.newest(2) + 3)
        job.start(0, 0.02)
        job.wait_for_round(0, lost_at + 1)
        came_at = job.newest(0)
        job.wait_for_round(2, came_at + 2)
        processes.running["worker1"].send(signal.SIGTERM)
        assert end_of(processes.running["worker1"]) == 0
        job.wait_for_round(2, job.newest(2) + 3)
        processes.running["worker2"].send(signal.SIGTERM)  # which ends the job
        assert set(processes.exit_codes().values()) == {0}, processes.log("worker2")
        status = requests.get(f"{server.url}/status.json", timeout=10).json()
    ended = [job.run(worker)["ended"] for worker in range(3)]
    assert ended == ["another worker asked for it", LEFT, STOPPED]
    assert len({job.run(worker)["final_weights_sha256"] for worker in (0, 2)}) == 1
    texts = job.events(2)
    assert [text[:25] for text in texts] == [
        "generation 2: 2 worker(s)", "generation 3: 3 worker(s)", "generation 4: 2 worker(s)",
    ]  # fmt: skip
    assert "worker 0 (cpu0 on host" in texts[0] and texts[0].endswith("is gone") and texts[1].endswith("has come")
    rounds, last = list(read_rounds(job.logs / "cpu2", pytest.fail)), job.newest(2)
    assert [record["num_iters"] for record in rounds] == list(range(1, last + 1))  # none is lost
    back = list(read_rounds(job.logs / "cpu0", pytest.fail))
    first = next(record for record in back if record["num_iters"] > lost_at)
    assert [record["num_iters"] for record in back][:lost_at] == list(range(1, lost_at + 1))
    assert first["missed"] == first["num_iters"] - lost_at - 1 >= 3
    assert first["total_time"] > rounds[lost_at]["total_time"]  # seconds of the job, not of the process
    assert (status["generation"], status["num_workers"], status["round"]) == (4, 2, last)
    devices = summary.summarise_mode(job.logs.parent, pytest.fail)
    evaluator = metrics.evaluating_device(devices, pytest.fail)
    assert evaluator is not None
    # Worker 0 had the first accuracies and has the last ones, worker 1 those between. One may have been under way.
    assert last // 2 - 1 <= len(evaluator.values) <= (last + 1) // 2


def test_a_job_whose_workers_are_all_killed_goes_on_from_the_newest_of_their_checkpoints(tmp_path: Path) -> None:
    """Worker 1 has an older checkpoint than worker 0, and worker 2 none."""
    with running_state_server() as server, cluster(tmp_path, num_workers=3, start=False) as processes:
        flags = ["-m", "local-sgd", "--sync-every", "2", "--outer-momentum", "0.5", "--exchange", "ring"]
        flags += ["--ckpt-frequency", "2", "--evaluate", "no"]
        job = Job(tmp_path, processes, server.port, *flags)
        for worker in range(3):
            job.start(worker, 0.03)
        job.wait_for_round(2, 9)
        began_with = {job.run(worker)["initial_weights_sha256"] for worker in range(3)}
        for worker in range(3):
            processes.running[f"worker{worker}"].send(signal.SIGSTOP)
        for worker in range(3):
            job.kill(worker)
        found = {worker: sorted(job.logs.rglob(f"worker-*-cpu{worker}-*.ckpt")) for worker in range(3)}
        for path in [found[1].pop(), *found[2]]:
            path.unlink()
        newest = max(int(path.stem[-8:]) for worker in (0, 1) for path in found[worker])
        logged = [job.newest(worker) for worker in range(3)]
        for worker, resumes in ((0, ["--resume"]), (1, ["--resume"]), (2, [])):
            job.start(worker, 0.03, *resumes)
        job.wait_for_round(0, max(logged) + 3)
        processes.running["worker0"].send(signal.SIGTERM)
        assert set(processes.exit_codes().values()) == {0}, processes.log("worker0")
    runs = [job.run(worker) for worker in range(3)]
    assert len({run["final_weights_sha256"] for run in runs}) == 1
    assert len({run["initial_weights_sha256"] for run in runs} - began_with) == 1  # those of the checkpoint
    for worker in range(3):
        records = list(read_rounds(job.logs / f"cpu{worker}", pytest.fail))
        (first,) = (record for record in records if any(each["kind"] == "resume" for each in record.get("events", [])))
        assert first["num_iters"] == newest + 1
        numbers = [record["num_iters"] for record in records]
        assert numbers == sorted(numbers)
        assert len(records) + first.get("missed", 0) == numbers[-1]
        seconds = [record["total_time"] for record in records]
        assert seconds == sorted(seconds)
    assert first["missed"] == newest  # worker 2's log began anew


STRIKES = """
import os, sys
from trainer.evaluation.evaluations import Evaluations
evaluates = Evaluations.after_last
def after_last(self, is_stopped):
    if self._trainer.is_evaluator and sys.argv[2] in sys.argv[3:]:
        os.kill(os.getpid(), int(sys.argv[1]))
    return evaluates(self, is_stopped)
Evaluations.after_last = after_last
import main
main.main(sys.argv[3:])
"""
ENDS_S = 30.0  # before, ten minutes


def start_with_a_last_evaluation_that_fails(job: Job, folder: Path, processes: Processes, number: signal.Signals):
    """Two workers, of which cpu0 evaluates first, and sends itself a signal in the last evaluation."""
    (folder / "strikes.py").write_text(STRIKES)
    for worker, evaluates in ((0, "yes"), (1, "auto")):
        own = ["--device-name", f"cpu{worker}", "--evaluate", evaluates, "--max-rounds", "5", "-e", "100"]
        processes.start_worker(worker, str(folder / "strikes.py"), str(int(number)), "cpu0", *job.flags, *own)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_the_last_evaluation_is_done_by_another_worker_where_the_one_that_does_it_is_lost(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Also where fewer than --min-workers are left; and the lost one ends in order, if it wakes up after all."""
    with running_state_server() as server, cluster(tmp_path, num_workers=2, start=False) as processes:
        flags = ["-m", "sync", "--exchange", "ring", "--fault-timeout", "2", "--min-workers", "2"]
        job = Job(tmp_path, processes, server.port, *flags)
        start_with_a_last_evaluation_that_fails(job, tmp_path, processes, number)
        assert end_of(processes.running["worker1"], ENDS_S) == 0, processes.log("worker1")
        processes.running["worker0"].send(signal.SIGCONT)
        assert end_of(processes.running["worker0"], ENDS_S) == (0 if number is signal.SIGSTOP else -number)
    last = list(read_rounds(job.logs / "cpu1", pytest.fail))[-1]
    assert last["num_iters"] == 5 and "accuracy" in last
    assert (job.logs / "cpu1" / "final.json").exists()
    assert job.run(1)["ended"] and bool(job.run(0)["ended"]) == (number is signal.SIGSTOP)


def test_a_worker_that_freezes_in_the_last_evaluation_ends_a_job_that_does_not_survive(tmp_path: Path) -> None:
    with running_state_server() as server, cluster(tmp_path, num_workers=2, start=False) as processes:
        job = Job(tmp_path, processes, server.port, "-m", "sync", "--exchange", "ring", "--on-worker-death", "end")
        start_with_a_last_evaluation_that_fails(job, tmp_path, processes, signal.SIGSTOP)
        assert end_of(processes.running["worker1"], ENDS_S) == EXIT_PEER_LOST
        assert "worker 0 (cpu0 on host" in processes.log("worker1") and SILENT in processes.log("worker1")


STANDS = """
import sys, time
from trainer.algorithms.sync import SyncTrainer
from esync import measure
measure.STANDS_S = 1.0
steps = SyncTrainer.local_step
def local_step(self, batch):
    if self.rounds == 4:
        time.sleep(60)
    return steps(self, batch)
SyncTrainer.local_step = local_step
import main
main.main(sys.argv[1:])
"""


def test_a_worker_whose_training_stands_ends_and_the_others_go_on(tmp_path: Path) -> None:
    with running_state_server() as server, cluster(tmp_path, num_workers=2, start=False) as processes:
        flags = ["-m", "sync", "--exchange", "ring", "--max-rounds", "6", "--evaluate", "no"]
        job = Job(tmp_path, processes, server.port, *flags)
        job.start(0, 0.02)
        (tmp_path / "stands.py").write_text(STANDS)
        processes.start_worker(1, str(tmp_path / "stands.py"), *job.flags, "--device-name", "cpu1")
        assert processes.exit_codes() == {"worker0": 0, "worker1": EXIT_BUG}
        assert "stands: forward and backward takes 1 s, the longest so far 0." in processes.log("worker1")
    assert job.newest(0) == 6


FULL = """
import sys
from trainer.run_logs.run_folder import RunFolder
from utils import SetupError
describes = RunFolder.describe
def describe(self, facts, ended=None):
    if ended:
        raise SetupError("the disk is full")
    describes(self, facts, ended)
RunFolder.describe = describe
import main
main.main(sys.argv[1:])
"""


def test_a_disk_that_is_full_at_the_end_is_an_exit_code_also_with_a_hub(tmp_path: Path) -> None:
    with cluster(tmp_path, num_workers=1, hub="wbsp") as processes:
        job = Job(tmp_path, processes, 1, "-m", "wbsp", "--max-rounds", "2", "--evaluate", "no")
        (tmp_path / "full.py").write_text(FULL)
        processes.start_worker(0, str(tmp_path / "full.py"), *job.flags, "--device-name", "cpu0")
        assert processes.exit_codes() == {"server0": 0, "worker0": EXIT_INCOMPLETE}
        assert "the disk is full" in processes.log("worker0")
