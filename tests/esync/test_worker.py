"""`esync.Worker` in three real processes of torch.distributed, and alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch: scripts/setup.sh --torch")

from cluster_processes import ROOT, free_ports
from state_server_process import running_state_server
from torch_ranks import SCENARIOS, change

import esync
import summary
from trainer.algorithms.outer_momentum import OuterMomentum

RANKS = 3
Said = dict[str, list[Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def said(folder: Path) -> Said:
    """What the ranks have said in each scenario."""
    with running_state_server() as server:
        shared = {
            **{name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ},
            **{"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ESYNC_SERVER": f"127.0.0.1:{server.port}"},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "WORLD_SIZE": str(RANKS)},
        }
        ranks = [
            subprocess.Popen(
                [sys.executable, ROOT / "tests" / "helpers" / "torch_ranks.py", folder],
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=(folder / f"rank-{rank}.log").open("w"),
            )
            for rank in range(RANKS)
        ]
        try:
            outputs = [rank.communicate(timeout=150)[0].decode().splitlines() for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    assert [len(lines) for lines in outputs] == [len(SCENARIOS), len(SCENARIOS), len(SCENARIOS) - 1], outputs
    return {
        name: [json.loads(lines[index]) for lines in outputs if index < len(lines)]
        for index, name in enumerate(SCENARIOS)
    }


def by_hand(ranks: list[Any], outer: OuterMomentum, rate: float, shares: tuple[float, ...], first: int = 0) -> Any:
    """The weights by this project's row, with the steps that the ranks did, from `first` on."""
    weights, done = np.array(ranks[0]["begin"], np.float64), [first] * RANKS
    for number in range(len(ranks[0]["rounds"])):
        update = np.zeros_like(weights)
        all_steps = [rank["rounds"][number]["steps"] for rank in ranks]
        of_all = sum(share for share, steps in zip(shares, all_steps, strict=True) if steps)
        for rank, (share, steps) in enumerate(zip(shares, all_steps, strict=True)):
            update += share / of_all * sum(change(rank, done[rank] + step).astype(np.float64) for step in range(steps))
            done[rank] += steps
        outer.step([weights], [update], rate)
    return weights


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("scenario", "outer", "rate", "shares"),
    [("outer", OuterMomentum(0.9, True), 0.7, (1 / 3,) * 3), ("plain", OuterMomentum(), 1.0, (1 / 6, 2 / 6, 3 / 6))],
)
def test_by_esyncs_rules_the_fast_ones_do_more_steps_and_the_weights_are_those_of_the_row(
    said: Said, scenario: str, outer: OuterMomentum, rate: float, shares: tuple[float, ...]
) -> None:
    ranks = said[scenario]
    expected = by_hand(ranks, outer, rate, shares)
    for rank in ranks:
        np.testing.assert_allclose(rank["weights"], expected, atol=1e-6)
        for one, same in zip(rank["rounds"], ranks[0]["rounds"], strict=True):
            assert (one["number"], one["samples_of_all"]) == (same["number"], same["samples_of_all"])
    steps = [sum(one["steps"] for one in rank["rounds"]) for rank in ranks]
    assert steps[0] > steps[1] > steps[2] >= len(ranks[0]["rounds"])
    assert sum(steps) == sum(one["steps_of_all"] for one in ranks[0]["rounds"])


@pytest.mark.cluster
def test_the_logs_are_those_that_the_summary_reads(said: Said, folder: Path) -> None:
    assert summary.main(["-b", str(folder / "logs"), "-n", "mine"]) == 0
    (path,) = (folder / "logs" / "mine" / "esync-outer").glob("*.json")
    devices = json.loads(path.read_text())
    (host,) = (each for each in devices.values() if isinstance(each, dict) and "cpu0" in each)
    assert host["cpu0"]["accuracy_list"] == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6])


@pytest.mark.cluster
def test_a_job_that_is_started_again_goes_on_after_the_newest_checkpoint(said: Said, folder: Path) -> None:
    """Round 4 is lost, the outer momentum is not: it is the same as in one job."""
    pairs = [*zip(said["saved"], said["resumed"], strict=True)]
    assert [(before["begun"], after["begun"]) for before, after in pairs] == [(1, 4)] * 3
    whole = [{**before, "rounds": before["rounds"][:3] + after["rounds"]} for before, after in pairs]
    expected = by_hand(whole, OuterMomentum(0.9, True), 0.7, (1 / 3,) * 3)
    for rank in said["resumed"]:
        np.testing.assert_allclose(rank["weights"], expected, atol=1e-6)
    assert "training goes on after round 3" in (folder / "rank-0.log").read_text()


