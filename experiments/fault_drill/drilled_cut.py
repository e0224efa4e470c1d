"""The drill of a cut link: scripts/cluster.sh, each worker on its own host.

The hosts are network namespaces, which need root. The first host has the state server too, and the scheduler and the
parameter server, if any; the last host, whose link is cut, has the slowest worker. The workers' logs are in the
project's logs/, as on every host.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from algorithms import folder_name
from config import RESTART
from experiments.fault_drill.drilled_job import ROOT, WORKERS, Job, name_of
from experiments.fault_drill.drilled_logs import END_S, LONGEST_S, Logs, noticed_s, wait_for
from experiments.fault_drill.faults import ALL, LINK, NAMES, PORT, SERVER, Fault
from scripts.launch import forking
from scripts.launch.roles import base_environment

if TYPE_CHECKING:
    from namespaces import Host, Network

HOST_NAME = "fault-drill"  # in the log tree
NEW = "worker3"  # a worker that comes
HELPERS = ROOT / "tests" / "helpers"
*OTHERS, SLOWEST = NAMES
GONE_S = 60.0  # in which processes on a host end that have lost their launcher


def missing() -> str:
    """The reason why no link can be cut here, or nothing."""
    if not HELPERS.is_dir():  # a container's image has none
        return "tests/helpers/namespaces.py, which makes the hosts, is not here"
    return str(namespaces().missing())


def namespaces() -> ModuleType:
    """The module that makes the hosts."""
    sys.path.append(str(HELPERS))
    import namespaces

    return namespaces


class CutJob(Job):
    """A job with a worker on each host of a network."""

    def __init__(self, network: Network, way: str, mode: str, seconds: float, log_base: Path) -> None:
        self._network = network
        super().__init__(way, mode, seconds, log_base)

    def at_desk(self, command: list[str]) -> list[str]:
        return self._network.desk.command(*command)

    def plan(self, mode: str, log_base: Path) -> tuple[list[str], Logs]:
        log_base.mkdir(parents=True)
        folder = ROOT / "logs" / "lenet" / folder_name(mode, split_by_class=False)
        for old in folder.glob(f"{HOST_NAME}*"):
            shutil.rmtree(old)
        rows = [
            f"{host.name},{HOST_NAME}-{number},1,cpu,{step_s}"
            for number, (host, step_s) in enumerate(zip(self._network.hosts, WORKERS.split(","), strict=False))
        ]
        hosts = log_base / "hosts.csv"
        hosts.write_text("\n".join(["address,name,workers,devices,step_time_s", *rows]) + "\n")
        ssh = ["--ssh", f"ssh -F {self._network.ssh_config}", "--state-server-port", str(PORT)]
        options = ["scripts.launch.cluster", "--hosts", str(hosts), "--log-base", str(log_base), *ssh]
        return options, Logs(folder / HOST_NAME, folder, f"{HOST_NAME}-{{number}}/cpu")

    def more_flags(self, way: str, log_base: Path) -> list[str]:
        """A folder of checkpoints that all hosts see."""
        return ["--checkpoint", str(log_base / "checkpoints")] if way == RESTART else []

    def can_fork(self) -> bool:
        hosts = self._network.hosts[: len(NAMES)]  # a further one has no fork server
        return all(any(name_of(pid) == forking.NAME for pid in host.pids()) for host in hosts)


def _cut(network: Network, fault: Fault) -> None:
    """Cuts a part of the slowest worker's network."""
    first, *_, other, last = network.hosts
    if fault.cuts == ALL:
        last.unplug(fault.cut_port)
    elif fault.cuts == SERVER:
        ports = first.ports_of("DMLC_ROLE=server")  # the scheduler is on that host too
        first.drop_from(last, ports)
        last.drop_from(first, ports)
    else:
        last.drop_from(other)
        if fault.cuts == LINK:
            other.drop_from(last)


