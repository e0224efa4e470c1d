"""Job files whose network is a torch.nn.Module: beside plain torch, in all that a job is, and what is refused."""

from __future__ import annotations

import copy
import importlib
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_processes import ran

import simulate
from config import Config
from trainer.command_line import parse
from trainer.datasets.sources import Stream
from trainer.from_flags import learning_task
from trainer.jobs.job import job_of
from trainer.jobs.network import build
from trainer.membership import Membership
from trainer.network import Parameters
from trainer.simulation import virtual_cluster
from trainer.steps import Rule, Stepper
from utils import SetupError

torch = pytest.importorskip("torch", reason="no torch: scripts/setup.sh --torch")
nn = torch.nn
torch_loader = importlib.import_module("trainer.datasets.torch_loader")

HEAD = """
import torch
from torch import nn
"""
DATA = """
def data(folder):
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(5))
    y = (x.sum(1) > 0).long()
    return (x[:160], y[:160]), (x[160:], y[160:])
"""
NETWORK = """
def network():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
"""


def job_in(folder: Path, *parts: str) -> Path:
    path = folder / "my_job.py"
    path.write_text("".join((HEAD, *(parts or (DATA, NETWORK)))))
    return path


def config_of(path: Path, *flags: str) -> Config:
    return parse(["-m", "local", "-c", "1", "-ld", str(path.parent / "logs"), "--job", str(path), *flags])


def built_in(folder: Path, *parts: str, flags: tuple[str, ...] = ()) -> tuple[Any, Any]:
    config = config_of(job_in(folder, *parts), *flags)
    job = job_of(config)
    return job, build(config, job, lambda text: None)


def simulated(folder: Path, path: Path, *flags: str) -> str:
    """The SHA-256 of the final weights of a simulation."""
    own = "--job", str(path), "--workers", "0.1,0.2", "--log-base", str(folder), "-b", "16"
    (run,) = simulate.parse([*own, *flags])[1]
    return virtual_cluster.VirtualRun(run.job).run()


def test_host_arrays_are_the_modules_own_memory_and_saved_is_a_plain_state_dict(tmp_path):
    parts = DATA, NETWORK.replace("nn.Tanh()", "nn.BatchNorm1d(8), nn.Tanh()")
    _, built = built_in(tmp_path, *parts)
    network, module = built.network, built.network.layers
    assert network.names == ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    network.weights[0][:] = 7.0
    assert module[0].weight.eq(7.0).all()
    module(torch.ones(3, 4)).sum().backward()
    assert np.shares_memory(network.gradients[0], module[0].weight.grad.numpy())
    mean, variance, count = network.statistics
    assert (mean.shape, variance.shape, count.dtype, int(count)) == ((8,), (8,), np.int64, 1)
    parameters = Parameters(network)
    (flat,) = parameters.statistics()
    assert (flat.dtype, flat.shape) == (np.float32, (17,))
    parameters.set_statistics([flat - np.float32(1e-4)])
    assert module[1].num_batches_tracked == 1 and module[1].running_var[0] < variance[0] + 1e-3
    parameters.set_statistics([flat])
    (tmp_path / "saved.pt").write_bytes(network.saved([])[1])
    found = torch.load(tmp_path / "saved.pt", weights_only=True)
    assert found.keys() == module.state_dict().keys()
    again = copy.deepcopy(module)
    again[0].weight.data.zero_()
    again.load_state_dict(found)
    assert again[0].weight.eq(7.0).all()
    network.weights[0][:] = 0.0
    network.restore(tmp_path / "saved.pt")
    assert module[0].weight.eq(7.0).all() and module[1].num_batches_tracked == 1


