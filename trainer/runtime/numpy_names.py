"""Restores names that MXNet 1.9.1 reads at its import and numpy has dropped.

`trainer/engine.py` calls `restore`. For other programs scripts/common.sh copies this file into the environment, with a
.pth file that calls `install` at each start of Python. So its top level imports nothing.
"""


def _financial(*_: object, **__: object) -> None:
    raise NotImplementedError("numpy has no financial functions any more: the package numpy-financial has them")


def restore() -> None:
    """Sets the names that numpy lacks."""
    import functools

    import numpy as np

    # `bool` was dropped in 1.24 (2.0 has one again), the others in 2.0 to 2.4, the financial functions long before
    # (1.26 still had stubs).
    dropped = {
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
    for name, value in dropped.items():
        if name not in vars(np):
            setattr(np, name, value)


class _Hook:
    """A finder that finds nothing."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "mxnet.base":  # the first module of MXNet that imports numpy
            restore()


def install() -> None:
    """Makes `import mxnet` restore the names."""
    import sys

    sys.meta_path.insert(0, _Hook)
