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
import json
import logging
import selectors
import socket
import threading
import time
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
from trainer.watch import SILENT
from utils import EXIT_PEER_LOST, SetupError, die_on_error

CONNECT_S = 60.0  # for all to be connected once all are there
NOTICED_S = 1.0  # in which a loss that broke a sum is seen by the watch too
TOLD_S = 10.0  # in which what is told of it ends the process
BEAT_S = 1.0  # between two signs of life
SILENT_S = 10.0  # a machine whose cores are all busy may take some seconds to give one


class Watch:
    """Sees in a thread of its own which workers are gone, whatever this one does meanwhile.

    Each sends a byte a second to each other one, over connections that carry nothing else.
    """

    def __init__(
        self,
        connections: Mapping[int, socket.socket],
        on_lost: Callable[[list[int], str], Any],
        silent_s: float = SILENT_S,
    ) -> None:
        """
        Args:
            connections: by rank, for this watch alone; it closes them.
            on_lost: told, once, of the ranks that are gone, and why that is if it is not that they have ended.
            silent_s: after so long without a sign of life a worker counts as lost.
        """
        self._connections = dict(connections)
        self._on_lost = on_lost
        self._silent_s = silent_s
        self._has_noticed = threading.Event()
        self._may_leave = False
        self._stopped, self._stops = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with die_on_error("the watch over the other workers failed"), selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            for rank, connection in self._connections.items():
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, rank)
            lost, why = self._watch(selector)
            if lost:
                self._has_noticed.set()
                self._on_lost(lost, why)

    def _watch(self, selector: selectors.BaseSelector) -> tuple[list[int], str]:
        """Until somebody is lost, or nobody watches any more."""
        beat_s = min(BEAT_S, self._silent_s / 4)
        now = beat = time.monotonic()
        heard = dict.fromkeys(self._connections, now)
        while True:
            ready = [key.data for key, _ in selector.select(max(0.0, beat - now))]
            if None in ready:
                return [], ""
            ended = [rank for rank in ready if not _has_sent(self._connections[rank])]
            if ended and not self._may_leave:
                return ended, ""
            for rank in ended:
                selector.unregister(self._connections[rank])
            before, now = now, time.monotonic()
            heard |= dict.fromkeys(ready, now)
            if self._may_leave or now - before > self._silent_s / 2:  # in that case it was this worker that stood still
                heard = dict.fromkeys(self._connections, now)
            if silent := [rank for rank, last in heard.items() if now - last > self._silent_s]:
                return silent, f"no sign of life for {self._silent_s:g} s: {SILENT}"
            if now >= beat:
                beat = now + beat_s
                for connection in self._connections.values():
                    with contextlib.suppress(OSError):  # nobody reads it, or it has ended: both are seen above
                        connection.send(b".")

    def speak_first(self) -> None:
        """A sum has failed. Where a worker is lost, `on_lost` ends this process before its own connections close: else
        others could take it for the one that was lost. If nobody is, there is nothing to watch any more."""
        if self._has_noticed.wait(NOTICED_S):
            self._thread.join(TOLD_S)
        self.stop()

    def let_leave(self) -> None:
        """From here on others may end. Those that have not come so far go on to hear that this worker is alive."""
        self._may_leave = True

    def stop(self) -> None:
        """Nobody watches any more."""
        with contextlib.suppress(OSError):
            self._stops.send(b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join(TOLD_S)

    def close(self) -> None:
        """Nobody watches any more, and the others see that this worker has ended."""
        self.stop()
        for each in (self._stopped, self._stops, *self._connections.values()):
            each.close()


def _has_sent(connection: socket.socket) -> bool:
    """Reads what is there; False where the connection has ended."""
    try:
        return bool(connection.recv(1 << 12))
    except BlockingIOError:
        return True
    except OSError:
        return False


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
        me = start.members[start.rank]
        card = Card(WORKER, me.host, me.device, me.address, me.port)
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


def _end(joining: Joining, names: Sequence[str], lost: Sequence[int], why: str) -> NoReturn:
    """Ends this process, since others are gone; the state server knows who was the first."""
    who = ", ".join(names[rank] for rank in lost)
    told = joining.leave(cause=f"{who}: {why}") if why else joining.leave(lost=lost)
    end_process(told or f"{who}: {why or 'the connection has ended'}", EXIT_PEER_LOST)
