"""What two workers do with a transport, and what each of them sees: the same whatever carries the arrays.

python tests/helpers/transport_worker.py SCENARIO OUTPUT.json     as a worker of a real cluster
python tests/helpers/transport_worker.py SCENARIO OUTPUT.json RANK LISTENER HOST:PORT...     with a ring over TCP
"""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np

from algorithms import TransportKind
from trainer.transport.protocol import Transport

# Of two shapes, so that keys cannot be mixed up.
FIRST, SECOND = 3, 2


def two(first: float, second: float) -> list[np.ndarray]:
    return [np.full(shape, value, np.float32) for shape, value in (((FIRST,), first), ((SECOND, SECOND), second))]


def seen(arrays: list[np.ndarray]) -> list[float]:
    """The one value of each array."""
    values = [sorted(set(array.reshape(-1).tolist())) for array in arrays]
    assert all(len(each) == 1 for each in values), values
    return [each[0] for each in values]


def float32(numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float32)


def sums(transport: Transport) -> dict[str, Any]:
    """Numbers on which all agree, a broadcast, and two sums of which each worker gives other values."""
    rank = transport.rank
    agreed = transport.agree([0.5, 3.0 + rank])
    arrays, shared = two(1.0 + rank, 10.0 + rank), transport.sums()
    shared.broadcast(arrays)
    out: dict[str, Any] = {"agreed": agreed, "broadcast": seen(arrays), "bytes at first": shared.take_traffic()}
    for round_ in (1, 2):
        given = two(rank + round_, 10 * (rank + round_))
        shared.begin_sum(given)
        timed = shared.finish_sum(given, timed=True)
        assert timed is not None and timed >= 0
        out[f"sum {round_}"] = seen(given)
    out["bytes"] = shared.take_traffic()
    out["bytes, taken again"] = shared.take_traffic()
    return out


def in_halves(transport: Transport) -> dict[str, Any]:
    """A sum that travels as float16, beside numbers that do not."""
    shared, rank = transport.sums(as_halves=True), transport.rank
    first = [float32([2049.0 + rank, 1 / 3]), float32([60001.0, 0.1])]
    shared.broadcast(first, exact=1)
    out: dict[str, Any] = {"fp16, broadcast": numbers(first)}
    given = [float32([2048.0 - 2046.5 * rank, 0.25]), float32([60001.0 + rank, 0.1 * rank])]
    shared.begin_sum(given)
    shared.finish_sum(given)
    return {**out, "fp16, sum": numbers(given), "fp16, bytes": shared.take_traffic(), "fp16, largest": shared.largest}


def numbers(arrays: list[np.ndarray]) -> list[list[float]]:
    """All of each array."""
    return [array.reshape(-1).tolist() for array in arrays]


SCENARIOS = {"sums": sums, "halves": in_halves}


def over_tcp(scenario: str, rank: int, listener: int, addresses: list[str]) -> dict[str, Any]:
    """With a ring.

    Args:
        listener: file descriptor of this worker's listening socket.
        addresses: of all, by rank.
    """
    from esync.clock import RealClock
    from trainer.collectives.connecting import Acceptor, connect
    from trainer.collectives.mesh import MeshGroup
    from trainer.collectives.schedules import ring
    from trainer.transport.collective import CollectiveTransport

    pairs = [(host, int(port)) for host, port in (address.split(":") for address in addresses)]
    mesh = connect(rank, pairs, Acceptor(socket.socket(fileno=listener)), "a job")
    try:
        return SCENARIOS[scenario](CollectiveTransport(MeshGroup(mesh, ring), RealClock()))
    finally:
        mesh.close()


def of_a_cluster(scenario: str) -> dict[str, Any]:
    """With MXNet's kvstore."""
    from trainer.rendezvous import roles
    from trainer.rendezvous.cluster import ClusterSpec
    from trainer.runtime.environment import prepare_environment

    prepare_environment()
    cluster = ClusterSpec.from_environment("kvstore")
    assert cluster is not None
    with roles.join(cluster, TransportKind.SUM, 60) as joined:
        return {"rank": joined.transport.rank, **SCENARIOS[scenario](joined.transport)}


if __name__ == "__main__":
    scenario, output, *more = sys.argv[1:]
    saw = over_tcp(scenario, int(more[0]), int(more[1]), more[2:]) if more else of_a_cluster(scenario)
    Path(output).write_text(json.dumps(saw))
