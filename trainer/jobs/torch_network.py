"""A torch.nn.Module as trainer.network.JobNetwork, on the CPU, with its loss and its samples. Torch owns the
memory of weights and gradients, and numpy sees it. Only this file and datasets/torch_loader.py import torch."""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.datasets.batches import Feed, Prepare
from trainer.datasets.sources import described
from trainer.draws import Draws
from trainer.network import Batch, Loss, Passes, arrays_in, numpy_of, shapes_told, single
from utils import SetupError

# Buffers that a training pass moves: BatchNorm's. All others, such as a mask, stay as network() has made them.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
EACH, MEAN, SUM = "each", "mean", "sum"  # what a loss gives: one of each sample, or one number for all
AddedUp = Callable[[Any, Batch], torch.Tensor]  # (outputs, batch) -> the losses of the batch's samples, added up
NOT_TOLD = "give the loss of each sample, by reduction='none' where torch has it"


class TorchFeed(Feed):
    """Tensors: floating numbers as float32, integers as int64; tensors of float16, bfloat16 and bool as they are."""

    def exactly(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array if array.flags.owndata else array.copy())  # a network may write to its inputs

    def of_numbers(self, array: np.ndarray) -> torch.Tensor:
        if array.dtype.kind in "iu":
            return self.exactly(np.ascontiguousarray(array, np.int64))
        return self.exactly(array) if array.dtype.kind == "b" else super().of_numbers(array)

    def own(self, value: Any) -> torch.Tensor | None:
        if not isinstance(value, torch.Tensor):
            return None
        if value.dtype is torch.float64:
            return value.float()
        if value._is_view():  # of the data
            value = value.clone()
        return value if value.is_floating_point() or value.dtype is torch.bool else value.long()


def _added_up(function: Loss, gives: str, outputs: Any, batch: Batch) -> torch.Tensor:
    """The losses of the batch's samples, of which the function gives each, their mean or their sum. A mean
    counts as that of so many samples."""
    value = function(outputs, single(batch.targets))
    return value.sum() if gives == EACH else value * batch.size if gives == MEAN else value


def _cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


