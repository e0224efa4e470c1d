"""The model that all workers share between two rounds, on tensors of PyTorch.

With w the global weights, w_k those of worker k after its local steps, and n_k / n its part in the mean, a round is
d = sum_k (n_k / n) * (w_k - w), and then

    w <- w + eps * d                                  the plain mean, with eps 1
    v <- beta * v + d;  w <- w + eps * (d + beta * v)  Nesterov's outer momentum (DiLoCo: eps 0.7, beta 0.9)

(Douillard et al., 2023, arXiv:2311.08105). BatchNorm's running statistics are just averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from esync.base import SetupError


class Outer(NamedTuple):
    """The outer optimiser."""

    learning_rate: float = 1.0  # eps
    momentum: float = 0.0  # beta


class GlobalModel:
    """A module's global weights and statistics, averaged in place: the user's optimizer goes on with them."""

    def __init__(self, model: torch.nn.Module, outer: Outer) -> None:
        """Raises SetupError where the module has no weights here that can be averaged."""
        self._weights = [*model.parameters()]
        self._all = [*self._weights, *(each for each in model.buffers() if each.is_floating_point())]
        for name, weight in model.named_parameters():
            if not weight.is_floating_point() or type(weight).__name__ == "DTensor":
                raise SetupError(
                    f"{name} is of {weight.dtype}, {type(weight).__name__}: a whole model is averaged here"
                )
        if not self._weights:
            raise SetupError("the model has no parameters")
        self._outer = outer
        self.velocities: list[torch.Tensor] = []
        is_double = any(each.dtype == torch.float64 for each in self._all)
        self._dtype = torch.float64 if is_double else torch.float32
        self.device = self._weights[0].device
        self._global: list[torch.Tensor] = []
        self.adopt()

    @property
    def _tensors(self) -> list[torch.Tensor]:
        """The module's own, as they are now, without a gradient."""
        return [each.detach() for each in self._all]

    @property
    def num_bytes(self) -> int:
        """Of a sum."""
        return sum(each.numel() for each in self._all) * self._dtype.itemsize

    def adopt(self) -> None:
        """The module's weights become the global ones."""
        self._global = [each.to(self._dtype, copy=True) for each in self._tensors]

    def broadcast(self, send: Callable[[torch.Tensor], object]) -> None:
        """All workers get rank 0's model: `send` replaces a tensor's content by that of rank 0."""
        flat = torch.cat([each.reshape(-1).to(self.device, self._dtype) for each in self._tensors])
        send(flat)
        for tensor, part in zip(self._tensors, self._parts(flat), strict=True):
            tensor.copy_(part)
        self.adopt()

    def update(self, share: float, numbers: Sequence[float]) -> torch.Tensor:
        """What this worker sends: share * (w_k - w), and the numbers. An update that is not finite, as after a diverged
        step, counts as none: its share, which is the first number, becomes 0."""
        flat = torch.zeros(self.num_bytes // self._dtype.itemsize + len(numbers), dtype=self._dtype, device=self.device)
        if share:
            for tensor, before, part in zip(self._tensors, self._global, self._parts(flat), strict=True):
                part.copy_(tensor)
                part.sub_(before.to(tensor.dtype)).mul_(share)  # as it was rounded for the module
            if not torch.isfinite(flat).all():
                flat.zero_()
                numbers = [0.0, *numbers[1:]]
        flat[-len(numbers) :] = torch.tensor(numbers, dtype=self._dtype)
        return flat

    def apply(self, sums: torch.Tensor, share_of_all: float) -> None:
        """Takes the sums of all workers' updates; without any share the global model stays as it was."""
        for index, (tensor, weight, d) in enumerate(zip(self._tensors, self._global, self._parts(sums), strict=True)):
            if share_of_all:
                d /= share_of_all
                if index < len(self._weights):
                    self._step(index, weight, d)
                else:
                    weight += d
            tensor.copy_(weight)

    def _step(self, index: int, weight: torch.Tensor, d: torch.Tensor) -> None:
        rate, beta = self._outer
        if not beta:
            weight.add_(d, alpha=rate)
            return
        if not self.velocities:
            self.velocities = [torch.zeros_like(each) for each in self._global[: len(self._weights)]]
        velocity = self.velocities[index]
        velocity.mul_(beta).add_(d)
        weight.add_(d.add_(velocity, alpha=beta), alpha=rate)

    def _parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Views of a flat tensor with the shapes of the module's."""
        sizes = [tensor.numel() for tensor in self._all]
        parts = flat[: sum(sizes)].split(sizes)
        return [part.view(tensor.shape) for part, tensor in zip(parts, self._all, strict=True)]
