"""Programs that are not this project's, and its own processes, in one job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from cluster_processes import ROOT, cluster, free_ports, wait_for
from few_images import on_few_images

from utils import read_rounds

pytestmark = pytest.mark.cluster

# ------------------------------------------------------------------------------- the published state server


@pytest.fixture
def published(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """The port and the log of a published state server."""
    (port,) = free_ports(1)
    program, log = ROOT / "benchmarks" / "published_program.py", tmp_path / "published.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(program), "runserver", "--noreload", f"127.0.0.1:{port}"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: "Quit the server" in log.read_text(), "the start of the published server")
        yield port, log
    finally:
        process.kill()
        process.wait()


def test_esync_trains_with_a_published_state_server(published: tuple[int, Path], tmp_path: Path) -> None:
    port, server_log = published
    earlier = {"num_workers": 1, "epsilon": 0.5}  # of a job before
    assert requests.post(f"http://127.0.0.1:{port}/init/", data=earlier, timeout=10).status_code == 200
    flags = ["-m", "esync", "-n", "mlp", "-c", "1", "--max-rounds", "4", "-port", str(port), *on_few_images()]
    own = ["--policy", "preprint", "--epsilon", "0.01"]
    with cluster(tmp_path / "job", 2) as job:
        for rank, step_s in enumerate(("0.05", "0.5")):
            where = ["-ld", str(tmp_path / f"worker{rank}"), "--min-step-time", step_s]
            job.start_worker(rank, "main.py", *flags, *own, *where)
        assert set(job.exit_codes().values()) == {0}
        for rank in range(2):
            warning = f"http://127.0.0.1:{port} is a published ESync state server: its rule is the preprint's"
            assert job.log(f"worker{rank}").count(warning) == 1
            assert "Traceback" not in job.log(f"worker{rank}")
    state = requests.get(f"http://127.0.0.1:{port}/", timeout=10).json()
    assert (state["num_workers"], state["t"], state["epsilon"]) == (2, 4, 0.01)
    assert [row[5] for row in state["records"]] == [4, 4]
    logs = [read_rounds(tmp_path / f"worker{rank}" / "cpu", pytest.fail) for rank in range(2)]
    fast, slow = (sum(record["num_samples"] for record in log) for log in logs)
    assert fast > 2 * slow  # the rule has decided: ten steps fit into the slow one's
    assert "Internal Server Error" not in server_log.read_text()
