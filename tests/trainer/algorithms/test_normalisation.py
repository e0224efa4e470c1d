"""A network whose normalisation experiments/benchmarks/normalisation.py has changed trains with the other one, all
over."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import tiny_data

import models
from config import NETWORKS
from experiments.benchmarks import normalisation
from experiments.benchmarks.normalisation import KINDS
from trainer.engine import mx

BATCH, GROUP = mx.gluon.nn.BatchNorm, mx.gluon.nn.GroupNorm


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch):
    monkeypatch.setattr(models, "REGISTRY", dict(models.REGISTRY))


def built(name, kind):
    """The network, and the kinds of its normalisations in order."""
    models.REGISTRY[name] = normalisation.changed(name, kind)
    network, found = models.build(name, (1, 28, 28), 10, mx.cpu(), 0), []
    network.apply(lambda layer: found.append(type(layer)) if isinstance(layer, (BATCH, GROUP)) else None)
    return network, found


@pytest.mark.parametrize(
    ("name", "kind", "normalisations"),
    [
        ("resnet18-v1", "groups", [GROUP] * 20),
        ("resnet50-v1", "groups", [GROUP] * 53),
        ("mobilenet-v1", "groups", [GROUP] * 27),
        ("mlp", "batches", [BATCH]),
    ],
)
def test_it_is_changed_all_over_and_each_new_layer_learns(name, kind, normalisations):
    network, found = built(name, kind)
    assert found == normalisations
    with mx.autograd.record():
        outputs = network(mx.nd.array(np.random.default_rng(0).normal(size=(8, 1, 28, 28))))
        loss = (outputs * outputs).sum()
    loss.backward()
    scales = [each for key, each in network.collect_params().items() if key.endswith("gamma")]
    assert len(scales) == len(normalisations)
    assert all(np.abs(each.grad().asnumpy()).max() > 0 for each in scales)


def test_with_groups_a_sample_s_outputs_do_not_depend_on_its_batch():
    network, _ = built("resnet18-v1", "groups")
    images = mx.nd.array(np.random.default_rng(0).normal(size=(8, 1, 28, 28)))
    with mx.autograd.train_mode():
        together, alone = network(images)[:2].asnumpy(), network(images[:2]).asnumpy()
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for kind, its in KINDS.items() for name in NETWORKS if name not in its.networks]
)
def test_another_network_is_refused(name, kind):
    with pytest.raises(SystemExit, match=f"{kind} is for .*, and not for {name}"):
        built(name, kind)


def test_what_it_trains_and_saves_is_the_changed_network_in_a_folder_of_its_own(tmp_path):
    tiny_data.write_mnist(tmp_path / "data" / "mnist")
    job = ["-m", "local", "-n", "mlp", "--dataset", "mnist", "-dd", "data", "-b", "8", "--max-rounds", "2", "-e", "1"]
    command = [sys.executable, normalisation.__file__, "batches", *job, "--workers", "0.1"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    (about,) = (tmp_path / "logs" / "normalisation" / "batches").rglob("final.json")
    nodes = json.loads((about.parent / json.loads(about.read_text())["symbol"]).read_text())["nodes"]
    assert "BatchNorm" in {node["op"] for node in nodes}


def test_an_unknown_kind_is_refused(capsys):
    with pytest.raises(SystemExit) as error:
        normalisation.main(["layers", "-n", "mlp"])
    assert error.value.code == 2
    assert "invalid choice: 'layers'" in capsys.readouterr().err