def test_tied_weights_are_one_and_frozen_ones_stay_apart(tmp_path):
    tied = """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.second.weight = self.first.weight
        self.head.bias.requires_grad = False
        self.register_buffer("mask", torch.full((4,), -float("inf")))

    def forward(self, x):
        return self.head(self.second(torch.tanh(self.first(x))))

network = Tied
"""
    _, built = built_in(tmp_path, DATA, tied)
    network = built.network
    assert network.names == ["first.weight", "first.bias", "second.bias", "head.weight"]
    assert [each.shape for each in network.frozen] == [(2,)] and network.statistics == []
    assert "second.weight" in network.state() and not np.isfinite(network.state()["mask"]).any()


def test_sparse_gradients_become_dense(tmp_path):
    sparse = """
class Sparse(nn.Embedding):
    def forward(self, x):
        return super().forward((x > 0).long()).sum(1)

def network():
    return Sparse(3, 2, sparse=True)
"""
    _, built = built_in(tmp_path, DATA, sparse)
    built.network.layers(torch.ones(5, 4)).sum().backward()
    assert [each.tolist() for each in built.network.gradients] == [[[0.0, 0.0], [20.0, 20.0], [0.0, 0.0]]]


LOSSES = {
    "mean": "nn.CrossEntropyLoss()",
    "sum": "nn.CrossEntropyLoss(reduction='sum')",
    "each": "nn.CrossEntropyLoss(reduction='none')",
    "ignored": "nn.CrossEntropyLoss(ignore_index=1)",
    "weighed": "nn.CrossEntropyLoss(weight=torch.tensor([0.3, 2.0]))",
    "function": "lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)",
}


