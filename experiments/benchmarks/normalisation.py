"""Trains a network with another normalisation: is BatchNorm why a job by class is less accurate?

    paper="--cluster paper --seed 0 -s 1 -l 0.0005"
    .venv/bin/python experiments/benchmarks/normalisation.py groups -m sync -n resnet18-v1 $paper --max-seconds 1830 \
        --eval-seconds 150
    .venv/bin/python experiments/benchmarks/normalisation.py batches -m sync -n mlp $paper --max-seconds 7200
    --eval-seconds 60 \
        --model-bytes 44739880

`groups` puts MXNet's GroupNorm in the place of each BatchNorm of resnet18-v1, resnet50-v1 or mobilenet-v1. It
normalises each sample by itself, so a batch of few classes is nothing special (Wu & He, "Group normalization", ECCV
2018; Hsieh et al., "The non-IID data quagmire of decentralized machine learning", ICML 2020, find so with networks of
their own). 32 groups, as Wu & He have it; MXNet scales and shifts a group as one, where they do a channel by itself.
`batches` puts BatchNorm behind the ReLU of mlp's hidden layer. What follows are flags of simulate.py; logs are in
logs/normalisation/KIND, since the network keeps its name.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":  # before MXNet is imported; a process that imports this has its own
    os.environ.setdefault("MXNET_ENGINE_TYPE", "NaiveEngine")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import models  # noqa: E402
import simulate  # noqa: E402
from trainer.engine import mx  # noqa: E402

nn = mx.gluon.nn
GROUPS = 32


def with_groups(network: Any) -> None:
    """Puts GroupNorm in the place of each BatchNorm of a network all of whose layers are in containers."""
    for name, child in list(network._children.items()):
        if isinstance(child, nn.BatchNorm):
            network._children[name] = nn.GroupNorm(GROUPS, prefix=child.prefix.replace("batchnorm", "groupnorm"))
        else:
            with_groups(child)


def with_batches(network: Any) -> None:
    """Puts BatchNorm behind each layer of a sequence but the last."""
    *hidden, last = network._children.values()
    network._children.clear()
    with network.name_scope():
        for layer in hidden:
            network.add(layer, nn.BatchNorm())
        network.add(last)


class Kind(NamedTuple):
    """How a network is changed in place, and which ones can be: others have other layers, or hold them otherwise."""

    change: Callable[[Any], None]
    networks: tuple[str, ...]


KINDS = {
    "groups": Kind(with_groups, ("resnet18-v1", "resnet50-v1", "mobilenet-v1")),
    "batches": Kind(with_batches, ("mlp",)),
}


def changed(name: str, kind: str) -> models.Network:
    """The network of REGISTRY with another normalisation.

    Args:
        kind: a key of KINDS.
    """
    its = models.REGISTRY[name]

    def factory(**words: Any) -> Any:
        if name not in KINDS[kind].networks:
            sys.exit(f"normalisation.py: {kind} is for {', '.join(KINDS[kind].networks)}, and not for {name}")
        network = its.factory(**words)
        KINDS[kind].change(network)
        return network

    return its._replace(factory=factory)


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what simulate.py does, with networks that are changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="of simulate.py")
    given = parser.parse_args(arguments)
    models.REGISTRY.update({name: changed(name, given.kind) for name in models.REGISTRY})
    return simulate.main(["--log-base", str(Path("logs/normalisation") / given.kind), *given.flags])


if __name__ == "__main__":
    sys.exit(main())
