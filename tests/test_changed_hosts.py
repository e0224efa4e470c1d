"""Hosts that come to a running job or leave it: what the launcher makes of its hosts file, and how a job gives way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_processes import running
from stand_ins import FOREVER, ROUND, role

from scripts import cluster
from scripts.changed_hosts import Changes
from scripts.hosts_layout import Plan
from scripts.process import Kind
from scripts.supervisor import Outcome, Supervisor, Waits
from scripts.survival import Survival
from utils import EXIT_OK, EXIT_PEER_LOST, LEFT, STOPPED

# ------------------------------------------------------------------------------------------------- the hosts file


class Launcher:
    """What a launcher knows, and what it has said."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.lines: list[str] = []
        self._path = folder / "hosts.csv"
        self._arguments = ["--hosts", str(self._path), "-m", "esync", "--log-base", str(folder), "--", *flags]
        self.names("h1", "h2")
        self.changes = Changes(lambda: cluster.parse(self._arguments), self.lines.append)

    def names(self, *hosts: str, workers: str = "1") -> None:
        """Writes the file."""
        self._path.write_text("address,workers\n# ours\n" + "".join(f"{host},{workers}\n" for host in hosts))

    @property
    def plan(self) -> Plan:
        return self.changes.plan


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda *flags: Launcher(tmp_path, *flags)
    signal.signal(signal.SIGUSR1, before)


def test_the_job_goes_on_with_the_hosts_that_the_file_names_now(launcher):
    job = launcher("--ckpt-frequency", "5")
    os.kill(os.getpid(), signal.SIGUSR1)
    assert job.changes.asked
    job.names("h1", "h3", "h4")
    assert job.changes.accept() and not job.changes.asked
    assert [*job.plan.hosts.hosts] == ["h1", "h2"]  # until these have ended
    job.changes.go_on()
    assert [*job.plan.hosts.hosts] == ["h1", "h3", "h4"]
    assert job.plan.job.worker_arguments == ("--ckpt-frequency", "5", "--resume", "1")
    job.names("h1")
    assert job.changes.accept()
    job.changes.go_on()
    assert job.plan.job.worker_arguments.count("--resume") == 1
    assert job.lines[-1] == "the job goes on with 1 worker(s) on h1"


def test_where_the_new_hosts_cannot_begin_it_goes_on_with_those_that_were_still_there(launcher):
    job = launcher("--ckpt-frequency", "5")
    assert not job.changes.go_back("the first ones cannot")
    job.changes.there = lambda: ["h1"]
    job.names("h1", "h2", "h3")
    assert job.changes.accept()
    job.changes.go_on()
    assert job.changes.go_back("h3: no folder")
    assert [*job.plan.hosts.hosts] == ["h1"]
    assert job.plan.job.worker_arguments[-2:] == ("--resume", "1")
    assert job.lines[-1] == "error: h3: no folder: the job goes on with the hosts that it had"
    assert not job.changes.go_back("again")


def test_a_host_that_was_lost_comes_back_with_the_same_file(launcher):
    job = launcher("--ckpt-frequency", "5")
    job.changes.there = lambda: ["h1"]
    assert job.changes.accept()


@pytest.mark.parametrize(
    ("flags", "hosts", "workers", "said"),
    [
        (["--ckpt-frequency", "5"], ("h1", "h2"), "1", "the hosts file says what it said"),
        (["--ckpt-frequency", "5"], (), "1", "has no host"),
        (["--ckpt-frequency", "5"], ("h1",), "one", "line 3, column workers: 'one' is no number"),
        ([], ("h1",), "1", "error: a job without checkpoints (--ckpt-frequency) cannot change its hosts"),
    ],
)
def test_what_changes_nothing_is_said(launcher, flags, hosts, workers, said):
    job = launcher(*flags)
    job.names(*hosts, workers=workers)
    assert not job.changes.accept()
    (line,) = job.lines
    assert said in line and line.endswith(": the job goes on as it was")


# ---------------------------------------------------------------------------------------------- a job that gives way

TRAINS = """
def end(*_):
    time.sleep(0.5)
    {end}
signal.signal(signal.SIGTERM, end)
"""
ENDS = "print('2026-11-23 02:00:00 worker 0 cpu0 | ended after round 2: {why}; logs in x', flush=True); sys.exit(0)"
DIES = "os.kill(os.getpid(), signal.SIGKILL)"


class Asked:
    """Others are to take part, as soon as that can be."""

    asked = True

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self._then = then

    def accept(self) -> bool:
        self.asked = False
        self._then()
        return True


def give_way(
    folder: Path, *ends: str, change: Asked | None = None, survives: bool = False
) -> tuple[Outcome, list[str]]:
    """A job whose workers end so when they are asked to."""
    roles = [
        role(folder, Kind.WORKER, TRAINS.format(end=end) + ROUND + FOREVER, f"worker {rank}")
        for rank, end in enumerate(ends)
    ]
    roles += [role(folder, Kind.WORKER, f"{ROUND}sys.exit(0)", "worker that is done")]
    lines: list[str] = []
    kept = Survival(5, lambda: None, lambda resumes, start: []) if survives else None
    outcome = Supervisor(roles, lines.append, Waits(), survival=kept, change=change or Asked()).run()
    assert running(folder) == []
    return outcome, lines


@pytest.mark.parametrize(
    ("ends", "survives", "code", "changes"),
    [
        ([ENDS.format(why="another worker asked for it"), ENDS.format(why=STOPPED)], False, EXIT_OK, True),
        ([ENDS.format(why=LEFT)], False, EXIT_OK, True),
        ([ENDS.format(why="9 rounds done")], False, EXIT_OK, False),  # just then
        ([ENDS.format(why=STOPPED), DIES], True, EXIT_PEER_LOST, True),
        ([ENDS.format(why=STOPPED), DIES], False, EXIT_PEER_LOST, False),
    ],
)
def test_all_workers_end_with_their_round_and_the_job_goes_on_unless_it_is_over(
    ends, survives, code, changes, tmp_path
):
    outcome, _ = give_way(tmp_path, *ends, survives=survives)
    assert (outcome.exit_code, outcome.changes, outcome.has_trained) == (code, changes, True)


def test_ctrl_c_meanwhile_ends_the_job(tmp_path):
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    outcome, lines = give_way(tmp_path, ENDS.format(why=STOPPED), change=Asked(timer.start))
    assert (outcome.exit_code, outcome.was_stopped, outcome.changes) == (EXIT_OK, True, False)
    assert lines == ["SIGINT: the job does not go on with others"]
