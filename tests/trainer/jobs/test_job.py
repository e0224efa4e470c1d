"""Job files: what they may define, and the line that each mistake gives before any other process waits."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cluster_processes import ROOT

import simulate
from config import Config
from trainer import worker
from trainer.command_line import parse
from trainer.engine import mx
from trainer.evaluation.evaluator import Evaluator
from trainer.from_flags import learning_task
from trainer.jobs.job import job_of
from trainer.jobs.network import build
from trainer.jobs.user_errors import UserError, users_errors
from trainer.membership import Membership
from trainer.network import Batch
from trainer.simulation import virtual_cluster
from utils import SetupError

GOOD = """
import numpy as np, mxnet as mx
from mxnet import gluon

def network():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, activation="relu"), gluon.nn.Dense(1))
    return net

def data(folder):
    x = np.random.RandomState(0).randn(200, 4)
    y = x.sum(axis=1)
    return (x[:160], y[:160]), (x[160:], y[160:])

loss = gluon.loss.L2Loss()
"""
TRAIN_PART = "(x[:160], y[:160])"
LOSS = "loss = gluon.loss.L2Loss()"
RETURN = "    return (x["


def job_in(folder: Path, text: str, *flags: str) -> Config:
    path = folder / "my_job.py"
    path.write_text(text)
    return parse(["-m", "local", "-c", "1", "-ld", str(folder / "logs"), "--job", str(path), *flags])


def task_of(config: Config):
    """What a worker learns, by the way of worker.run."""
    job = job_of(config)
    built = build(config, job)
    job.partitioned_by(config)
    return learning_task(config, job, built, Membership())


MISTAKES = {
    # what is changed in GOOD, and a part of the line
    "not defined": (GOOD, "x = 1", "my_job.py defines none of network, data, loss"),
    "not installed": ("import numpy", "import not_there, numpy", r"my_job.py, as a module, line 2: ModuleNotFoundErr"),
    "no Block": ("    return net\n", "", "network(): returns None: return a torch.nn.Module or a gluon"),
    "no parameters": ('net.add(gluon.nn.Dense(8, activation="relu"), gluon.nn.Dense(1))', "pass", "no parameters"),
    "raises": ("    net = ", "    raise KeyError('a')\n    net = ", "network(), line 6: KeyError: 'a'"),
    "other shape": ("Dense(8,", "Dense(8, in_units=5,", "of inputs (2, 4) and targets (2,): MXNetError: Shape"),
    "float64": ("return net", "net.cast('float64'); return net", "is float64: only float32"),
    "sparse": ("net.add(", "net.add(gluon.nn.Embedding(9, 4, sparse_grad=True), ", "leave sparse_grad"),
    "adds up": ("return net", "net[0].weight.grad_req = 'add'; return net", "adds up"),
    "three parts": (f"{TRAIN_PART}, (x", f"{TRAIN_PART}, x, (x", "data(folder): returns a tuple of 3: return (train,"),
    "no pair": (TRAIN_PART, "5", "data(folder), train: a int is no pair (inputs, targets) of arrays"),
    "unequal": (TRAIN_PART, "(x[:160], y[:150])", "train: inputs of 160 and targets of 150 samples: give equally many"),
    "empty": (TRAIN_PART, "(x[:0], y[:0])", "data(folder), train: there are no samples"),
    "texts": (TRAIN_PART, "(['a'] * 160, y[:160])", "are no numbers of one shape"),
    "ragged": (TRAIN_PART, "([[1.0] * (1 + i % 3) for i in range(160)], y[:160])", "batchify(samples)"),
    "exits": ("    x = ", "    exit('no data')\n    x = ", "data(folder), line 11: SystemExit: no data"),
    "exits at once": ("import numpy", "raise SystemExit\nimport numpy", "my_job.py, as a module, line 2: SystemExit"),
    "other folder": ("    x = ", "    __import__('os').chdir('/')\n    x = ", "leaves the folder"),
    "inputs alone": (TRAIN_PART, "x[:160]", "a ndarray of shape (160, 4) is no pair (inputs, targets)"),
    "no batches": (TRAIN_PART, "(lambda rank, num_workers, seed: iter([]))", "the stream has no batches"),
    "no yield": (TRAIN_PART, "(lambda rank, num_workers, seed: None)", "a stream gives None: yield batches"),
    "no file": ("    x = ", "    np.load(folder + '/no.npy')\n    x = ", "data(folder), line 11: FileNotFoundError"),
    "no train": (TRAIN_PART, "None", "no training samples, and there is no train(worker)"),
    "no loss": (LOSS, "", "the loss is cross-entropy, for scores (N, C) and classes (N,); here the network gives"),
    "class": (LOSS, "loss = gluon.loss.L2Loss", "loss is the class L2Loss: make it an object, L2Loss()"),
    "mean": (LOSS, "def loss(o, t):\n    return ((o - t) ** 2).mean()", "shape (2,), not their mean"),
    "no array": (LOSS, "def loss(o, t):\n    return 1.0", "gives a float: give an mx.nd array (N,)"),
    "one argument": (LOSS, "def loss(o):\n    return o", "cannot be called as loss(outputs, targets)"),
    "lambda": (LOSS, f"{LOSS}\nmetric = lambda t, o: 1.0", "metric: a metric cannot have the name '<lambda>'"),
    "composite": (LOSS, f"{LOSS}\nmetric = mx.metric.create(['mse', 'mae'])", "give a metric of one number"),
    "batches one": (LOSS, f"{LOSS}\ndef batchify(s):\n    return 1", "batchify() returns a int: return (inputs,"),
    "prepares one": (LOSS, f"{LOSS}\ndef prepare(x, y):\n    return x", "prepare() returns a ndarray of shape (2, 4)"),
    "no bool": (LOSS, f"{LOSS}\nmore_is_better = 0", "more_is_better is 0: give True or False"),
    "loss and loop": (LOSS, f"{LOSS}\ndef train(worker): pass", "defines loss and train(worker)"),
    "loop, no metric": (LOSS, "def train(worker): pass", "the outputs are no scores: define metric"),
    "no pairs": (TRAIN_PART, "(lambda rank, num_workers, seed: iter([x]))", "a stream yields pairs (inputs, targets)"),
    "NaN": (RETURN, f"    x[7, 2] = np.nan\n{RETURN}", "my_job.py, data(folder): 1 number(s) of training inputs are "
        "not finite, the first at [7, 2]: leave such samples out, or give other numbers here or in prepare()"),
    "NaN in both": (RETURN, f"    x[7] = y[180:] = np.nan\n{RETURN}", "4 number(s) of training inputs are not finite, "
        "the first at [7, 0]; 20 number(s) of test targets are not finite, the first at [20]: leave"),
    "NaN in one": (TRAIN_PART, "((x[:160], x[:160] + np.inf), y[:160])", "of training inputs[1] are not finite"),
    "too large": (TRAIN_PART, "(x[:160], y[:160] * 1e300)", "160 number(s) of training targets are not finite, the"),
    "NaN in lists": (TRAIN_PART, "([[1.0] * 4, [1.0, 2, 3, np.nan]] * 80, y[:160])", "80 number(s) of training inputs"),
    "prepares NaN": (LOSS, f"{LOSS}\ndef prepare(x, y):\n    return mx.nd.log(mx.nd.array(-x * x)), y", "my_job.py, "
        "prepare(inputs, targets): 8 number(s) of the batch's inputs are not finite, the first at [0, 0]"),
    "streams NaN": (TRAIN_PART, "(lambda rank, num_workers, seed: iter([(x + np.inf, y)]))", "of the batch's inputs"),
    "detached": (LOSS, "def loss(o, t):\n    return mx.nd.array((o[:, 0] - t).asnumpy())", "my_job.py, loss(outputs, "
        "targets): has no gradient, since it does not depend on the outputs: compute it of the outputs, by functions"),
    "constant": (LOSS, "def loss(o, t):\n    return mx.nd.ones(len(t))", "has no gradient, since it does not depend"),
    "set_np": ("\ndef network", "mx.npx.set_np()\ndef network", "my_job.py, as a module: MXNet's numpy semantics"),
    "set_np late": ("    net = ", "    mx.npx.set_np()\n    net = ", "network(): MXNet's numpy semantics"),
    "set_np in data": ("    x = ", "    mx.npx.set_np()\n    x = ", "data(folder): MXNet's numpy semantics (npx."),
    "mx.np": (LOSS, "def loss(o, t):\n    return mx.np.abs(o[:, 0] - t)", "MXNet's numpy semantics"),
    "few scores": (f"(1))\n|y = x.sum(axis=1)|{LOSS}", "(3))\n|y = np.arange(200) % 5|", "0 to 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_file_or_what_to_do(tmp_path, name):
    before, after, line = MISTAKES[name]
    text = GOOD
    for old, new in zip(before.split("|"), after.split("|"), strict=True):
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(SetupError, match=re.escape(line)) as caught, contextlib.chdir(tmp_path):
        task_of(job_in(tmp_path, text))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_numbers_that_prepare_mends_are_no_mistake_and_its_arrays_may_be_those_of_mxnets_numpy(tmp_path):
    text = GOOD.replace(RETURN, f"    x[7, 2], x[190], y[9] = np.nan, np.inf, np.nan\n{RETURN}")
    more = "\ndef prepare(x, y):\n    return mx.np.array(np.nan_to_num(x, posinf=1)), mx.np.array(np.nan_to_num(y))"
    task = task_of(job_in(tmp_path, text + more))
    assert type(next(task.batches).inputs[0]) is mx.nd.NDArray and task.evaluate() > 0


FILE = "np.save('x.npy', x); x = np.load('x.npy', mmap_mode='r')"


@pytest.mark.parametrize("has_prepare", [False, True])
def test_numbers_of_a_file_that_are_not_finite_are_told_once_where_they_are_read(tmp_path, caplog, has_prepare):
    text = GOOD.replace("    return (x", f"    x[3, 1] = x[170] = np.nan; {FILE}\n    return (x")
    text += "\ndef prepare(x, y):\n    return mx.nd.array(x) * 2, y\n" * has_prepare
    config = job_in(tmp_path, text, "--evaluator", "0", "--max-rounds", "9", "-e", "2")
    signals: Any = SimpleNamespace(requested=False, be_patient=lambda: None)
    with contextlib.chdir(tmp_path):
        assert worker.run(config, None, signals) == 0
    told = [record.message for record in caplog.records if "not finite" in record.message]
    assert len(told) == 2
    assert re.search(
        r"round \d, step 1: 1 number\(s\) of the batch's inputs are not finite, the first at \[\d+, 1\]; sk", told[0]
    )
    assert "in the test 4 number(s) of the batch's inputs are not finite, the first at [10, 0]" in told[1]
    assert "gradient" not in caplog.text


def test_a_loss_whose_gradient_is_zero_is_told(tmp_path, caplog):
    task_of(job_in(tmp_path, GOOD.replace(LOSS, "def loss(o, t):\n    return (o[:, 0] > t) + 1")))
    assert "the gradient of the loss is 0 for the first samples" in caplog.text


def test_scores_that_are_not_numbers_are_wrong_and_told_once(caplog):
    scores, classes = mx.nd.array([[np.nan, 0], [1, np.nan], [2, 1], [-np.inf, 0]]), mx.nd.array([0, 0, 0, 1])
    network = SimpleNamespace(outputs=lambda batch: batch.inputs[0] * 1)
    evaluate = Evaluator(network, lambda: [Batch((scores,), (classes,), 4)])
    assert [evaluate(), evaluate()] == [0.5, 0.5]
    assert caplog.text.count("scores that are NaN count as wrong") == 1


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["-b", "161"], "batch size 161 exceeds the 160 training samples: choose a smaller -b"),
        (["-m", "async", "-s", "1"], "-s 1 cannot split these samples"),
        (["--validation", "160"], "leaves nothing of the 160 training samples"),
        (["--augment", "1"], "--augment changes the images of a built-in dataset"),
    ],
)
def test_flags_that_do_not_fit_the_job_are_one_line(tmp_path, flags, line):
    with pytest.raises(SetupError, match=re.escape(line)):
        task_of(job_in(tmp_path, GOOD, *flags))


def test_the_traceback_begins_in_the_file(tmp_path, caplog):
    text = GOOD.replace("    x = ", "    [].pop()\n    x = ")
    with pytest.raises(SetupError, match=r"data\(folder\), line 11: IndexError: pop from empty list"):
        job_of(job_in(tmp_path, text))
    shown = [record.message for record in caplog.records if "Traceback" in record.message]
    assert len(shown) == 1 and re.match(r'Traceback .*\n  File ".*my_job.py", line 11, in data', shown[0])


@pytest.mark.parametrize("folder", ["/", str(ROOT.parent), str(ROOT), str(ROOT / "examples")])
def test_the_users_frames_are_told_from_those_of_program_and_libraries_in_the_same_folder(folder, caplog):
    file = Path(folder, "my_job.py")
    names = {"users_errors": users_errors, "file": file, "stack": np.stack}
    exec(compile("def network():\n    stack([])", str(file), "exec"), names)

    def run(call):
        exec(
            compile(f"with users_errors(file, place=lambda: 'worker 0'): {call}", str(ROOT / "main.py"), "exec"), names
        )

    with pytest.raises(UserError, match=r"my_job.py, network\(\), line 2, worker 0: ValueError"):
        run("network()")
    assert "main.py" not in caplog.text
    with pytest.raises(ValueError, match="need at least"):
        run("stack([])")


def test_a_parser_of_the_files_own_finds_no_flags_of_this_program(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main.py", "-m", "local"])
    job_of(job_in(tmp_path, "import argparse\nargparse.ArgumentParser().parse_args()\n" + GOOD))
    assert sys.argv == ["main.py", "-m", "local"]


@pytest.mark.parametrize(("parameter", "changes"), [("random", True), ("random=None", True), ("scale=1.0", False)])
def test_a_third_parameter_of_prepare_gets_the_generator_by_its_name(tmp_path, parameter, changes):
    name = parameter.partition("=")[0]
    more = f"\ndef prepare(x, y, {parameter}):\n    return 0 * x + isinstance({name}, np.random.Generator), y"
    task = task_of(job_in(tmp_path, GOOD + more))
    assert next(task.batches).inputs[0].sum().asscalar() == (64 * 4 if changes else 0)


def test_classes_that_prepare_makes_integers_of_mxnets_are_measured(tmp_path):
    text = GOOD.replace(LOSS, "def prepare(x, y):\n    return x, mx.nd.array(y, dtype='int32')").replace("(1))", "(5))")
    task = task_of(job_in(tmp_path, text.replace("y = x.sum(axis=1)", "y = np.arange(200) % 5")))
    assert task.metric.is_accuracy and 0 <= task.evaluate() <= 1


def test_values_that_a_network_has_are_kept_and_others_are_the_same_for_the_same_seed(tmp_path):
    kept = "import mxnet as mx\n" + GOOD.replace(
        "    return net", "    net[1].initialize(mx.init.One(), ctx=mx.cpu(1))\n    return net"
    )
    networks = [task_of(job_in(tmp_path, kept, "--seed", seed)).network for seed in "001"]
    first, again, other = (net.weights for net in networks)
    assert (first[2] == 1).all() and (other[2] == 1).all()
    assert all((a == b).all() for a, b in zip(first, again, strict=True)) and (first[0] != other[0]).any()
    assert networks[0].names == networks[1].names


@pytest.mark.parametrize(
    ("more", "name", "more_is_better"),
    [
        ("", "test-loss", False),
        ("metric = mx.metric.RMSE()", "rmse", False),
        ("def r2(targets, outputs):\n    return 1.5\nmetric = r2", "r2", True),
        ("def error(targets, outputs):\n    return 1.5\nmetric, more_is_better = error, False", "error", False),
    ],
)
def test_the_metric_has_a_name_and_a_direction(tmp_path, more, name, more_is_better):
    task = task_of(job_in(tmp_path, GOOD + more))
    assert (task.metric.name, task.metric.more_is_better) == (name, more_is_better)
    value = task.evaluate()
    assert value == 1.5 if "1.5" in more else value > 0


def test_a_metric_of_arrays_gets_the_whole_test_set(tmp_path):
    more = """