@pytest.mark.cluster
def test_workers_with_different_numbers_of_batches_end_with_the_same_model_and_lose_no_step(said: Said) -> None:
    ranks = said["uneven"]
    assert [sum(one["steps"] for one in rank["rounds"]) for rank in ranks] == [1, 4, 7]
    expected = by_hand(ranks, OuterMomentum(), 1.0, (1 / 3,) * 3)
    for rank in ranks:
        np.testing.assert_allclose(rank["weights"], expected, atol=1e-6)


@pytest.mark.cluster
def test_all_are_done_in_the_round_in_which_one_has_asked_for_it(said: Said) -> None:
    assert [len(rank["rounds"]) for rank in said["stopped"]] == [2, 2, 2]


@pytest.mark.cluster
def test_what_does_not_fit_together_is_the_same_line_on_all(said: Said) -> None:
    for text in said["another rule"]:
        assert text == (
            "SetupError: rule of rank 1 is ['local-sgd-outer', 0, 0.7, 0.9, 0], of rank 0 ['local-sgd', 0, 1.0, 0.0, 0]"
        )
    assert said["no weights"] == ["SetupError: rank 1: the model has no parameters"] * 3
    for text in said["another server"]:
        assert text.startswith("SetupError: rank 2: no state server answers at http://127.0.0.1:1")


@pytest.mark.cluster
def test_a_killed_worker_ends_the_others_with_its_cause(said: Said) -> None:
    first, second = said["killed"]
    for text in (first, second):
        assert text.startswith("PeerLost: round ") and ": another worker is gone, or does not answer: " in text


def trained(steps: int, **options: Any) -> list[dict[str, Any]]:
    """The rounds of a worker alone, as in a notebook."""
    rounds: list[dict[str, Any]] = []
    model = torch.nn.Linear(2, 1)
    with esync.Worker(model, torch.optim.SGD(model.parameters(), lr=0.1), on_round=rounds.append, **options) as worker:
        for _ in range(steps):
            worker.step(4)
    return rounds


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, [1] * 6), ({"anchor": 4}, [4, 2]), ({"rule": "local-sgd", "sync_every": 3}, [3, 3])],
)
def test_a_worker_alone_needs_no_server_and_no_torch_distributed(options: dict[str, Any], steps: list[int]) -> None:
    assert [one["steps"] for one in trained(6, **options)] == steps


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rule": "esyn"}, "no rule 'esyn'"),
        ({"rule": "local-sgd"}, "needs sync_every"),
        ({"sync_every": 8}, "leave it out"),
        ({"rule": "local-sgd", "sync_every": 8, "anchor": 4}, "of the rules of ESync"),
        ({"anchor": -1}, "at least 1"),
        ({"anchor": "all"}, "or 'auto'"),
        ({"outer": (0.7, 0.9)}, "rule='esync-outer'"),
        ({"rule": "esync-outer", "outer": (0.7, 1.0)}, "below 1"),
        ({"weight": 0.0}, "above 0"),
        ({"every": 0}, "at least 1"),
        ({"server": "10010"}, "no HOST:PORT"),
    ],
)
def test_a_mistake_is_one_line(options: dict[str, Any], why: str) -> None:
    with pytest.raises(esync.SetupError, match=why) as error:
        trained(1, **options)
    assert "\n" not in str(error.value)


def test_a_wrapped_model_is_refused() -> None:
    class DistributedDataParallel(torch.nn.Linear):
        """Named as that of torch.nn.parallel, which needs a process group."""

    model = DistributedDataParallel(2, 1)
    with pytest.raises(esync.SetupError, match=r"give the module inside, as model\.module"):
        esync.Worker(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_checkpoint_that_cannot_be_read_gives_way_to_the_one_before(tmp_path: Path, caplog: Any) -> None:
    options: dict[str, Any] = {"checkpoint": tmp_path, "every": 1}
    assert [one["number"] for one in trained(3, **options)] == [1, 2, 3]
    path = tmp_path / "rank-0" / "round-3.pt"
    path.write_bytes(path.read_bytes()[:100])
    assert [one["number"] for one in trained(1, **options)] == [3]
    assert "round-3.pt cannot be read" in caplog.text and "goes on after round 2" in caplog.text


def test_a_job_that_begins_anew_keeps_its_own_checkpoints_and_those_of_before(tmp_path: Path) -> None:
    """Else the older run's, of later rounds, would count as newer."""
    options: dict[str, Any] = {"checkpoint": tmp_path, "every": 1}
    trained(5, **options)
    for path in (tmp_path / "rank-0").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert [one["number"] for one in trained(2, **options)] == [1, 2]
    assert [one["number"] for one in trained(1, **options)] == [3]
    names = {path.name for path in (tmp_path / "rank-0").iterdir()}
    assert names == {"round-4.pt.before", "round-5.pt.before", "round-2.pt", "round-3.pt"}
