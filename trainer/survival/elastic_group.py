"""Joins a job that survives lost workers: generations of connected workers in place of one set for ever."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from config import Config
from trainer.clock import RealClock
from trainer.collectives.connecting import Acceptor
from trainer.collectives.schedules import SUMS
from trainer.rendezvous.joining import Joining, Start
from trainer.rendezvous.peers import PATIENCE_SHARE, SILENT_SHARE, gather_over, members_of
from trainer.rendezvous.rendezvous_info import RendezvousInfo
from trainer.rendezvous.tcp_connections import TcpConnections
from trainer.survival.generations import Generations, Report
from trainer.transport.collective import CollectiveTransport


@dataclass(frozen=True, kw_only=True)
class ElasticGroup(RendezvousInfo):
    """The other workers of a job that survives."""

    transport: CollectiveTransport
    generations: Generations


@contextlib.contextmanager
def join(config: Config, joining: Joining, acceptor: Acceptor, start: Start) -> Iterator[ElasticGroup]:
    """As peers.JoinElastic."""

    def connect(start: Start, names: Sequence[str], report: Report) -> TcpConnections:
        connect_s = config.fault_timeout * (1 if start.generation == 1 else PATIENCE_SHARE)
        silent_s = config.fault_timeout * SILENT_SHARE
        return TcpConnections(acceptor, SUMS[config.collective], connect_s, silent_s, True, start, names, report)

    generations = Generations(joining, connect, RealClock())
    try:
        first = generations.begin(start)
        transport = CollectiveTransport(first.group, RealClock())
        yield ElasticGroup(
            transport=transport,
            gather=gather_over(transport),
            members=members_of(first.start),
            generations=generations,
        )
    except Exception as error:
        generations.leave(cause=str(error) or type(error).__name__)
        raise
    generations.leave()
