"""Which round a job resumes: pure functions on rounds and on the names of checkpoint files.

Standard library only: the launchers need them too, before they start a job again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from algorithms import TransportKind
from config import HUB, Config

SERVER = "server"  # begins the names of the hub's files


def names_in(folder: Path) -> list[str]:
    """The names of the checkpoints in a folder; none where it is not there, or its disk is gone."""
    try:
        return [path.name for path in folder.iterdir() if path.suffix == ".ckpt"]
    except OSError:
        return []


def written_in(folder: Path) -> dict[str, int]:
    """The names of the checkpoints in a folder, and when each was written, in nanoseconds."""
    found = {}
    for name in names_in(folder):
        with contextlib.suppress(OSError):  # a worker removes its oldest ones
            found[name] = (folder / name).stat().st_mtime_ns
    return found


def worker_name(which: int | str) -> str:
    """Begins the names of a worker's files: by its rank, or by host and device where ranks change."""
    return f"worker-{which}"


def of_device(names: Iterable[str], device: str) -> list[str]:
    """The file names of workers whose rank may change and that have this device, on any host."""
    pattern = re.compile(rf"worker-.+-{re.escape(device)}-\d{{8,}}\.ckpt")
    return [name for name in names if pattern.fullmatch(name)]


def workers_in(names: Iterable[str]) -> list[str]:
    """The names of the workers that have files."""
    pattern = re.compile(rf"({worker_name('.+')})-\d{{8,}}\.ckpt")
    return sorted({match[1] for name in names if (match := pattern.fullmatch(name))})


def ranks_in(names: Iterable[str]) -> list[int]:
    """The ranks of the workers that have files, ascending."""
    pattern = re.compile(worker_name(r"(\d+)") + r"-\d{8,}\.ckpt")
    return sorted({int(match[1]) for name in names if (match := pattern.fullmatch(name))})


def file_name(whose: str, round_: int) -> str:
    """Name of the file of a checkpoint after a round, of SERVER or of a worker's `worker_name`."""
    return f"{whose}-{round_:08d}.ckpt"


def rounds_in(names: Iterable[str], whose: str) -> dict[int, str]:
    """The file names of one process's checkpoints, by round, ascending."""
    pattern = re.compile(re.escape(whose) + r"-(\d{8,})\.ckpt")
    found = ((pattern.fullmatch(name), name) for name in names)
    return dict(sorted((int(match[1]), name) for match, name in found if match))


def has_server_state(config: Config) -> bool:
    """Whether the hub has checkpoints of its own; each belongs to one of rank 0."""
    return config.algorithm.transport is TransportKind.HUB and config.transport == HUB


def beside_server(mine: Collection[int], servers: Collection[int]) -> dict[int, int]:
    """The rounds that rank 0 can resume, and that of the server's checkpoint for each, from the rounds of good
    checkpoints of both: the same round where both have one, else the newest of each."""
    both = {round_: round_ for round_ in sorted(mine) if round_ in servers}
    return both or ({max(mine): max(servers)} if mine and servers else {})


def round_of(good: Sequence[Sequence[int]], rank: int, config: Config) -> int | None:
    """The round that a worker resumes, from the rounds of which there are good checkpoints, by rank; None if there is
    none.

    Workers that wait for each other resume the newest round that all have, if there is one. Else those that sum, which
    all have the same model after a round, resume the newest round of any; each other one its own newest.
    """
    common = set.intersection(*map(set, good)) if config.algorithm.waits else set()
    sums = config.algorithm.transport is TransportKind.SUM
    return max(common or ({*chain(*good)} if sums else good[rank]), default=None)


def unfinished(rounds: Collection[int], max_rounds: int) -> list[int]:
    """The rounds that are not the job's last, ascending; all, if there are no others, or the job has no limit
    (`max_rounds` is 0). A job that is started again after a death at its very end does its last round once more, and
    not one too many."""
    return sorted(round_ for round_ in rounds if not max_rounds or round_ < max_rounds) or sorted(rounds)


def newest(files: Mapping[str, int], before: Mapping[str, int], config: Config, num_workers: int) -> int | None:
    """The round that a job resumes if it is started again, by its files' names; None: it begins anew. `files` tells
    when each file of the checkpoint folder was written, `before` the same of an earlier job. Training begins by setting
    its files aside; as long as one of them is there, this job has no checkpoint."""
    ranks = [rank for rank in ranks_in(files) if rank < num_workers]
    if len(ranks) < num_workers:  # a worker that has none takes that of another one (checkpoint_manager.py)
        ranks = ranks_in(files)
    found = {whose: rounds_in(files, whose) for whose in [SERVER, *map(worker_name, ranks)]}
    if any(before.get(name) == files[name] for rounds in found.values() for name in rounds.values()):
        return None
    good = [list(found[worker_name(rank)]) for rank in ranks]
    good += [[]] * (num_workers - len(ranks))
    if has_server_state(config):
        good[0] = [*beside_server(good[0], found[SERVER])]
    return round_of([unfinished(rounds, config.max_rounds) for rounds in good], 0, config)
