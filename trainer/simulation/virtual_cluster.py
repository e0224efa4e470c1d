"""A whole cluster in this process, in virtual time: the trainers, the hub or MXNet's kvstore, and the state server's
own rules on one clock, with real gradients. simulate.py is its command line.

These take time: a step, as the cluster file says of its worker (times its spread), transfers, questions to the state
server, emulated stragglers, and evaluations where the job gives them one. The machine's own time does not count.
"""

import functools
import hashlib
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from greenlet import getcurrent

from algorithms import TransportKind
from config import HUB, KVSTORE, NO_NETWORK, Config
from esync.client import StateClient
from esync.metric import ACCURACY
from trainer import worker
from trainer.collectives.schedules import SUMS, ring
from trainer.command_line import check_job
from trainer.context import Context, Peers
from trainer.emulation import Speed, pace_of
from trainer.evaluation.evaluating import Candidate, check_target, evaluating_rank
from trainer.evaluation.saved_model import ModelSaver
from trainer.from_flags import client_of, learning_task, model_card, run_settings
from trainer.hub.sums import HubSums
from trainer.jobs.job import Job, job_of
from trainer.jobs.network import build
from trainer.membership import Membership, of_all
from trainer.network import Parameters
from trainer.run_logs.run_folder import RunFolder
from trainer.simulation import stub_network
from trainer.simulation.cluster_file import Worker
from trainer.simulation.in_process import InProcessServer
from trainer.simulation.network import WorkerLink
from trainer.simulation.virtual_clock import VirtualClock
from trainer.simulation.virtual_hub import VirtualExchange, VirtualHub
from trainer.simulation.virtual_job import HOST, VirtualJob
from trainer.simulation.virtual_kvstore import VirtualKVStore, VirtualServer
from trainer.simulation.virtual_mesh import MemoryNetwork, in_memory
from trainer.simulation.virtual_progress import NO_WATCHER, Watcher
from trainer.survival.checkpoint_manager import CheckpointManager, check_folder, checkpoints_of, wait_until_written
from trainer.transport.protocol import Transport, num_bytes
from utils import Incomplete, SetupError, allow_open_files

# Up to this number each keeps the memory of its passes (2.7 MB of LeNet's, for 20 % less time) and all others' names.
FEW_WORKERS = 16
LEAST_FILES, SPARE_FILES = 40, 100  # open files beside a lock for each worker's folder


