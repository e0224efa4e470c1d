"""What is asked of a gluon Block, and of its outputs, beside its arrays."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from trainer.datasets.sources import described
from trainer.engine import mx
from trainer.passes import Loss
from utils import SetupError


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
        raise SetupError(f"returns {described(block)}: return a gluon Block")
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


def place(block: Any, device: mx.Context) -> None:
    """Gives each parameter an array of its own on the device: a trial may have left weights in oneDNN's layout. Raises
    SetupError if the shape of one is not known."""
    for each in block.collect_params().values():
        try:
            value = each.data().asnumpy()
        except (mx.gluon.parameter.DeferredInitializationError, RuntimeError):
            raise SetupError(
                f"the shape of {each.name} is not known: use every layer in forward, or give in_units or in_channels"
            ) from None
        each.initialize(mx.init.Constant(mx.nd.array(value)), ctx=device, force_reinit=True)


def keep_memory(block: Any) -> None:
    """A hybridized network keeps the memory of its passes, which takes less time and more memory."""
    if getattr(block, "_active", False):
        block.hybridize(static_alloc=True)


def has_fresh_gradients(block: Any) -> bool:
    """Whether a backward pass has computed some."""
    return any(each.grad_req != "null" and each.data()._fresh_grad for each in block.collect_params().values())


def own_optimizers(block: Any) -> list[Any]:
    """The gluon.Trainer of each parameter, or None."""
    return [each._trainer for each in block.collect_params().values()]


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


def arrays_in(outputs: Any) -> Iterator[mx.nd.NDArray]:
    """Yields the arrays of a network's outputs, which may be one or a tree of tuples and lists."""
    if isinstance(outputs, (tuple, list)):
        for each in outputs:
            yield from arrays_in(each)
    elif isinstance(outputs, mx.nd.NDArray):
        yield outputs
