"""The workers of a job that mpiexec has started: MPI knows them all, and sums.

    mpiexec -n 4 python main.py -m sync --exchange mpi ...

Where one of them ends with an error, mpiexec ends the others. Each is named by its number on its host.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator, Mapping

from config import Config
from esync.clock import RealClock
from server.setups import differences, verdict
from trainer.collectives import mpi
from trainer.rendezvous.cluster import WORKER, ClusterSpec
from trainer.rendezvous.rendezvous_info import RendezvousInfo
from trainer.transport.collective import CollectiveTransport
from utils import SetupError


def begin(config: Config) -> tuple[Config, ClusterSpec]:
    """Starts MPI, whose threads must come after those that wait for signals; raises SetupError where it is not
    installed. Returns this process's flags, since mpiexec gives the same to all of a host: cpu0, cpu1, ... have log
    folders of their own, and GPUs are taken in turn. And the whole job."""
    world = mpi.world()
    place = mpi.place_on_host(world)
    gpu = config.gpu if config.cpu else config.gpu + place
    name = f"{config.device_name or 'cpu'}{place}" if config.cpu or config.device_name else f"gpu{gpu}"
    return config.but(gpu=gpu, device_name=name), ClusterSpec(WORKER, "", 0, 0, int(world.size))


@contextlib.contextmanager
def join(config: Config, setup: Mapping[str, str]) -> Iterator[RendezvousInfo]:
    """Joins the others as a worker. Leaving the block waits for every worker's end. `setup` is what must be the same on
    all workers, flag or other key -> value; raises SetupError where it differs."""
    transport = CollectiveTransport(mpi.MpiGroup(mpi.world()), RealClock())
    told = transport.gather("set-ups", [f"{config.device} on host {socket.gethostname()}", setup])
    named = ((f"worker {rank} ({place})", its) for rank, (place, its) in enumerate(told))
    if found := verdict(differences(named)):
        raise SetupError(found)
    logging.info("mpiexec has started %d workers", transport.num_workers)
    yield RendezvousInfo(transport, transport.gather, tuple(place for place, _ in told))
    transport.barrier()
