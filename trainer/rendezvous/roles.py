"""Runs the scheduler or a parameter server; joins a cluster as a worker, and leaves it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping

from algorithms import TransportKind
from config import Config
from esync.clock import RealClock
from server.setups import PROGRAM
from trainer import version
from trainer.hub.wire import tell_failure
from trainer.rendezvous import addresses, rendezvous_client
from trainer.rendezvous.cluster import ClusterSpec
from trainer.rendezvous.joining import Joining
from trainer.rendezvous.rendezvous_client import ALL_DONE
from trainer.rendezvous.rendezvous_info import RendezvousInfo
from trainer.rendezvous.rendezvous_server import RendezvousServer
from trainer.runtime import environment, library, zmq_guard
from trainer.runtime.stop_signals import SignalWatch

_SCHEDULERS_PORT = (
    "start the scheduler on the host of DMLC_PS_ROOT_URI, and set DMLC_PS_ROOT_PORT to a port that is free there, in "
    "every process of the job"
)


def check_address(cluster: ClusterSpec) -> None:
    """Checks the addresses for MXNet, where there is a scheduler, and PORT. Raises SetupError where a name does not
    resolve, or not to IPv4; the network card does not exist, or PORT is no port."""
    if cluster.root_uri:
        addresses.check_ipv4("DMLC_PS_ROOT_URI", cluster.root_uri)
    if cluster.has_scheduler:
        if os.environ.get("DMLC_NODE_HOST"):
            addresses.check_ipv4("DMLC_NODE_HOST", os.environ["DMLC_NODE_HOST"])
        elif os.environ.get("DMLC_INTERFACE"):
            addresses.card_address(os.environ["DMLC_INTERFACE"])
    addresses.chosen_port()


def serve(cluster: ClusterSpec, start_timeout_s: float) -> None:
    """Runs the scheduler or a parameter server until the workers are done. Raises SetupError where the scheduler's port
    cannot be had, this MXNet has no distributed kvstore, or the processes of the job do not fit together; PeerLost
    where the job was not complete in time."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # mpiexec passes it on to all, and it is for the workers
    signals = SignalWatch(on_first="the job ends when its workers do")
    with contextlib.ExitStack() as on_exit:
        with tells_errors(cluster):
            environment.prepare_environment()
            check_address(cluster)
            if cluster.role == "scheduler":
                listener = addresses.listen(socket.gethostbyname(cluster.root_uri), cluster.root_port, _SCHEDULERS_PORT)
                server = RendezvousServer(listener, cluster.num_servers, cluster.num_workers)
            library.check_kvstore(library.has_kvstore())
        if cluster.role == "scheduler":
            on_exit.callback(server.close)

        def end(text: str, code: int) -> None:
            on_exit.close()  # the others have to hear why
            rendezvous_client.end_process(text, code)

        program = {PROGRAM: version.files_hash()}
        session = rendezvous_client.join(cluster, "", program, start_timeout_s, end=end, on_complete=signals.be_patient)
        zmq_guard.install()
        if cluster.role == "server":
            library.begin_engine()
        library.serve()
        session.leave()
    logging.info(ALL_DONE)


@contextlib.contextmanager
def tells_errors(cluster: ClusterSpec | None, config: Config | None = None) -> Iterator[None]:
    """An error in the block ends this process before it joins the others, which are told of it. `config` is a
    worker's."""
    try:
        yield
    except Exception as error:
        if cluster is not None:
            device = config.device if config else ""
            name = " ".join(filter(None, (cluster.role, device, "on host", socket.gethostname())))
            why = f"{name} ended before the job began: {str(error) or type(error).__name__}"
            if cluster.root_uri:
                tell_failure(cluster, why, config.mode if config and cluster.has_hub else "")
            elif config is not None:
                from esync.http import HttpLink  # whose import takes long, and this is rare

                link = HttpLink(config.state_server_ip, config.state_server_port, RealClock(), config.query_delay)
                Joining(link, RealClock(), config.job_name, {}).leave(cause=why)
        raise


@contextlib.contextmanager
def join(
    cluster: ClusterSpec,
    transport: TransportKind,
    start_timeout_s: float,
    device: str = "",
    setup: Mapping[str, str] | None = None,
) -> Iterator[RendezvousInfo]:
    """Joins the cluster as a worker of this device, once all processes of the job are there and agree. `setup` is what
    must be the same on all workers, flag or other key -> value. Raises SetupError where it differs, or a port is
    closed; PeerLost where the job was not complete in time.

    Leaving the block waits for every worker's end. After an exception it waits for none: the process has to leave by
    os._exit, since the kvstore's own shutdown waits for workers that wait for this one.
    """
    from trainer.engine import mx
    from trainer.hub.kvstore_exchange import KVStoreExchange
    from trainer.transport.kvstore import KVStoreTransport

    session = rendezvous_client.join(cluster, device, setup or {}, start_timeout_s)
    zmq_guard.install()
    try:
        is_sum = transport is TransportKind.SUM
        # `dist_sync` without an optimizer gives back the sum of all pushes.
        store = mx.kv.create("dist_sync" if is_sum else "dist_async")
        session.tell_rank(store.rank)
        places = session.gather("members", f"{device} on host {socket.gethostname()}") or ()
        transport_of_sums, hub = (KVStoreTransport(store), None) if is_sum else (None, KVStoreExchange(store))
        yield RendezvousInfo(transport_of_sums, session.gather, tuple(places), hub=hub)
        mx.nd.waitall()
        store._barrier()
    except Exception as error:
        session.leave(str(error) or type(error).__name__)
        raise
    session.leave()
    # Freed here and not at interpreter exit, where ps-lite's threads would outlive what they use. This takes the worker
    # out of the cluster; the handle is invalid afterwards, so `__del__` must not free it.
    mx.base.check_call(mx.base._LIB.MXKVStoreFree(store.handle))
    store.handle = None