def drill(way: str, mode: str, fault: Fault, seconds: float, folder: Path) -> dict[str, Any]:
    """One job in which the slowest worker's link is cut while all train.

    Args:
        fault: a cut; an infinite one lasts until the launcher has ended.
        seconds: of the job, without those of a cut that ends.
        folder: of the launcher's files; it is emptied first.

    Returns:
        A row of the drill, with the numbers of tell(); hosts_lost: hosts whose logs did not come home.
    """
    trains_s = seconds + (0.0 if math.isinf(fault.cut_s) else fault.cut_s)
    row: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, namespaces().network(Path(name) / "hosts", len(NAMES)) as net:
        with CutJob(net, way, mode, trains_s, folder) as job:
            if job.wait_for(job.has_begun, LONGEST_S):
                before, began = job.logs.all_rounds(), time.time()
                _cut(net, fault)
                job.wait_for(lambda: False, min(fault.cut_s, trains_s + END_S))
                back = time.time()
                net.hosts[-1].plug_in()
                for host in net.hosts:
                    host.heal()
                row["exit_code"] = job.end(trains_s + END_S)
                row |= tell(job.logs, before, began, back) | {"noticed_s": noticed_s(job.lines, began)}
            else:
                row["exit_code"] = job.end(0.0)
        wait_for(lambda: not net.commands(), GONE_S)
        left = len(net.commands())
    row["hosts_lost"] = sum("the logs of" in line and "stay there" in line for _, line in job.lines)
    return row | job.logs.left() | {"left_running": left, "said": job.notices()}


def drill_late(way: str, mode: str, seconds: float, folder: Path) -> dict[str, Any]:
    """One job that a worker joins whose host takes no connections.

    Returns:
        A row of the drill. again_s: the longest pause of the others; back_s: seconds until the new worker has done two
        rounds.
    """
    row: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, namespaces().network(Path(name) / "hosts", len(NAMES) + 1) as net:
        with CutJob(net, way, mode, seconds, folder) as job:
            if job.wait_for(job.has_begun, LONGEST_S):
                began, host = time.time(), net.hosts[-1]
                host.close_ports("1-65535")
                come = start_worker(host, net.hosts[0], job.logs.folder / f"{HOST_NAME}-{len(NAMES)}", len(NAMES))
                row["back_s"] = job.train_again([NEW], began)
                row["again_s"] = max(job.logs.pause_s(worker, began) for worker in NAMES)
                row["exit_code"] = job.end(seconds + END_S)
                come.wait(END_S)
        wait_for(lambda: not net.commands(), GONE_S)
        left = len(net.commands())
    return row | job.logs.left() | {"left_running": left, "said": job.notices()}


def start_worker(host: Host, like: Host, folder: Path, num_workers: int, *flags: str) -> subprocess.Popen[bytes]:
    """Starts a worker on a host with the command of that on another one.

    Args:
        folder: of its logs.
        flags: further ones.
    """
    commands = (Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0") for pid in like.pids())
    words = next(words for words in commands if "--device-name" in words and forking.PROGRAM[1] in words)
    words[words.index("-ld") + 1] = str(folder)
    cluster = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": str(num_workers), "DMLC_INTERFACE": host.card}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "newcomer.log").open("ab") as log:
        return subprocess.Popen(
            host.command(*filter(str.strip, words), *flags), cwd=ROOT, stdout=log, stderr=log,
            env=base_environment(os.environ) | cluster,  # with the job's token
        )  # fmt: skip


def tell(logs: Logs, before: Mapping[str, Collection[int]], began: float, back: float) -> dict[str, Any]:
    """The effects of a cut on a job that has ended.

    Args:
        before: the rounds of each worker before the cut.
        began, back: the beginning and the end of the cut.

    Returns:
        again_s: seconds until the others had done two more rounds; rounds_lost; back_s: seconds from the end of the cut
        until the slowest worker had done two; pause_s: the longest pause of the others from the cut on;
        rounds_meanwhile: their rounds during the cut; rounds_missed: rounds without the slowest worker.
    """
    others = sorted(logs.rounds(OTHERS[0]).values())
    again_s = logs.again_s(OTHERS, began)
    first_s = min((at - began for at in others if at > began), default=0.0)  # where all earlier rounds are repeated
    return {
        "again_s": again_s,
        "rounds_lost": None if again_s is None else logs.rounds_lost(before, OTHERS, began),
        "back_s": logs.again_s([SLOWEST], back),
        "pause_s": max(logs.pause_s(OTHERS[0], began), round(first_s, 2)),
        "rounds_meanwhile": sum(began < at < back for at in others),
        "rounds_missed": len(others) - len(logs.rounds(SLOWEST)),
    }
