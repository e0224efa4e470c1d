"""Joins a job that survives lost workers: generations of connected workers in place of one set for ever."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from config import Config
from trainer.clock import RealClock
from trainer.collectives.connecting import Acceptor
from trainer.collectives.schedules import SUMS
from trainer.rendezvous.config_check import ProcessInfo
from trainer.rendezvous.joining import Joining, Start
from trainer.rendezvous.peers import PATIENCE_SHARE, SILENT_SHARE, gather_over
from trainer.rendezvous.rendezvous_info import RendezvousInfo
from trainer.rendezvous.tcp_connections import TcpConnections
from trainer.survival.generations import Generations, Report
from trainer.transport.collective import CollectiveTransport


@dataclass(frozen=True, kw_only=True)
class ElasticGroup(RendezvousInfo):
    """The other workers of a job that survives.

    Attributes:
        process: this worker, with its set-up.
    """

    transport: CollectiveTransport
    generations: Generations
    process: ProcessInfo


@contextlib.contextmanager
def join(
    config: Config, joining: Joining, acceptor: Acceptor, start: Start, process: ProcessInfo
) -> Iterator[ElasticGroup]:
    """As peers.JoinElastic. Set-ups are compared when training begins, and whenever workers come (recovery.py)."""

    def connect(start: Start, names: Sequence[str], report: Report) -> TcpConnections:
        connect_s = config.fault_timeout * (1 if start.generation == 1 else PATIENCE_SHARE)
        silent_s = config.fault_timeout * SILENT_SHARE
        return TcpConnections(acceptor, SUMS[config.collective], connect_s, silent_s, True, start, names, report)

    generations = Generations(joining, connect, RealClock())
    try:
        first = generations.begin(start)
        transport = CollectiveTransport(first.group, RealClock())
        members = [
            {"rank": rank, "host": member.host, "device": member.device}
            for rank, member in enumerate(first.start.members)
        ]
        yield ElasticGroup(
            transport=transport,
            gather=gather_over(transport),
            members=members,
            generations=generations,
            process=process,
        )
    except Exception as error:
        generations.leave(cause=str(error) or type(error).__name__)
        raise
    generations.leave()
