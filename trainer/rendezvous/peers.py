"""How the workers of a job without a parameter server come together, watch each other, and part.

    JOIN at the state server (joining.py), which compares set-ups -> connect each with each
    (collectives/connecting.py) -> train -> barrier -> LEFT

A worker that dies closes its connections, which all others see at once; one that is frozen, or whose host or network is
down, sends no more heartbeats. Then all end with a line that names it. Sums and gathered values travel over one set of
connections, heartbeats over another.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from config import Config
from trainer import version
from trainer.clock import RealClock
from trainer.collectives.connecting import Acceptor, unanswered
from trainer.collectives.schedules import SUMS
from trainer.coordinator.protocol import Link
from trainer.rendezvous import addresses
from trainer.rendezvous.cluster import ClusterSpec
from trainer.rendezvous.config_check import PROGRAM
from trainer.rendezvous.failure_detector import SILENT_S
from trainer.rendezvous.joining import Joining, Start
from trainer.rendezvous.rendezvous_client import end_process
from trainer.rendezvous.rendezvous_info import Gather, RendezvousInfo
from trainer.rendezvous.tcp_connections import TcpConnections
from trainer.transport.collective import CollectiveTransport
from utils import EXIT_PEER_LOST

CONNECT_S = 60.0  # for all to be connected once all have joined
# Of --fault-timeout: the silence after which the workers of a job that survives come together again; a call as a test;
# the wait for one that does not come.
SILENT_SHARE, TEST_SHARE, PATIENCE_SHARE = 0.75, 0.15, 0.25

# Connects the workers of a job that survives lost workers, of which this process is one.
JoinElastic = Callable[[Config, Joining, Acceptor, Start], AbstractContextManager[RendezvousInfo]]


def gather_over(transport: CollectiveTransport) -> Gather:
    """Gathers JSON values by the transport's group."""

    def gather(label: str, value: Any) -> list[Any]:
        content = json.dumps(value).encode()
        group = transport.group
        return list(map(json.loads, transport.begin(lambda: group.all_gather(content), label).result()))

    return gather


@contextlib.contextmanager
def join(
    config: Config, cluster: ClusterSpec, setup: Mapping[str, str], link: Link, join_elastic: JoinElastic
) -> Iterator[RendezvousInfo]:
    """Joins the others as a worker, once all are there and agree. Leaving the block waits for every worker's end.

    Args:
        setup: what must be the same on all workers: flag or other key -> value.
        link: to the state server.

    Raises:
        SetupError: the set-ups differ, or there is no address to listen at.
        PeerLost: the job was not complete in time.
    """
    with contextlib.ExitStack() as on_exit:
        listener = _listen(config)
        joining = Joining(
            link,
            RealClock(),
            config.job_name,
            cluster.num_workers,
            listener.getsockname()[:2],
            socket.gethostname(),
            config.device,
            config.min_workers if config.survives else 0,
            PATIENCE_SHARE * config.fault_timeout,
            lambda other: unanswered((other.address, other.port), other.name, TEST_SHARE * config.fault_timeout),
            complete(setup),
        )
        acceptor = on_exit.enter_context(contextlib.closing(Acceptor(listener, joining.name)))
        start = joining.wait(config.start_timeout)
        if config.survives:
            with join_elastic(config, joining, acceptor, start) as info:
                yield info
            return
        names = [member.called(rank) for rank, member in enumerate(start.members)]
        connections = TcpConnections(
            acceptor, SUMS[config.collective], CONNECT_S, SILENT_S, False, start, names,
            lambda lost, why: _end(joining, names, lost, why),
        )  # fmt: skip
    try:
        transport = CollectiveTransport(connections.group, RealClock())
        logging.info("all %d workers are connected with each other", len(names))
        yield RendezvousInfo(transport, gather_over(transport), members_of(start))
        transport.wait_all()
        # A worker that has left the barrier closes its connections, while others may still be in it.
        connections.let_leave()
        transport.barrier()
    except Exception as error:
        connections.report_no_more()
        joining.leave(cause=str(error) or type(error).__name__)
        connections.close()
        raise
    joining.leave()
    connections.close()


def complete(setup: Mapping[str, str]) -> dict[str, str]:
    """Adds the hash of the program's files."""
    return {**setup, PROGRAM: version.files_hash()}


def _listen(config: Config) -> socket.socket:
    """Listens for the other workers, at PORT where that is set; raises SetupError.

    On the network card that DMLC_INTERFACE names, else on the one that leads to the state server.
    """
    towards = addresses.address_towards(config.state_server_ip, int(config.state_server_port))
    remedy = "set PORT to a free one, another for each worker of this host"
    return addresses.listen(addresses.own_address(towards), addresses.chosen_port(), remedy)


def members_of(start: Start) -> list[dict[str, Any]]:
    """Rank, host and device of all workers."""
    return [{"rank": rank, "host": each.host, "device": each.device} for rank, each in enumerate(start.members)]


def _end(joining: Joining, names: Sequence[str], lost: Sequence[int], why: str) -> NoReturn:
    """Ends this process, since others are lost; the state server knows which was the first."""
    who = ", ".join(names[rank] for rank in lost)
    told = joining.leave(cause=f"{who}: {why}") if why else joining.leave(lost=lost)
    end_process(told or f"{who}: {why or 'the connection has ended'}", EXIT_PEER_LOST)
