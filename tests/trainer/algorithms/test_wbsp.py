"""WBSP on real clusters: what is released, that nothing is lost, and who waits."""

import numpy as np
import pytest
from cluster_processes import ROOT, cluster, wait_for
from few_images import on_few_images
from state_server_process import running_state_server

pytestmark = pytest.mark.cluster

PROGRAM = str(ROOT / "tests" / "helpers" / "wbsp_worker.py")
STEP_TIMES = ("0.01", "0.18")  # so far apart that a busy machine does not change who is the slower


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """By rank, all that a worker uploaded and pulled, with overlap: two threads of each worker."""
    folder = tmp_path_factory.mktemp("wbsp")
    job = cluster(folder, num_workers=len(STEP_TIMES), hub="wbsp")
    with job as processes:
        for rank, step_time in enumerate(STEP_TIMES):
            processes.start_worker(rank, PROGRAM, step_time, str(folder / f"{rank}.npz"))
        assert set(processes.exit_codes().values()) == {0}, processes.log("worker0")
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(len(STEP_TIMES))]


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


def test_no_step_is_lost_whether_it_came_before_during_or_after_a_pull(records):
    for record in records:
        assert record["steps"].sum() == record["rounds"]
        np.testing.assert_allclose(record["uploads"].sum(axis=0), record["moved"], atol=2e-5)


def test_a_state_server_that_goes_away_is_not_missed(tmp_path):
    with running_state_server() as server, cluster(tmp_path, num_workers=2, hub="wbsp") as processes:
        for rank in range(2):
            flags = ["-c", "1", "-n", "lenet", "-e", "1000", "--max-rounds", "100", "--min-step-time", "0.02"]
            flags += ["-ld", str(tmp_path), "--device-name", f"cpu{rank}", "-port", str(server.port), "-m", "wbsp"]
            processes.start_worker(rank, "main.py", *flags, "-ll", "0.003", *on_few_images())
        wait_for((tmp_path / "cpu0" / "iter-5.txt").exists, "round 5")
        server.process.kill()
        assert set(processes.exit_codes().values()) == {0}, processes.log("worker0")
        for rank in range(2):
            (line,) = (line for line in processes.log(f"worker{rank}").splitlines() if "state server" in line)
            assert f"the state server at http://127.0.0.1:{server.port} does not answer" in line
            assert line.endswith("training goes on without it")
    assert (tmp_path / "cpu0" / "iter-100.txt").exists()
