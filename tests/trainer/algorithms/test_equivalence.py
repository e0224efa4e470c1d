"""What the algorithms must have in common, with the real trainers, in processes and in memory."""

import numpy as np
import pytest
from cluster_processes import ROOT, cluster
from equivalence_worker import dcasgd_of_mxnet, train_alone, train_in_memory

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


def test_ssgd_on_two_half_batches_equals_one_big_batch(ssgd):
    alone = train_alone()
    assert largest_difference(ssgd[0], ssgd[1]) == 0  # replicas stay equal to the last bit
    assert largest_difference(ssgd[0], alone) < 1e-6
    assert max(np.abs(weight).max() for weight in alone) > 0.1  # and these are not zeros


@pytest.mark.parametrize("algorithm", ["sync", "async"])
def test_processes_and_memory_give_the_same_weights(ssgd, asgd, algorithm):
    for here, there in zip(train_in_memory(algorithm), {"sync": ssgd, "async": asgd}[algorithm], strict=True):
        assert largest_difference(here, there) < 1e-6


def test_dcasgd_on_mxnets_kvstore_is_mxnets_own(folder, asgd):
    strength = 20.0
    here, there = dcasgd_of_mxnet(strength), trained(folder / "dcasgd", f"dcasgd-{strength}")
    for rank in range(2):
        assert largest_difference(here[rank], there[rank]) < 1e-6
        said = (folder / "dcasgd" / f"worker{rank}.log").read_text().count("DCASGD keeps one backup for all workers")
        assert said == (rank == 0)
    assert largest_difference(here[0], asgd[0]) > 1e-4
    assert largest_difference(train_in_memory(f"dcasgd-{strength}")[0], there[0]) > 1e-4  # a backup of each worker


def test_momentum_and_decay_on_mxnets_kvstore_are_those_on_the_hub(folder, asgd):
    there, here = trained(folder / "momentum", "async-with-momentum"), train_in_memory("async-with-momentum")
    for rank in range(2):
        assert largest_difference(here[rank], there[rank]) < 1e-6
    assert largest_difference(here[0], asgd[0]) > 1e-3
