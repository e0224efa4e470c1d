"""Trains a network with another normalisation: is BatchNorm why a job by class is less accurate?

    .venv/bin/python benchmarks/normalisation.py groups -n resnet18-v1 -m sync --cluster paper -s 1 --max-seconds 1800
    .venv/bin/python benchmarks/normalisation.py batches -n mlp -m sync --cluster paper -s 1 --max-seconds 1800

`groups` puts GroupNorm (Wu & He, ECCV 2018) in the place of each BatchNorm of the network; it normalises each sample by
itself, so a batch of few classes is nothing special (as Hsieh et al., "The non-IID data quagmire of decentralized
machine learning", ICML 2020, find with networks of their own). `batches` puts BatchNorm behind each hidden dense layer
of a network that has none. All that follows are flags of simulate.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("MXNET_ENGINE_TYPE", "NaiveEngine")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import models  # noqa: E402
import simulate  # noqa: E402
from trainer.engine import mx  # noqa: E402

nn = mx.gluon.nn
GROUPS = 32  # of channels, as Wu & He have it


def with_groups(network: Any) -> int:
    """Puts GroupNorm in the place of each BatchNorm, and returns how many."""
    number = 0
    for name, child in list(network._children.items()):
        if isinstance(child, nn.BatchNorm):
            network._children[name] = nn.GroupNorm(GROUPS, prefix=child.prefix.replace("batchnorm", "groupnorm"))
            number += 1
        else:
            number += with_groups(child)
    return number


def with_batches(network: Any) -> int:
    """Puts BatchNorm behind each dense layer but the last, and returns how many."""
    *hidden, last = network._children.values()
    network._children.clear()
    number = 0
    with network.name_scope():
        for layer in hidden:
            network.add(layer)
            if isinstance(layer, nn.Dense):
                network.add(nn.BatchNorm())
                number += 1
        network.add(last)
    return number


KINDS: dict[str, Callable[[Any], int]] = {"groups": with_groups, "batches": with_batches}


def changed(factory: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """A factory of such networks with another normalisation.

    Args:
        kind: a key of KINDS.
    """

    def build(**words: Any) -> Any:
        network = factory(**words)
        if not KINDS[kind](network):
            sys.exit(f"normalisation.py: this network has no layer for {kind!r}")
        return network

    return build


def main(arguments: Sequence[str]) -> int:
    """Does what simulate.py does, with all networks of REGISTRY changed."""
    if not arguments or arguments[0] not in KINDS:
        sys.exit(f"usage: normalisation.py {{{','.join(KINDS)}}} FLAGS-OF-SIMULATE.PY\n\n{__doc__}")
    kind, *flags = arguments
    for name, its in models.REGISTRY.items():
        models.REGISTRY[name] = its._replace(factory=changed(its.factory, kind))
    return simulate.main(flags)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
