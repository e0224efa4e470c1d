"""What a probe of the machines makes of its measurements, and one of real processes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster_processes import run_cluster

from report.measured import mean_of
from scripts.probe import Probed, derived, probe
from scripts.run_process import Ended
from trainer.hub.probe import STEPS, Found
from trainer.simulation import cluster_file
from utils import EXIT_SETUP, SetupError

MEGABYTE = 1_000_000  # 8 Mbit


def found(push_s: float, together_s: float, trip_s: float = 0.01, sent_bytes: int = MEGABYTE) -> Found:
    """Of a worker whose pulls take as long as its pushes."""
    times = {"push_s": push_s, "pull_s": push_s, "push_together_s": together_s, "pull_together_s": together_s}
    return Found((0.1, 0.1, 0.1), 1.5 * trip_s, trip_s, 0.02, sent_bytes, **times)


def test_each_link_has_its_own_bandwidth_and_half_the_rest_of_a_round_as_latency():
    cluster = derived([found(0.09, 0.09), found(0.81, 0.8)], [True, True])
    assert [worker.bandwidth_mbit_s for worker in cluster.workers] == pytest.approx([100, 10])
    assert {(worker.latency_s, worker.state_server_round_trip_s) for worker in cluster.workers} == {(0.0075, 0.02)}
    assert cluster.server_bandwidth_mbit_s == math.inf  # together they are as fast as alone


def test_the_hubs_own_link_is_what_all_together_get_where_that_is_less():
    cluster = derived([found(0.08, 0.16, trip_s=0), found(0.08, 0.16, trip_s=0), found(0.8, 0.8, trip_s=0)], [True] * 3)
    assert [worker.bandwidth_mbit_s for worker in cluster.workers] == pytest.approx([100, 100, 10])
    assert cluster.server_bandwidth_mbit_s == pytest.approx(50 + 50 + 10)


def test_a_worker_on_the_hubs_host_shares_no_link():
    local, far = found(0.001, 0.004, trip_s=0.0005), found(0.08, 0.08)
    assert derived([local, far], [False, True]).server_bandwidth_mbit_s == math.inf
    assert derived([local, local], [False, False]).server_bandwidth_mbit_s == pytest.approx(2 * 2000)


@pytest.mark.parametrize("push_s", [0.01, 0.0102])
def test_a_transfer_that_takes_no_longer_than_a_message_has_no_limit(push_s):
    (worker,) = derived([found(push_s, push_s)], [True]).workers
    assert worker.bandwidth_mbit_s == math.inf


def test_steps_keep_their_mean_and_spread():
    times = (0.1, 0.2, 0.1, 0.2)
    (worker,) = derived([Found(times, 0, 0, 0, 1, 1, 1, 1, 1)], [True]).workers
    assert worker.step_spread == pytest.approx(math.log(2) / 2)
    assert mean_of(worker.step_time_s, worker.step_spread) == pytest.approx(statistics.fmean(times))


# ----------------------------------------------------------------------------------------------- real processes


class Here:
    """In place of Processes: runs the launcher in this process."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def do(self, command: Sequence[str], folder: str, environment: Mapping[str, str]) -> Ended:
        cut = command.index("--")
        run_cluster(self.base, *command[1:cut], worker_flags=command[cut + 1 :])
        return Ended(self.base, folder, 0)


class Failing(Here):
    """In place of Processes: ends with an error."""

    stopped = False

    def do(self, command: Sequence[str], folder: str, environment: Mapping[str, str]) -> Ended | None:
        (self.base / "output.txt").write_text("h1: connected\nerror: h3 is down; or do without: --without h3\n")
        return None if self.stopped else Ended(self.base, folder, EXIT_SETUP)


def probed(place: Sequence[str], folder: Path, processes: Any, *flags: str) -> Probed | None:
    return probe(place, ["-n", "mlp", "--", "-b", "32", *flags], folder, processes)


@pytest.mark.cluster
def test_a_probe_of_real_processes_finds_the_step_times_and_writes_a_cluster_file(tmp_path):
    place = ["--workers", "0.02,0.05,0.1"]
    result = probed(place, tmp_path, Here(tmp_path / "logs"), "--optimizer", "adam", "--sync-every", "4")
    assert result is not None
    assert [name.split()[1] for name in result.names] == ["cpu0", "cpu1", "cpu2"]
    for worker, step_s in zip(result.cluster.workers, (0.02, 0.05, 0.1), strict=True):
        assert step_s * 0.8 < mean_of(worker.step_time_s, worker.step_spread) < step_s * 2 + 0.05  # on a busy machine
        assert 0 < worker.latency_s < 0.1 and 0 < worker.state_server_round_trip_s < 0.2
    read = cluster_file.read(result.path)
    assert [each.step_time_s for each in read.workers] == pytest.approx(
        [each.step_time_s for each in result.cluster.workers], rel=1e-4
    )
    logs = [*(tmp_path / "logs/mlp/async-local").glob("*/cpu2/iter-*.txt")]
    assert len(logs) >= STEPS and all("forward and backward" in log.read_text() for log in logs)


def test_an_error_of_the_launcher_is_told_and_a_signal_ends_the_probe(tmp_path):
    (hosts := tmp_path / "hosts.csv").write_text("address\nh1\nh3\n")
    processes = Failing(tmp_path)
    with pytest.raises(SetupError, match=r"^h3 is down; or do without: --without h3$"):
        probed(["--hosts", str(hosts)], tmp_path, processes)
    processes.stopped = True
    assert probed(["--hosts", str(hosts)], tmp_path, processes) is None
