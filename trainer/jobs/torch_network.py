"""A torch.nn.Module as trainer.jobs.job_network.JobNetwork, on the CPU. Torch owns the memory of weights and gradients,
and numpy sees it. Only this file and torch_modules.py import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.datasets.feed import Prepare
from trainer.draws import Draws
from trainer.jobs import torch_modules
from trainer.jobs.torch_modules import TorchFeed, TorchLoss
from trainer.passes import Batch, Loss, numpy_of, shapes_told
from utils import SetupError


class TorchNetwork:
    """The names are those of torch, such as `layers.0.weight`; of shared weights the first."""

    suffix = ".pt"
    device = torch.device("cpu")

    def __init__(self, module: torch.nn.Module) -> None:
        """Raises SetupError if the module cannot be trained here."""
        torch_modules.check(module)
        self._module = module
        named = {torch_modules.plain(name): each for name, each in module.named_parameters()}
        for each in named.values():
            each.data = each.data.to(self.device).contiguous()  # also weights in the layout channels_last
        trained = {name: each for name, each in named.items() if each.requires_grad}
        self.names, self._trained = [*trained], [*trained.values()]
        self._frozen = [each for each in named.values() if not each.requires_grad]
        self.weights = [each.detach().numpy() for each in self._trained]
        self._own_loop: torch_modules.FirstStep | None = None

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
        return [each.numpy() for each in torch_modules.statistics(self._module)]

    @property
    def frozen(self) -> list[np.ndarray]:
        return [each.detach().numpy().copy() for each in self._frozen]

    def begin(self) -> None:
        self._module.train()
        for each in self._trained:
            each.grad = None
        if self._own_loop is not None:
            self._own_loop.begin()

    def own_loop(self) -> Callable[[bool], str]:
        self._own_loop = torch_modules.FirstStep(self._trained)
        return self._own_loop.fault

    def passes(self, loss: TorchLoss | None, draws: Draws, samples: Callable[[], int]) -> TorchPasses:
        return TorchPasses(self, loss or TorchLoss(), draws, samples)

    def total(self, loss: TorchLoss, outputs: Any, batch: Batch) -> float:
        with torch.no_grad():
            return float(loss(outputs, batch))

    def tried(self, loss: Loss | None, batch: Batch, outputs: Any) -> TorchLoss:
        return torch_modules.tried(loss, batch, outputs)

    def on(self, use_cpu: bool, gpu: int) -> TorchNetwork:
        if not use_cpu:
            raise SetupError(f"GPU {gpu}: a network of torch trains on the CPU here: give -c 1")
        return self

    def keep_memory(self) -> None: ...

    def feed(self, prepare: Prepare | None) -> TorchFeed:
        return TorchFeed(prepare)

    def outputs(self, batch: Batch) -> Any:
        with torch.no_grad(), shapes_told(batch.inputs, batch.targets), torch_modules.inference(self._module):
            return self._module(*batch.inputs)

    def seed(self, number: int) -> None:
        torch.manual_seed(number)

    def state(self) -> dict[str, np.ndarray]:
        return {name: numpy_of(each).copy() for name, each in self._state().items()}

    def _state(self) -> dict[str, torch.Tensor]:
        found = self._module.state_dict().items()
        return {torch_modules.plain(name): each for name, each in found if isinstance(each, torch.Tensor)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        with torch.no_grad():
            for name, each in self._state().items():
                if name in state:
                    each.copy_(torch.from_numpy(state[name]))

    def saved(self, inputs: Sequence[str]) -> tuple[None, bytes]:
        return None, torch_modules.written({name: each.clone() for name, each in self._state().items()})

    def restore(self, file: Path) -> None:
        self.load(torch_modules.read_all(file, self.state()))

    def found_in(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return torch_modules.found_in(arrays, self._state())


class TorchPasses:
    """Its forward and backward passes. On the CPU torch's calls return when they are done."""

    def __init__(self, network: TorchNetwork, loss: TorchLoss, draws: Draws, samples: Callable[[], int]) -> None:
        self._network, self._loss_function, self._draws, self._samples = network, loss, draws, samples
        self._size, self._running, self._complete = 1, torch.zeros(()), torch.zeros(())  # sum of losses, their mean

    def forward(self, batch: Batch) -> None:
        self._network.begin()
        work = partial(torch_modules.leaves_no_trace, self._network.layers, self._loss_of, batch)
        self._draws.seed(self._samples(), work)
        self._running, self._size = self._loss_of(batch), batch.size

    def _loss_of(self, batch: Batch) -> torch.Tensor:
        with shapes_told(batch.inputs, batch.targets):
            return self._loss_function(self._network.layers(*batch.inputs), batch)

    def backward(self) -> None:
        self._running.backward()
        self._complete = self._running.detach() / self._size

    def loss(self) -> float:
        return float(self._complete)

    def wait_for_loss(self) -> None: ...
    def end(self) -> None: ...
