"""The papers' networks on images of CIFAR's form, in virtual time and on real clusters."""

import pytest
from cifar_files import CIFAR10, CIFAR100, write_binary
from cluster_processes import device_folders, run_cluster
from round_records import read_rounds

import simulate
from scripts import saved_model
from trainer.simulation import virtual_cluster
from utils import SetupError, read_json


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A folder with small CIFAR-10 and CIFAR-100, of 80 and of 40 training images."""
    folder = tmp_path_factory.mktemp("data")
    write_binary(CIFAR10, folder / "cifar-10-batches-bin", 16)
    write_binary(CIFAR100, folder / "cifar-100-binary", 40)
    return folder


def simulated(data_dir, logs, *flags):
    """One run; the hash of the weights."""
    job = ["-m", "esync", "--workers", "0.1,0.3", "-n", "mlp", "--dataset", "cifar100", "-b", "8", "--max-rounds", "3"]
    _, (run,) = simulate.parse([*job, "-dd", str(data_dir), "--log-base", str(logs), *flags])
    return virtual_cluster.VirtualRun(run.job).run()


def test_in_virtual_time_a_seed_gives_the_same_weights_with_augmentation_too(data_dir, tmp_path):
    first = simulated(data_dir, tmp_path, "--augment", "1")
    assert simulated(data_dir, tmp_path, "--augment", "1") == first
    assert simulated(data_dir, tmp_path) != first
    assert simulated(data_dir, tmp_path, "--augment", "1", "--seed", "1") != first


def test_a_network_has_the_classes_of_its_dataset_and_is_tested_on_no_other(data_dir, tmp_path):
    simulated(data_dir, tmp_path)
    path = tmp_path / "mlp" / "esync" / "virtual" / "cpu0" / "final.json"
    about = read_json(path)
    assert (about["classes"], about["dataset"]) == (100, "cifar100")
    accuracy = f"{about['accuracy']:.4f}"
    said = saved_model.evaluate(path, "", data_dir)
    assert said == f"accuracy {accuracy} on the 40 test images of cifar100; when it was saved: {accuracy}"
    with pytest.raises(SetupError, match=r"cifar10 has 10 classes, .*final\.json is a model for 100"):
        saved_model.evaluate(path, "cifar10", data_dir)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("network", "mode", "flags"),
    [
        ("resnet32", "sync-switch", ["-l", "0.001", "--train-steps", "2", "2"]),
        ("cnn", "wbsp", ["-ll", "0.001", "--max-rounds", "4"]),
    ],
)
def test_a_papers_network_trains_with_its_algorithm_on_a_real_cluster(data_dir, tmp_path, network, mode, flags):
    worker_flags = ["--dataset", "cifar10", "-b", "8", "--augment", "1", "-e", "1000", *flags]
    job = ["-m", mode, "-n", network, "--workers", "0,0.05", "--data-dir", str(data_dir)]
    run_cluster(tmp_path, *job, worker_flags=worker_flags)
    rounds = [list(read_rounds(folder, pytest.fail)) for folder in device_folders(tmp_path / network / mode)]
    assert sum(map(len, rounds)) == 8
    assert all(records[-1]["bytes_pushed"] > 0 for records in rounds)
    # Whose step was shorter evaluates: on a slow machine the pass itself outlasts what is added to it.
    (accuracy,) = (records[-1]["accuracy"] for records in rounds if "accuracy" in records[-1])
    assert 0 <= accuracy <= 1
