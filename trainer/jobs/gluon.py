"""A gluon network as JobNetwork. Only this file and gluon_blocks.py know gluon's inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.datasets.feed import Prepare
from trainer.draws import Draws
from trainer.engine import device_context, mx
from trainer.jobs import gluon_blocks
from trainer.jobs.gluon_blocks import GluonFeed, structural_names
from trainer.passes import Batch, Loss, shapes_told, single


class GluonNetwork:
    """On the CPU the host arrays are MXNet's own memory, on a GPU copies, which the device gets before it computes."""

    suffix = ".params"

    def __init__(self, block: Any, device: mx.Context | None = None) -> None:
        self.device = device or mx.cpu()
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
    def layers(self) -> Any:
        self.begin()
        return self._block

    def begin(self) -> None:
        if self.device.device_type == "gpu":  # not tested: the project's test machines have none
            for kind in self._on_host.keys() - {"gradients"}:
                for array, content in zip(self._arrays[kind](), self._on_host[kind], strict=True):
                    array[:] = content
        self._on_host.clear()

    def _host(self, kind: str) -> list[np.ndarray]:
        if kind not in self._on_host:
            self._on_host[kind] = list(map(gluon_blocks.host_array, self._arrays[kind]()))
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
        return GluonPasses(self, loss or gluon_blocks.cross_entropy(), draws, samples)

    def tried(self, loss: Loss | None, batch: Batch, outputs: Any) -> Loss:
        return gluon_blocks.tried(loss, batch, outputs)

    def total(self, loss: Loss, outputs: Any, batch: Batch) -> float:
        return float(loss(outputs, single(batch.targets)).sum().asscalar())

    def on(self, use_cpu: bool, gpu: int) -> GluonNetwork:
        device = device_context(use_cpu, gpu)
        gluon_blocks.place(self._block, device)
        return GluonNetwork(self._block, device)

    def keep_memory(self) -> None:
        gluon_blocks.keep_memory(self._block)

    def restore(self, file: Path) -> None:
        gluon_blocks.restore(self._block, file)

    def found_in(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return gluon_blocks.found_in(self._block, arrays)

    def own_loop(self) -> Callable[[bool], str]:
        return gluon_blocks.own_loop(self)

    def saved(self, inputs: Sequence[str]) -> tuple[bytes | None, bytes]:
        return gluon_blocks.symbol(self.layers, inputs), gluon_blocks.params(self.state())

    def feed(self, prepare: Prepare | None) -> GluonFeed:
        return GluonFeed(self.device, prepare)

    def outputs(self, batch: Batch) -> Any:
        with shapes_told(batch.inputs, batch.targets):
            return self.layers(*batch.inputs)

    def seed(self, number: int) -> None:
        mx.random.seed(number)

    def state(self) -> dict[str, np.ndarray]:
        names = structural_names(self._block)
        return {names[name]: each.data().asnumpy() for name, each in self.layers.collect_params().items()}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        names = structural_names(self._block)
        for name, each in self.layers.collect_params().items():
            if names[name] in state:
                each.set_data(mx.nd.array(state[names[name]], dtype=each.dtype))


class GluonPasses:
    """Its forward and backward passes. Both only begin."""

    def __init__(self, network: GluonNetwork, loss: Loss, draws: Draws, samples: Callable[[], int]) -> None:
        self._network, self._loss_function, self._draws, self._samples = network, loss, draws, samples
        self._running: Any = None  # losses (N,)
        self._complete: Any = None

    def forward(self, batch: Batch) -> None:
        self._draws.seed(self._samples(), lambda: [self._loss_of(batch)])
        self._running = self._loss_of(batch)

    def _loss_of(self, batch: Batch) -> mx.nd.NDArray:
        with mx.autograd.record(), shapes_told(batch.inputs, batch.targets):
            return self._loss_function(self._network.layers(*batch.inputs), single(batch.targets))

    def wait_for_loss(self) -> None:
        self._running.wait_to_read()

    def backward(self) -> None:
        self._complete = self._running
        self._network.begin()
        self._complete.backward()

    def loss(self) -> float:
        return float(self._complete.mean().asscalar())

    def end(self) -> None: ...
