"""The workers of a job without a parameter server: how they come together, watch each other, and part.

    JOIN at the state server (coordinator/joining.py) -> connect each with each (collectives/connecting.py) -> compare
    set-ups -> train -> meet once more -> LEFT

A worker that dies closes its connections, so all others see it at once, whatever they are doing; nobody can go on, and
all end with the same line. Sums and everything else that the workers tell each other travel over the same connections.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from config import Config
from trainer import addresses, version
from trainer.clock import RealClock
from trainer.cluster import WORKER, Cluster, Joined
from trainer.collectives.connecting import connect
from trainer.collectives.group import MeshGroup
from trainer.collectives.schedules import SUMS
from trainer.coordinator.http import HttpLink
from trainer.coordinator.joining import Joining
from trainer.meeting import end_process
from trainer.setups import PROGRAM, Card, verdict
from trainer.transport.collective import CollectiveTransport
from utils import EXIT_PEER_LOST, SetupError, die_on_error

CONNECT_S = 60.0  # for all to be connected once all are there
NOTICED_S = 1.0  # in which a loss that broke a sum is seen by the watch too
TOLD_S = 10.0  # in which what is told of it ends the process
_GONE = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)  # the last one: also with bytes left to read


class Watch:
    """Sees in a thread of its own which connections end, whatever this worker does meanwhile."""

    def __init__(self, connections: Mapping[int, socket.socket], on_lost: Callable[[list[int]], Any]) -> None:
        """
        Args:
            connections: by rank.
            on_lost: told, once, of the ranks whose connections have ended.
        """
        # Copies, so that no number is another file's here once the mesh has closed its own.
        self._connections = {rank: connection.dup() for rank, connection in connections.items()}
        self._on_lost = on_lost
        self._has_noticed = threading.Event()
        self._stopped, self._stops = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with die_on_error("the watch over the other workers failed"):
            poll = select.poll()
            poll.register(self._stopped, select.POLLIN)
            for connection in self._connections.values():
                poll.register(connection, _GONE)
            ready = {number for number, _ in poll.poll()}
            if self._stopped.fileno() in ready:
                return
            self._has_noticed.set()
            self._on_lost([rank for rank, each in self._connections.items() if each.fileno() in ready])

    def speak_first(self) -> None:
        """A sum has failed. Where a worker is lost, `on_lost` ends this process before its own connections close: else
        others could take it for the one that was lost. If nobody is, there is nothing to watch any more."""
        if self._has_noticed.wait(NOTICED_S):
            self._thread.join(TOLD_S)
        self.stop()

    def stop(self) -> None:
        """From here on connections may end."""
        with contextlib.suppress(OSError):
            self._stops.send(b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join(TOLD_S)
        for each in (self._stopped, self._stops, *self._connections.values()):
            each.close()


class Attendance:
    """What the workers tell each other beside the sums."""

    def __init__(self, transport: CollectiveTransport) -> None:
        self._transport = transport
        self._gathers = transport.group.gather

    def gather(self, label: str, value: Any) -> list[Any]:
        """Gives a value (JSON) and waits for those of all workers, by rank; each of them calls it.

        Args:
            label: what it is, for people who read the program.
        """
        content = json.dumps(value).encode()
        return list(map(json.loads, self._transport.begin(lambda: self._gathers(content), label).result()))


@contextlib.contextmanager
def joined(config: Config, cluster: Cluster, setup: Mapping[str, str], link: HttpLink) -> Iterator[Joined]:
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
        )
        start = joining.wait(config.start_timeout)
        names = [member.called(rank) for rank, member in enumerate(start.members)]
        mesh = connect(
            start.rank,
            [(member.address, member.port) for member in start.members],
            listener,
            start.secret,
            CONNECT_S,
            names,
        )
    watch = Watch(mesh.connections, lambda lost: _end(joining, names, lost))
    mesh.on_error = watch.speak_first
    try:
        transport = CollectiveTransport(MeshGroup(mesh, SUMS[config.collective]), RealClock())
        attendance = Attendance(transport)
        me = start.members[start.rank]
        card = Card(WORKER, me.host, me.device, me.address, me.port)
        members = compare(attendance, card, setup, cluster.num_workers)
        logging.info("all %d workers are connected with each other", len(names))
        yield Joined(transport, attendance, members)
        transport.wait_all()
        # Whoever has left the last meeting closes its connections, while others may still be about to leave it.
        watch.stop()
        transport.barrier()
    except Exception as error:
        watch.stop()
        joining.leave(cause=str(error) or type(error).__name__)
        mesh.close()
        raise
    joining.leave()
    mesh.close()


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
    attendance: Attendance, card: Card, setup: Mapping[str, str], num_workers: int
) -> list[dict[str, str | int]]:
    """Makes sure that all workers are set up alike.

    Args:
        card: this worker's, without its set-up.

    Returns:
        Rank, host and device of all workers.

    Raises:
        SetupError: they are not; with the same words on all.
    """
    mine = {**setup, PROGRAM: version.files_hash(), "DMLC_NUM_WORKER": str(num_workers)}
    told = attendance.gather("set-ups", vars(dataclasses.replace(card, setup=mine)))
    cards = [Card.from_message(each) for each in told]
    if found := verdict(cards):
        raise SetupError(found)
    return [{"rank": rank, "host": each.host, "device": each.device} for rank, each in enumerate(cards)]


def _end(joining: Joining, names: Sequence[str], lost: Sequence[int]) -> NoReturn:
    """Ends this process, since others are gone; the state server knows who was the first."""
    seen = f"{', '.join(names[rank] for rank in lost)}: the connection has ended"
    end_process(joining.leave(lost=lost) or seen, EXIT_PEER_LOST)
