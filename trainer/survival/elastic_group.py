"""Joins a job that survives lost workers: generations of connected workers in place of one set for ever."""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from config import Config
from trainer.clock import RealClock
from trainer.collectives.schedules import SUMS
from trainer.rendezvous.config_check import ProcessInfo
from trainer.rendezvous.joining import Joining, Start
from trainer.rendezvous.peers import gather_over
from trainer.rendezvous.rendezvous_info import RendezvousInfo
from trainer.survival.generations import Generations
from trainer.survival.tcp_connections import TcpConnections
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
    config: Config, joining: Joining, listener: socket.socket, start: Start, process: ProcessInfo
) -> Iterator[ElasticGroup]:
    """As peers.JoinElastic. Set-ups are compared when training begins, and whenever workers come (recovery.py)."""
    connect = functools.partial(TcpConnections, listener, SUMS[config.collective], config.fault_timeout)
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
