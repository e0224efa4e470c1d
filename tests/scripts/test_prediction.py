"""scripts/saved_model.sh with models of job files: their metric, and outputs for inputs of a file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cluster_processes import ROOT

import models
from scripts import saved_model
from trainer import worker
from trainer.command_line import parse
from trainer.engine import mx
from trainer.evaluation.saved_model import ModelSaver
from trainer.jobs.gluon import GluonNetwork
from utils import SetupError, read_json

JOB = """
import mxnet as mx, numpy as np
from mxnet.gluon import nn

class Network(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(3)
    def hybrid_forward(self, F, x):
        return self.dense(x)

def network():
    return Network()

def data(folder):
    x = np.random.RandomState(0).randn(40, 4) * 100
    return (x[:30], x[:30, :3].argmax(1)), (x[30:], x[30:, :3].argmax(1))

def prepare(x, y):
    return x / 100, y
"""
X = np.random.default_rng(1).normal(size=(150, 4)) * 100
SPOILT = np.where(np.arange(600).reshape(150, 4) == 282, np.nan, X)
WITH_STATE = "return self.dense(x), F.ones_like(x)"


def trained(folder, text=JOB, *flags):
    """The description of a model that a short run of the job has saved."""
    (folder / "mine.py").write_text(text)
    words = ["-m", "local", "-c", "1", "-b", "8", "-l", "0.02", "--evaluator", "0", "--max-rounds", "20", "-e", "20"]
    config = parse([*words, "-ld", str(folder / "logs"), "--job", str(folder / "mine.py"), *flags])
    signals: Any = SimpleNamespace(requested=False, be_patient=lambda: None)
    assert worker.run(config, None, signals) == 0
    return folder / "logs" / "cpu" / "final.json"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("job"))


@pytest.fixture
def said(capsys, tmp_path, monkeypatch):
    """What the program prints; its files are in the test's folder."""
    monkeypatch.chdir(tmp_path)

    def of(*words):
        saved_model.main([str(word) for word in words])
        return capsys.readouterr().out.strip()

    return of


def outputs_by_hand(path, inputs):
    weights = {
        name: each.asnumpy() for name, each in mx.nd.load(str(path.parent / read_json(path)["parameters"])).items()
    }
    return inputs / 100 @ weights["dense.weight"].T + weights["dense.bias"]


def test_a_model_of_a_job_file_is_evaluated_by_the_data_and_the_metric_of_the_file(model, tmp_path, said):
    value = read_json(model)["accuracy"]
    assert (
        said("evaluate", model)
        == f"accuracy {value:.4f} on the 10 test samples of mine; when it was saved: {value:.4f}"
    )
    other = tmp_path / "other.py"
    other.write_text(JOB + "\ndef one(targets, outputs):\n    return 1.5\nmetric = one\n")
    line = said("evaluate", model, "--job", other)
    assert line == f"one 1.5 on the 10 test samples of other; when it was saved: accuracy {value:.4f}"


def test_outputs_for_the_inputs_of_a_file_are_those_of_the_network_behind_prepare(model, tmp_path, said):
    np.save("in.npy", X)
    assert said("predict", model, "in.npy", "out.npy").endswith("out.npy: float32 (150, 3)")
    np.testing.assert_allclose(np.load("out.npy"), outputs_by_hand(model, X), rtol=1e-4, atol=1e-5)
    assert not [*tmp_path.glob("*.tmp")]


def test_several_outputs_need_a_file_for_several(tmp_path, said):
    text = (
        JOB.replace("return self.dense(x)", WITH_STATE) + "\ndef loss(o, t):\n    return ((o[0] - 1) ** 2).sum(axis=1)"
    )
    path = trained(tmp_path, text)
    np.savez("in.npz", X)
    with pytest.raises(SetupError, match=r"the network has 2 outputs, and .*out.npy takes one: name a .npz file"):
        said("predict", path, "in.npz", "out.npy")
    said("predict", path, "in.npz", "out.npz")
    first, second = np.load("out.npz").values()
    assert first.shape == (150, 3) and (second == 1).all()


def test_images_of_a_built_in_network_are_taken_as_its_dataset_has_them(tmp_path, said):
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 28, 28), np.uint8)
    network = GluonNetwork(models.build("lenet", (1, 28, 28), 10, mx.cpu(), seed=0), mx.cpu())
    about = {"network": "lenet", "dataset": "mnist", "input": {"shape": [1, 28, 28], "divide_by": 255}}
    ModelSaver(tmp_path, network, about).save(["best"], 1, 0.5)
    np.save("in.npy", images)
    said("predict", tmp_path / "best.json", "in.npy", "out.npy")
    expected = network.layers(mx.nd.array(images) / 255).asnumpy()
    np.testing.assert_allclose(np.load("out.npy"), expected, rtol=1e-4, atol=1e-5)
    np.save("in.npy", images / 255)
    with pytest.raises(
        SetupError, match=r"has float64 \(3, 1, 28, 28\), and .* takes \(N, 1, 28, 28\), as images of uint8"
    ):
        said("predict", tmp_path / "best.json", "in.npy", "out.npy")


