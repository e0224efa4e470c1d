"""A gluon network as trainer.network.Network, the only file that knows gluon's inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trainer.datasets.feed import Feed, Prepare
from trainer.draws import Draws
from trainer.engine import memory_of, mx
from trainer.jobs.gluon_blocks import cross_entropy, structural_names
from trainer.passes import Batch, Loss, shapes_told, single


class GluonNetwork:
    """On the CPU the host arrays are MXNet's own memory, on a GPU copies, which the device gets before it computes."""

    suffix = ".params"

    def __init__(self, block: Any, device: mx.Context) -> None:
        self.device = device
        self._block = block
        parameters = list(block.collect_params().values())
        fixed = [each for each in parameters if each.grad_req == "null"]
        self._trainable = [each for each in parameters if each.grad_req != "null"]
        self._auxiliary = [each for each in fixed if not each._differentiable]
        self._frozen = [each for each in fixed if each._differentiable]
        self.names = [each.name for each in self._trainable]
        self._on_host: dict[str, list[np.ndarray]] = {}  # until the network is used
        self._arrays: dict[str, Callable[[], list[mx.nd.NDArray]]] = {
            "weights": lambda: [each.data() for each in self._trainable],
            "gradients": lambda: [each.grad() for each in self._trainable],
            "statistics": lambda: [each.data() for each in self._auxiliary],
        }

    @property
    def block(self) -> Any:
        """The gluon Block, for one use of it: host arrays from before are no longer valid."""
        self.leave_host()
        return self._block

    def leave_host(self) -> None:
        """Called before MXNet uses the parameters."""
        if self.device.device_type == "gpu":  # not tested: the project's test machines have none
            for kind in self._on_host.keys() - {"gradients"}:
                for array, content in zip(self._arrays[kind](), self._on_host[kind], strict=True):
                    array[:] = content
        self._on_host.clear()

    def _host(self, kind: str) -> list[np.ndarray]:
        if kind not in self._on_host:
            self._on_host[kind] = list(map(_host_array, self._arrays[kind]()))
        return self._on_host[kind]

    @property
    def weights(self) -> list[np.ndarray]:
        return self._host("weights")

    @property
    def gradients(self) -> list[np.ndarray]:
        return self._host("gradients")

    @property
    def statistics(self) -> list[np.ndarray]:
        return self._host("statistics")

    @property
    def frozen(self) -> list[np.ndarray]:
        return [each.data().asnumpy() for each in self._frozen]

    def passes(self, loss: Loss | None, draws: Draws, samples: Callable[[], int]) -> GluonPasses:
        return GluonPasses(self, loss or cross_entropy(), draws, samples)

    def feed(self, prepare: Prepare | None) -> Feed:
        return Feed(self.device, prepare)

    def outputs(self, batch: Batch) -> Any:
        with shapes_told(batch.inputs, batch.targets):
            return self.block(*batch.inputs)

    def seed(self, number: int) -> None:
        mx.random.seed(number)

    def state(self) -> dict[str, np.ndarray]:
        names = structural_names(self._block)
        return {names[name]: each.data().asnumpy() for name, each in self.block.collect_params().items()}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        names = structural_names(self._block)
        for name, each in self.block.collect_params().items():
            if names[name] in state:
                each.set_data(mx.nd.array(state[names[name]], dtype=each.dtype))


class GluonPasses:
    """Its forward and backward passes. Both only begin."""

    def __init__(self, network: GluonNetwork, loss: Loss, draws: Draws, samples: Callable[[], int]) -> None:
        self._network, self._loss_function, self._draws, self._samples = network, loss, draws, samples
        self._running: mx.nd.NDArray | None = None
        self._complete: mx.nd.NDArray | None = None

    def forward(self, inputs: Sequence[mx.nd.NDArray], targets: Sequence[mx.nd.NDArray]) -> None:
        self._draws.seed(self._samples(), lambda: [self._loss_of(inputs, targets)])
        self._running = self._loss_of(inputs, targets)

    def _loss_of(self, inputs: Sequence[mx.nd.NDArray], targets: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
        with mx.autograd.record(), shapes_told(inputs, targets):
            return self._loss_function(self._network.block(*inputs), single(targets))

    def wait_for_loss(self) -> None:
        assert self._running is not None
        self._running.wait_to_read()

    def backward(self) -> None:
        assert self._running is not None
        self._complete = self._running
        self._network.leave_host()
        self._complete.backward()

    def loss(self) -> float:
        assert self._complete is not None
        return float(self._complete.mean().asscalar())

    def end(self) -> None: ...


def _host_array(array: mx.nd.NDArray) -> np.ndarray:
    """Its own memory, or a GPU's copy, when no operation uses it any more."""
    if array.context.device_type == "gpu":
        return array.asnumpy()
    mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(array.handle))
    return memory_of(array).reshape(array.shape)
