"""A network whose normalisation benchmarks/normalisation.py has changed trains with the other one, all over."""

from __future__ import annotations

import numpy as np
import pytest

import models
from benchmarks import normalisation
from trainer.engine import mx

NORMS = (mx.gluon.nn.BatchNorm, mx.gluon.nn.GroupNorm)


def built(monkeypatch, name, kind):
    """The network, and the kinds of its normalisations in order."""
    factory = normalisation.changed(models.REGISTRY[name].factory, kind)
    monkeypatch.setitem(models.REGISTRY, name, models.Network(factory))
    network, found = models.build(name, (1, 28, 28), 10, mx.cpu(), 0), []
    network.apply(lambda layer: found.append(type(layer)) if isinstance(layer, NORMS) else None)
    return network, found


@pytest.mark.parametrize(
    ("name", "kind", "normalisations"),
    [("resnet18-v1", "groups", [mx.gluon.nn.GroupNorm] * 20), ("mlp", "batches", [mx.gluon.nn.BatchNorm])],
)
def test_it_is_changed_all_over_and_each_new_layer_learns(monkeypatch, name, kind, normalisations):
    network, found = built(monkeypatch, name, kind)
    assert found == normalisations
    with mx.autograd.record():
        outputs = network(mx.nd.array(np.random.default_rng(0).normal(size=(8, 1, 28, 28))))
        loss = (outputs * outputs).sum()
    loss.backward()
    scales = [each for key, each in network.collect_params().items() if key.endswith("gamma")]
    assert len(scales) == len(normalisations)
    assert all(np.abs(each.grad().asnumpy()).max() > 0 for each in scales)


def test_with_groups_a_sample_s_outputs_do_not_depend_on_its_batch(monkeypatch):
    network, _ = built(monkeypatch, "resnet18-v1", "groups")
    images = mx.nd.array(np.random.default_rng(0).normal(size=(8, 1, 28, 28)))
    with mx.autograd.train_mode():
        together, alone = network(images)[:2].asnumpy(), network(images[:2]).asnumpy()
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_a_network_without_the_layer_is_refused(monkeypatch):
    with pytest.raises(SystemExit, match="no layer for 'groups'"):
        built(monkeypatch, "mlp", "groups")
