"""Measures the machines of a cluster before a job: a short job of real processes (trainer/hub/probe.py), whose logs
become a cluster file. Only the processes that it starts need MXNet."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from algorithms import ENTRIES
from config import Config
from report.measured import mean_of
from scripts.launch import hosts_file, step_times
from scripts.run_process import Processes
from trainer import command_line
from trainer.hub.probe import NOTE, Found
from trainer.run_logs.rounds import round_files
from trainer.simulation import cluster_file
from trainer.simulation.cluster_file import ClusterProfile, Worker
from utils import EXIT_OK, SetupError, write_atomically

FILE = "cluster.csv"
MODE = "async-local"  # it runs on the hub, and its workers take the steps themselves
MOST_MBIT_S = 20_000.0  # a faster link is none: it is memory
SLOWER = 0.85  # factor on the throughput of all together from which the server's own link limits it
START_TIMEOUT_S = 120


@dataclass(frozen=True)
class Probed:
    """A cluster as it was measured."""

    cluster: ClusterProfile
    names: tuple[str, ...]  # of its workers, HOST DEVICE, in the order of the hosts file
    path: Path  # the cluster file


def probe(
    place: Sequence[str], job: Sequence[str], folder: Path, processes: Processes, without: Collection[str] = ()
) -> Probed | None:
    """Measures a cluster for at most some 20 s beside the start, and writes `FILE` to the folder; None where a signal
    has ended it. Raises SetupError if a host cannot be reached; the message names all of them, and --without.

    Args:
        place: words of scripts/cluster.sh that say where, `--hosts FILE` and perhaps `--ssh COMMAND`; or of
            scripts/local_cluster.sh, `--workers ...` or `--cluster FILE`.
        job: words that say what: `-n NETWORK`, `--job FILE`, `--data-dir FOLDER`; behind `--` flags of main.py in any
            mode, of which those count that change a step.
        folder: of the cluster file.
        processes: run it, stop it at a signal, and have its logs.
        without: names of hosts to leave out.
    """
    cut = job.index("--") if "--" in job else len(job)
    given = command_line.parse(job[cut + 1 :], beside=tuple(ENTRIES))
    own = {"probe": 1, "evaluate": "no", "evaluator": 0, "start_timeout": START_TIMEOUT_S}
    path = place[place.index("--hosts") + 1] if "--hosts" in place else ""
    hosts = hosts_file.read(Path(path)).without(without) if path else None
    left_out = ("--without", ",".join(without)) if without else ()
    command = ["scripts/cluster.sh" if hosts else "scripts/local_cluster.sh", *place, *left_out, "-m", MODE]
    command += ["--data-dir", given.data_dir] if given.data_dir != Config.data_dir else []
    command += ["--page", "1", *job[:cut], "--", *step_times.words_of(given, own)]
    ended = processes.do(command, "", environment={})
    if ended is None:
        return None
    if ended.code != EXIT_OK:
        raise SetupError(ended.failed.removeprefix("error: "))
    found = _read(ended.base)
    if hosts:
        places = [(worker.host, worker.folder) for worker in hosts.workers]
    else:
        places = sorted(found, key=lambda place: int(place[1].removeprefix("cpu")))
    if missing := [" ".join(each) for each in places if each not in found]:
        raise SetupError(f"{', '.join(missing)}: not measured; see the logs in {ended.base}")
    at_hub = hosts.places["server"][0] if hosts else ""
    cluster = derived([found[each] for each in places], [host != at_hub for host, _ in places])
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(written := folder / FILE, cluster_file.text(cluster).encode())
    return Probed(cluster, tuple(map(" ".join, places)), written)


def _read(folder: Path) -> dict[tuple[str, str], Found]:
    """What workers have logged, by host and device."""
    found = {}
    for place in filter(Path.is_dir, folder.glob(f"*/{MODE}/*/*")):
        rounds = [line for path in round_files(place) for line in path.read_text().splitlines()]
        last = json.loads(rounds[-1]) if rounds else {}
        if NOTE in last:
            found[place.parent.name, place.name] = Found(**last[NOTE])
    return found


# ------------------------------------------------------------------------------------------------------------ pure


def derived(found: Sequence[Found], is_far: Sequence[bool]) -> ClusterProfile:
    """The cluster in which steps and transfers take what was measured. `is_far`: the worker reaches the hub over the
    network; only such transfers share the server's link, if there are any."""
    far = [each for each, counts in zip(found, is_far, strict=True) if counts] or found
    alone = sum(2 * _mbit(each) / (each.push_s + each.pull_s) for each in far)
    together = sum(2 * _mbit(each) / (each.push_together_s + each.pull_together_s) for each in far)
    is_limit = together < SLOWER * alone and together < MOST_MBIT_S
    return ClusterProfile(tuple(map(_worker, found)), together if is_limit else math.inf)


def _worker(found: Found) -> Worker:
    spread = statistics.pstdev(map(math.log, found.steps_s))
    sending_s = found.push_s + found.pull_s - 2 * found.round_trip_s
    mbit_s = 2 * _mbit(found) / sending_s if sending_s > 0 else math.inf
    return Worker(
        # The median of lognormal times with the measured mean, which also counts what a processor's quota takes.
        step_time_s=statistics.fmean(found.steps_s) / mean_of(1.0, spread),
        step_spread=spread,
        bandwidth_mbit_s=mbit_s if mbit_s < MOST_MBIT_S else math.inf,
        latency_s=found.rest_s / 2,  # a round has two transfers
        state_server_round_trip_s=found.state_server_s,
    )


def _mbit(found: Found) -> float:
    return found.sent_bytes * 8 / 1e6
