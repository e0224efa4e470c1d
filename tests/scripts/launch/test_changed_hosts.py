"""Changes of a running job's hosts: how the launcher reads its hosts file again, and how the workers end for it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_processes import running, wait_for
from stand_ins import FOREVER, ROUND, role, tells

from scripts.launch import changed_hosts, cluster, connection_pool
from scripts.launch.changed_hosts import HostChanges
from scripts.launch.connection_pool import ConnectionPool
from scripts.launch.hosts_layout import LaunchPlan
from scripts.launch.process import Kind
from scripts.launch.restart_policy import RestartPolicy
from scripts.launch.supervisor import JobOutcome, Supervisor, Timeouts
from utils import EXIT_OK, EXIT_PEER_LOST, LEFT, STOPPED

# ------------------------------------------------------------------------------------------------- the hosts file


class Launcher:
    """A launcher's changes of hosts, and the lines it has printed."""

    def __init__(self, folder: Path, *flags: str, ssh: str = "ssh") -> None:
        self.lines: list[str] = []
        self._path = folder / "hosts.csv"
        own = ["--hosts", str(self._path), "--ssh", ssh, "-m", "esync", "--log-base", str(folder)]
        self._arguments = [*own, "--", *flags]
        self.names("h1", "h2")
        self.changes = HostChanges(self.parse, self.lines.append, self.parse())

    def parse(self) -> LaunchPlan:
        return cluster.parse(self._arguments)

    def names(self, *hosts: str, workers: str = "1") -> None:
        """Writes the file."""
        self.says("address,workers\n# ours\n" + "".join(f"{host},{workers}\n" for host in hosts))

    def says(self, text: str) -> None:
        """Writes the file as it is."""
        self._path.write_text(text)

    def asks(self) -> bool:
        """Sends SIGUSR1; returns whether the workers end with their round."""
        os.kill(os.getpid(), signal.SIGUSR1)
        return self.changes.look(all_train)

    @property
    def plan(self) -> LaunchPlan:
        return self.changes.plan


def all_train() -> bool:
    return True


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda *flags, **options: Launcher(tmp_path, *flags, **options)
    signal.signal(signal.SIGUSR1, before)


def test_the_job_goes_on_with_the_hosts_that_the_file_names_now(launcher):
    job = launcher("--ckpt-frequency", "5")
    job.names("h1", "h3", "h4")
    assert not job.changes.look(all_train)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert not job.changes.look(lambda: False)
    assert job.changes.look(all_train) and not job.changes.look(all_train)
    assert [*job.plan.hosts.hosts] == ["h1", "h2"]  # until these have ended
    job.changes.go_on()
    assert [*job.plan.hosts.hosts] == ["h1", "h3", "h4"]
    assert job.plan.job.worker_arguments == ("--ckpt-frequency", "5", "--resume", "1")
    job.names("h1")
    assert job.asks()
    job.changes.go_on()
    assert job.plan.job.worker_arguments.count("--resume") == 1
    assert job.lines[-1] == "the job continues with 1 worker(s) on h1"


def test_where_the_new_hosts_cannot_begin_it_goes_on_with_those_that_were_still_there(launcher):
    job = launcher("--ckpt-frequency", "5")
    assert not job.changes.go_back("the first ones cannot")
    job.changes.there = lambda: ["h1"]
    job.names("h1", "h2", "h3")
    assert job.asks()
    job.changes.go_on()
    assert job.changes.go_back("h3: no folder")
    assert [*job.plan.hosts.hosts] == ["h1"]
    assert job.plan.job.worker_arguments[-2:] == ("--resume", "1")
    assert job.lines[-1] == "error: h3: no folder: the job continues with the hosts that it had"
    assert not job.changes.go_back("again")


def test_a_host_that_was_lost_comes_back_with_the_same_file(launcher):
    job = launcher("--ckpt-frequency", "5")
    job.changes.there = lambda: ["h1"]
    assert not job.changes.look(all_train)
    assert job.asks()


def test_a_host_that_was_lost_comes_back_by_itself_where_all_are_started_again(launcher, monkeypatch):
    monkeypatch.setattr(changed_hosts, "RETRY_S", 0.0)
    job = launcher("--ckpt-frequency", "5", "--on-worker-death", "restart")
    assert not job.changes.look(all_train)
    job.changes.there = lambda: ["h1"]
    assert job.changes.look(all_train)
    job.changes.go_on()
    assert [*job.plan.hosts.hosts] == ["h1", "h2"]

    job.names("h1", "h2", "h3")
    assert job.asks()
    job.changes.go_on()
    back = [["h1"]]
    for _ in range(2):  # one at a time: none keeps another one out
        job.changes.there = lambda: back[-1]
        assert job.changes.look(all_train)
        job.changes.go_on()
        back.append([*job.plan.hosts.hosts])
    assert list(map(len, back)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("flags", "hosts", "workers", "said"),
    [
        (["--ckpt-frequency", "5"], ("h1", "h2"), "1", "the hosts file has not changed"),
        (["--ckpt-frequency", "5"], (), "1", "has no host"),
        (["--ckpt-frequency", "5"], ("h1",), "one", "line 3, column workers: 'one' is no number"),
        ([], ("h1",), "1", "error: a job without checkpoints (--ckpt-frequency) cannot change its hosts"),
    ],
)
def test_what_changes_nothing_is_said(launcher, flags, hosts, workers, said):
    job = launcher(*flags)
    job.names(*hosts, workers=workers)
    assert not job.asks()
    (line,) = job.lines
    assert said in line and line.endswith(": the job continues unchanged")