def saved(array, name="in.npy"):
    return lambda: np.save(name, array)


@pytest.mark.parametrize(
    ("make", "words", "line"),
    [
        (lambda: None, (), r"in.npy cannot be read as a .npy or .npz file of numbers: .*No such file"),
        (lambda: Path("in.npy").write_bytes(b"\x93NUMPY"), (), "cannot be read as a .npy"),
        (saved(np.array([{}], object)), (), "cannot be read as a .npy"),
        (saved(np.array(["a"])), (), r"has <U1 \(1,\): give numbers \(N, ...\)"),
        (saved(X[:0]), (), r"has float64 \(0, 4\): give numbers"),
        (saved(np.float32(1)), (), r"has float32 \(\): give numbers"),
        (saved(X[:, :3]), (), r"samples 0 to 63, are \(64, 3\), and .*final.json takes \(N, 4\): MXNetError: Shape"),
        (saved(SPOILT), (), r"samples 64 to 127: 1 number\(s\) of the batch's inputs are not finite, .*\[6, 2\]"),
        (saved(X), ("--job", "none.py"), r"its job file none.py is not there: name it with --job FILE"),
        (saved(X), ("--job", str(ROOT / "examples" / "table.py")), "does not fit the network of this job"),
        (saved(X), ("--job", str(ROOT / "examples" / "text.py")), r"makes batches of samples by batchify\(\)"),
    ],
)  # fmt: skip
def test_inputs_that_are_none_are_one_line_and_write_nothing(model, tmp_path, said, make, words, line):
    make()
    with pytest.raises(SetupError, match=line) as caught:
        said("predict", model, "in.npy", "out.npy", *words)
    assert "\n" not in str(caught.value) and not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("output", ["in.npy", "out.csv", "nowhere/out.npy"])
def test_an_output_that_cannot_be_is_told_before_the_work(model, tmp_path, said, output):
    np.save("in.npy", X)
    with pytest.raises(SetupError, match=r"name a new .npy or .npz file, in a folder that is there"):
        said("predict", model, "in.npy", tmp_path / output)
    np.testing.assert_array_equal(np.load("in.npy"), X)


def test_outputs_of_other_shapes_in_each_batch_are_one_line(tmp_path, said):
    text = JOB.replace("nn.HybridBlock", "nn.Block").replace("hybrid_forward(self, F, x)", "forward(self, x)")
    path = trained(tmp_path, text)
    np.save("in.npy", X)
    for outputs, complaint in (
        ("(len(x), len(x))", "the outputs of a sample are (22) or (64) by the batch"),
        ("(1, 2)", "samples 0 to 63: the network gives (1, 2), which is no row for each"),
    ):
        (tmp_path / "mine.py").write_text(text.replace("return self.dense(x)", f"return mx.nd.zeros({outputs})"))
        with pytest.raises(SetupError, match=re.escape(complaint)):
            said("predict", path, "in.npy", "out.npy")


def test_a_model_whose_description_names_no_job_file_asks_for_it(model, tmp_path, said):
    for file in model.parent.glob("final*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    about = {name: value for name, value in read_json(model).items() if name != "job"}
    (tmp_path / "final.json").write_text(json.dumps(about))
    with pytest.raises(SetupError, match=r"is of a job file: name it with --job FILE"):
        said("evaluate", tmp_path / "final.json")
    assert "accuracy" in said("evaluate", tmp_path / "final.json", "--job", model.parents[2] / "mine.py")
