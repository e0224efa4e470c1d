"""The trained network in files: the right one, whole, without a trace in training, and what others can do with it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from cluster_processes import DEADLINE_S, ROOT
from contexts import by_flags, context_of
from few_images import few_images, on_few_images
from ready import endless, ready
from round_records import read_rounds

import models
from esync.measure import SAVING
from esync.progress import Limits
from scripts import saved_model as program
from trainer import version
from trainer.command_line import parse
from trainer.datasets.samples import Samples
from trainer.engine import mx
from trainer.evaluation.saved_model import ModelSaver, SavedModel
from trainer.jobs.gluon import GluonNetwork
from trainer.loop import Loop
from trainer.run_logs.run_folder import RunFolder
from utils import DIVERGED, JobError, SetupError, read_json

RANDOM = np.random.default_rng(0)
SAMPLES = Samples(RANDOM.integers(0, 256, (64, 1, 28, 28), np.uint8), RANDOM.integers(0, 10, 64, np.uint8))
ABOUT = {"input": {"shape": [1, 28, 28], "divide_by": 255}}


def images(number=64):
    return mx.nd.array(SAMPLES.images[:number]) / 255


def network_of(name="lenet"):
    return GluonNetwork(models.build(name, (1, 28, 28), 10, mx.cpu(), seed=0), mx.cpu())


def train(folder, accuracies, *, saves=True, step_size=0.01):
    """Trains LeNet for a round an entry of `accuracies`: what the evaluation after it says. With no entry, a signal
    comes in the third round, before anything was evaluated.

    Returns, for each evaluation, the outputs of the network then.
    """
    folder.mkdir(exist_ok=True)
    network = network_of()
    outputs = []

    def evaluate():
        outputs.append(network.layers(images()).asnumpy())
        return accuracies[len(outputs) - 1]

    context = context_of(
        network=network,
        batches=endless(SAMPLES, np.arange(64), 16, seed=0),
        warm_up_batch=ready(Samples(*(part[:16] for part in SAMPLES))),
        evaluate=evaluate,
        eval_every=1 if accuracies else 100,
        limits=Limits(max_rounds=len(accuracies)),
        stop_requested=lambda: not accuracies and trainer.rounds == 3,
        saver=ModelSaver(folder, network, ABOUT) if saves else None,
    )
    trainer = by_flags("local", learning_rate=step_size)(context)
    Loop(trainer).run(lambda: folder)
    return outputs


def loaded(path):
    """What a saved network makes of the images."""
    return SavedModel.find(path).load()(images()).asnumpy()


# -------------------------------------------------------------------------------------------- what is saved when


def assert_same(saved: np.ndarray, trained: np.ndarray) -> None:
    """But for rounding: LeNet's layers are saved as gluon's, and train as others (models/small.py)."""
    np.testing.assert_allclose(saved, trained, rtol=1e-4, atol=1e-5)


def test_the_best_and_the_last_network_are_saved(tmp_path):
    outputs = train(tmp_path, [0.3, 0.6, 0.5, 0.6, 0.4])
    best, final = read_json(tmp_path / "best.json"), read_json(tmp_path / "final.json")
    assert (best["round"], best["accuracy"]) == (2, 0.6)  # as good is not better
    assert (final["round"], final["accuracy"]) == (5, 0.4)
    assert_same(loaded(tmp_path / "best.json"), outputs[1])
    assert_same(loaded(tmp_path / "final.json"), outputs[4])
    assert {path.name for path in tmp_path.glob("*.params")} == {"best-0002.params", "final-0005.params"}


def test_after_a_signal_the_network_is_saved_without_an_evaluation_to_wait_for(tmp_path):
    assert train(tmp_path, []) == []
    final = read_json(tmp_path / "final.json")
    assert (final["round"], final["accuracy"]) == (3, None)
    assert loaded(tmp_path / "final.json").shape == (64, 10)
    assert not (tmp_path / "best.json").exists()


def test_a_model_without_a_loss_is_not_the_best(tmp_path):
    with pytest.raises(JobError, match=DIVERGED):
        train(tmp_path, [0.1, 0.2, 0.3], step_size=1e30)
    assert read_json(tmp_path / "best.json")["round"] == 1  # in round 2 there was no number any more


def test_saving_has_a_stage_of_its_own_in_the_logs_and_costs_nothing_where_nothing_is_saved(tmp_path):
    train(tmp_path, [0.3, 0.2, 0.1])
    saved = [SAVING in record["time"]["0"] for record in read_rounds(tmp_path, pytest.fail)]
    assert saved == [True, False, True]


def test_training_is_the_same_to_the_bit_whether_models_are_saved_or_not(tmp_path):
    rising = [0.1, 0.2, 0.3, 0.4]
    with_saving, without = train(tmp_path / "a", rising), train(tmp_path / "b", rising, saves=False)
    np.testing.assert_array_equal(with_saving, without)
    assert not list((tmp_path / "b").glob("best*"))


def test_a_job_that_is_resumed_has_to_beat_its_best(tmp_path):
    train(tmp_path, [0.6])
    before = loaded(tmp_path / "best.json")
    train(tmp_path, [0.5, 0.4])
    assert read_json(tmp_path / "best.json")["accuracy"] == 0.6
    np.testing.assert_array_equal(loaded(tmp_path / "best.json"), before)
    assert read_json(tmp_path / "final.json")["round"] == 2


def test_a_damaged_description_is_told_and_replaced(tmp_path, caplog):
    (tmp_path / "best.json").write_text("{")
    train(tmp_path, [0.5])
    assert "best.json is no description" in caplog.text
    assert read_json(tmp_path / "best.json")["accuracy"] == 0.5


def test_a_new_run_removes_what_an_earlier_one_saved_and_nothing_else(tmp_path):
    config = parse(["-m", "local", "-c", "1", "-ld", str(tmp_path)])
    train(tmp_path / "cpu", [0.5])
    others = {"best.onnx", "best-of-all.txt", "finally.json"}
    for name in others:
        (tmp_path / "cpu" / name).touch()
    (tmp_path / "cpu" / "best-0001.params.tmp").touch()  # of a process that was killed
    RunFolder(config).open()
    assert {path.name for path in (tmp_path / "cpu").iterdir()} == {".lock", *others}


# -------------------------------------------------------------------------------------------- writes that go wrong


@pytest.mark.parametrize("file", ["best-symbol.json", "best-0002.params", "best.json"])
def test_wherever_saving_breaks_off_the_model_before_stays_whole_and_training_goes_on(tmp_path, caplog, file):
    outputs = train(tmp_path, [0.5])
    (tmp_path / f"{file}.tmp").symlink_to("/dev/full")  # the attempt removes it
    train(tmp_path, [0.4, 0.6])
    assert f"{file} cannot be written: No space left on device; the model is not saved" in caplog.text
    assert read_json(tmp_path / "best.json")["accuracy"] == 0.5
    assert_same(loaded(tmp_path / "best.json"), outputs[0])
    assert read_json(tmp_path / "final.json")["round"] == 2
    train(tmp_path, [0.55])
    assert read_json(tmp_path / "best.json")["accuracy"] == 0.55


def test_what_a_save_that_broke_off_left_is_removed_by_the_next(tmp_path):
    (tmp_path / "best-0007.params").touch()
    train(tmp_path, [0.5])
    assert [path.name for path in tmp_path.glob("best-*.params")] == ["best-0001.params"]


# -------------------------------------------------------------------------------------------- the form of the files


@pytest.mark.parametrize("name", ["lenet", "resnet18-v1", "resnet20"])
def test_the_files_hold_what_mxnets_own_export_writes(tmp_path, name):
    network = network_of(name)
    block = network.layers
    expected = block(images(8)).asnumpy()  # an inference pass: weights are in oneDNN's layout now
    block.export(str(tmp_path / "theirs"))
    symbol, parameters = network.saved(["data"])
    (tmp_path / "ours.json").write_bytes(symbol)
    (tmp_path / "ours.params").write_bytes(parameters)
    ours, theirs = (mx.nd.load(str(tmp_path / file)) for file in ("ours.params", "theirs-0000.params"))
    names = {name: each.name for name, each in block._collect_params_with_prefix().items()}
    of_theirs = {key.partition(":")[2]: array for key, array in theirs.items()}
    assert {names[key] for key in ours} == of_theirs.keys()
    for key, array in ours.items():
        np.testing.assert_array_equal(array.asnumpy(), of_theirs[names[key]].asnumpy())
    again = models.REGISTRY[name].factory(classes=10)  # with another prefix
    again.load_parameters(str(tmp_path / "ours.params"))
    np.testing.assert_allclose(again(images(8)).asnumpy(), expected, atol=1e-5)
    saved = SavedModel(ABOUT, tmp_path / "ours.json", tmp_path / "ours.params")
    np.testing.assert_allclose(saved.load()(images(8)).asnumpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda folder: (folder / "best.json").unlink(), "does not exist"),
        (lambda folder: (folder / "best.json").write_text('{"rank": 0}'), "no description of a saved model"),
        (lambda folder: (folder / "best-0001.params").unlink(), "copy the three files together"),
        (lambda folder: (folder / "best-0001.params").write_bytes(b"short"), "cannot be read"),
        (lambda folder: (folder / "best-symbol.json").write_bytes(b'{"nodes"'), "cannot be read"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_named(tmp_path, damage, text):
    train(tmp_path, [0.5])
    damage(tmp_path)
    with pytest.raises(SetupError, match=text) as caught:
        loaded(tmp_path / "best.json")
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


class TwoInputs(mx.gluon.HybridBlock):
    """The difference of two inputs, in two outputs."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(2)

    def hybrid_forward(self, F, x, y):
        return self.dense(x - y), x + y


