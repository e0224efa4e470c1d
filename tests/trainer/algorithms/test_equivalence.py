"""What the algorithms must have in common, with the real trainers, in processes and in memory; DC-ASGD by hand."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from cluster_processes import ROOT, cluster
from equivalence_worker import train_in_memory

from trainer.algorithms.dcasgd import PerWorkerDCASGD
from trainer.engine import mx
from trainer.runtime.unpickling import optimizer_in

pytestmark = pytest.mark.cluster

PROGRAM = str(ROOT / "tests" / "helpers" / "equivalence_worker.py")


def load(path):
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


def trained(folder, algorithm, num_servers=1):
    """Final weights of both workers."""
    with cluster(folder, num_workers=2, num_servers=num_servers) as processes:
        for rank in range(2):
            processes.start_worker(rank, PROGRAM, algorithm, str(folder / f"{rank}.npz"))
        assert set(processes.exit_codes().values()) == {0}, processes.log("worker0")
    return [load(folder / f"{rank}.npz") for rank in range(2)]


def largest_difference(one, other):
    return max(np.abs(a - b).max() for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("equivalence")


@pytest.fixture(scope="module")
def ssgd(folder):
    return trained(folder / "sync", "sync", num_servers=2)


@pytest.fixture(scope="module")
def asgd(folder):
    return trained(folder / "async", "async")


def test_ssgd_on_two_half_batches_equals_one_big_batch(folder, ssgd):
    path = folder / "local.npz"
    subprocess.run([sys.executable, PROGRAM, "local", str(path)], check=True, timeout=120)
    alone = load(path)
    assert largest_difference(ssgd[0], ssgd[1]) == 0  # replicas stay equal to the last bit
    assert largest_difference(ssgd[0], alone) < 1e-6
    assert max(np.abs(weight).max() for weight in alone) > 0.1  # and these are not zeros


@pytest.mark.parametrize("algorithm", ["sync", "async"])
def test_processes_and_memory_give_the_same_weights(ssgd, asgd, algorithm):
    for here, there in zip(train_in_memory(algorithm), {"sync": ssgd, "async": asgd}[algorithm], strict=True):
        assert largest_difference(here, there) < 1e-6


def test_model_averaging_after_one_local_step_equals_ssgd(ssgd):
    averaged = train_in_memory("esync")
    assert largest_difference(averaged[0], averaged[1]) == 0
    assert largest_difference(averaged[0], ssgd[0]) < 1e-6


def test_dcasgd_with_lambda_zero_is_asgd(folder, asgd):
    dcasgd = trained(folder / "dcasgd-0", "dcasgd-0", num_servers=2)
    for rank in range(2):
        assert largest_difference(dcasgd[rank], asgd[rank]) < 1e-6


def test_the_bsp_phase_of_sync_switch_is_ssgd(ssgd):
    bsp = train_in_memory("bsp")
    assert largest_difference(bsp[0], bsp[1]) == 0
    assert largest_difference(bsp[0], ssgd[0]) < 1e-6


def test_the_asp_phase_of_sync_switch_is_asgd_with_the_step_size_over_n(asgd):
    asp = train_in_memory("asp")
    for rank in range(2):
        assert largest_difference(asp[rank], asgd[rank]) < 1e-6


def test_momentum_decay_and_schedule_on_a_real_server_under_asgd_are_those_of_the_asp_phase_in_memory(folder, asgd):
    """Each has an optimizer of its own on the server; they agree on one velocity, and on the samples of all workers."""
    ours = trained(folder / "async-with-all", "async-with-all")
    theirs = train_in_memory("asp-with-all")
    for rank in range(2):
        assert largest_difference(ours[rank], theirs[rank]) < 1e-6
    assert largest_difference(ours[0], asgd[0]) > 1e-3


def by_hand(pushes, rate, strength, num_workers, weight=1.0):
    """The paper's algorithm 2 with one weight: gradient = the worker's own backup (loss w*w/2)."""
    backups = [weight] * num_workers
    seen = []
    for worker in pushes:
        gradient = backups[worker]
        weight -= rate * (gradient + strength * gradient * gradient * (weight - backups[worker]))
        backups[worker] = weight
        seen.append(weight)
    return seen


@pytest.mark.parametrize("pushes", [[0, 0, 0, 1, 0, 1, 1], [0, 1, 2, 2, 1, 0, 0]])
def test_dcasgd_keeps_one_backup_for_each_worker(pushes):
    keys_per_worker, num_workers = 4, 3
    optimizer = PerWorkerDCASGD(0.03, keys_per_worker, num_workers, [True] * keys_per_worker, compensation=0.5)
    optimizer = optimizer_in(pickle.dumps(optimizer, 0))  # as it travels to the server
    stored = {worker: np.float32([1.0]) for worker in range(num_workers)}
    seen = []
    for worker in pushes:
        gradient = stored[worker].copy()
        optimizer.pushed(worker * keys_per_worker + 2, stored[worker], gradient)
        seen.append(stored[worker].item())
    np.testing.assert_allclose(seen, by_hand(pushes, 0.03, 0.5, num_workers), rtol=1e-6)


def test_the_first_updates_of_dcasgd_are_those_of_a_calculation_on_paper():
    # eta 0.1, lambda 2, both backups 1, gradients 1:
    # worker 0: w = 1 - 0.1 * (1 + 0) = 0.9;  worker 1: w = 0.9 - 0.1 * (1 + 2 * 1 * (0.9 - 1)) = 0.82
    optimizer = PerWorkerDCASGD(0.1, 1, 2, [True], compensation=2.0)
    first, second = mx.nd.array([1.0]), mx.nd.array([1.0])
    optimizer.update(0, first, mx.nd.array([1.0]), None)  # as MXNet's server calls it
    optimizer.update(1, second, mx.nd.array([1.0]), None)
    assert first.asscalar() == pytest.approx(0.9)
    assert second.asscalar() == pytest.approx(0.82)
