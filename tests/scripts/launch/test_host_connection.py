"""The agent on a host, and the launcher's connection to it. A shell stands for ssh; the rest is real."""

from __future__ import annotations

import base64
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_processes import DEADLINE_S, running, wait_for
from stand_ins import FOREVER, IDLE, ROUND, role as stand_in
from supervised import supervise

from scripts.launch import cluster, host_connection
from scripts.launch.host_connection import HostConnection, ssh_command
from scripts.launch.host_logs import fetch_logs
from scripts.launch.hosts_file import Host
from scripts.launch.hosts_layout import free_ports
from scripts.launch.process import Kind, Process, Role
from scripts.launch.remote import PART_BYTES
from scripts.launch.restart_policy import RestartPolicy
from scripts.launch.restarts import Survival
from scripts.launch.roles import ROOT
from scripts.launch.supervisor import JobOutcome
from utils import SetupError

FETCHED = """echo '{"is": "fetched"}'"""
SSH = '#!/bin/bash\nexec sh -c "${@: -1}"\n'  # runs the command here


def packed(name: str, content: bytes) -> bytes:
    """A tar archive with one file, as it comes over the connection."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


ARCHIVE = packed("state.npz", random.Random(0).randbytes(10_000).hex().encode())


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., HostConnection]]:
    links: list[HostConnection] = []

    def start(ssh: str = SSH, folder: Path = ROOT) -> HostConnection:
        program = tmp_path / "ssh"
        program.write_text(ssh)
        program.chmod(0o755)
        host = Host("h1", "h1.example", "me", "22", "", "", "hosts file x.csv, line 2")
        links.append(HostConnection(host, ssh_command([str(program)], host, str(folder)), tmp_path / "ssh.log"))
        return links[-1]

    yield start
    for link in links:
        link.hang_up()
        link.reap()


def role(folder: Path, program: str, kind: Kind = Kind.WORKER, name: str = "h1 cpu") -> Role:
    return stand_in(folder, kind, program, name, host="h1")


@pytest.fixture
def link(connect: Callable[..., HostConnection]) -> HostConnection:
    """A connection to an agent that has answered."""
    made = connect()
    next(made.answers())
    return made


def supervised(link: HostConnection, *roles: Role, **more: Any) -> tuple[JobOutcome, list[str]]:
    """Runs roles, of which those of the host run there."""
    there = roles[0].folder / "there"
    there.mkdir(exist_ok=True)
    start = lambda role: link.start(role, there) if role.host else Process(role)  # noqa: E731
    return supervise(*roles, start=start, links=[link], **{"settle_s": 1.0, **more})


def test_lines_come_with_the_host_and_the_rank_that_the_process_reports(link, tmp_path):
    says = (
        f"sys.path.insert(0, {str(ROOT)!r}); import logging, utils\n"
        "utils.setup_logging('worker'); logging.info('waiting'); time.sleep(0.3)\n"
        "utils.tell_launcher({'rank': RANK}); utils.setup_logging('worker RANK cpu'); logging.info('round 1')\n"
    )
    first, second = (role(tmp_path, says.replace("RANK", rank), name=f"h{rank} cpu") for rank in "01")
    outcome, lines = supervised(link, first, second)
    assert outcome == JobOutcome(0, was_stopped=False)
    waiting, only = sorted(re.sub(r"^[\d :-]*", "", line) for line in lines)[::-1]
    assert waiting in ("h0 cpu | waiting", "h1 cpu | waiting")  # said once
    assert only == "h0 cpu rank 0 | round 1"
    assert (tmp_path / "h1 cpu.log").read_text().endswith("worker 1 cpu | round 1\n")


def test_a_role_that_cannot_be_started_there_ends_the_job(link, tmp_path):
    missing = Role("h1 cpu", Kind.WORKER, [str(tmp_path / "no")], {}, tmp_path, tmp_path / "h1.log", host="h1")
    outcome, lines = supervised(link, missing)
    assert outcome.exit_code == 2
    assert "h1 cpu ended with exit code 2" in lines[-1] and "error: it cannot be started" in lines[-2]


def test_a_signal_reaches_the_processes_and_a_process_that_is_killed_ends_the_job(link, tmp_path):
    program = f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nos.kill({os.getpid()}, signal.SIGTERM)" + IDLE
    assert supervised(link, role(tmp_path, program))[0] == JobOutcome(0, was_stopped=True)
    server = role(tmp_path, IDLE, Kind.SERVER, "h1 server")
    killed = role(tmp_path, "os.kill(os.getpid(), 9)", name="h1 gpu0")
    outcome, lines = supervised(link, server, killed)
    assert outcome.exit_code == 3
    assert "error: h1 gpu0 was killed by signal 9" in lines[-1]
    wait_for(lambda: not running(tmp_path), "the end of every process")


def test_a_process_takes_the_place_of_one_that_was_killed_and_its_logs_go_on(link, tmp_path):
    program = (
        "print('up', flush=True)\nif not (here / 'again').exists(): (here / 'again').touch(); os.kill(os.getpid(), 9)"
    )
    roles = [role(tmp_path, program), role(tmp_path, IDLE, Kind.SERVER, "h1 server")]
    policy = RestartPolicy(Survival.RESTART, 1, build=lambda flags: roles)
    outcome, lines = supervised(link, *roles, policy=policy, settle_s=0.1)
    assert outcome.exit_code == 0
    assert "h1 cpu was killed by signal 9: there is no checkpoint yet" in " ".join(lines)
    for folder in (tmp_path, tmp_path / "there"):
        assert re.fullmatch(r"up\n=== started again: .*\nup\n", (folder / "h1 cpu.log").read_text())
    assert link.unconfirmed() == []


def test_the_others_are_started_again_without_a_host_that_does_not_confirm_an_end(link, tmp_path, monkeypatch):
    monkeypatch.setattr(host_connection, "KILL_S", 0.2)
    once = "if not (here / 'again').exists(): (here / 'again').touch(); os.kill(os.getpid(), 9)"
    waits = "while not (here / 'h1-cpu.pid').exists(): time.sleep(0.01)\n"
    here = stand_in(tmp_path, Kind.WORKER, f"{ROUND}{waits}time.sleep(0.3)\n{once}", "worker 0")
    policy = RestartPolicy(Survival.RESTART, newest=lambda left_out: 5, build=lambda flags: [here])
    freeze = lambda line: line.startswith("worker 0 was killed") and link.send(signal.SIGSTOP)  # noqa: E731
    outcome, lines = supervised(link, here, role(tmp_path, ROUND + FOREVER), policy=policy, hears=freeze)
    assert outcome.exit_code == 0, lines
    assert "warning: h1 does not confirm that its processes have ended; given up" in lines
    how = "the connection to h1 was killed by signal 9"
    assert lines[-1].startswith(f"{how}: what came after round 5 is lost: all others are started again")
    wait_for(lambda: not running(tmp_path), "the end of every process")


def test_a_host_says_which_checkpoints_it_has(link, tmp_path):
    (tmp_path / "worker-0-00000004.ckpt").touch()
    found = link.ask(do="checkpoints", folder=str(tmp_path))["files"]
    assert found == {"worker-0-00000004.ckpt": (tmp_path / "worker-0-00000004.ckpt").stat().st_mtime_ns}
    assert link.ask(do="checkpoints", folder=str(tmp_path / "nowhere"))["files"] == {}


@pytest.mark.parametrize("cut", ["hang up", "kill ssh", "kill the agent"])
def test_no_process_outlives_the_connection(link, tmp_path, cut):
    link.start(role(tmp_path, f"print('up', flush=True){IDLE}"), tmp_path)
    wait_for(lambda: link.pump() and running(tmp_path), "a process")
    if cut == "hang up":
        link.hang_up()
    else:  # the stand-in became the agent by exec
        link.send(signal.SIGTERM if cut == "kill ssh" else signal.SIGKILL)
    wait_for(lambda: not running(tmp_path), "the end of every process")


def test_a_host_that_is_silent_or_does_not_reach_the_job_is_lost(connect, link, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cluster, "SILENT_S", 0.5)
    (tmp_path / "worker-0-00000005.ckpt").write_bytes(b"")
    links = {"h1": link}
    links["h2"] = connect("#!/bin/sh\nexec sleep 60\n")
    (free,) = free_ports(1)  # a refusal is an answer
    found = cluster.checkpoints(links, [("h1", tmp_path), ("h2", tmp_path)], ("127.0.0.1", free))
    assert [*found] == ["worker-0-00000005.ckpt"]
    wait_for(lambda: links["h2"].exit_code is not None, "the end of that connection")
    assert links["h1"].exit_code is None and cluster.checkpoints(links, [("h2", tmp_path)]) == {}
    assert "h2 is lost" not in (said := capsys.readouterr().out) and "does not answer: h1 is lost" in said
    with pytest.raises(SetupError, match=r"there is no way from here to the job's 255\.255\.255\.255"):
        cluster.checkpoints(links, [("h1", tmp_path)], ("255.255.255.255", 9))
    assert links["h1"].exit_code is None  # no other host has answered


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(link, tmp_path):
    for _ in range(2):
        with pytest.raises(SetupError, match="does not answer"):
            cluster.checkpoints({"h1": link}, [("h1", tmp_path)], gives_up=False, longest_s=0.0)
    assert len(link.ask(do="ports", count=3)["ports"]) == 3


def test_a_connection_that_ends_fails_the_job_with_what_ssh_said(link, tmp_path):
    (tmp_path / "ssh.log").write_text("Timeout, server h1 not responding.\n")
    outcome, lines = supervised(link, role(tmp_path, f"os.kill(os.getppid(), 9){IDLE}"))
    assert outcome.exit_code == 3
    assert "error: the connection to h1 was killed by signal 9" in lines[-1]
    assert lines[-1].endswith("says: Timeout, server h1 not responding.")
    assert link.unconfirmed() == ["h1 cpu"]


def test_a_silent_launcher_is_given_up(tmp_path):
    program = "import scripts.launch.remote as r; r.SILENCE_S = 1; r.main()"
    agent = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert agent.wait(DEADLINE_S) == 0


def test_logs_take_longer_over_a_slow_connection_than_a_silent_launcher_is_waited_for(tmp_path):
    silence_s, parts = 1, 12
    program = f"import scripts.launch.remote as r; r.SILENCE_S = {silence_s}; r.main()"
    there = tmp_path / "h1"
    agent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert agent.stdin and agent.stdout
    with agent, agent.stdin, agent.stdout:
        asked = ({"do": "begin", "folder": str(there), "devices": [], "files": {}}, {"do": "fetch"})
        agent.stdin.write(json.dumps(asked[0]).encode() + b"\n")
        agent.stdin.flush()
        assert [json.loads(agent.stdout.readline())["is"] for _ in range(2)] == ["hello", "begun"]
        (there / "model.npz").write_bytes(os.urandom(parts * PART_BYTES))
        agent.stdin.write(json.dumps(asked[1]).encode() + b"\n")
        agent.stdin.flush()
        began = time.monotonic()
        kinds = []
        for line in agent.stdout:
            kinds.append(json.loads(line)["is"])
            if kinds[-1] != "part":
                break
            time.sleep(0.1)  # the slow connection
        assert time.monotonic() > began + silence_s
        assert kinds[-1] == "fetched"
        agent.stdin.close()
        assert agent.wait(DEADLINE_S) == 0


def test_only_the_logs_of_this_job_come_home(connect, tmp_path):
    there, home = tmp_path / "there" / "h1", tmp_path / "home" / "h1"
    for device in ("cpu0", "cpu1", "gpu7"):
        (there / device).mkdir(parents=True)
        (there / device / "run.json").write_text("old")
        (there / device / "iter-1.txt").write_text("old")
    (there / "checkpoint.npz").write_text("old")
    (home / "cpu0").mkdir(parents=True)
    (home / "cpu0" / "iter-9.txt").write_text("of an earlier job")
    (home / "cpu0" / "notes.txt").write_text("a file of another program")
    link = connect()
    next(link.answers())
    latin = b'# coding: latin-1\nx = "\xe4"'
    files = {".trace.csv": "x", ".job/layers/mine.py": latin.decode(errors="surrogateescape")}
    link.ask(do="begin", folder=str(there), devices=["cpu0", "cpu1"], files=files)
    earlier = tmp_path / "home" / "earlier" / "2026-11-25-120000"
    fetch_logs(link, tmp_path / "home" / "h2", earlier)
    assert not (tmp_path / "home" / "h2").exists()  # nothing was written yet
    assert (there / ".trace.csv").read_text() == "x"
    (there / "cpu0" / "run.new").write_text("new")
    (there / "cpu0" / "run.new").replace(there / "cpu0" / "run.json")  # as workers write it
    (there / "cpu0" / "model").mkdir()
    (there / "cpu0" / "model" / "big").write_bytes(os.urandom(300_000))
    (there / "state.npz").write_text("new")
    (there / "page.html").write_text("of the state server")
    (there / "worker.log").write_text("the launcher has its lines")
    fetch_logs(link, home, earlier)
    found = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    assert found == {"cpu0/run.json", "cpu0/iter-1.txt", "cpu0/model/big", "cpu0/notes.txt", "state.npz"}
    assert (earlier / "h1" / "cpu0" / "iter-9.txt").read_text() == "of an earlier job"
    assert (home / "cpu0" / "model" / "big").read_bytes() == (there / "cpu0" / "model" / "big").read_bytes()
    assert sorted(path.name for path in home.parent.iterdir()) == ["earlier", "h1", "page.html"]  # one for all hosts
    assert (there / ".job" / "layers" / "mine.py").read_bytes() == latin
    link.ask(do="begin", folder=str(there), devices=["cpu0"], files={})
    assert not (there / ".job").exists()


@pytest.mark.parametrize(
    ("archive", "end", "complaint"),
    [
        (ARCHIVE, "exit 255", "no reason was given"),
        (ARCHIVE, """echo '{"is": "error", "text": "disk broken"}'""", "disk broken"),
        (b"no archive", FETCHED, "the archive of logs cannot be read"),
        (ARCHIVE[:20], FETCHED, "the archive of logs cannot be read"),
        (ARCHIVE[:-4000], FETCHED, "the archive of logs cannot be read"),
        (ARCHIVE[:4000] + b"damaged" * 100 + ARCHIVE[4700:], FETCHED, "the archive of logs cannot be read"),
    ],
    ids=["cut", "refused", "none", "only its begin", "without its end", "damaged"],
)
def test_logs_that_do_not_come_leave_nothing_half_here(connect, tmp_path, archive, end, complaint):
    home = tmp_path / "logs" / "h1"
    (home / "cpu").mkdir(parents=True)
    (home / "cpu" / "iter-1.txt").write_text("of an earlier job")
    part = json.dumps({"is": "part", "data": base64.b64encode(archive).decode()})
    link = connect(f"#!/bin/sh\nread fetch; echo '{part}'; {end}; exec cat > /dev/null\n")
    with pytest.raises(SetupError, match=complaint):
        fetch_logs(link, home, tmp_path / "logs" / "earlier" / "x")
    assert [path.name for path in home.parent.iterdir()] == ["h1"]
    assert (home / "cpu" / "iter-1.txt").read_text() == "of an earlier job"


@pytest.mark.parametrize(
    ("ssh", "complaint"),
    [
        ("echo 'me@h1: Permission denied (publickey).' >&2; exit 255", "ssh-copy-id me@h1.example puts one there"),
        ("echo 'Host key verification failed.' >&2; exit 255", "connect once by hand: ssh me@h1.example"),
        ("echo 'ssh: connect to host h1 port 22: Connection refused' >&2; exit 255", "Connection refused"),
        ("exit 1", "ended with exit code 1: no reason was given"),
    ],
)
def test_why_a_host_cannot_be_reached_is_one_line(connect, ssh, complaint):
    with pytest.raises(SetupError, match=r"^hosts file x\.csv, line 2: h1: ") as error:
        next(connect(f"#!/bin/sh\n{ssh}\n").answers())
    assert complaint in str(error.value)


def test_a_project_that_is_not_there_or_not_ready_is_one_line(connect, tmp_path):
    def complaint(folder: Path) -> str:
        with pytest.raises(SetupError) as error:
            next(connect(folder=folder).answers())
        return str(error.value).removeprefix("hosts file x.csv, line 2: h1: ")

    folder = tmp_path / "a project's folder"
    assert complaint(folder) == f"no folder {folder} here: put the project there"
    folder.mkdir()
    assert "has no scripts/remote.sh: put this version of the project there" in complaint(folder)
    (folder / "scripts").mkdir()
    for name in ("common.sh", "remote.sh"):
        (folder / "scripts" / name).write_bytes((ROOT / "scripts" / name).read_bytes())
        (folder / "scripts" / name).chmod(0o755)
    ready = f"{folder} has no .venv yet: run scripts/setup.sh there"
    done = subprocess.run(
        [folder / "scripts" / "remote.sh"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, f"error: {ready}\n")


def test_what_a_login_script_prints_does_no_harm(connect):
    assert next(connect(SSH.replace("exec", "echo Welcome; echo '{}'; exec")).answers())["root"] == str(ROOT)


def test_a_host_without_a_way_to_the_job_says_so(link):
    with pytest.raises(SetupError, match=r"network interface 'no0' has no address here; name one .*: lo"):
        link.ask(do="network", address="h1", interface="no0", toward="")
    with pytest.raises(SetupError, match="update it to the launcher's version"):
        link.ask(do="dance")
    assert link.ask(do="network", address="localhost", interface="", toward="")["interface"] == "lo"
    assert link.ask(do="network", address="x", interface="", toward="127.0.0.1")["address"] == "127.0.0.1"