class TorchNetwork:
    """The names are those of torch, such as `layers.0.weight`; of shared weights the first."""

    suffix = ".pt"
    device = torch.device("cpu")

    def __init__(self, module: torch.nn.Module) -> None:
        """Raises SetupError if the module cannot be trained here."""
        _check(module)
        self._module = module
        named = {_plain(name): each for name, each in module.named_parameters()}
        for each in named.values():
            each.data = each.data.to(self.device).contiguous()  # also weights in the layout channels_last
        trained = {name: each for name, each in named.items() if each.requires_grad}
        self.names, self._trained = [*trained], [*trained.values()]
        self._frozen = [each for each in named.values() if not each.requires_grad]
        self.weights = [each.detach().numpy() for each in self._trained]
        self._watches_first_step = False  # of a training loop of the user's own
        self._before: list[torch.Tensor] = []  # the weights before that step

    @property
    def layers(self) -> torch.nn.Module:
        return self._module

    @property
    def gradients(self) -> list[np.ndarray]:
        """Torch has new memory for the gradients of each backward pass; zeros where it had none to compute."""
        for each in self._trained:
            if each.grad is None:
                each.grad = torch.zeros_like(each)
            elif each.grad.is_sparse:  # of nn.Embedding(sparse=True)
                each.grad = each.grad.to_dense()
            elif not each.grad.is_contiguous():
                each.grad = each.grad.contiguous()
        return [each.grad.numpy() for each in self._trained if each.grad is not None]

    @property
    def statistics(self) -> list[np.ndarray]:
        """With BatchNorm's counts of batches, which are integers."""
        named = self._module.named_buffers()
        return [each.numpy() for name, each in named if name.rpartition(".")[2] in STATISTICS]

    @property
    def frozen(self) -> list[np.ndarray]:
        return [each.detach().numpy().copy() for each in self._frozen]

    def begin(self) -> None:
        self._module.train()
        for each in self._trained:
            each.grad = None
        if self._watches_first_step and not self._before:
            self._before = [each.detach().clone() for each in self._trained]

    def own_loop(self) -> Callable[[bool], str]:
        self._watches_first_step = True

        def fault(is_first: bool) -> str:
            if not is_first:
                return ""
            if not all(map(torch.equal, self._trained, self._before)):
                return "train(worker) changes the weights: leave its optimizer out, since worker.step() takes the step"
            if not any(each.grad is not None and bool(each.grad.any()) for each in self._trained):
                return "train(worker) has computed no gradients: call loss.backward() before worker.step()"
            self._watches_first_step, self._before = False, []  # a copy of the model that is not needed any more
            return ""

        return fault

    def passes(self, loss: AddedUp | None, draws: Draws, samples: Callable[[], int]) -> TorchPasses:
        return TorchPasses(self, loss or partial(_added_up, _cross_entropy, EACH), draws, samples)

    def total(self, loss: AddedUp, outputs: Any, batch: Batch) -> float:
        with torch.no_grad():
            return float(loss(outputs, batch))

    def tried(self, loss: Loss | None, batch: Batch, outputs: Any) -> AddedUp:
        """As JobNetwork."""
        function = loss or _cross_entropy
        if type(loss).__module__.startswith("mxnet."):
            raise SetupError("is of MXNet, and the network of torch: give a loss of torch")

        def of(values: Any, targets: Any) -> torch.Tensor:
            found = function(values, targets)
            if not isinstance(found, torch.Tensor) or not found.is_floating_point():
                raise SetupError(f"gives {described(found)}: give a tensor with the loss of each sample, or their mean")
            return found

        inputs = _each(outputs, lambda leaf: leaf.detach().clone().requires_grad_(leaf.is_floating_point()))
        targets = single(batch.targets)
        value = of(inputs, targets)
        if value.ndim == 0:
            gives = _reduction(of, outputs, targets)
        elif value.shape == (batch.size,):
            gives = EACH
        else:
            raise SetupError(
                f"gives a tensor {tuple(value.shape)} for {batch.size} samples: give the loss of each sample, shape "
                f"({batch.size},), the mean over its other axes, or one mean of all"
            )
        leaves = [each for each in arrays_in(inputs) if each.requires_grad]
        remedy = "compute it of the outputs, by functions of torch, without detach(), item() or numpy()"
        if not value.requires_grad:
            raise SetupError(f"has no gradient, since it does not depend on the outputs: {remedy}")
        found = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
        if bool(value.any()) and not any(each is not None and bool(each.any()) for each in found):
            logging.warning("warning: the gradient of the loss is 0 for the first samples: %s", remedy)
        return partial(_added_up, function, gives)

    def on(self, use_cpu: bool, gpu: int) -> TorchNetwork:
        if not use_cpu:
            raise SetupError(f"GPU {gpu}: a network of torch trains on the CPU here: give -c 1")
        return self

    def keep_memory(self) -> None: ...

    def feed(self, prepare: Prepare | None) -> TorchFeed:
        return TorchFeed(prepare, self.seed)

    def outputs(self, batch: Batch) -> Any:
        was_training = self._module.training
        self._module.eval()
        try:
            with torch.no_grad(), shapes_told(batch.inputs, batch.targets):
                return self._module(*batch.inputs)
        finally:
            self._module.train(was_training)

    def seed(self, number: int) -> None:
        torch.manual_seed(number)

    def state(self) -> dict[str, np.ndarray]:
        return {name: numpy_of(each).copy() for name, each in self._state().items()}

    def _state(self) -> dict[str, torch.Tensor]:
        found = self._module.state_dict().items()
        return {_plain(name): each for name, each in found if isinstance(each, torch.Tensor)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        with torch.no_grad():
            for name, each in self._state().items():
                if name in state:
                    each.copy_(torch.from_numpy(state[name]))

    def saved(self, inputs: Sequence[str]) -> tuple[None, bytes]:
        content = io.BytesIO()
        torch.save({name: each.clone() for name, each in self._state().items()}, content)
        return None, content.getvalue()

    def restore(self, file: Path) -> None:
        try:
            found = read(file)
        except ValueError as error:
            raise SetupError(f"{file} is {error}") from None
        if {name: each.shape for name, each in found.items()} != {
            name: each.shape for name, each in self._state().items()
        }:
            raise SetupError(f"{file} does not fit the network of this job: its names or shapes are others")
        self.load(found)

    def found_in(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """As JobNetwork; DistributedDataParallel puts `module.` before the names."""
        named = {_plain(name): array for name, array in arrays.items()}
        ways = ({name.removeprefix(prefix): array for name, array in named.items()} for prefix in ("", "module."))
        return max(({name: way[name] for name in self._state() if name in way} for way in ways), key=len)


class TorchPasses(Passes):
    """Its forward and backward passes. On the CPU torch's calls return when they are done."""

    def __init__(self, network: TorchNetwork, loss: AddedUp, draws: Draws, samples: Callable[[], int]) -> None:
        self._network, self._loss_function, self._draws, self._samples = network, loss, draws, samples
        self._size, self._running, self._complete = 1, torch.zeros(()), torch.zeros(())  # sum of losses, their mean

    def forward(self, batch: Batch) -> None:
        self._network.begin()
        self._draws.seed(self._samples(), lambda: self._tried(batch))
        self._running, self._size = self._loss_of(batch), batch.size

    def _tried(self, batch: Batch) -> list[torch.Tensor]:
        """Does the work of a forward pass, and undoes what it does to buffers."""
        before = [(each, each.clone()) for each in self._network.layers.buffers()]
        try:
            return [self._loss_of(batch)]
        finally:
            for each, value in before:
                each.copy_(value)

    def _loss_of(self, batch: Batch) -> torch.Tensor:
        with shapes_told(batch.inputs, batch.targets):
            return self._loss_function(self._network.layers(*batch.inputs), batch)

    def backward(self) -> None:
        self._running.backward()
        self._complete = self._running.detach() / self._size

    def loss(self) -> float:
        return float(self._complete)


def _plain(name: str) -> str:
    """A name without what torch.compile puts before it."""
    return name.replace("_orig_mod.", "")


def _check(module: torch.nn.Module) -> None:
    """Raises SetupError if the module cannot be trained here."""
    named = [*module.named_parameters(), *module.named_buffers()]
    for name, each in named:
        if isinstance(each, torch.nn.parameter.UninitializedTensorMixin):
            raise SetupError(f"the shape of {name} is not known: call the network once in network(), or give its size")
        if each.is_sparse:
            raise SetupError(f"{name} is sparse: only dense weights can be trained here")
        if each.device.type == "meta":
            raise SetupError(f"{name} is on the device meta and has no values: make it on the CPU")
        if hasattr(each, "_of_a_worker"):
            raise SetupError("gives the same layers again when it is called for the next worker: make them anew")
    for name, each in module.named_parameters():
        if each.dtype is not torch.float32:
            raise SetupError(
                f"{name} is {each.dtype}: only float32 can be trained here (autocast in forward is possible)"
            )
    if not any(each.requires_grad for each in module.parameters()):
        raise SetupError("the network has no parameters to train")
    for _, each in named:
        each._of_a_worker = True


def _reduction(of: Callable[[Any, Any], torch.Tensor], outputs: Any, targets: Any) -> str:
    """Whether one number is the mean or the sum of the samples' losses, by the same samples twice: a mean stays, and a
    sum doubles. Where the number is 0 or none, as of ignored targets, outputs that are moved a little are tried."""
    generator = torch.Generator().manual_seed(0)
    for scale in (0.0, 0.01, 1.0):

        def moved(leaf: torch.Tensor, by: float = scale) -> torch.Tensor:
            leaf = leaf.detach()
            if not by or not leaf.is_floating_point():
                return leaf
            return leaf + by * torch.randn(leaf.shape, generator=generator).to(leaf.dtype)

        once = _each(outputs, moved)
        try:
            with torch.no_grad():
                before, twice = (float(of(*each)) for each in ((once, targets), (_twice(once), _twice(targets))))
        except SetupError:
            raise
        except Exception as error:  # such as a probability above 1
            if scale:
                break
            raise SetupError(f"fails on the first samples twice ({error}): {NOT_TOLD}") from error
        if not before or not np.isfinite(before):
            continue
        for gives, factor in ((MEAN, 1.0), (SUM, 2.0)):
            if abs(twice - factor * before) <= 1e-4 * abs(factor * before):
                return gives
        raise SetupError(f"gives one number, {before:g}, and {twice:g} for the same samples twice: {NOT_TOLD}")
    raise SetupError(f"gives one number that does not say whether it is a mean: {NOT_TOLD}")


def _each(values: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(values, (tuple, list)):
        return type(values)([_each(value, change) for value in values])
    return change(values) if isinstance(values, torch.Tensor) else values


def _twice(values: Any) -> Any:
    return _each(values, lambda leaf: torch.cat([leaf, leaf]) if leaf.ndim else leaf)


def read(file: Path) -> dict[str, np.ndarray]:
    """The arrays of a file with a state_dict, which may be an entry of a training's checkpoint. Raises ValueError if it
    is none."""
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError) as error:
        reason = (str(error).strip().splitlines() or ["it cannot be read"])[0]
        raise ValueError(f"no file with a state_dict of torch: {reason}") from None
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    named = found.items() if isinstance(found, Mapping) else ()
    if tensors := {name: each for name, each in named if isinstance(each, torch.Tensor)}:
        return {name: np.asarray(numpy_of(each), order="C") for name, each in tensors.items()}
    raise ValueError(f"no file with a state_dict of torch: it has {described(found)}")
