"""The only place that imports MXNet first, and what must be so before and after that import.

`import mxnet` with DMLC_ROLE=scheduler or server becomes that role and never returns; so this module is imported only
after the flags were parsed, and `trainer.roles` hides the variable meanwhile.
"""

from __future__ import annotations

import builtins
import os

import numpy as np

from utils import SetupError

# Names that numpy dropped in 1.24 and MXNet 1.9.1 still reads while it is imported.
for _alias in ("bool", "int", "float", "object", "str", "complex"):
    if _alias not in vars(np):
        setattr(np, _alias, getattr(builtins, _alias))

# One line of cuDNN's autotuner in every log helps nobody; an explicit setting wins.
os.environ.setdefault("MXNET_CUDNN_AUTOTUNE_DEFAULT", "0")

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
