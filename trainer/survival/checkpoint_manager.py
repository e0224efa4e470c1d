"""When checkpoints are written and read: CheckpointManager in a worker, Writer also in the hub. Training waits
for no disk."""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from config import AUTO, END, Config
from server.setups import DATA
from trainer.array_tree import copied, is_finite
from trainer.survival.checkpoint_rounds import (
    SERVER,
    beside_server,
    has_server_state,
    names_in,
    ranks_in,
    round_of,
    unfinished,
    worker_name,
    workers_in,
)
from trainer.survival.checkpoints import Checkpoints, job_of
from utils import SetupError

_NAME = "checkpoint"  # of the threads that write


def wait_until_written() -> None:
    """Waits for all checkpoints that this process writes, also those of the hub."""
    for thread in threading.enumerate():
        if thread.name == _NAME:
            thread.join()


class Writer:
    """Writes one checkpoint after the other, each in a thread of its own."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._thread: threading.Thread | None = None
        self._has_failed = False  # the last time

    def write(self, round_: int, tree: Any) -> None:
        """Begins to write a copy, once the previous checkpoint is written. A failure is a warning."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(round_, copied(tree)), name=_NAME)
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _write(self, round_: int, tree: Any) -> None:
        if not is_finite(tree):
            logging.warning("warning: the model of round %d is not finite: there is no checkpoint of it", round_)
            return
        try:
            self._checkpoints.save(round_, tree)
        except SetupError as error:
            if not self._has_failed:
                logging.warning("warning: %s; training goes on without it", error)
            self._has_failed = True
        else:
            self._has_failed = False


