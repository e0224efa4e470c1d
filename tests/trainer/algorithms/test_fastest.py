"""The K fastest workers of a cluster, in simulate.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_data

import simulate
from trainer.simulation import virtual_cluster


@pytest.mark.parametrize(
    "workers", ["0.4151,0.2717,0.6011,0.0603", "0.4151,0.2717,0.0603,0.2717"], ids=["unlike", "of equal ones the first"]
)
def test_they_train_as_a_job_of_these_alone(tmp_path: Path, workers: str) -> None:
    tiny_data.write_mnist(tmp_path / "data" / "mnist")

    def weights(*cluster: str) -> str:
        own = ["-m", "esync-outer", "-n", "mlp", "-b", "8", "--max-seconds", "2", "--log-base", str(tmp_path)]
        _, (run,) = simulate.parse([*own, "--dataset", "mnist", "-dd", str(tmp_path / "data"), *cluster])
        return virtual_cluster.VirtualRun(run.job).run()

    fastest = weights("--workers", workers, "--fastest", "2")
    assert fastest == weights("--workers", "0.2717,0.0603") != weights("--workers", "0.2717,0.1603")