class OfArrays(mx.gluon.Block):
    """A Block that no symbol can pass through."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(2)

    def forward(self, x):
        return self.dense(x * float(x.shape[0]))


def test_a_network_of_several_inputs_and_outputs_is_saved(tmp_path):
    network, given = TwoInputs(), (mx.nd.ones((3, 4)), mx.nd.zeros((3, 4)))
    network.initialize()
    expected = network(*given)
    about = {"inputs": [{"name": name, "shape": [4]} for name in ("data0", "data1")]}
    ModelSaver(tmp_path, GluonNetwork(network, mx.cpu()), about).save(["best"], 1, 0.5)
    saved = SavedModel.find(tmp_path / "best.json").load()(*given)
    for ours, theirs in zip(saved, expected, strict=True):
        np.testing.assert_allclose(ours.asnumpy(), theirs.asnumpy(), atol=1e-6)


def test_of_a_network_without_layers_to_save_its_parameters_are_there(tmp_path):
    network, x = OfArrays(), mx.nd.ones((3, 4))
    network.initialize()
    expected = network(x).asnumpy()
    saver = ModelSaver(tmp_path, GluonNetwork(network, mx.cpu()), {"input": {"name": "data", "shape": [4]}})
    saver.save(["best"], 1, 0.5)
    assert read_json(tmp_path / "best.json")["symbol"] is None
    with pytest.raises(SetupError, match=r"load it by load_parameters\(\) of the network"):
        SavedModel.find(tmp_path / "best.json").load()
    again = OfArrays()
    again.load_parameters(str(tmp_path / "best-0001.params"))
    np.testing.assert_array_equal(again(x).asnumpy(), expected)


# -------------------------------------------------------------------------------------------- as users meet it


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The log folder of a short standalone run."""
    logs = tmp_path_factory.mktemp("logs")
    flags = ["-m", "local", "-c", "1", "-n", "lenet", "-l", "0.003", "-e", "30", "--max-rounds", "60"]
    command = [sys.executable, "main.py", *flags, *on_few_images(), "-ld", str(logs)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=DEADLINE_S, capture_output=True)
    return logs / "cpu"


