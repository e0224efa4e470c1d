"""A gluon network as JobNetwork, and what else is asked of a gluon Block. Only this file knows gluon's inside."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from models import cropped
from trainer.datasets.batches import Feed, Prepare
from trainer.datasets.sources import Raw, described
from trainer.draws import Draws
from trainer.engine import array_of, device_context, memory_of, mx, shared_with_mxnet
from trainer.jobs.user_errors import last_line
from trainer.network import Batch, Loss, Passes, arrays_in, shapes_told, single
from utils import SetupError


class GluonFeed(Feed):
    """Arrays of mx.nd as they are, all others as float32."""

    def __init__(self, device: mx.Context, prepare: Prepare | None = None) -> None:
        super().__init__(prepare, mx.random.seed)
        self._device = device

    def __call__(self, raw: Raw, random: np.random.Generator | None = None) -> Batch:
        with self._device:
            return super().__call__(raw, random)

    def exactly(self, array: np.ndarray) -> mx.nd.NDArray:
        return array_of(array, self._device)

    def own(self, value: Any) -> mx.nd.NDArray | None:
        is_own = isinstance(value, mx.nd.NDArray) and not isinstance(value, mx.np.ndarray)
        return value.as_in_context(self._device) if is_own else None


class _Initial(mx.init.Xavier):  # type: ignore[misc]
    """Xavier's, as for the built-in networks; for vectors without an initializer of their own gluon's default."""

    def _init_weight(self, name: Any, array: Any) -> None:
        if array.ndim < 2:
            mx.init.Uniform()._init_weight(name, array)
        else:
            super()._init_weight(name, array)


def initialize(block: Any, own_loop: bool) -> None:
    """Checks what needs no samples, initializes the parameters without values, and brings the others to the CPU. Raises
    SetupError if the network cannot be trained here."""
    if not isinstance(block, mx.gluon.Block):
        raise SetupError(f"returns {described(block)}: return a torch.nn.Module or a gluon Block")
    parameters = list(block.collect_params().values())
    if all(each.grad_req == "null" for each in parameters):
        raise SetupError("the network has no parameters to train")
    for each in parameters:
        if np.dtype(each.dtype) != np.float32:
            raise SetupError(f"{each.name} is {np.dtype(each.dtype).name}: only float32 can be trained here")
        if each._stype != "default" or each._grad_stype != "default":
            raise SetupError(f"{each.name} is sparse: leave sparse_grad and stype out")
        if each.grad_req == "add" and not own_loop:
            raise SetupError(f"{each.name} adds up its gradients (grad_req): only train(worker) can do that")
        if each._data is None and not each._deferred_init:
            each.initialize(ctx=mx.cpu(), default_init=_Initial())
        else:
            each.reset_ctx(mx.cpu())


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

    @property
    def layers(self) -> Any:
        self.begin()
        return self._block

    def begin(self) -> None:
        on_host = vars(self)  # the lists below, until the network is used
        if self.device.device_type == "gpu":  # not tested: the project's test machines have none
            for parameters, kind in ((self._trainable, "weights"), (self._auxiliary, "statistics")):
                for each, content in zip(parameters, on_host.get(kind, ()), strict=False):
                    each.data()[:] = content
        for kind in ("weights", "gradients", "statistics"):
            on_host.pop(kind, None)

    @cached_property
    def weights(self) -> list[np.ndarray]:
        return [_host_array(each.data()) for each in self._trainable]

    @cached_property
    def gradients(self) -> list[np.ndarray]:
        return [_host_array(each.grad()) for each in self._trainable]

    @cached_property
    def statistics(self) -> list[np.ndarray]:
        return [_host_array(each.data()) for each in self._auxiliary]

    @property
    def frozen(self) -> list[np.ndarray]:
        return [each.data().asnumpy() for each in self._frozen]

    def passes(self, loss: Loss | None, draws: Draws, samples: Callable[[], int]) -> GluonPasses:
        return GluonPasses(self, loss or cross_entropy(), draws, samples)

    def tried(self, loss: Loss | None, batch: Batch, outputs: Any) -> Loss:
        loss = loss or cross_entropy()
        if type(loss).__module__.startswith("torch."):
            raise SetupError("is of torch, and the network of MXNet: give a loss of MXNet")
        if isinstance(loss, mx.gluon.HybridBlock) and type(loss).__module__.startswith("mxnet."):
            loss.hybridize()
        for each in arrays_in(outputs):
            each.attach_grad()
        with mx.autograd.record(train_mode=False):
            losses = loss(outputs, single(batch.targets))
        _check_loss(losses, batch.size, outputs)
        return loss

    def total(self, loss: Loss, outputs: Any, batch: Batch) -> float:
        return float(loss(outputs, single(batch.targets)).sum().asscalar())

    def on(self, use_cpu: bool, gpu: int) -> GluonNetwork:
        device = device_context(use_cpu, gpu)
        # Each parameter gets an array of its own: a trial may have left weights in oneDNN's layout.
        for each in self._block.collect_params().values():
            try:
                value = each.data().asnumpy()
            except (mx.gluon.parameter.DeferredInitializationError, RuntimeError):
                raise SetupError(
                    f"the shape of {each.name} is not known: use every layer in forward, or give in_units or "
                    "in_channels"
                ) from None
            each.initialize(mx.init.Constant(mx.nd.array(value)), ctx=device, force_reinit=True)
        return GluonNetwork(self._block, device)

    def keep_memory(self) -> None:
        if getattr(self._block, "_active", False):  # hybridized
            self._block.hybridize(static_alloc=True)

    def restore(self, file: Path) -> None:
        """As JobNetwork, also of a Block whose parameters have no values yet."""
        try:
            self._block.load_parameters(str(file), ctx=mx.cpu())
        except (mx.MXNetError, ValueError, AssertionError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise SetupError(f"{file} does not fit the network of this job: {reason}") from None

    def found_in(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """As JobNetwork: by the parameters' names, by gluon's `features.0.weight`, or without the network's prefix, in
        that way of which the file has most."""
        names = structural_names(self._block)
        short = {name: name.removeprefix(self._block.prefix) for name in names}
        # Another program's network of the same layers has another prefix.
        prefixes = (name.removesuffix(end) for end in short.values() for name in arrays if name.endswith(end))
        prefix = min(prefixes, key=len, default="")
        without = {name.removeprefix(prefix): array for name, array in arrays.items()}
        found = (
            {key: arrays[name] for name, key in names.items() if name in arrays},
            {key: arrays[key] for key in names.values() if key in arrays},
            {names[name]: without[key] for name, key in short.items() if key in without},
        )
        return max(found, key=len)

    def own_loop(self) -> Callable[[bool], str]:
        parameters = list(self.layers.collect_params().values())
        trainers = [each._trainer for each in parameters]

        def fault(is_first: bool) -> str:
            self.begin()  # the loop has used the network
            if mx.autograd.is_recording():
                return "worker.step() stands inside autograd.record(): call it behind loss.backward()"
            if [each._trainer for each in parameters] != trainers:
                return (
                    "train(worker) has a gluon.Trainer for the weights of worker.network: leave it out, since "
                    "worker.step() changes them (--optimizer)"
                )
            trained = [each for each in parameters if each.grad_req != "null"] if is_first else []
            if not is_first or any(each.data()._fresh_grad or each.grad().asnumpy().any() for each in trained):
                return ""
            return "train(worker) has computed no gradients: call loss.backward() before worker.step()"

        return fault

    def saved(self, inputs: Sequence[str]) -> tuple[bytes | None, bytes]:
        return self._symbol(inputs), _params(self.state())

    def _symbol(self, inputs: Sequence[str]) -> bytes | None:
        """The content of a file of its layers; None if the network cannot be called with symbols, or the names of its
        inputs are not known."""
        if not inputs:
            return None
        block = self.layers
        names = structural_names(block)
        try:
            with cropped.whole(block):
                outputs = block(*map(mx.sym.var, inputs))
            whole = mx.sym.Group(list(outputs)) if isinstance(outputs, (tuple, list)) else outputs
            graph = json.loads(whole.tojson())
        except Exception:  # of any kind: code of a network that works with arrays alone
            return None
        for node in graph["nodes"]:
            if node["op"] == "null":  # a variable
                node["name"] = names.get(node["name"], node["name"])
        return json.dumps(graph).encode()

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


class GluonPasses(Passes):
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


def structural_names(block: Any) -> dict[str, str]:
    """Gluon's names such as `0.weight` by the parameters' own; a shared one has the first of its names."""
    names = {name: name for name in block.collect_params()}
    for name, each in reversed(block._collect_params_with_prefix().items()):
        names[each.name] = name
    return names


def cross_entropy() -> Loss:
    """The loss of scores (N, C) and classes (N,)."""
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    loss.hybridize()
    return loss


def _check_loss(value: Any, size: int, outputs: Any) -> None:
    if not isinstance(value, mx.nd.NDArray):
        raise SetupError(f"gives {described(value)}: give an mx.nd array (N,) with the loss of each sample")
    if value.shape != (size,):
        raise SetupError(
            f"gives an array {value.shape} for {size} samples: give the loss of each sample, shape ({size},)"
            + (", not their mean" if value.size == 1 else ", the mean over its other axes")
        )
    remedy = "compute it of the outputs, by functions of mx.nd that have a gradient, without asnumpy() or detach()"
    try:
        value.backward()
        mx.nd.waitall()
    except mx.MXNetError as error:
        cut = "it does not depend on the outputs" if "computational graph" in str(error) else last_line(error)
        raise SetupError(f"has no gradient, since {cut}: {remedy}") from None
    if value.asnumpy().any() and not any(each.grad.asnumpy().any() for each in arrays_in(outputs)):
        logging.warning("warning: the gradient of the loss is 0 for the first samples: %s", remedy)


def _params(state: Mapping[str, np.ndarray]) -> bytes:
    """The content of a .params file."""
    # `mx.nd.save` takes only a path, and misses some errors of a full disk. So it writes to a pipe, which holds some KB
    # and needs a thread that reads.
    source, target = os.pipe()
    with os.fdopen(source, "rb") as pipe, ThreadPoolExecutor(1) as thread:
        content = thread.submit(pipe.read)
        try:
            mx.nd.save(f"/dev/fd/{target}", {name: shared_with_mxnet(array) for name, array in state.items()})
        finally:
            os.close(target)
        return content.result()


def read(file: Path) -> dict[str, np.ndarray]:
    """The arrays of a .params file, by their names without arg: and aux:. Raises ValueError if it is none."""
    try:
        arrays = mx.nd.load(str(file))
    except (mx.MXNetError, ValueError) as error:
        raise ValueError(f"no .params file of MXNet: {str(error).strip().splitlines()[-1]}") from None
    if not isinstance(arrays, dict):  # saved without names
        arrays = {str(number): array for number, array in enumerate(arrays)}
    return {name.removeprefix("arg:").removeprefix("aux:"): array.asnumpy() for name, array in arrays.items()}


def _host_array(array: mx.nd.NDArray) -> np.ndarray:
    """Its own memory, or a GPU's copy, when no operation uses it any more."""
    if array.context.device_type == "gpu":
        return array.asnumpy()
    mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(array.handle))
    return memory_of(array).reshape(array.shape)
