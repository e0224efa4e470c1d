"""Imports MXNet. No other module may import it first.

`import mxnet` with DMLC_ROLE=scheduler or server becomes that role and never returns, so the variable is hidden
meanwhile.
"""

from __future__ import annotations

import functools
import os
from typing import NoReturn

import numpy as np

from trainer.runtime import lazy_operators
from trainer.runtime.environment import prepare_environment, role_hidden
from utils import SetupError


def _financial(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError("numpy has no financial functions any more: the package numpy-financial has them")


# Names of numpy that MXNet 1.9.1 reads at its import and numpy has dropped: `bool` in 1.24 (2.0 has one again), the
# others in 2.0 to 2.4, the financial functions long before (1.26 still had stubs).
_DROPPED_BY_NUMPY = {
    # mxnet/numpy/utils.py
    "bool": bool,
    "PZERO": 0.0,
    "NZERO": -0.0,
    "PINF": np.inf,
    "NINF": -np.inf,
    "NAN": np.nan,
    "NaN": np.nan,
    # mxnet/numpy/fallback.py
    "alltrue": np.all,
    "in1d": np.isin,
    "msort": functools.partial(np.sort, axis=0),
    "trapz": getattr(np, "trapezoid", None),  # its name since 2.0
    **dict.fromkeys(("mirr", "npv", "pmt", "ppmt", "pv", "rate"), _financial),
    # mxnet/numpy_dispatch_protocol.py
    "sometrue": np.any,
    "product": np.prod,
    "round_": np.round,
    # mxnet/gluon/contrib/estimator/event_handler.py
    "Inf": np.inf,
}
for _name, _value in _DROPPED_BY_NUMPY.items():
    if _name not in vars(np):
        setattr(np, _name, _value)

# Removes a line of cuDNN's autotuner from every log; an explicit setting wins.
os.environ.setdefault("MXNET_CUDNN_AUTOTUNE_DEFAULT", "0")

prepare_environment(has_parameter_server=False)  # processes that join a parameter server prepare ps-lite's variables
with role_hidden():
    lazy_operators.import_mxnet()

import mxnet as mx  # noqa: E402

__all__ = ["device_context", "mx"]


def device_context(use_cpu: bool, gpu: int) -> mx.Context:
    """The one device that this process trains on.

    Raises:
        SetupError: there is no such GPU, or this MXNet was built without CUDA.
    """
    if use_cpu:
        return mx.cpu()
    try:
        count = mx.context.num_gpus()
    except mx.MXNetError:  # no driver at all
        count = 0
    if gpu >= count:
        found = f"{count} GPU(s) found" if count else "no GPU found (or this MXNet was built without CUDA)"
        raise SetupError(f"GPU {gpu} is not there: {found}; choose another with -g, or train on the CPU with -c 1")
    return mx.gpu(gpu)
