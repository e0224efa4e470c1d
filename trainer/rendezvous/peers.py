"""How the workers of a job without a parameter server come together, watch each other, and part.

    JOIN at the state server (joining.py), which compares set-ups -> connect each with each
    (collectives/connecting.py) -> train -> barrier -> LEFT

Where a worker is lost (failure_detector.py), and the job does not survive that, all end with a line that names it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from config import Config
from esync.clock import RealClock
from esync.protocol import Link, Message
from server.messages import Member
from trainer.collectives.connecting import Acceptor, unanswered
from trainer.collectives.schedules import SUMS
from trainer.rendezvous import addresses, roles
from trainer.rendezvous.cluster import ClusterSpec
from trainer.rendezvous.failure_detector import TcpConnections, connected
from trainer.rendezvous.generations import Generations, end_together
from trainer.rendezvous.joining import Joining, Start
from trainer.rendezvous.rendezvous_client import end_process
from trainer.rendezvous.rendezvous_info import RendezvousInfo, Training
from trainer.rendezvous.silence import LONGEST_S, Silence
from trainer.transport.collective import CollectiveTransport
from utils import EXIT_BUG, EXIT_PEER_LOST, PROCESS, PeerLost

SAVED_S = 30.0  # for the step under way and the last model, once another worker is lost and the job ends
CONNECT_S = 60.0  # for all to be connected once all have joined
# Of --fault-timeout: the silence after which the workers of a job that survives come together again; a call as a test;
# the wait for one that does not come.
SILENT_SHARE, TEST_SHARE, PATIENCE_SHARE = 0.75, 0.15, 0.25
SHORTEST_TEST_S = 0.3  # a worker answers beside its training


@contextlib.contextmanager
def join(config: Config, cluster: ClusterSpec, setup: Mapping[str, str], link: Link) -> Iterator[RendezvousInfo]:
    """Joins the others as a worker, once all are there and agree. Leaving the block waits for every worker's end, where
    the job does not survive lost workers. `setup` is what must be the same on all workers, flag or other key -> value;
    `link` leads to the state server. Raises SetupError where the set-ups differ, or there is no address to listen at;
    PeerLost where the job was not complete in time."""
    with contextlib.ExitStack() as on_exit:
        with roles.tells_errors(cluster, config):
            towards = addresses.address_towards(config.state_server_ip, int(config.state_server_port))
            advice = "set PORT to a free one, another for each worker of this host"
            listener = addresses.listen(addresses.own_address(towards), addresses.chosen_port(), advice)
        address, port, *_ = listener.getsockname()
        launched, _, living = os.environ.get(PROCESS, "").partition(" ")
        about: Message = {"num_workers": cluster.num_workers, "setup": setup, "living": [*map(int, living.split())]}
        about |= {"address": address, "port": port, "device": {"host": socket.gethostname(), "device": config.device}}
        silent_s: float | None = LONGEST_S  # a job that does not survive ends then; None: the rounds tell
        first_s = later_s = CONNECT_S
        if config.survives:
            first_s = LONGEST_S if config.fault_timeout == "auto" else float(config.fault_timeout)
            silent_s = None if config.fault_timeout == "auto" else SILENT_SHARE * first_s
            later_s = PATIENCE_SHARE * first_s
            about |= {"min_workers": config.min_workers, "patience": later_s}
        silence, training = Silence(silent_s), Training()

        def call(other: Member) -> str:
            test_s = max(SHORTEST_TEST_S, TEST_SHARE / SILENT_SHARE * silence.limit_s())
            return unanswered((other.address, other.port), other.name, test_s)

        joining = Joining(link, RealClock(), config.job_name, about, call, launched=launched)
        acceptor = on_exit.enter_context(contextlib.closing(Acceptor(listener, joining.name)))

        def connect(start: Start) -> TcpConnections:
            on_idle = partial(_end_if_standing, joining, training, start.names[start.rank])
            connect_s = first_s if start.generation == 1 else later_s
            found = connected(acceptor, SUMS[config.transport], connect_s, start)
            return TcpConnections(*found, silence, config.survives, on_idle)

        start = joining.wait(config.start_timeout)
        generations, ending = None, list[str]()
        leave: Callable[..., object] = joining.leave
        try:
            if config.survives:
                generations = Generations(joining, connect, RealClock(), start)
                leave, start, connections = generations.leave, generations.taken.start, generations.taken.connections
            else:
                connections = on_exit.enter_context(contextlib.closing(connect(start)))
                connections.watch(partial(_end, joining, start.names, ending))
                acceptor.close()
                logging.info("all %d workers are connected with each other", len(start.members))
            transport = CollectiveTransport(connections.group, RealClock())
            gather = transport.gather
            yield RendezvousInfo(
                transport, gather, start.places, generations=generations, add_round=silence.add_round, training=training
            )
            if generations is None:
                end_together(connections, transport.barrier)
        except Exception as error:
            if ending:
                raise PeerLost(ending[0]) from None
            leave(cause=str(error) or type(error).__name__)
            raise
        leave()


def _end_if_standing(joining: Joining, training: Training, name: str, since: float) -> None:
    """Ends this process where its training stands, so that the others see it, and the launcher starts another."""
    if why := training.standing(since):
        joining.leave(cause=f"its training stands: {why}")
        end_process(f"the training of {name} stands: {why}", EXIT_BUG)


def _end(joining: Joining, names: Sequence[str], ending: list[str], lost: Sequence[int], why: str) -> None:
    """Notes why this process ends, since others are lost; the state server knows which was the first. Ends it, if the
    training thread does not in time."""
    who = ", ".join(names[rank] for rank in lost)
    told = joining.leave(cause=f"{who}: {why}") if why else joining.leave(lost=lost)
    ending.append(told or f"{who}: {why or 'the connection has ended'}")
    in_vain = threading.Timer(SAVED_S, end_process, (ending[0], EXIT_PEER_LOST))
    in_vain.daemon = True
    in_vain.start()