class HubCheckpoints(Writer):
    """The hub's own checkpoints, as rank 0 `told` of them (CheckpointManager.for_hub)."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        super().__init__(Checkpoints(Path(told["folder"]), SERVER, told["job"], told["keep"]))
        self._resumed: int | None = told["load"]

    def resumed(self) -> dict[str, Any]:
        """The state that the hub resumes; empty: it begins anew. Raises as Checkpoints.load."""
        return {} if self._resumed is None else self._checkpoints.load(self._resumed)


class CheckpointManager(Writer):
    """A worker's checkpoints."""

    def __init__(self, config: Config, rank: int, num_workers: int, data_hash: str = "") -> None:
        job = {**job_of(config), **({DATA: data_hash} if data_hash else {})}
        # In a job that survives, ranks change, and all have the same model.
        which = f"{platform.node()}-{config.device}" if config.survives else rank
        self._config = config
        # The data's hash is loading.content_hash's; empty where it is not compared.
        self._has_servers = has_server_state(config) and rank == 0
        # A worker that does not wait for the server may be several checkpoints ahead of it.
        beside = SERVER if self._has_servers else ""
        self._mine = Checkpoints(config.checkpoint_folder, worker_name(which), job, config.ckpt_keep, beside)
        super().__init__(self._mine)
        self._servers = Checkpoints(config.checkpoint_folder, SERVER, job, config.ckpt_keep)
        self._num_workers = num_workers
        self._sources: dict[int, Checkpoints] = {}  # by round: the process whose checkpoint this worker would resume
        self._every = config.ckpt_frequency
        self.goes_on = bool(config.resume)  # the job resumes, even if this worker has no checkpoint
        self._rank = 0 if config.survives else rank
        self._round = 0  # after which this worker resumes
        self._server_rounds: dict[int, int] = {}  # of the server's checkpoint, by that which this worker would resume
        self.resumed: Any = None  # the state that this worker resumes; None where it begins
        self.is_from_another = False  # `resumed` is the checkpoint of another worker

    def good_rounds(self) -> list[int]:
        """Rounds that this worker could resume."""
        if not self.goes_on:
            return []
        self._sources = dict.fromkeys(self._mine.good_rounds(), self._mine)
        if not self._sources:
            self._sources = {round_: each for each in self._others() for round_ in each.good_rounds()}
        if self._has_servers:
            self._server_rounds = beside_server(self._sources, self._servers.good_rounds())
        good = self._server_rounds if self._has_servers else self._sources
        return unfinished(good, self._config.max_rounds if self._config.on_worker_death != END else 0)

    def choose(self, of_all: Sequence[Sequence[int]]) -> None:
        """Decides which checkpoint to resume, from the good rounds of all workers by rank (checkpoint_rounds.py), and
        reads it. Raises SetupError where there is none; or none of the job, where this worker may get the model of
        another one.

        A worker without a checkpoint, such as one that is new in the job, takes that of another worker. Where there is
        none, and the model is on a server, it begins with that.
        """
        if not self.goes_on:
            return
        if self._config.resume == AUTO and round_of(of_all, 0, self._config) is None:
            self.goes_on = False  # on all workers, whatever the others could resume
            return
        round_ = round_of(of_all, self._rank, self._config)
        mine = f"{worker_name(platform.node())}-"  # this host's
        others = self._config.survives and any(name.startswith(mine) for name in names_in(self._mine.folder))
        if round_ is None and not others and (self._rank == 0 or not has_server_state(self._config)):
            has = ", ".join(f"{rank}: {' '.join(map(str, rounds)) or 'none'}" for rank, rounds in enumerate(of_all))
            raise SetupError(
                f"--resume: there is no checkpoint in {self._mine.folder} to go on from (workers' rounds: {has}): name "
                "its folder with --checkpoint, or start without --resume if the job never saved one (--ckpt-frequency)"
            )
        if round_ is None:
            logging.warning("warning: this worker has no checkpoint yet: its batches begin anew")
            return
        self._round = round_
        self.resumed = self._load(round_)
        logging.info("goes on after round %d", round_)

    def _others(self) -> list[Checkpoints]:
        """The checkpoints of each worker that has some here."""
        files = names_in(self._mine.folder)
        names = workers_in(files) if self._config.survives else map(worker_name, ranks_in(files))
        return [self._mine.of(name) for name in names]

    def _load(self, round_: int) -> Any:
        others = (each for each in self._others() if round_ in each.good_rounds())
        source = self._sources.get(round_) or next(others, None)
        if source is None:
            raise SetupError(
                f"--resume: {self._mine.folder} has no checkpoint of round {round_}, which another worker has: name a "
                "folder that all workers see (--checkpoint)"
            )
        state = source.load(round_)
        self.is_from_another = source is not self._mine
        if self.is_from_another:
            logging.info("this worker has no checkpoint of round %d here: it takes that of %s", round_, source.name)
            self.write(round_, state)
        return state

    def begin(self) -> None:
        """Sets aside, as training begins, checkpoints of another job or of rounds that are done again."""
        self.wait()
        self.set_aside(self._round)

    def all_have_begun(self, came_late: bool) -> None:
        """Sets aside the checkpoints of workers that are no longer there; where workers come and go, those of an
        earlier job, unless this worker `came_late` to a job at work."""
        if self._config.survives and (self.goes_on or came_late):
            return  # a worker that is away may come back
        there = [] if self._config.survives else [worker_name(rank) for rank in range(self._num_workers)]
        for each in self._others():
            if each.name not in there:
                each.set_aside()

    def set_aside(self, after: int) -> None:
        """Sets aside the checkpoints that are later than a round, and the server's that are later than its own then."""
        self._mine.set_aside(after)
        if self._has_servers:
            self._servers.set_aside(self._server_rounds.get(after, after))

    def for_hub(self) -> dict[str, Any]:
        """How the hub keeps its checkpoints, and which one it resumes, as JSON: `HubCheckpoints`."""
        resumes = self._has_servers and self._round  # else the hub begins anew
        return {**self._servers.about(), "load": self._server_rounds[self._round] if resumes else None}

    def is_due(self, round_: int, last: bool) -> bool:
        return last or round_ % self._every == 0


def checkpoints_of(
    config: Config, data_hash: str, rank: int, num_workers: int, gather: Callable[[list[int]], Sequence[Sequence[int]]]
) -> CheckpointManager | None:
    """A worker's manager, which has read what to resume; None where there are no checkpoints. `gather` brings the good
    rounds of each worker to all, by rank; `data_hash` as CheckpointManager has it. Raises SetupError where there is
    nothing to resume."""
    if not config.ckpt_frequency:
        return None
    manager = CheckpointManager(config, rank, num_workers, data_hash)
    if config.survives:  # each from its own; a worker that is behind gets another one's model (recovery.py)
        manager.choose([manager.good_rounds()])
    elif manager.goes_on:
        manager.choose(gather(manager.good_rounds()))
    return manager


def check_folder(config: Config) -> str:
    """Returns why checkpoints cannot be written, where the job may be at work without this worker: then it needs none.
    Else that is a SetupError, and so is a job that resumes where there are none."""
    folder = config.checkpoint_folder
    if config.resume == 1 and not names_in(folder):
        raise SetupError(
            f"--resume: there is no checkpoint in {folder}: name its folder with --checkpoint, and start without "
            "--resume where the job never saved one (--ckpt-frequency)"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_bytes(b"")
        probe.unlink(missing_ok=True)
    except OSError as error:
        why = f"checkpoints cannot be written to {folder}: {error.strerror}; name another folder with --checkpoint"
        if not config.survives:
            raise SetupError(why) from None
        return why
    return ""