@pytest.mark.parametrize("name", LOSSES)
def test_ten_steps_are_those_of_plain_torch(tmp_path, name):
    """On the mean loss with the learning rate 0.1; of a sum 16 samples have 16 times that."""
    job, built = built_in(tmp_path, DATA, NETWORK, f"loss = {LOSSES[name]}\n", flags=("-b", "16", "-l", "0.00625"))
    config = config_of(tmp_path / "my_job.py", "-b", "16")
    task = learning_task(config, job, built, Membership())
    module = copy.deepcopy(built.network.layers)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    loss = eval(LOSSES[name])
    stepper = Stepper(Rule(momentum=0.9), [False] * 4)
    passes = built.network.passes(built.loss, type("No", (), {"seed": lambda *given: None})(), lambda: 0)
    for _ in range(10):
        batch = next(task.batches)
        optimizer.zero_grad()
        value = loss(module(*batch.inputs), *batch.targets)
        (value.mean() if value.ndim or name != "sum" else value / 16).backward()
        optimizer.step()
        passes.forward(batch)
        passes.backward()
        stepper.step(built.network.weights, built.network.gradients, 0.1 / 16)
    for own, theirs in zip(built.network.layers.parameters(), module.parameters(), strict=True):
        np.testing.assert_allclose(own.detach(), theirs.detach(), atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adamw", "clipped"])
def test_adamw_and_clipping_are_torchs(optimizer):
    random = np.random.default_rng(0)
    weights = [random.normal(size=shape).astype(np.float32) for shape in ((40, 30), (30,))]
    theirs = [nn.Parameter(torch.tensor(weight)) for weight in weights]
    groups = [{"params": theirs[:1], "weight_decay": 0.1}, {"params": theirs[1:], "weight_decay": 0.0}]
    if optimizer == "adamw":
        rule, plain = Rule("adamw", weight_decay=0.1, batch_size=8), torch.optim.AdamW(groups, lr=0.01)
    else:
        rule = Rule(momentum=0.9, weight_decay=0.1, batch_size=8, clip_norm=1.5)
        plain = torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    stepper = Stepper(rule, [True, False])
    for number in range(20):
        slopes = [random.normal(scale=0.01 * (1 + 9 * (number % 2)), size=weight.shape) for weight in weights]
        for each, slope in zip(theirs, slopes, strict=True):
            each.grad = torch.tensor(slope, dtype=torch.float32)
        if optimizer == "clipped":
            nn.utils.clip_grad_norm_(theirs, 1.5)
        plain.step()
        gradients = [np.float32(slope * 3 * 8) for slope in slopes]  # of the sum over three batches of eight
        stepper.step(weights, gradients, 0.01 if optimizer == "adamw" else 0.01 / 8, num_batches=3)
    for own, each in zip(weights, theirs, strict=True):
        np.testing.assert_allclose(own, each.detach(), atol=1e-6)


MISTAKES = {
    "no network": (NETWORK.replace("return nn", "nn"), "returns None"),
    "no parameters": ("network = nn.ReLU\n", "the network has no parameters to train"),
    "frozen": ("def network():\n    return nn.Linear(4, 2).requires_grad_(False)\n", "no parameters to train"),
    "half": ("def network():\n    return nn.Linear(4, 2).half()\n", "weight is torch.float16: only float32"),
    "lazy": ("def network():\n    return nn.LazyLinear(2)\n", "the shape of weight is not known"),
    "meta": ("def network():\n    return nn.Linear(4, 2, device='meta')\n", "weight is on the device meta"),
    "the same": ("NET = nn.Linear(4, 2)\ndef network():\n    return NET\n", "gives the same layers again"),
    "a dictionary": (
        "class Net(nn.Linear):\n    def forward(self, x):\n        return {'logits': super().forward(x)}\n"
        "def network():\n    return Net(4, 2)\n", "network(): the network gives a dict"),
    "shapes": (NETWORK.replace("4, 8", "5, 8"), "network(), on a batch of inputs (2, 4) and targets (2,)"),
    "of a pair": (NETWORK + "def loss(o, t):\n    return ((o[:, None] - o[None]) ** 2).sum()\n",
                  "reduction='none'"),
    "shape of loss": (NETWORK + "def loss(o, t):\n    return o\n", "gives a tensor (2, 2) for 2 samples"),
    "no gradient": (NETWORK + "def loss(o, t):\n    return o.detach().sum(1)\n", "does not depend on the outputs"),
    "of MXNet": ("import mxnet as mx\n" + NETWORK + "loss = mx.gluon.loss.L2Loss()\n", "is of MXNet, and the network"),
    "of torch": ("import mxnet as mx\ndef network():\n    return mx.gluon.nn.Dense(2)\n"
                 "def data(folder):\n    return ([[1.0], [2.0]] * 64, [0, 1] * 64), None\n"
                 "loss = nn.CrossEntropyLoss()\n", "is of torch, and the network of MXNet"),
    "no tensor": (NETWORK + "def loss(o, t):\n    return 3.0\n", "gives a float"),
    "few scores": ("def network():\n    return nn.Linear(4, 1)\n", "the loss is cross-entropy, for scores (N, C)"),
    "module": ("network = nn.Linear(4, 2)\n", "network is a Linear: write a function network()"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(tmp_path, name):
    text, line = MISTAKES[name]
    config = config_of(job_in(tmp_path, DATA, text))
    with pytest.raises(SetupError, match=re.escape(line)) as caught:
        job = job_of(config)
        for _ in range(2 if name == "the same" else 1):
            build(config, job, lambda text: None)
    assert "\n" not in str(caught.value)


def test_scores_with_classes_of_a_dataset_are_measured_by_accuracy(tmp_path):
    made = DATA.replace("return (x[:160], y[:160]), (x[160:], y[160:])",
                        "return [torch.utils.data.TensorDataset(x[k::2], y[k::2]) for k in (0, 1)]")  # fmt: skip
    assert built_in(tmp_path, made, NETWORK, "loss = nn.CrossEntropyLoss()\n")[1].metric.is_accuracy
    regression = made.replace(".long()", ".float()[:, None].expand(-1, 2)")
    assert not built_in(tmp_path, regression, NETWORK, "loss = nn.MSELoss()\n")[1].metric.is_accuracy


def test_a_gpu_is_refused_in_one_line(tmp_path):
    path = job_in(tmp_path)
    with pytest.raises(SetupError, match="GPU 0: a network of torch trains on the CPU here: give -c 1"):
        build(parse(["-m", "local", "--job", str(path)]), job_of(config_of(path)), lambda text: None)


RAGGED = """
from torch.nn.utils.rnn import pad_sequence

def data(folder):
    random = torch.Generator().manual_seed(0)
    x = [torch.randint(1, 9, (int(n),), generator=random) for n in torch.randint(1, 6, (40,), generator=random)]
    y = torch.tensor([int(each.sum() > 12) for each in x])
    return (x[:30], y[:30]), (x[30:], y[30:])

def batchify(samples):
    x, y = zip(*samples)
    return pad_sequence(list(x), batch_first=True), torch.stack(list(y))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 6, padding_idx=0), nn.Linear(6, 2)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.head(self.dropout(self.embedding(x).mean(1)))

network = Net
loss = nn.CrossEntropyLoss()
"""


def test_a_ragged_job_with_dropout_and_autocast_trains_and_resumes_to_the_bit(tmp_path):
    path = job_in(tmp_path, RAGGED)
    checkpoints = "--checkpoint", str(tmp_path / "kept"), "--ckpt-frequency", "4"
    flags = "-m", "local-sgd", "-ll", "0.01", "-b", "8", "-e", "4"
    whole = simulated(tmp_path / "a", path, *flags, "--max-rounds", "8")
    assert simulated(tmp_path / "b", path, *flags, "--max-rounds", "8") == whole
    simulated(tmp_path / "c", path, *flags, "--max-rounds", "4", *checkpoints)
    assert simulated(tmp_path / "c", path, *flags, "--max-rounds", "8", *checkpoints, "--resume") == whole


OWN_LOOP = """
def train(worker):
    loss = nn.CrossEntropyLoss(reduction="none")
    for x, y in worker.batches:
        worker.network.zero_grad()
        losses = loss(worker.network(x), y)
        losses.sum().backward()
        worker.step(len(y), losses)
"""


def test_a_loop_of_the_users_own_does_what_the_built_in_one_does(tmp_path):
    flags = "-m", "esync", "-ll", "0.01", "--max-rounds", "4", "-e", "4"
    ours = simulated(tmp_path / "a", job_in(tmp_path, DATA, NETWORK), *flags)
    theirs = simulated(tmp_path / "b", job_in(tmp_path, DATA, NETWORK, OWN_LOOP), *flags)
    assert ours == theirs
    stepping = OWN_LOOP.replace("        worker.step", "        optimizer.step()\n        worker.step").replace(
        "    loss =", "    optimizer = torch.optim.SGD(worker.network.parameters(), 0.1)\n    loss ="
    )
    path = job_in(tmp_path, DATA, NETWORK, stepping)
    with pytest.raises(SetupError, match="changes the weights: leave its optimizer out"):
        simulated(tmp_path / "c", path, *flags)


class Numbers(torch.utils.data.Dataset):
    def __init__(self, noise=0.0):
        self.noise = noise

    def __len__(self):
        return 64

    def __getitem__(self, number):
        return torch.full((4,), float(number)) + self.noise * torch.randn(4), number % 2


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from ((torch.full((4,), float(number)), number % 2) for number in range(8))


def test_a_loader_gives_its_dataset_by_its_own_processes():
    source = torch_loader.source_of(torch.utils.data.DataLoader(Numbers(), batch_size=7, num_workers=2))
    assert not isinstance(source, Stream)
    inputs, targets, size = source.take(np.array([5, 2, 9, 4, 4]))
    assert (inputs[:, 0].tolist(), targets.tolist(), size) == ([5.0, 2.0, 9.0, 4.0, 4.0], [1, 0, 1, 0, 0], 5)
    source = torch_loader.source_of(torch.utils.data.DataLoader(Numbers(0.1), num_workers=2))
    found = []
    for seed in (1, 1, 2):
        np.random.seed(seed)
        found.append(source.take(slice(0, 8)).inputs)
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_a_loader_without_numbers_is_a_stream_of_which_each_worker_takes_its_share():
    loader = torch.utils.data.DataLoader(Endless(), batch_size=2)
    test, train = torch_loader.source_of(loader), torch_loader.source_of(loader, endless=True)
    assert isinstance(test, Stream) and isinstance(train, Stream)
    assert [raw.inputs[:, 0].tolist() for raw in test.batches(1, 2, 0)] == [[2.0, 3.0], [6.0, 7.0]]
    batches = train.batches(0, 2, 0)
    assert [next(batches).inputs[0, 0].item() for _ in range(4)] == [0.0, 4.0, 0.0, 4.0]


def test_integers_stay_integers_and_floats_become_float32(tmp_path):
    _, built = built_in(tmp_path)
    feed = built.network.feed(None)
    given = np.arange(3, dtype=np.uint8), np.arange(3.0), np.ones(3, bool), torch.ones(3, dtype=torch.float64)
    batch = feed.placed(given, [1, 0, 1])
    kinds = [each.dtype for each in batch.arrays]
    assert kinds == [torch.int64, torch.float32, torch.bool, torch.float32, torch.int64]
    for data in (np.ones((4, 2), np.float32), np.ones((4, 2), np.int64), torch.ones(4, 2)):
        feed.placed(data[:2], [0, 1]).inputs[0].zero_()  # as a network may do in place
        assert data.sum() == 8
    with pytest.raises(SetupError, match="are no numbers of one shape"):
        feed.placed(np.array(["a"]), [1])


def test_init_from_takes_a_state_dict_and_names_what_it_lacks(tmp_path):
    path = job_in(tmp_path)
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    torch.save(
        {"epoch": 3, "state_dict": {f"module.{k}": v for k, v in module.state_dict().items()}}, tmp_path / "a.pt"
    )
    told: list[str] = []
    config = config_of(path, "--init-from", str(tmp_path / "a.pt"))
    built = build(config, job_of(config), told.append)
    assert torch.equal(built.network.layers[0].weight, module[0].weight)
    assert told == [
        f"2 of 4 initial parameters are from {tmp_path / 'a.pt'}; the network keeps its own of 2.weight ((3, 8) there, "
        "(2, 8)), 2.bias ((3,) there, (2,))"
    ]
    (tmp_path / "b.pt").write_bytes(b"nothing")
    config = config_of(path, "--init-from", str(tmp_path / "b.pt"))
    with pytest.raises(SetupError, match=r"b\.pt is no file with a state_dict of torch"):
        build(config, job_of(config), told.append)


@pytest.mark.cluster
def test_in_a_ring_a_worker_loads_no_mxnet_and_saves_a_state_dict(tmp_path):
    path = job_in(tmp_path)
    job = ["-m", "esync", "--exchange", "ring", "--job", path, "--workers", "2", "--log-base", tmp_path / "logs"]
    flags = ["-b", "16", "-ll", "0.01", "--max-rounds", "30", "-e", "10", "--min-step-time", "0.02"]
    done = ran(sys.executable, "-m", "scripts.launch.local_cluster", *job, "--", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = [json.loads(each.read_text()) for each in (tmp_path / "logs").rglob("run.json")]
    assert [sorted(run["versions"]) for run in runs] == [["esync", "numpy", "platform", "python", "torch"]] * 2
    assert runs[0]["final_weights_sha256"] == runs[1]["final_weights_sha256"]
    (saved,) = (tmp_path / "logs").rglob("final-*.pt")
    assert len([*(tmp_path / "logs").rglob("best-*.pt")]) == 1  # of each model the newest file alone
    assert torch.load(saved, weights_only=True)["0.weight"].shape == (8, 4)
    assert math.isfinite(json.loads(saved.with_name("final.json").read_text())["accuracy"])
