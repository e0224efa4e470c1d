"""The workers of a job that mpiexec has started: MPI knows them all, and sums.

    mpiexec -n 4 python main.py -m sync --collective mpi ...

mpiexec watches over them: where one ends with an error, it ends the others. Each is named by its place on its host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import socket
from collections.abc import Iterator, Mapping

from config import Config
from trainer.clock import RealClock
from trainer.collectives import mpi
from trainer.rendezvous.cluster import WORKER, Cluster
from trainer.rendezvous.config_check import ProcessInfo
from trainer.rendezvous.joined import Joined
from trainer.rendezvous.peers import Attendance, compare
from trainer.transport.collective import CollectiveTransport

_PORT = 1  # of a card, which must have one; MPI needs none


def begin(config: Config) -> tuple[Config, Cluster]:
    """Begins with MPI, whose threads must come after those that wait for signals.

    Returns:
        The flags of this one of a host's processes, to all of which mpiexec gives the same: cpu0, cpu1, ... have log
        folders of their own, and GPUs are taken in turn. And all processes.

    Raises:
        SetupError: there is no MPI here.
    """
    world = mpi.world()
    place = mpi.place_on_host(world)
    gpu = config.gpu if config.cpu else config.gpu + place
    name = f"{config.device_name or 'cpu'}{place}" if config.cpu or config.device_name else f"gpu{gpu}"
    return dataclasses.replace(config, gpu=gpu, device_name=name), Cluster(WORKER, "", 0, 0, int(world.size))


@contextlib.contextmanager
def joined(config: Config, setup: Mapping[str, str]) -> Iterator[Joined]:
    """Joins the others as a worker. Leaving the block waits until every worker has come to its end.

    Args:
        setup: what must be the same on all workers: flag or other key -> value.

    Raises:
        SetupError: the set-ups differ.
    """
    host = socket.gethostname()
    transport = CollectiveTransport(mpi.MpiGroup(mpi.world()), RealClock())
    attendance = Attendance(transport)
    members = compare(attendance, ProcessInfo(WORKER, host, config.device, host, _PORT), setup, transport.num_workers)
    logging.info("mpiexec has started %d workers", transport.num_workers)
    yield Joined(transport, attendance, members)
    transport.wait_all()
    transport.barrier()
