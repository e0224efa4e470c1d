"""The workers of a job without a parameter server: how they come together, watch each other, and part.

    JOIN at the state server (coordinator/joining.py) -> connect each with each (collectives/connecting.py) -> compare
    set-ups -> train -> meet once more -> LEFT

A worker that dies closes its connections, so all others see it at once, whatever they are doing; one that is frozen, or
whose host or network is down, falls silent. Nobody can go on then, and all end with a line that names it. Sums and
everything else that the workers tell each other travel over one set of connections, signs of life over another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from config import Config
from trainer import version
from trainer.clock import RealClock
from trainer.collectives.connecting import connect
from trainer.collectives.group import MeshGroup
from trainer.collectives.schedules import SUMS
from trainer.coordinator.protocol import Link
from trainer.rendezvous import addresses
from trainer.rendezvous.cluster import WORKER, Cluster
from trainer.rendezvous.config_check import PROGRAM, ProcessInfo, verdict
from trainer.rendezvous.failure_detector import Watch
from trainer.rendezvous.joined import Joined
from trainer.rendezvous.joining import Joining, Start
from trainer.rendezvous.meeting_client import end_process
from trainer.survival.generations import Generations
from trainer.survival.recovery import ElasticGroup
from trainer.survival.tcp_connections import TcpConnections
from trainer.transport.collective import CollectiveTransport
from utils import EXIT_PEER_LOST, SetupError

CONNECT_S = 60.0  # for all to be connected once all are there


class Attendance:
    """What the workers tell each other beside the sums."""

    def __init__(self, transport: CollectiveTransport) -> None:
        self._transport = transport

    def gather(self, label: str, value: Any) -> list[Any]:
        """Gives a value (JSON) and waits for those of all workers, by rank; each of them calls it.

        Args:
            label: what it is, for people who read the program.
        """
        content = json.dumps(value).encode()
        group = self._transport.group
        return list(map(json.loads, self._transport.begin(lambda: group.gather(content), label).result()))


@contextlib.contextmanager
def joined(config: Config, cluster: Cluster, setup: Mapping[str, str], link: Link) -> Iterator[Joined]:
    """Joins the others as a worker, once all are there and agree.

    Leaving the block waits until every worker has come to its end.

    Args:
        setup: what must be the same on all workers: flag or other key -> value.
        link: to the state server.

    Raises:
        SetupError: the set-ups differ, or there is no address to listen at.
        PeerLost: the job was not complete in time.
    """
    listener = _listen(config)
    with contextlib.closing(listener):
        joining = Joining(
            link,
            RealClock(),
            config.job,
            cluster.num_workers,
            listener.getsockname()[:2],
            socket.gethostname(),
            config.device,
            config.min_workers if config.survives else 0,
            config.fault_timeout,
        )
        start = joining.wait(config.start_timeout)
        if config.survives:
            with _surviving(config, setup, joining, listener, start) as joined:
                yield joined
            return
        names = [member.called(rank) for rank, member in enumerate(start.members)]
        places = [(member.address, member.port) for member in start.members]
        mesh = connect(start.rank, places, listener, start.secret, CONNECT_S, names)
        group = MeshGroup(mesh, SUMS[config.collective])
        group.gather(b"")  # now nobody waits for another's first connection any more, and a second one is known as such
        alive = connect(start.rank, places, listener, start.secret, CONNECT_S, names)
    watch = Watch(alive.connections, lambda lost, why: _end(joining, names, lost, why))
    mesh.on_error = watch.speak_first
    try:
        transport = CollectiveTransport(group, RealClock())
        attendance = Attendance(transport)
        card = _card_of(start)
        members = compare(attendance, card, setup, cluster.num_workers)
        logging.info("all %d workers are connected with each other", len(names))
        yield Joined(transport, attendance, members)
        transport.wait_all()
        # Whoever has left the last meeting closes its connections, while others may still be about to leave it.
        watch.let_leave()
        transport.barrier()
    except Exception as error:
        watch.stop()
        joining.leave(cause=str(error) or type(error).__name__)
        watch.close()
        mesh.close()
        raise
    joining.leave()
    watch.close()
    mesh.close()


@contextlib.contextmanager
def _surviving(
    config: Config, setup: Mapping[str, str], joining: Joining, listener: socket.socket, start: Start
) -> Iterator[Joined]:
    """The same, in a job that goes on with those that are left. Who comes to it must be set up as the others are: that
    is found out when training begins, and whenever others come (recovery.py)."""
    connections = functools.partial(TcpConnections, listener, SUMS[config.collective], config.fault_timeout)
    generations = Generations(joining, connections, RealClock())
    try:
        first = generations.begin(start)
        transport = CollectiveTransport(first.group, RealClock())
        attendance = Attendance(transport)
        card = dataclasses.replace(_card_of(first.start), setup=_whole(setup))
        members = [
            {"rank": rank, "host": member.host, "device": member.device}
            for rank, member in enumerate(first.start.members)
        ]
        yield Joined(transport, attendance, members, ElasticGroup(generations, transport, attendance.gather, card))
    except Exception as error:
        generations.leave(cause=str(error) or type(error).__name__)
        raise
    generations.leave()


def _card_of(start: Start) -> ProcessInfo:
    """This worker's, without its set-up."""
    me = start.members[start.rank]
    return ProcessInfo(WORKER, me.host, me.device, me.address, me.port)


def _whole(setup: Mapping[str, str]) -> dict[str, str]:
    """With what is no flag."""
    return {**setup, PROGRAM: version.files_hash()}


def _listen(config: Config) -> socket.socket:
    """Where the other workers find this one: on the card that DMLC_INTERFACE names, or that leads to the state server;
    at PORT, where that is set.

    Raises:
        SetupError: there can be no such socket.
    """
    towards = addresses.address_towards(config.state_server_ip, int(config.state_server_port))
    address, port = addresses.own_address(towards), addresses.chosen_port()
    if port is None:
        return addresses.listen_anywhere(address)
    return addresses.listen(address, port, "set PORT to a free one, another for each worker of this host")


def compare(
    attendance: Attendance, card: ProcessInfo, setup: Mapping[str, str], num_workers: int
) -> list[dict[str, str | int]]:
    """Makes sure that all workers are set up alike.

    Args:
        card: this worker's, without its set-up.

    Returns:
        Rank, host and device of all workers.

    Raises:
        SetupError: they are not; with the same words on all.
    """
    mine = {**_whole(setup), "DMLC_NUM_WORKER": str(num_workers)}
    told = attendance.gather("set-ups", vars(dataclasses.replace(card, setup=mine)))
    cards = [ProcessInfo.from_message(each) for each in told]
    if found := verdict(cards):
        raise SetupError(found)
    return [{"rank": rank, "host": each.host, "device": each.device} for rank, each in enumerate(cards)]


def _end(joining: Joining, names: Sequence[str], lost: Sequence[int], why: str) -> NoReturn:
    """Ends this process, since others are gone; the state server knows who was the first."""
    who = ", ".join(names[rank] for rank in lost)
    told = joining.leave(cause=f"{who}: {why}") if why else joining.leave(lost=lost)
    end_process(told or f"{who}: {why or 'the connection has ended'}", EXIT_PEER_LOST)