class VirtualRun:
    """A run of a job. `run` may be called once, in the greenlet that has made it. Raises SetupError if the flags, the
    cluster or the data are no job."""

    def __init__(
        self,
        job: VirtualJob,
        stop_requested: Callable[[], bool] = lambda: False,
        watcher: Watcher = NO_WATCHER,
        learnt: Job | None = None,  # the job's data and functions; None: those that its flags name
    ) -> None:
        config, self._rows = job.config, job.cluster.workers
        check_job(config, 1, len(self._rows))
        if not all(row.shortest_step_s(config.batch_size) + row.overhead_s for row in self._rows):
            raise SetupError("a step that takes no time ends no virtual second: give every worker a step time above 0")
        self._job = job
        check_target(config, self._evaluating_rank)
        self._stop_requested = stop_requested
        self._watcher = watcher
        self._clock = VirtualClock()
        self._state_server = InProcessServer(self._clock) if config.algorithm.has_state_server else None
        locks = len(self._rows)
        allow_open_files(locks + SPARE_FILES, locks + LEAST_FILES, f"a cluster of {locks} workers")
        self._learnt = None if config.network == NO_NETWORK else learnt or job_of(config)
        self._memberships = self._all_memberships()
        self._folders = [RunFolder(job.worker_config(rank), job.earlier) for rank in range(len(self._rows))]
        self._contexts = [self._context(rank) for rank in range(len(self._rows))]
        self._check_networks()
        self._keep()
        self._hashes: dict[int, str] = {}
        if config.algorithm.is_distributed:
            self._connect()

    def run(self) -> str:
        """Trains to the job's end; returns the SHA-256 of all workers' final weights."""
        root = logging.getLogger()
        root.addFilter(self._is_shown)
        try:
            for rank in range(len(self._rows)):
                self._clock.start(partial(self._train, rank), f"worker {rank}")
            self._clock.run(watch=self._watcher.continues)
        finally:
            wait_until_written()
            root.removeFilter(self._is_shown)
            for folder in self._folders:
                folder.close()
        digests = "".join(self._hashes[rank] for rank in sorted(self._hashes))
        return hashlib.sha256(digests.encode()).hexdigest()

    def _is_shown(self, record: logging.LogRecord) -> bool:
        """Lines of one worker, warnings of all, and lines of no worker, such as the progress."""
        clock, shown = self._clock, f"worker {self._evaluating_rank or 0}"
        return record.levelno > logging.INFO or getcurrent() is clock.hub or clock.current.name == shown

    def _train(self, rank: int) -> None:
        begins = lambda: self._watcher.begins(self._clock.now())  # noqa: E731
        members = self._memberships[rank].members if len(self._rows) <= FEW_WORKERS else None
        more = {"members": members, "virtual": self._job.about(rank), **self._counted_bytes}
        facts = worker.train(self._contexts[rank], self._folders[rank], begins, **more)
        self._hashes[rank] = facts["final_weights_sha256"]
        if self._folders[rank].missing:
            raise Incomplete(self._folders[rank].missing)

    @property
    def _counted_bytes(self) -> dict[str, Any]:
        return {"parameter_bytes": round(self._job.model_bytes)} if self._job.model_bytes else {}

    def _all_memberships(self) -> list[Membership]:
        ranks, config = range(len(self._rows)), self._job.config
        places = tuple(f"cpu{rank} on host {HOST}" for rank in ranks)
        labels = None if self._learnt is None else self._learnt.partitioned_by(config)
        return of_all(labels, len(ranks), config, places)

    def _context(self, rank: int) -> Context:
        row, membership = self._rows[rank], self._memberships[rank]
        config = self._job.worker_config(rank)
        pace, trace = pace_of(config.seed, rank, row.step_spread), worker.trace_of(config)
        log = logging.debug if rank else logging.info
        built = None if self._learnt is None else build(config.but(cpu=1), self._learnt, log)
        settings = run_settings(
            config,
            ACCURACY if built is None else built.metric,
            clock=self._clock,
            stop_requested=self._stop_requested,
            speed=Speed(row.step_time_s + row.overhead_s, row.sample_time_s, pace, trace),
        )
        settings.tell_every_s = math.inf  # rounds with an evaluation are told
        if self._learnt is None or built is None:
            settings.rule, settings.max_bad_steps = stub_network.RULE, 0
            take_time = self._evaluate if self._job.evaluation_s else None
            task = stub_network.learning_task(config.batch_size, take_time)
        else:
            folder = self._folders[rank]
            task = learning_task(config, self._learnt, built, membership)
            if task.evaluate is not None:
                task.evaluate = self._watcher.evaluation(task, partial(self._evaluate, task.evaluate))
            if len(self._rows) <= FEW_WORKERS:
                built.network.keep_memory()
            settings.saver = ModelSaver(
                folder.path, built.network, model_card(config, self._learnt, built, folder.commit), task.metric
            )
        peers = Peers(
            membership=lambda: membership,
            state_server=self._state_client(config, row),
            is_evaluator=lambda step_s: rank == self._evaluating_rank,
        )
        return Context(config, task, peers, settings)

    def _check_networks(self) -> None:
        """Makes sure that no two workers train the same parameters. Raises SetupError if they do."""
        if self._learnt is None:
            return
        memory = [array.ctypes.data for context in self._contexts for array in context.task.network.weights]
        if len({*memory}) < len(memory):
            raise SetupError(
                f"{self._job.config.job}, network(): gives the same layers again when it is called for the next "
                "worker: make them in network()"
            )

    def _keep(self) -> None:
        """Gives each worker its checkpoints, where the flags ask for them."""
        config, ranks = self._job.config, range(len(self._rows))
        if config.ckpt_frequency:
            check_folder(config)
            data_hash = self._learnt.content_hash() if self._learnt is not None else ""
            good = [CheckpointManager(config, rank, len(ranks), data_hash).good_rounds() for rank in ranks]
            for rank in ranks:
                checkpoints = checkpoints_of(config, data_hash, rank, len(ranks), lambda mine: good)
                self._contexts[rank].run.checkpoints = checkpoints

    def _state_client(self, config: Config, row: Worker) -> StateClient | None:
        if self._state_server is None:
            return None
        link = self._state_server.link(row.state_server_round_trip_s + config.query_delay)
        return client_of(config, link, self._clock, HOST, self._stop_requested)

    def _evaluate(self, evaluate: Callable[[], float | None] = lambda: None) -> float | None:
        self._clock.sleep(self._job.evaluation_s)
        return evaluate()

    @functools.cached_property
    def _evaluating_rank(self) -> int | None:
        config = self._job.config
        return evaluating_rank(
            [Candidate(config.evaluate, row.shortest_step_s(config.batch_size)) for row in self._rows]
        )

    def _connect(self) -> None:
        """Connects the workers with the hub or the kvstore, or with each other."""
        links = [WorkerLink(_bytes_per_s(row.bandwidth_mbit_s), row.latency_s) for row in self._rows]
        kind, exchange = self._job.config.algorithm.transport, self._job.config.transport
        server_rate = _bytes_per_s(self._job.cluster.server_bandwidth_mbit_s)
        assert kind is not TransportKind.NONE
        if kind is TransportKind.HUB or exchange == HUB:
            hub = VirtualHub(self._clock, self._job.config, links, server_rate, self._size_of())
            for rank, context in enumerate(self._contexts):
                context.peers.hub = at_hub = VirtualExchange(hub, rank)
                if kind is TransportKind.SUM:
                    context.peers.transport = HubSums(at_hub, self._job.config, hub.gather)
            return
        place: Callable[[int], Transport]
        if exchange == KVSTORE:
            place = partial(VirtualKVStore, VirtualServer(self._clock, links, server_rate, self._size_of()))
        else:
            network = MemoryNetwork(self._clock, links, server_rate)
            algorithm = SUMS.get(exchange, ring)  # why.py may take a job of MPI, which chooses its own
            place = partial(in_memory, network, algorithm, size_of=self._size_of())
        for rank, context in enumerate(self._contexts):
            context.peers.transport = place(rank)

    def _size_of(self) -> Callable[[np.ndarray], int]:
        """Bytes of an array in a transfer: the model's arrays add up to the size that the job gives the model."""
        counted = self._counted_bytes.get("parameter_bytes")
        if counted is None:
            return num_bytes
        model = Parameters(self._contexts[0].task.network).model()
        factor, shapes = counted / sum(array.nbytes for array in model), {array.shape for array in model}
        return lambda array: round(array.nbytes * (factor if array.shape in shapes else 1.0))


def _bytes_per_s(mbit_s: float) -> float:
    return mbit_s * 1e6 / 8