def r2(targets, outputs):
    assert targets.shape == (40,) and outputs.shape == (40, 1)
    return float(np.abs(targets - data("")[1][1]).max())
metric = r2
"""
    assert task_of(job_in(tmp_path, GOOD + more)).evaluate() < 1e-6


METRIC = "\ndef metric(targets, outputs):\n    return "


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("'good'", "metric(targets, outputs): gives a str of 4: give one number"),
        ("outputs", "gives a ndarray of shape (40, 1): give one number"),
        ("None", "gives None: give one number"),
        ("no_name", "line 18: NameError: name 'no_name'"),
        ("targets.area", "AttributeError"),
        ("float(targets, outputs)", "TypeError"),
    ],
)
def test_a_metric_that_is_no_number_is_told_before_training(tmp_path, value, told):
    with pytest.raises(UserError, match=re.escape(told)):
        task_of(job_in(tmp_path, GOOD + METRIC + value))


@pytest.mark.parametrize("value", ["np.float32(1) / np.zeros(())", "1 / 0", "np.stack([])", "np.full((1, 1), 3)"])
def test_a_metric_that_other_samples_or_weights_may_mend_is_tried_again_in_training(tmp_path, value):
    task_of(job_in(tmp_path, GOOD + METRIC + value))


def test_parts_that_the_file_leaves_out_are_built_in(tmp_path):
    built_in = parse(["-m", "local", "-c", "1", "-n", "mlp", "-ld", str(tmp_path)])
    text = "import numpy as np\ndef metric(targets, outputs):\n    return float((outputs.argmax(1) == targets).mean())"
    with_metric = job_in(tmp_path, text, "-n", "mlp")
    tasks = [task_of(config) for config in (built_in, with_metric)]
    assert tasks[0].evaluate() == pytest.approx(tasks[1].evaluate())
    batches = [next(task.batches) for task in tasks]
    np.testing.assert_array_equal(*(batch.inputs[0].asnumpy() for batch in batches))


@pytest.mark.parametrize("shared", ["NET = network()\ndef network(): return NET", "D = gluon.nn.Dense(1)"])
def test_virtual_workers_may_not_train_the_same_layers(tmp_path, shared):
    text = GOOD.replace("gluon.nn.Dense(1))", "D)") if shared[0] == "D" else GOOD
    path = job_in(tmp_path, f"{text}\n{shared}").job
    (run,) = simulate.parse(["--workers", "0.1,0.1", "--log-base", str(tmp_path), "--max-rounds", "1", "--job", path])[
        1
    ]
    with pytest.raises(SetupError, match=r"my_job.py, network\(\): gives the same layers again"):
        virtual_cluster.VirtualRun(run.job).run()


def test_without_a_test_part_the_last_network_is_saved_and_no_target_is_possible(tmp_path):
    text = GOOD.replace("(x[160:], y[160:])", "None")
    config = job_in(tmp_path, text, "--max-rounds", "3")
    assert task_of(config).evaluate is None
    with pytest.raises(SetupError, match="a target needs them"):
        job_of(job_in(tmp_path, text, "--target", "0.1"))
    signals: Any = SimpleNamespace(requested=False, be_patient=lambda: None)
    assert worker.run(config, None, signals) == 0
    folder = tmp_path / "logs" / "cpu"
    assert (folder / "final-0003.params").exists() and not (folder / "best.json").exists()
