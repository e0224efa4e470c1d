"""WBSP on real clusters: what is released, that nothing is lost, and who waits."""

import numpy as np
import pytest
from cluster_processes import ROOT, cluster, free_ports, wait_for
from few_images import on_few_images
from recording_state_server import passing_on
from state_server_process import running_state_server

pytestmark = pytest.mark.cluster

BATCH = 16  # of the program below
PROGRAM = str(ROOT / "tests" / "helpers" / "wbsp_worker.py")
STEP_TIMES = ("0.01", "0.18")  # so far apart that a busy machine does not change who is the slower


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """By rank, all that a worker uploaded and pulled, with overlap: two threads of each worker."""
    folder = tmp_path_factory.mktemp("wbsp")
    job = cluster(folder, num_workers=len(STEP_TIMES), hub="wbsp")
    with running_state_server() as server, passing_on(server.port) as recorder, job as processes:
        for rank, step_time in enumerate(STEP_TIMES):
            output = str(folder / f"{rank}.npz")
            processes.start_worker(rank, PROGRAM, str(recorder.port), "1", step_time, output)
        assert set(processes.exit_codes().values()) == {0}, processes.log("worker0")
    told = [recorder.of(rank) for rank in range(len(STEP_TIMES))]
    return [dict(np.load(folder / f"{rank}.npz")) | {"told": told[rank]} for rank in range(len(STEP_TIMES))]


def test_each_release_is_the_initial_model_plus_all_uploads_over_n(records):
    checked = 0
    for record in records:
        for included, model in zip(record["included"], record["models"], strict=True):
            expected = record["initial"].astype(np.float64)
            for count, other in zip(included, records, strict=True):
                expected += other["uploads"][:count].astype(np.float64).sum(axis=0) / len(records)
            np.testing.assert_allclose(model, expected, atol=2e-6)
            checked += 1
    assert checked > 10


def test_all_pulls_of_a_release_are_bit_identical(records):
    pulled = {}
    for record in records:
        for number, model in zip(record["releases"], record["models"], strict=True):
            pulled.setdefault(int(number), []).append(model)
    shared = {number: models for number, models in pulled.items() if len(models) > 1}
    assert len(shared) > 5
    for models in shared.values():
        assert all(np.array_equal(models[0], model) for model in models[1:])
    assert any(not np.array_equal(shared[a][0], shared[b][0]) for a, b in zip(shared, list(shared)[1:], strict=False))


def test_no_step_is_lost_whether_it_came_before_during_or_after_a_pull(records):
    for record in records:
        assert record["steps"].sum() == record["rounds"]
        np.testing.assert_allclose(record["uploads"].sum(axis=0), record["moved"], atol=2e-5)


def test_a_release_comes_with_each_upload_of_the_slowest_worker_and_nobody_waits_for_it(records):
    fast, slow = records
    assert slow["rounds"] / 2 < slow["releases"].max() <= 1.5 * slow["rounds"] + 1
    assert fast["rounds"] > 1.5 * slow["rounds"]


def test_the_state_server_is_told_all_of_a_worker_to_its_end(records):
    for record in records:
        told = record["told"]
        assert told[-1]["doing"] == "ended"
        assert told[-1]["total"]["steps"] == record["rounds"]
        assert told[-1]["total"]["samples"] == BATCH * record["rounds"]
        reports = [message for message in told if message["msg_type"] == "REPORT"]
        totals = [message["total"]["steps"] for message in reports]
        assert totals == sorted(totals)
        assert {message["msg_type"] for message in told} == {"REPORT"}  # it is told, and not asked


def test_the_page_hears_who_releases_and_why(records):
    fast, slow = ([message["decision"] for message in record["told"] if "decision" in message] for record in records)
    released = [decision["reason"] for decision in slow if decision["action"] == "SYNC"]
    assert len(released) > len(slow) / 2
    assert any(reason.startswith("is the slowest: reaches the server in ") for reason in released)
    assert sum(decision["action"] == "TRAIN" for decision in fast) > len(fast) / 2


def start_workers(processes, folder, port, rounds):
    for rank in range(2):
        flags = ["-c", "1", "-n", "lenet", "-e", "1000", "--max-rounds", str(rounds), "--min-step-time", "0.02"]
        flags += ["-ld", str(folder), "--device-name", f"cpu{rank}", "-port", str(port), "-m", "wbsp", "-ll", "0.003"]
        flags += on_few_images()
        processes.start_worker(rank, "main.py", *flags)


def lines_about_the_state_server(processes, rank):
    return [line for line in processes.log(f"worker{rank}").splitlines() if "state server" in line]


def test_without_a_state_server_a_line_of_each_worker_says_so_and_the_job_is_done(tmp_path):
    (port,) = free_ports(1)
    with cluster(tmp_path, num_workers=2, hub="wbsp") as processes:
        start_workers(processes, tmp_path, port, 20)
        assert set(processes.exit_codes().values()) == {0}, processes.log("worker0")
        said = [lines_about_the_state_server(processes, rank) for rank in range(2)]
    for (line,) in said:
        assert f"the state server at http://127.0.0.1:{port} does not answer" in line
        assert line.endswith("training goes on without it")


def test_a_state_server_that_goes_away_is_not_missed(tmp_path):
    with running_state_server() as server, cluster(tmp_path, num_workers=2, hub="wbsp") as processes:
        start_workers(processes, tmp_path, server.port, 100)
        wait_for((tmp_path / "cpu0" / "iter-5.txt").exists, "round 5")
        server.process.kill()
        assert set(processes.exit_codes().values()) == {0}, processes.log("worker0")
        for rank in range(2):
            (line,) = lines_about_the_state_server(processes, rank)
            assert line.endswith("training goes on without it")
    assert (tmp_path / "cpu0" / "iter-100.txt").exists()