def test_the_description_says_how_to_feed_the_network(trained):
    about = read_json(trained / "final.json")
    assert about["input"] == {"name": "data", "shape": [1, 28, 28], "divide_by": 255, "resize": "bilinear"}
    assert (about["network"], about["dataset"], about["mode"], about["classes"]) == ("lenet", "mnist", "local", 10)
    assert about["round"] == 60
    assert about["commit"] == version.commit()


def test_a_saved_network_has_just_the_accuracy_that_was_logged(trained):
    logged = list(read_rounds(trained, pytest.fail))[-1]["accuracy"]
    said = program.evaluate(trained / "final.json", "", few_images())
    assert said == f"accuracy {logged:.4f} on the 1000 test images of mnist; when it was saved: {logged:.4f}"


def test_the_lines_of_its_page_load_and_evaluate_it(trained):
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "saved-network.md").read_text(), re.DOTALL)
    assert lines.count('load("fashion-mnist", "data")') == 1
    code = lines.replace("logs/cpu", str(trained)).replace("best.json", "final.json")
    code = code.replace('load("fashion-mnist", "data")', f'load("mnist", "{few_images()}")')
    assert code.count(f"{trained}/") == code.count("final.json") == 1
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, timeout=DEADLINE_S, capture_output=True, text=True
    )
    # All images at once, where the evaluation takes batches: the sums may be rounded in another order.
    assert float(done.stdout) == pytest.approx(read_json(trained / "final.json")["accuracy"], abs=0.003)


