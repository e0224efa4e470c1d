"""The global model on tensors: the rows of this project give the same weights."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch: scripts/setup.sh --torch")

from esync import SetupError
from esync.averaging import GlobalModel, Outer
from trainer.algorithms.outer_momentum import OuterMomentum

SHARES = (0.5, 0.3, 0.2)
ROUNDS = 8


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2))


def train(network: torch.nn.Module, random: np.random.Generator) -> None:
    """Changes all that is averaged, as local steps do."""
    for tensor in (*network.parameters(), network[1].running_mean, network[1].running_var):
        tensor.data += torch.from_numpy(random.normal(0, 0.1, tensor.shape)).to(tensor.dtype)


def values(network: torch.nn.Module) -> list[np.ndarray]:
    tensors = (*network.parameters(), network[1].running_mean, network[1].running_var)
    return [tensor.detach().numpy().astype(np.float64) for tensor in tensors]


def average(models: list[GlobalModel], shares: tuple[float, ...]) -> torch.Tensor:
    """A round of all; returns the sums of their numbers."""
    sent = [model.update(share, [share, 1.0]) for model, share in zip(models, shares, strict=True)]
    for model in models:
        sums = torch.stack(sent).sum(0)
        model.apply(sums, float(sums[-2]))
    return sums[-2:]


@pytest.mark.parametrize(("outer", "row"), [(Outer(), OuterMomentum()), (Outer(0.7, 0.9), OuterMomentum(0.9, True))])
def test_weights_are_those_of_this_projects_rows(outer, row):
    """Weights of n_k / n, BatchNorm's statistics too, after several rounds."""
    networks, random = [network() for _ in SHARES], np.random.default_rng(2)
    models = [GlobalModel(each, outer) for each in networks]
    expected = values(networks[0])
    weights, statistics = expected[:-2], expected[-2:]
    for _ in range(ROUNDS):
        for each in networks:
            train(each, random)
        local = [values(each) for each in networks]
        d = [sum(s * (own[i] - w) for s, own in zip(SHARES, local, strict=True)) for i, w in enumerate(expected)]
        row.step(weights, d[:-2], outer.learning_rate)
        for statistic, update in zip(statistics, d[-2:], strict=True):
            statistic += update
        average(models, SHARES)
    for each in networks:
        for own, its in zip(values(each), expected, strict=True):
            np.testing.assert_allclose(own, its, atol=1e-6)


def test_weights_that_are_not_finite_are_left_out(caplog):
    """The worker gets the others' model."""
    networks = [network(), network()]
    models = [GlobalModel(each, Outer()) for each in networks]
    before = values(networks[0])
    train(networks[0], np.random.default_rng(3))
    networks[1][0].weight.data[0, 0] = torch.nan
    expected = values(networks[0])
    assert average(models, (0.5, 0.5)).tolist() == [0.5, 2.0]
    for each in networks:
        for own, its in zip(values(each), expected, strict=True):
            np.testing.assert_allclose(own, its, atol=1e-6)
    for each in networks:
        each[0].weight.data[:] = torch.inf
    average(models, (0.5, 0.5))
    assert np.allclose(values(networks[1])[0], expected[0], atol=1e-6) and not np.allclose(before[0], expected[0])


def test_a_model_in_half_precision_is_averaged_in_single_precision():
    """A local step of 2**-9 is lost in bfloat16 beside 1, and its tenth part in the mean is not."""
    model = torch.nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    model.weight.data[:] = 1.0
    shared = GlobalModel(model, Outer(0.1))
    for _ in range(10):
        model.weight.data += 2**-7
        average([shared], (1.0,))
    assert model.weight.item() == 1 + 2**-7


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: torch.nn.ReLU(), "no parameters"),
        (lambda: torch.nn.Linear(2, 2).to(torch.complex64), "complex64"),
    ],
)
def test_a_model_that_cannot_be_averaged_is_refused(model, why):
    with pytest.raises(SetupError, match=why):
        GlobalModel(model(), Outer())


def test_all_get_the_first_ones_model():
    first, second = network(), network()
    train(second, np.random.default_rng(4))
    sent: list[torch.Tensor] = []
    GlobalModel(first, Outer()).broadcast(sent.append)
    GlobalModel(second, Outer()).broadcast(lambda flat: flat.copy_(sent[0]))
    for one, other in zip(values(first), values(second), strict=True):
        np.testing.assert_array_equal(one, other)
