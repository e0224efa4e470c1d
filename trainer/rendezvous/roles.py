"""Processes of a job: the scheduler's and the server's whole life, a worker's way into the cluster and out of it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping

from algorithms import TransportKind
from trainer import version
from trainer.rendezvous import addresses
from trainer.rendezvous.cluster import Cluster
from trainer.rendezvous.config_check import PROGRAM
from trainer.rendezvous.heartbeat import Watch
from trainer.rendezvous.joined import Joined
from trainer.rendezvous.meeting_client import Arrival, Attendance, tell_failure
from trainer.rendezvous.meeting_server import Host
from trainer.runtime import environment, library, zmq_guard
from trainer.runtime.library import ServingStore
from trainer.stop import SignalWatch
from utils import JobOver, SetupError


def check_address(cluster: Cluster) -> None:
    """Makes sure that the scheduler's address, where there is one, the network card and the port can exist.

    Raises:
        SetupError: the name does not resolve, there is no such card, or PORT is no port.
    """
    if cluster.has_scheduler:
        try:
            socket.getaddrinfo(cluster.root_uri, cluster.root_port)
        except OSError as error:
            raise SetupError(f"DMLC_PS_ROOT_URI={cluster.root_uri!r} cannot be resolved ({error.strerror})") from None
    if os.environ.get("DMLC_INTERFACE"):
        addresses.card_address(os.environ["DMLC_INTERFACE"])
    addresses.chosen_port()


def serve(cluster: Cluster, start_timeout_s: float) -> None:
    """Runs the scheduler or a parameter server until the workers are done.

    Raises:
        SetupError: the scheduler's port cannot be had, this MXNet has no distributed kvstore, or the meeting found what
            cannot work.
        PeerLost: the job was not complete in time.
    """
    signals = SignalWatch(on_first="the job ends when its workers do")
    with others_told(cluster):
        environment.prepare_environment()
        check_address(cluster)
        host = open_meeting(cluster) if cluster.role == "scheduler" else None
        library.check_kvstore(library.has_kvstore())
    attendance = _meet(cluster, "", {}, start_timeout_s)
    zmq_guard.install()
    store = ServingStore()

    def formed() -> None:
        signals.be_patient()
        if host is None:
            attendance.tell_rank(store.rank)

    watch = (
        Watch(cluster, start_timeout_s, store, formed, host.declare_lost, host.knows)
        if host
        else Watch(cluster, start_timeout_s, store, formed)
    )
    with watch:
        store.run()
    store.free()
    attendance.leave()
    if host is not None:
        host.close()
    logging.info("all workers are done")


@contextlib.contextmanager
def others_told(cluster: Cluster | None, device: str = "") -> Iterator[None]:
    """Tells the job's other processes of an error in the block, which ends this one before it meets them."""
    try:
        yield
    except Exception as error:
        if cluster is not None and cluster.has_scheduler:
            name = " ".join(filter(None, (cluster.role, device, "on host", socket.gethostname())))
            tell_failure(cluster, f"{name} ended before the job began: {str(error) or type(error).__name__}")
        raise


def open_meeting(cluster: Cluster) -> Host:
    """Opens the scheduler's address for the job's processes to meet.

    Raises:
        SetupError: it cannot be had.
    """
    listener = addresses.listen(
        socket.gethostbyname(cluster.root_uri),
        cluster.root_port,
        "start the scheduler on the host of DMLC_PS_ROOT_URI, and set DMLC_PS_ROOT_PORT to a port that is free there, "
        "in every process of the job",
    )
    return Host(listener, cluster.num_servers, cluster.num_workers)


def _meet(cluster: Cluster, device: str, setup: Mapping[str, str], start_timeout_s: float) -> Attendance:
    compared = {**setup, PROGRAM: version.files_hash(), **environment.compared()}
    return Arrival(cluster, device, compared, start_timeout_s).attend()


# With what MXNet's kvstore offers it; `dist_sync` without an optimizer gives back the sum of what all have pushed.
STORE_TYPES = {TransportKind.SUM: "dist_sync", TransportKind.SERVER: "dist_async"}


@contextlib.contextmanager
def joined(
    cluster: Cluster,
    transport: TransportKind,
    start_timeout_s: float,
    device: str = "",
    setup: Mapping[str, str] | None = None,
    leaves_out: bool = False,
) -> Iterator[Joined]:
    """Joins the cluster as a worker, once all processes of the job are there and agree.

    Leaving the block waits until every worker has come to its end, unless `leaves_out`. After an exception nobody is
    waited for: the process has to leave by os._exit, since the kvstore's own way out waits for workers that wait for
    this one.

    Args:
        device: this worker's.
        setup: what must be the same on all workers: flag or other key -> value.
        leaves_out: the others go on without workers that are lost, so that nobody may wait for all at the end.

    Raises:
        SetupError: the set-ups differ, or a port is closed.
        JobOver: where the others go on without the lost, this worker is done, and ends at once. In the block it says
            that this worker leaves alone.
        PeerLost: the job was not complete in time.
    """
    from trainer.engine import mx
    from trainer.transport.kvstore import KVStoreTransport

    attendance = _meet(cluster, device, setup or {}, start_timeout_s)
    zmq_guard.install()
    try:
        with Watch(cluster, start_timeout_s) as watch:
            store = mx.kv.create(STORE_TYPES[transport])
            watch.store = store  # the cluster is complete
            attendance.tell_rank(store.rank)
            me = {"rank": store.rank, "host": socket.gethostname(), "device": device}
            members = attendance.gather("members", me)
            lost = (lambda: attendance.lost) if leaves_out else frozenset
            yield Joined(KVStoreTransport(store), attendance, members, lost=lost)
            mx.nd.waitall()
            if not leaves_out:
                store._barrier()
    except JobOver:
        attendance.leave_alone()
        raise
    except Exception as error:
        attendance.last_words(str(error) or type(error).__name__)
        raise
    attendance.leave()
    if leaves_out:
        raise JobOver("this worker is done")
    # Freed here and not at interpreter exit, where ps-lite's threads would outlive what they use. Freeing is the last
    # word of this worker in the cluster; nothing is behind the handle afterwards, and `__del__` frees nothing.
    mx.base.check_call(mx.base._LIB.MXKVStoreFree(store.handle))
    store.handle = None
