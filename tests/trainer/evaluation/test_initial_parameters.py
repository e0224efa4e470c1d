"""Fine-tuning: a network begins with the parameters of a file, and with its own where none of them fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_data

import models
import simulate
from trainer.engine import mx
from trainer.evaluation.initial_parameters import content_hash, load
from trainer.evaluation.saved_model import ModelSaver
from trainer.jobs.gluon import GluonNetwork
from trainer.simulation import virtual_cluster
from utils import SetupError


def network_of(name: str = "lenet", classes: int = 10, seed: int = 0) -> GluonNetwork:
    return GluonNetwork(models.build(name, (1, 28, 28), classes, mx.cpu(), seed), mx.cpu())


def arrays_of(network: GluonNetwork) -> list[np.ndarray]:
    return [*network.state().values()]


def by_full_names(block, path: Path) -> None:
    block.export(str(path.with_suffix("")))  # with arg: and aux:
    path.with_name(f"{path.stem}-0000.params").rename(path)


def without_prefix(block, path: Path) -> None:
    block.collect_params().save(str(path), strip_prefix=block.prefix)


def of_another_prefix(block, path: Path) -> None:
    parameters = block.collect_params().items()
    mx.nd.save(str(path), {name.replace(block.prefix, "other0_"): each.data() for name, each in parameters})


def in_order(block, path: Path) -> None:
    mx.nd.save(str(path), [each.data() for each in block.collect_params().values()])


WAYS = [
    by_full_names,
    without_prefix,
    of_another_prefix,
    in_order,
    lambda block, path: block.save_parameters(str(path)),
]


@pytest.mark.parametrize("save", WAYS)
@pytest.mark.parametrize("name", ["lenet", "resnet20"])
def test_parameters_are_found_by_any_names_or_by_their_order(tmp_path, name, save):
    theirs, ours = network_of(name, seed=1), network_of(name)
    theirs.layers(mx.nd.zeros((1, 1, 28, 28)))  # export needs a pass
    save(theirs.layers, path := tmp_path / "model.params")
    number = len(arrays_of(ours))
    assert load(ours, path) == f"{number} of {number} initial parameters are from {path}"
    for mine, other in zip(arrays_of(ours), arrays_of(theirs), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("save", WAYS[:3])
def test_a_changed_head_keeps_its_own_values_and_is_named(tmp_path, save):
    theirs, ours, fresh = network_of(seed=1), network_of(classes=4), network_of(classes=4)
    theirs.layers(mx.nd.zeros((1, 1, 28, 28)))
    save(theirs.layers, path := tmp_path / "model.params")
    line = load(ours, path)
    assert "8 of 10 initial parameters" in line and "(10, 84) there, (4, 84)" in line and "\n" not in line
    for mine, other in zip(arrays_of(ours)[:8], arrays_of(theirs), strict=False):
        np.testing.assert_array_equal(mine, other)
    for mine, own in zip(arrays_of(ours)[8:], arrays_of(fresh)[8:], strict=True):
        np.testing.assert_array_equal(mine, own)


def test_a_saved_model_is_named_by_its_description_and_gluon_loads_it_too(tmp_path):
    theirs, ours, gluons = network_of(seed=1), network_of(), network_of()
    ModelSaver(tmp_path, theirs, {"input": {"shape": [1, 28, 28]}}).save(["best"], 3, 0.5)
    assert "10 of 10" in load(ours, tmp_path / "best.json")
    gluons.layers.load_parameters(str(tmp_path / "best-0003.params"))
    for mine, other, third in zip(arrays_of(ours), arrays_of(theirs), arrays_of(gluons), strict=True):
        np.testing.assert_array_equal(mine, other)
        np.testing.assert_array_equal(third, other)
    assert content_hash(str(tmp_path / "best.json")) == content_hash(str(tmp_path / "best-0003.params"))
    assert content_hash("") == "none"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "there is no such file"),
        (b"", "is no .params file of MXNet"),
        (b"no parameters" * 99, "is no .params file"),
        ({"weight": mx.nd.zeros((2, 3))}, "none of its 1 arrays fits"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path, content, text):
    path = tmp_path / "model.params"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        mx.nd.save(str(path), content)
    with pytest.raises(SetupError, match=text) as caught:
        load(network_of(), path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------ whole jobs


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tiny_data.write_mnist(tmp_path / "data" / "mnist")
    return tmp_path


def job_of(place: Path, name: str, *more: str):
    words = ["--workers", "0.1,0.3", "-n", "mlp", "-b", "8", "--log-base", str(place / name), "--dataset", "mnist"]
    _, (one,) = simulate.parse([*words, "-dd", str(place / "data"), "--max-rounds", "3", *more])
    return one.job


@pytest.mark.parametrize("mode", ["sync", "esync", "ssp"])
def test_a_job_begins_with_the_parameters_of_another(place, mode, caplog):
    caplog.set_level("INFO")
    virtual_cluster.VirtualRun(job_of(place, "first", "-m", mode)).run()
    (model,) = (place / "first").rglob("final.json")
    job = job_of(place, "second", "-m", mode, "-l", "1e-30", "-ll", "1e-30", "--init-from", str(model))
    virtual_cluster.VirtualRun(job).run()
    (tuned,) = (place / "second").rglob("final-*.params")
    before, after = (mx.nd.load(str(path)) for path in (next(model.parent.glob("final-*.params")), tuned))
    for name, array in before.items():
        np.testing.assert_array_equal(after[name].asnumpy(), array.asnumpy())
    assert caplog.text.count(f"initial parameters are from {model}") == 1


def test_a_job_whose_model_is_missing_does_not_begin(place):
    job = job_of(place, "job", "-m", "sync", "--init-from", str(place / "missing.params"))
    with pytest.raises(SetupError, match="there is no such file"):
        virtual_cluster.VirtualRun(job).run()
    assert not [*(place / "job").rglob("run.json")]