# ------------------------------------------------------------------------------------------ hosts that get ready


HELLO = """echo '{"is": "hello"}'"""
WARM = '{"is": "warm"}'


def answering(*answers: str) -> str:
    """A shell program that gives these answers to requests to get ready, in turn, and then none."""
    each = "".join(f"""read -r asked; echo '{answer}'; """ for answer in answers)
    return f"{HELLO}; {each}cat > /dev/null"


@pytest.fixture
def connected(launcher, tmp_path) -> Iterator[Callable[..., Launcher]]:
    """A launcher whose ssh runs a given program for each host."""
    programs = {name: tmp_path / f"ssh-{name}" for name in ("h1", "h2", "h3")}
    chosen = f'case "$word" in h?) exec sh {tmp_path}/ssh-$word;; esac'
    (tmp_path / "ssh").write_text(f"#!/bin/sh\nfor word; do {chosen}; done\n")
    (tmp_path / "ssh").chmod(0o755)
    with contextlib.ExitStack() as stack:

        def make(h3: str = answering(WARM), others: str = answering(WARM, WARM)) -> Launcher:
            for name, program in programs.items():
                program.write_text(h3 if name == "h3" else others)
            job = launcher("--ckpt-frequency", "5", ssh=str(tmp_path / "ssh"))
            job.plan.job.log_folder.mkdir(parents=True)
            job.changes.pool = stack.enter_context(ConnectionPool(job.plan))
            return job

        yield make
    assert running(tmp_path) == []


def wait_until_ready(job: Launcher) -> bool:
    """Whether the workers end with their round; else the job continues unchanged."""
    accepted = job.asks()
    wait_for(lambda: accepted or job.changes.look(all_train) or "unchanged" in job.lines[-1], "an end of waiting")
    return "unchanged" not in job.lines[-1]


def test_workers_train_on_until_the_hosts_that_come_are_ready_and_who_stays_keeps_its_connection(connected, tmp_path):
    job = connected(h3=f"while [ ! -e {tmp_path}/imported ]; do sleep 0.02; done; {answering(WARM)}")
    before = job.changes.pool.to(job.plan.hosts.hosts)
    job.names("h2", "h3")
    assert not job.asks()
    time.sleep(0.3)
    assert not job.changes.look(all_train)
    assert job.lines == ["SIGUSR1: the hosts file has changed; its hosts get ready while the job continues"]
    (tmp_path / "imported").touch()
    wait_for(lambda: job.changes.look(all_train), "the end of the import")
    job.changes.go_on()
    after = job.changes.pool.to(job.plan.hosts.hosts)
    assert after["h2"] is before["h2"] and [*after] == ["h2", "h3"]
    wait_for(lambda: before["h1"].exit_code is not None, "the end of the connection to h1")
    assert [link.hello()["is"] for link in after.values()] == ["hello", "hello"]


@pytest.mark.parametrize(
    ("h3", "why"),
    [
        ("echo error: no folder /x here >&2; exit 2", "h3: no folder /x here"),
        (answering('{"is": "cold", "text": "no memory"}'), "h3: no memory"),
    ],
)
def test_a_host_that_does_not_get_ready_costs_no_round(connected, h3, why):
    job = connected(h3)
    job.changes.pool.to(job.plan.hosts.hosts)
    job.names("h1", "h3")
    assert not wait_until_ready(job)
    assert why in job.lines[-1]
    job.names("h1")
    assert wait_until_ready(job)


def test_each_change_waits_for_the_hosts_that_stay_as_well(connected, monkeypatch):
    job = connected(others=answering(WARM))
    job.changes.pool.to(job.plan.hosts.hosts)
    job.names("h1", "h3")
    assert wait_until_ready(job)
    job.changes.go_on()
    job.changes.pool.to(job.plan.hosts.hosts)
    monkeypatch.setattr(connection_pool, "READY_S", 0.5)
    job.names("h1")
    assert not wait_until_ready(job)
    assert "h1 did not get ready" in job.lines[-1]


def test_what_hosts_say_of_getting_ready_is_no_answer_to_anything_else(connected):
    cold = """'{"is": "cold", "text": "no memory"}'"""
    job = connected(others=f"{HELLO}; read -r asked; sleep 0.5; echo {cold}; cat > /dev/null")
    links = job.changes.pool.to(job.plan.hosts.hosts)
    assert [link.hello()["is"] for link in links.values()] == ["hello", "hello"]
    job.names("h1", "h2", "h3")
    assert not wait_until_ready(job)
    time.sleep(0.5)  # the answer of the second one arrives late
    assert [link.answer() for link in links.values()] == [None, None]