def test_the_script_says_what_it_cannot_do(trained, tmp_path):
    with pytest.raises(SetupError, match="does not exist"):
        program.main(["evaluate", str(tmp_path / "best.json")])
    with pytest.raises(SetupError, match="train-images-idx3-ubyte"):
        program.main(["evaluate", str(trained / "best.json"), "-dd", str(tmp_path)])


NO_ONNX = "no onnx: .venv/bin/pip install -r requirements-onnx.txt"


@pytest.mark.parametrize("name", ["lenet", "resnet18-v1", "resnet20"])
def test_onnxruntime_computes_what_mxnet_does(tmp_path, name):
    pytest.importorskip("onnx", reason=NO_ONNX)
    onnxruntime = pytest.importorskip("onnxruntime", reason=NO_ONNX)
    network = network_of(name)
    ModelSaver(tmp_path, network, ABOUT).save(["best"], 1, 0.5)
    program.to_onnx(tmp_path / "best.json", tmp_path / "best.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "best.onnx"), providers=["CPUExecutionProvider"])
    assert [entry.name for entry in session.get_inputs()] == ["data"]
    about = json.loads(session.get_modelmeta().custom_metadata_map[program.METADATA])
    assert about["input"] == ABOUT["input"]
    for number in (1, 8):
        (scores,) = session.run(None, {"data": images(number).asnumpy()})
        np.testing.assert_allclose(scores, network.layers(images(number)).asnumpy(), atol=1e-4)
    assert {path.name for path in tmp_path.glob("*.onnx*")} == {"best.onnx"}


def test_an_onnx_that_is_not_there_or_too_new_is_named(monkeypatch):
    for number, text in (("1.18.0", "up to 1.17, here it is 1.18.0"), ("1.17.0", ""), ("1.9.0", "")):
        monkeypatch.setattr(program.importlib.metadata, "version", lambda _, number=number: number)
        if not text:
            program.check_onnx()
            continue
        with pytest.raises(SetupError, match=f"{text}.*requirements-onnx.txt"):
            program.check_onnx()
