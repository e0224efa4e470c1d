"""Who keeps checkpoints, and when: a worker's Keeper, and the parameter server's Writer. Training waits for no disk."""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from config import END, Config
from trainer.array_tree import is_finite
from trainer.rendezvous.config_check import DATA
from trainer.survival.checkpoint_rounds import (
    SERVER,
    has_server_state,
    host_and_device,
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
    """Waits for all checkpoints that this process writes, also those that the optimizer of a server has begun."""
    for thread in threading.enumerate():
        if thread.name == _NAME:
            thread.join()


class Writer:
    """Writes one checkpoint after the other, each in a thread of its own. Can be sent to a server before the first."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._thread: threading.Thread | None = None

    def write(self, round_: int, tree: Any) -> None:
        """Begins to write; waits if the one before is not written yet. A checkpoint that fails costs nothing but
        itself."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(round_, tree), name=_NAME)
        self._thread.start()

    def wait(self) -> None:
        """Until what was begun is written."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, round_: int, tree: Any) -> None:
        if not is_finite(tree):
            logging.warning("warning: the model of round %d is not finite: there is no checkpoint of it", round_)
            return
        try:
            self._checkpoints.save(round_, tree)
        except SetupError as error:
            logging.warning("warning: %s; training goes on without it", error)


class Keeper:
    """A worker's checkpoints.

    Attributes:
        resumed: what this worker goes on from; None where it begins.
        of_server: what the parameter server goes on from; rank 0 alone has it.
        goes_on: the job does, even if this worker has nothing to go on from.
        is_anothers: what this worker goes on from is the checkpoint of another one.
    """

    def __init__(self, config: Config, rank: int, num_workers: int, data_hash: str = "") -> None:
        """
        Args:
            data_hash: data.content_hash of what the job trains on; empty where it is not compared.
        """
        job = {**job_of(config), **({DATA: data_hash} if data_hash else {})}
        # Of a job that survives, ranks change, and all have the same model.
        which = host_and_device(platform.node(), config.device) if config.survives else rank
        self._config = config
        has_servers = has_server_state(config) and rank == 0
        # A worker that does not wait for the server may be several checkpoints ahead of it.
        beside = SERVER if has_servers else ""
        self._mine = Checkpoints(config.checkpoint_folder, worker_name(which), job, config.ckpt_keep, beside)
        self._servers = Checkpoints(config.checkpoint_folder, SERVER, job, config.ckpt_keep)
        self._all = [self._mine, *([self._servers] if has_servers else [])]
        self._num_workers = num_workers
        self._sources: dict[int, Checkpoints] = {}  # whose checkpoint of a round this worker would go on from
        self._every = config.ckpt_frequency
        self.goes_on = bool(config.resume)
        self._writer = Writer(self._mine)
        self._rank = 0 if config.survives else rank
        self._round = 0  # that this worker goes on from
        self.resumed: Any = None
        self.of_server: Any = None
        self.is_anothers = False

    def good_rounds(self) -> list[int]:
        """Those that this worker could go on from."""
        if not self.goes_on:
            return []
        self._sources = dict.fromkeys(self._mine.good_rounds(), self._mine)
        if not self._sources:
            self._sources = {round_: each for each in self._others() for round_ in each.good_rounds()}
        good = set(self._sources).intersection(*(each.good_rounds() for each in self._all[1:]))
        return unfinished(good, self._config.max_rounds if self._config.on_worker_death != END else 0)

    def choose(self, of_all: Sequence[Sequence[int]]) -> None:
        """Decides which checkpoint to go on from (checkpoint_rounds.py), and reads it.

        There may be more workers than before, or others: who has no checkpoint takes that of another worker. Where it
        finds none, and the model is on a server, it begins with that.

        Args:
            of_all: good rounds of all workers, by rank.

        Raises:
            SetupError: there is none; or none of the job, where this worker may get the model of another one.
        """
        if not self.goes_on:
            return
        round_ = round_of(of_all, self._rank, self._config)
        others = self._config.survives and any(self._mine.folder.glob(f"{worker_name(platform.node())}-*"))
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
        if len(self._all) > 1:
            self.of_server = self._servers.load(round_)
        logging.info("goes on after round %d", round_)

    def _others(self) -> list[Checkpoints]:
        """Those of all workers that have some here."""
        files = [path.name for path in self._mine.folder.glob("*.ckpt")]
        names = workers_in(files) if self._config.survives else map(worker_name, ranks_in(files))
        return [self._mine.of(name) for name in names]

    def _load(self, round_: int) -> Any:
        source = self._sources[round_]
        state = source.load(round_)
        self.is_anothers = source is not self._mine
        if self.is_anothers:
            logging.info("this worker has no checkpoint here: it takes that of %s", source.name)
            self._writer.write(round_, state)
        return state

    def begin(self) -> None:
        """Training begins: what belongs to another job, or to rounds that are done again, is set aside."""
        self._writer.wait()
        self.set_aside(self._round)

    def all_have_begun(self, came_late: bool) -> None:
        """Nobody needs the checkpoints any more of workers that are no longer there: they are set aside, too. Where
        workers come and go, those of an earlier job.

        Args:
            came_late: this worker, to a job at work.
        """
        if self._config.survives and (self.goes_on or came_late):
            return  # a worker that is away may come back
        there = [] if self._config.survives else [worker_name(rank) for rank in range(self._num_workers)]
        for each in self._others():
            if each.name not in there:
                each.set_aside()

    def set_aside(self, after: int) -> None:
        """What is later than a round."""
        for each in self._all:
            each.set_aside(after)

    def for_server(self) -> Writer:
        """What the server's optimizer writes with."""
        return Writer(self._servers)

    def is_due(self, round_: int, last: bool) -> bool:
        """Whether a checkpoint is taken after a round."""
        return last or round_ % self._every == 0

    def save(self, round_: int, tree: Any) -> None:
        """Begins to write a worker's state, of which nobody else may hold an array."""
        self._writer.write(round_, tree)

    def close(self) -> None:
        """Waits until all is written."""
        self._writer.wait()


def keeper_of(
    config: Config, data_hash: str, rank: int, num_workers: int, gather: Callable[[list[int]], Sequence[Sequence[int]]]
) -> Keeper | None:
    """A worker's keeper, which knows where to go on; None where there are no checkpoints.

    Args:
        data_hash: as Keeper has it.
        gather: brings the good rounds of each worker to all, by rank.

    Raises:
        SetupError: there is nothing to go on from.
    """
    if not config.ckpt_frequency:
        return None
    keeper = Keeper(config, rank, num_workers, data_hash)
    if config.survives:  # each from its own; a worker that is behind gets another one's model (recovery.py)
        keeper.choose([keeper.good_rounds()])
    elif keeper.goes_on:
        keeper.choose(gather(keeper.good_rounds()))
    return keeper


def check_folder(folder: Path, resumes: bool) -> None:
    """Makes sure that checkpoints can be written when their time comes, and that there are some to go on from.

    Raises:
        SetupError: they cannot, or there are none.
    """
    if resumes and not any(folder.glob("*.ckpt")):
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
        raise SetupError(
            f"checkpoints cannot be written to {folder}: {error.strerror}; name another folder with --checkpoint"
        ) from None