def test_a_row_of_a_running_host_that_says_something_else_is_another_connection_with_its_own_log(connected, tmp_path):
    job = connected()
    before = job.changes.pool.to(job.plan.hosts.hosts)
    job.says(f"address,folder\nh1,\nh2,{tmp_path}\n")
    assert wait_until_ready(job)
    job.changes.go_on()
    after = job.changes.pool.to(job.plan.hosts.hosts)
    assert after["h1"] is before["h1"] and after["h2"] is not before["h2"]
    assert after["h2"].role.log != before["h2"].role.log
    wait_for(lambda: before["h2"].exit_code is not None, "the end of the first connection")
    job.changes.pool.to(job.plan.hosts.hosts)
    assert sorted(path.name for path in job.plan.job.log_folder.iterdir()) == ["h1-ssh.log", "h2-ssh-2.log"]


def test_a_host_that_cannot_be_connected_changes_nothing(connected):
    job = connected()
    (job.plan.job.log_folder / "h3-ssh.log").mkdir()
    job.names("h1", "h3")
    assert not wait_until_ready(job)
    assert "line 4: h3 cannot be connected" in job.lines[-1]


def test_a_host_of_the_same_name_elsewhere_is_another_one(connected):
    job = connected("echo error: gone >&2; exit 2")
    before = job.changes.pool.to(job.plan.hosts.hosts)
    job.names("h1", "h3")
    assert not wait_until_ready(job)
    job.says("address,name\nh1,\nh2,h3\n")
    assert wait_until_ready(job)
    job.changes.go_on()
    after = job.changes.pool.to(job.plan.hosts.hosts)
    assert after["h1"] is before["h1"]
    assert after["h3"] is not before["h2"] and after["h3"].host.address == "h2"


def test_a_host_that_is_silent_is_given_up(connected, monkeypatch):
    monkeypatch.setattr(connection_pool, "READY_S", 0.5)
    job = connected(answering())
    job.names("h1", "h3")
    assert not wait_until_ready(job)
    assert "h3 did not get ready within 0.5 s" in job.lines[-1]


# ---------------------------------------------------------------------------------------------- a job that gives way

TRAINS = """
def end(*_):
    time.sleep(0.5)
    {end}
signal.signal(signal.SIGTERM, end)
"""
IGNORES = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # it is about to end anyway
DIES = "os.kill(os.getpid(), signal.SIGKILL)"


def ends(why: str) -> str:
    return f"{tells(ended=why)}; sys.exit(0)"


class Asked:
    """Wants to change the hosts as soon as all workers train."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self._is_asked = True
        self._then = then

    def look(self, all_train: Callable[[], bool]) -> bool:
        if not (self._is_asked and all_train()):
            return False
        self._is_asked = False
        self._then()
        return True


def give_way(
    folder: Path, *ends: str, change: Asked | None = None, survives: bool = False
) -> tuple[JobOutcome, list[str]]:
    """A job whose workers run these programs at SIGTERM."""
    roles = [
        role(folder, Kind.WORKER, TRAINS.format(end=end) + ROUND + FOREVER, f"worker {rank}")
        for rank, end in enumerate(ends)
    ]
    roles += [role(folder, Kind.WORKER, f"{IGNORES}{ROUND}sys.exit(0)", "worker that is done")]
    lines: list[str] = []
    policy = RestartPolicy(5, lambda: None, lambda resumes, start: []) if survives else None
    outcome = Supervisor(roles, lines.append, Timeouts(), policy=policy, wants_change=(change or Asked()).look).run()
    assert running(folder) == []
    return outcome, lines


@pytest.mark.parametrize(
    ("ends", "survives", "code", "changes"),
    [
        ([ends("another worker asked for it"), ends(STOPPED)], False, EXIT_OK, True),
        ([ends(LEFT)], False, EXIT_OK, True),
        ([ends("9 rounds done")], False, EXIT_OK, False),  # just then
        ([ends(STOPPED), DIES], True, EXIT_PEER_LOST, True),
        ([ends(STOPPED), DIES], False, EXIT_PEER_LOST, False),
    ],
)
def test_all_workers_end_with_their_round_and_the_job_goes_on_unless_it_is_over(
    ends, survives, code, changes, tmp_path
):
    outcome, _ = give_way(tmp_path, *ends, survives=survives)
    assert (outcome.exit_code, outcome.changes, outcome.has_trained) == (code, changes, True)


def test_ctrl_c_meanwhile_ends_the_job(tmp_path):
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    outcome, lines = give_way(tmp_path, ends(STOPPED), change=Asked(timer.start))
    assert (outcome.exit_code, outcome.was_stopped, outcome.changes) == (EXIT_OK, True, False)
    assert lines == ["SIGINT: the job does not continue on other hosts"]
