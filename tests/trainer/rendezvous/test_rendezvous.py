"""The rendezvous before MXNet connects a job's processes: all name what differs or cannot be reached."""

import ast
import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import re
import runpy
import select
import shutil
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
from cluster_processes import cluster, free_ports, wait_for

from server.log_limit import AT_ONCE, LogLimit
from server.messages import Call, Join
from server.rendezvous import membership
from server.rendezvous.membership import Group, decide
from server.row import Device
from server.setups import DATA, JOB, PROGRAM, differences, verdict
from trainer import command_line, version, worker as worker_module
from trainer.collectives.connecting import Acceptor, unanswered
from trainer.hub import connections, server_link, wire as wire_module
from trainer.hub.frames import LENGTH, length_in, read
from trainer.hub.wire import HELLO, Wire, tell_failure
from trainer.rendezvous import addresses, joining, rendezvous_client, rendezvous_server
from trainer.rendezvous.cluster import ClusterSpec
from trainer.rendezvous.rendezvous_server import RendezvousServer
from utils import EXIT_PEER_LOST, EXIT_SETUP, PeerLost, SetupError

DEADLINE_S = 30.0
GREETING = b"\xff" + bytes(7) + b"\x01\x7f"  # how a plain MXNet program begins


@pytest.fixture(autouse=True)
def short_farewells(monkeypatch):
    """No member here ends when it is told to."""
    monkeypatch.setattr(connections, "FAREWELL_S", 0.1)


@pytest.fixture(autouse=True)
def a_log_of_its_own():
    """The log is bounded over all tests."""
    wire_module.log.filters.clear()
    wire_module.log.addFilter(LogLimit())


@pytest.fixture(autouse=True)
def no_job_stays():
    """Its threads would say signs of life for ever."""
    yield
    while Job.all:
        server = Job.all.pop().server
        server._loop.call_soon_threadsafe(server._finish, "the test is over", EXIT_PEER_LOST)


@pytest.fixture(autouse=True)
def nothing_ends_the_process(monkeypatch):
    """An unexpected error in any thread would end a real process: here it fails the test."""
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    yield
    gc.collect()  # asyncio tells of a task's error once the task is collected
    assert codes == []


class Member:
    """A process of a job, as a thread."""

    def __init__(
        self, job, role, device="", setup=None, num_workers=None, port=None, start_timeout_s=DEADLINE_S, **environment
    ):
        self.ended, self.is_complete = threading.Event(), threading.Event()  # during the job
        self.end = None
        self.environment = environment
        if port:
            self.environment["PORT"] = str(port)
        self._join = partial(
            rendezvous_client.join,
            ClusterSpec(role, "127.0.0.1", job.port, 1, num_workers or job.num_workers),
            device,
            setup or {},
            start_timeout_s=start_timeout_s,
            environment=self.environment,
            end=self._on_end,
            on_complete=self.is_complete.set,
        )
        self.session = None
        self.error = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self.session = self._join()
        except Exception as error:
            self.error = error

    def _on_end(self, text, code):
        self.end = (text, code)
        self.ended.set()

    def join(self):
        """Waits until it is in the job; returns it."""
        self._thread.join(DEADLINE_S)
        assert self.error is None, self.error
        assert self.session is not None, "nothing happened"
        return self

    def failure(self):
        """Waits until it is turned away; returns why."""
        self._thread.join(DEADLINE_S)
        assert self.error is not None, "nothing went wrong"
        return self.error

    def is_killed(self):
        """What the kernel does for a process that is killed."""
        self.session._wire.close()


class Job:
    all = []

    def __init__(self, num_workers=2, port=0):
        listener = socket.create_server(("127.0.0.1", port))
        self.all.append(self)
        self.num_workers = num_workers
        self.port = listener.getsockname()[1]
        self.server = RendezvousServer(listener, 1, num_workers)

    def start(self, *devices, **more):
        """Scheduler, server and some workers."""
        roles = [Member(self, "scheduler"), Member(self, "server")]
        return [*roles, *(Member(self, "worker", device, **more) for device in devices)]

    def raw(self, process=None):
        """A connection that speaks for itself."""
        wire = Wire(ClusterSpec("worker", "127.0.0.1", self.port, 1, self.num_workers), DEADLINE_S)
        if process:
            wire.send({"join": process})
        return wire


def join_all(*members):
    for member in members:
        assert not member.join().end


def all_fail(members, *words):
    """All are turned away, and told these words."""
    for member in members:
        told = str(member.failure())
        assert isinstance(member.error, SetupError)
        for each in words:
            assert each in told


def all_end(members, pattern, code=EXIT_PEER_LOST):
    """All end during the job with such a line."""
    for member in members:
        assert member.ended.wait(DEADLINE_S)
        assert re.match(pattern, member.end[0])
        assert member.end[1] == code


def running_job(num_workers=2, **more):
    """A job after its start; the workers' ranks are told."""
    job = Job(num_workers)
    members = [member.join() for member in job.start(*(f"cpu{rank}" for rank in range(num_workers)), **more)]
    for rank, worker in enumerate(members[2:]):
        worker.session.tell_rank(rank)
    wait_for(lambda: sum(each.rank is not None for each in list(job.server._joins)) == num_workers, "the ranks")
    return job, members


def joins(role, device="", host="a", port=1, num_workers=2, **more):
    """The JOIN of a process, as the JSON that it sends."""
    about = {
        "msg_type": "JOIN",
        "sender": f"{role}-{device}",
        "job": "mxnet",
        "device": {"host": host, "device": device},
    }
    numbers = {"num_servers": 1, "num_workers": num_workers}
    setup = {"DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": str(num_workers)}
    about |= {"address": "127.0.0.1", "port": port, "role": role, "setup": setup, "reached": []}
    return {**about, **numbers, **more}


def test_no_process_is_told_of_mxnets_scheduler_before_its_port_is_free(monkeypatch):
    # What a worker's MXNet sent to the Acceptor at that port would be lost, and the start would hang.
    (port,) = free_ports(1)
    close = Acceptor.close

    def close_the_schedulers_late(responder):
        if responder.port == port:
            time.sleep(0.3)
        close(responder)

    monkeypatch.setattr(Acceptor, "close", close_the_schedulers_late)
    job = Job(num_workers=1)
    members = [Member(job, "scheduler", port=port), Member(job, "server"), Member(job, "worker")]
    members[2].join()
    assert members[2].environment["DMLC_PS_ROOT_PORT"] == str(port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    join_all(*members)


# ------------------------------------------------------------------------------------------------- unequal set-ups

ODD_FLAGS = {
    "-m local-sgd": "-m esync",
    "-n lenet": "-n resnet18-v1",
    "-b 32": "-b 64",
    "-ll 0.5": "-ll 0.001",
    "--seed 7": "--seed 0",
    "-s 1": "-s 0",
    "--dataset mnist": "--dataset fashion-mnist",
    "--policy preprint": "--policy journal",
}


@pytest.mark.parametrize(("odd", "others"), ODD_FLAGS.items())
def test_a_flag_that_differs_is_named_with_both_values_on_every_process(odd, others):
    usual, other = (command_line.job_setup(command_line.parse(flags.split())) for flags in ("", odd))
    job = Job(num_workers=3)
    members = [*job.start("cpu0", "cpu1", setup=usual), Member(job, "worker", "cpu2", other)]
    named = f"worker (cpu2 on host {socket.gethostname()}, 127.0.0.1:"
    all_fail(members, named, f") has {odd}, the others {others}")


def test_another_number_of_workers_is_named_when_the_job_is_complete():
    job = Job(num_workers=2)
    members = [*job.start("cpu0"), Member(job, "worker", "cpu1", num_workers=3)]
    all_fail(members, "worker (cpu1", "has DMLC_NUM_WORKER 3, the others DMLC_NUM_WORKER 2")


def test_another_number_of_workers_is_named_where_the_job_can_never_be_complete(monkeypatch):
    monkeypatch.setattr(membership, "SETTLE_S", 0.1)
    job = Job(num_workers=3)
    workers = [Member(job, "worker", f"cpu{number}", num_workers=2) for number in range(2)]
    words = ("scheduler (host", "has DMLC_NUM_WORKER 3", "the others DMLC_NUM_WORKER 2")
    all_fail([Member(job, "scheduler"), *workers], *words)


def test_a_script_of_the_users_in_the_root_is_no_other_program(tmp_path, monkeypatch):
    for path in version.ROOT.glob("*.py"):
        shutil.copy(path, tmp_path)
    for folder in ("trainer", "models"):
        shutil.copytree(version.ROOT / folder, tmp_path / folder)
    monkeypatch.setattr(version, "ROOT", tmp_path)
    before = version.files_hash.__wrapped__()
    (tmp_path / "plot.py").write_text("import draw\n")
    assert version.files_hash.__wrapped__() == before
    for changed in ("utils.py", "trainer/algorithms/esync.py", "models/__init__.py"):
        with (tmp_path / changed).open("a") as file:
            file.write("# changed\n")
        assert version.files_hash.__wrapped__() != before
        before = version.files_hash.__wrapped__()


def imported(path):
    """Names of the modules that a file imports, in whatever place."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def test_all_that_a_role_runs_is_compared():
    modules = {path.stem: path for path in version.ROOT.glob("*.py")}
    folders = {name: list((version.ROOT / name).rglob("*.py")) for name in ("esync", "trainer", "models")}
    todo = [version.ROOT / "main.py", *(path for paths in folders.values() for path in paths)]
    runs = set()
    while todo:
        path = todo.pop()
        runs.add(path)
        todo += {modules[name] for name in imported(path) if name in modules} - runs
    of_server = {path for pattern in version._PROGRAM for path in version.ROOT.glob(pattern)} - runs
    assert {path.relative_to(version.ROOT).parts[0] for path in of_server} == {"SimpleStateServer"}
    assert not runs - {path for pattern in version._PROGRAM for path in version.ROOT.glob(pattern)}
    top = {name.split(".")[0] for path in runs for name in imported(path)}
    assert not top & {path.name for path in version.ROOT.iterdir() if path.is_dir()} - folders.keys()
    setup = worker_module._setup(command_line.parse([]), SimpleNamespace(frozen=()), "")
    assert setup[PROGRAM] == version.files_hash()


@pytest.mark.parametrize(
    ("setups", "line"),
    [
        ([{"-b": "32"}, {"-b": "64"}], "differ: worker 0 has -b 32, worker 1 has -b 64; start all processes"),
        ([{JOB: "3f"}, *[{JOB: "none"}] * 2], "worker 0 has --job 3f, the others --job none; bring the same job file"),
        ([{DATA: "ab"}, {DATA: "cd"}], "worker 0 has the data ab, worker 1 has the data cd; get the same files"),
        ([{"-b": "64"}] * 20 + [{"-b": "32"}] * 10, "worker 24 and 5 more have -b 32, the others -b 64"),
    ],
    ids=["without a majority", "job files", "data", "many"],
)
def test_who_differs_is_named_with_what_to_do_and_of_many_some_are(setups, line):
    processes = ((f"worker {number}", setup) for number, setup in enumerate(setups))
    assert line in verdict(differences(processes))


def test_a_step_size_that_does_not_count_in_the_mode_may_differ():
    setups = [command_line.job_setup(command_line.parse(["-m", "sync", "-ll", rate])) for rate in ("0.1", "0.2")]
    assert setups[0] == setups[1]
    assert setups[0]["-l"] == "0.001"


def test_what_is_a_matter_of_the_host_may_differ():
    flags = ["-c", "1", "-dd", "d", "-ld", "x", "-ip", "10.0.0.1", "-port", "1", "--device-name", "y", "-g", "3"]
    flags += ["--min-step-time", "1", "--straggler-trace", "t", "--query-delay", "1", "--start-timeout", "9"]
    assert command_line.job_setup(command_line.parse(flags)) == command_line.job_setup(command_line.parse([]))


# -------------------------------------------------------------------------------------------------- closed ports


def test_a_port_that_cannot_be_reached_is_named_on_every_process():
    job = Job(num_workers=1)
    members = job.start()
    (port,) = free_ports(1)
    behind_firewall = job.raw(joins("worker", "gpu0", host="b", port=port, num_workers=1))
    cannot = f"worker (gpu0 on host b, 127.0.0.1:{port}) (Connection refused) cannot be reached"
    all_fail(members, cannot, "DMLC_INTERFACE", "firewall")
    while "end" not in (message := behind_firewall.receive()[0]):
        pass
    assert cannot in message["end"] and message["code"] == EXIT_SETUP
    for text in (message["end"], *(str(member.error) for member in members)):
        assert 1 <= text.split("cannot be reached from ")[1].count(f" (host {socket.gethostname()}, 127.0.0.1:") <= 2


def test_another_program_at_an_address_is_not_taken_for_the_process():
    bell = Acceptor(addresses.listen("127.0.0.1", None, ""), "bell")
    place = ("127.0.0.1", bell.port)
    with contextlib.closing(bell):
        assert unanswered(place, "bell", DEADLINE_S) == ""
        assert unanswered(place, "another", DEADLINE_S) == "another program answers there"
    assert "Connection refused" in unanswered(place, "bell", DEADLINE_S)  # MXNet can take the port
    assert unanswered(("x" * 99, 1), "token", DEADLINE_S)  # no name of a host


def test_mxnet_gets_the_address_and_the_ports_that_were_tried():
    (port,) = free_ports(1)
    job = Job(num_workers=1)
    members = [*job.start(), Member(job, "worker", "cpu0", port=port)]
    join_all(*members)
    _, server, worker = members
    assert (worker.environment["PORT"], worker.environment["DMLC_NODE_HOST"]) == (str(port), "127.0.0.1")
    (root_port,) = {member.environment["DMLC_PS_ROOT_PORT"] for member in members}
    assert root_port != str(job.port)
    assert server.environment["PORT"] not in {str(port), root_port}


def test_a_port_in_use_is_named_on_every_process():
    job = Job(num_workers=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        members = [Member(job, "worker", "cpu0", port=port), *job.start()]
        all_fail(members, f"port {port} is in use at 127.0.0.1: set PORT to a free one")


def test_the_address_is_that_of_the_chosen_card():
    assert addresses.own_address("10.0.0.9", {"DMLC_INTERFACE": "lo"}) == "127.0.0.1"
    assert addresses.own_address("10.0.0.9", {}) == "10.0.0.9"
    assert addresses.own_address("10.0.0.9", {"DMLC_NODE_HOST": "10.0.0.8", "DMLC_INTERFACE": "lo"}) == "10.0.0.8"


# --------------------------------------------------------------------------------- until the job is complete


def test_a_process_that_was_killed_before_the_job_is_complete_is_not_counted():
    job = Job(num_workers=2)
    dead = job.raw(joins("worker", "cpu0"))
    members = job.start()
    wait_for(lambda: len(job.server._joins) == 3, "the arrival of three processes")
    dead.close()
    wait_for(lambda: len(job.server._joins) == 2, "the departure of one")
    members += [Member(job, "worker", f"cpu{number}") for number in range(2)]  # the first is started anew
    join_all(*members)


def test_one_worker_too_many_is_sent_away_and_the_others_go_on():
    job, members = running_job(num_workers=1)
    all_fail([Member(job, "worker", "cpu9")], "this job has its 1 worker(s) already (worker 0 (cpu0 on host")
    assert members[2].session.gather("still there", 5) == [5]


def test_each_process_says_what_it_waits_for(caplog, monkeypatch):
    monkeypatch.setattr(joining, "REMIND_EVERY_S", 0.05)
    caplog.set_level(logging.INFO)
    job = Job(num_workers=2)
    (port,) = free_ports(1)
    members = [*job.start(), Member(job, "worker", "gpu1", port=port)]

    def said(*words):
        return any(all(word in text for word in words) for text in caplog.messages)

    host = socket.gethostname()
    wait_for(
        lambda: said("1 worker(s) of job", "missing; here are", f"(gpu1 on host {host}, 127.0.0.1:{port})"), "a line"
    )
    wait_for(lambda: said("here are", f"worker (gpu1 on host {host}, 127.0.0.1", f"server (host {host}"), "another")
    assert said(f"DMLC_PS_ROOT_PORT of 127.0.0.1:{job.port}", "firewall")
    members.append(Member(job, "worker", "gpu0"))
    join_all(*members)


def test_a_scheduler_that_is_not_there_is_named_with_the_reason(caplog, monkeypatch):
    monkeypatch.setattr(joining, "REMIND_EVERY_S", 0.05)
    caplog.set_level(logging.INFO)
    (port,) = free_ports(1)
    with pytest.raises(PeerLost, match=r"not complete after 0\.3 s") as caught:
        join_alone(port, start_timeout_s=0.3)
    line = f"the scheduler at 127.0.0.1:{port} does not answer (Connection refused: it is not"
    assert line in str(caught.value) and line in caplog.text


def test_a_host_that_is_not_reached_is_told_apart_from_a_scheduler_that_is_not_started():
    with pytest.raises(PeerLost) as caught:
        join_alone(1, "255.255.255.255", start_timeout_s=0.1)  # the kernel refuses and sends nothing
    assert "255.255.255.255:1 does not answer (Network is unreachable: a wrong DMLC_PS_ROOT_URI," in str(caught.value)
    assert "not started yet" not in str(caught.value)


@pytest.mark.parametrize("code", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH])
def test_a_network_that_fails_before_the_job_is_complete_is_tried_again(monkeypatch, caplog, code):
    job = Job(num_workers=1)
    receive, calls = Wire.receive, []

    def fail_once(wire, *more):
        calls.extend([code] * wire.name.endswith(str(job.port)))  # and not of a job before
        if len(calls) == 3:  # after the greeting
            raise OSError(code, os.strerror(code))
        return receive(wire, *more)

    monkeypatch.setattr(Wire, "receive", fail_once)
    worker = Member(job, "worker", "cpu0")
    wait_for(lambda: len(calls) > 2, "the network's failure")
    join_all(worker, *job.start())
    assert f"{os.strerror(code)}; trying again" in caplog.text


def end_server(server):
    """As its process ends; called on its loop."""
    for task in asyncio.all_tasks(server._loop):
        task.cancel()
    for listener in server._listeners:
        listener.close()


def test_a_process_of_a_mode_with_a_hub_is_told_that_this_is_a_scheduler():
    job = Job(num_workers=1)
    early = job.start()
    with pytest.raises(SetupError, match="here is the scheduler of a job with MXNet's kvstore, and no hub: give every"):
        Wire(ClusterSpec("worker", "127.0.0.1", job.port, 1, 1, has_hub=True), DEADLINE_S, "wbsp")
    join_all(*early, Member(job, "worker", "cpu0"))


def test_a_scheduler_that_is_restarted_before_the_job_is_complete_is_joined_again():
    first = Job(num_workers=1)
    worker = Member(first, "worker", "cpu0")
    wait_for(lambda: first.server._joins, "the worker's arrival")
    first.server._loop.call_soon_threadsafe(end_server, first.server)

    jobs = []

    def begin_again():
        with contextlib.suppress(OSError):
            jobs.append(Job(num_workers=1, port=first.port))
        return jobs

    wait_for(begin_again, "the port's release")
    join_all(worker, *jobs[0].start())


def end_of(wire):
    """What a participant is told when it is sent away."""
    while "end" not in (message := wire.receive()[0]):
        pass
    assert message["code"] == EXIT_SETUP
    with pytest.raises((EOFError, ConnectionResetError)):
        wire.receive()
    return message["end"]


def frame(text):
    """A message, given as JSON."""
    return LENGTH.pack(len(text) + 5) + b"[" + text + b",[]]"


WORKER = joins("worker", "gpu0", host="b")
WRONG = [
    b"no JSON",
    b"[" * 100_000,
    b"5",
    b"{}",
    b'{"join": {"msg_type": "JOIN"}}',
    b'{"join": {"msg_type": []}}',
    b'{"join": {"msg_type": "LEFT", "sender": "worker-gpu0", "job": "mxnet"}}',
    *(
        json.dumps({"join": {**WORKER, **odd}}).encode()
        for odd in (
            {"role": "guest"},
            {"role": []},
            {"device": {"host": 5}},
            {"port": "1"},
            {"port": 65536},
            {"setup": 5},
            {"setup": {"-b": ["64"]}},
            {"setup": {"col\nour": "red"}},
            {"device": {"host": "b\n2026-11-21 12:00:00 worker | all is well"}},
            {"device": {"host": "\ud800"}},
            {"device": {"host": "b", "device": "\x1b[2J"}},
            {"interface": "\x1b[2J"},
            {"address": "x" * 256},
            {"setup": {"-b": "64\n"}},
            {"unreached": {"server-": "no\nanswer"}},
            {"port": "1", "more": json.loads("[" * 600 + "]" * 600)},
            {"num_servers": 0, "num_workers": 5},
            {"generation": 5, "rank": 0, "members": [["worker-gpu0", "127.0.0.1", 1, "b", "gpu0"]], "min_workers": 1},
            {"min_workers": 1},
        )
    ),
    b'{"freed": true}',
    b'{"beat": true}',
    b'{"rank": 0}',
    b'{"gather": "speed", "value": 1}',
    b'{"left": ""}',
]


def test_what_a_stranger_says_wrongly_ends_the_stranger_alone(caplog):
    job = Job(num_workers=1)
    early = job.start()
    for line in WRONG:
        stranger = job.raw()
        stranger._socket.sendall(frame(line))
        assert end_of(stranger).startswith(("this process sent", "it sends no message of this program")), line
    assert "a connection from 127.0.0.1 was ended: this process s" in caplog.text
    assert all(line.isprintable() for line in caplog.messages)
    join_all(*early, Member(job, "worker", "cpu0"))


def test_a_stranger_that_expects_another_number_and_leaves_does_not_end_the_job(monkeypatch):
    monkeypatch.setattr(membership, "SETTLE_S", 0.1)
    job = Job(num_workers=1)
    scheduler, stranger = Member(job, "scheduler"), job.raw({**WORKER, "setup": {}})
    time.sleep(0.5)
    stranger._socket.close()
    join_all(scheduler, Member(job, "server"), Member(job, "worker", "cpu0"))


def test_strangers_that_come_for_ever_write_few_lines(caplog):
    job = Job()
    for _ in range(AT_ONCE + 20):
        stranger = job.raw()
        stranger.send({})
        end_of(stranger)
    assert len(caplog.messages) <= AT_ONCE + 1


def ending(sent):
    """A server that takes a connection, sends this and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer():
        with listener, listener.accept()[0] as connection, contextlib.suppress(OSError):
            connection.sendall(sent)
            connection.recv(1 << 16)

    threading.Thread(target=answer, daemon=True).start()
    return listener.getsockname()[1]


def join_alone(port, host="127.0.0.1", start_timeout_s=DEADLINE_S, role="worker", **more):
    """A process of a job of one worker asks whatever listens there."""
    spec = ClusterSpec(role, host, port, 1, 1)
    return rendezvous_client.join(spec, "cpu0", {}, start_timeout_s, environment={}, **more)


NO_MESSAGE = r": it sends no message of this program \(.{7,90}\); correct DMLC"


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"HTTP/1.1 400", ""),
        (b"{" * (1 << 23), NO_MESSAGE),
        (frame(b"no JSON"), NO_MESSAGE),
        (frame(b"[" * 9999), NO_MESSAGE),
    ],
    ids=["a web server", "long", "no JSON", "deep"],
)
def test_what_is_no_scheduler_or_only_begins_like_one_is_named(sent, why):
    with pytest.raises(SetupError, match=f"is no scheduler{why}"):
        join_alone(ending(sent))


WELCOME = HELLO + frame(b'{"nonce": "", "proof": "", "to": "scheduler"}')  # all that the greeting asks for


@pytest.mark.parametrize(
    "begins",
    [b"", HELLO[:4], HELLO, HELLO + b"\0\0\0\x20{", HELLO + b" " * (1 << 20), GREETING, WELCOME],
    ids=["nothing", "part of a hello", "a hello", "half a message", "too long a message", "a greeting", "no more"],
)
def test_connections_that_do_not_go_on_are_few_and_end(monkeypatch, begins):
    monkeypatch.setattr(connections, "MOST_STRANGERS", 2)
    monkeypatch.setattr(connections, "GREETING_S", 0.3)
    job = Job(num_workers=1)
    crowd = [socket.create_connection(("127.0.0.1", job.port), DEADLINE_S) for _ in range(40)]
    for each in crowd:
        with contextlib.suppress(OSError):  # ended already
            each.sendall(begins)
    most = len(crowd) - 5
    wait_for(lambda: sum(bool(select.select([each], [], [], 0)[0]) for each in crowd) >= most, "an end or an answer")
    wait_for(lambda: len(job.server._strangers) + len(job.server._plain) <= 5, "the end of most")
    if begins == GREETING:
        for each in crowd:
            each.close()
    wait_for(lambda: not job.server._strangers and not job.server._plain, "the end of all", DEADLINE_S)
    join_all(*job.start("cpu0"))


@pytest.mark.parametrize(
    "message",
    [
        {"join": {**WORKER, "sender": "another"}},  # a second one
        {"join": {**WORKER, "num_workers": 1, "role": "scheduler"}},
        {"freed": True},  # is the scheduler's to say
        {"rank": 5},
        {"rank": "0"},
        {"gather": "speed", "value": 1},  # before its rank
        {"gather": [], "value": 1},
    ],
)
def test_what_a_process_says_wrongly_before_the_job_is_complete_ends_that_one(message):
    job = Job(num_workers=1)
    odd = job.raw({**WORKER, "num_workers": 1})
    odd.send(message)
    assert "may not send" in end_of(odd)
    wait_for(lambda: not job.server._joins, "its departure", DEADLINE_S)
    join_all(*job.start("cpu0"))


@pytest.mark.parametrize("message", [{"rank": 0}, {"rank": 2}, {"freed": True}, {"gather": {}, "value": 1}, {"x": 1}])
def test_a_worker_that_speaks_wrongly_during_the_job_is_named_on_every_process(message):
    _, (*others, odd) = running_job()
    odd.session._wire.send(message)
    all_end(others, r"worker 1 \(cpu1 on host .* ended: this process sent what it may not send")
    all_end([odd], "", EXIT_SETUP)


@pytest.mark.parametrize(
    ("there", "plain", "lacks"),
    [
        (["scheduler"], 0, "1 server(s) and 2 worker(s)"),
        (["scheduler", "worker", "server"], 0, "1 worker(s)"),
        (["worker", "scheduler"], 1, "1 of 1 server(s) and 1 worker(s)"),
        (["worker", "server"], 0, "1 scheduler(s) and 1 worker(s)"),
        (["worker", "scheduler"], 2, ""),
    ],
)
def test_who_is_missing_is_counted_by_role(there, plain, lacks):
    group = Group()
    for port, role in enumerate(there, start=1):
        join = Join(f"p{port}", "a", 2, "10.0.0.1", port, Device(), role=role, num_servers=1, reached=("p1", "p2"))
        group, answer, reason = decide(group, join, 0.0, plain)
    assert reason.startswith(f"{lacks} of job 'a' are missing") if lacks else answer.call is Call.START


def test_a_connection_is_kept_alive_where_the_system_has_other_names(monkeypatch):
    on_linux = socket.TCP_KEEPIDLE
    monkeypatch.delattr(socket, "TCP_KEEPIDLE")
    monkeypatch.setattr(socket, "TCP_KEEPALIVE", on_linux, raising=False)  # as macOS has it
    anew = runpy.run_path(str(version.ROOT / "trainer" / "hub" / "wire.py"), run_name="wire_anew")
    with socket.socket() as connection:
        anew["set_up"](connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, on_linux) == 15


# ------------------------------------------------------------------------------------------------- during the job


def test_values_are_gathered_by_rank_as_often_as_wanted():
    _, (_, _, *workers) = running_job(num_workers=3)
    for turn in range(2):
        with ThreadPoolExecutor(3) as pool:
            given = [pool.submit(workers[rank].session.gather, "speed", [turn, rank]) for rank in (2, 1, 0)]
        assert [each.result() for each in given] == [[[turn, 0], [turn, 1], [turn, 2]]] * 3


def test_a_worker_that_is_killed_during_the_job_is_named_on_every_process():
    _, (*others, killed) = running_job()
    killed.is_killed()
    host = socket.gethostname()
    all_end(others, rf"worker 1 \(cpu1 on host {host}, 127.0.0.1:\d+\) is gone: it was killed")


def test_a_worker_that_ends_with_an_error_tells_the_others_which():
    _, (*others, failed) = running_job()
    failed.session.leave("the disk is full")
    all_end(others, r"worker 1 \(cpu1 on host .* ended: the disk is full$")


@pytest.fixture
def quick(monkeypatch):
    """Signs of life are frequent, and a silence is short."""
    for module in (rendezvous_client, rendezvous_server, server_link, wire_module):
        monkeypatch.setattr(module, "BEAT_S", 0.1, raising=False)
        monkeypatch.setattr(module, "SILENT_S", 2.0)


def test_a_process_that_fell_silent_is_named_on_every_process(quick):
    _, members = running_job()
    time.sleep(3.0)
    assert not any(member.end for member in members)
    members[3].session._wire.send = lambda message, arrays: None
    name = rf"worker 1 \(cpu1 on host {socket.gethostname()}, 127.0.0.1:\d+\)"
    all_end(members, f"no sign of life from {name} for 2 s: it is")


def test_a_silent_scheduler_is_named_on_every_process(quick, monkeypatch):
    job, members = running_job()
    monkeypatch.setattr(job.server, "_tell_all", lambda message: None)
    monkeypatch.setattr(job.server, "on_closed", lambda connection, error: None)  # those that end first
    all_end(members, f"no sign of life from the scheduler at 127.0.0.1:{job.port} for 2 s: it is")


def test_a_network_that_loses_a_connection_during_the_job_ends_it_with_the_name():
    job, (*others, cut) = running_job()
    (there,) = [each for each in job.server._joins if each.rank == 1]

    async def fail(*_):
        raise OSError(errno.ETIMEDOUT, "timed out")

    there.receive = fail
    assert cut.ended.wait(DEADLINE_S)
    all_end(others, r"no sign of life from worker 1 \(cpu1 on .* \(timed out\): it is frozen")


def test_who_was_frozen_itself_takes_no_other_one_for_silent(quick, monkeypatch):
    monkeypatch.setattr(wire_module, "SILENT_S", DEADLINE_S)
    job, members = running_job()
    job.server._loop.call_soon_threadsafe(time.sleep, 3.0)
    time.sleep(4.0)
    assert not any(member.end for member in members)
    monkeypatch.setattr(wire_module, "SILENT_S", 2.0)
    monkeypatch.setattr(rendezvous_server, "SILENT_S", DEADLINE_S)
    wire = members[3].session._wire

    class Freezes:
        """A socket that is read once after a freeze, before anything has come."""

        def __init__(self, connection):
            self._connection = connection

        def recv_into(self, view):
            wire._socket = self._connection
            time.sleep(3.0)
            raise TimeoutError

        def __getattr__(self, name):
            return getattr(self._connection, name)

    wire._socket = Freezes(wire._socket)
    time.sleep(4.0)
    assert not any(member.end for member in members) and not isinstance(wire._socket, Freezes)


def test_all_are_told_once_mxnet_has_connected_every_worker(quick, caplog):
    caplog.set_level(logging.INFO)
    job = Job()
    members = [member.join() for member in job.start("cpu0", "cpu1")]
    whole = f"a job of 1 scheduler (127.0.0.1:{job.port}), 1 server(s) and 2 worker(s) is complete"
    members[2].session.tell_rank(1)
    time.sleep(0.5)
    assert whole not in caplog.messages and not any(member.is_complete.is_set() for member in members)
    members[3].session.tell_rank(0)
    for member in members:
        assert member.is_complete.wait(DEADLINE_S)
    wait_for(lambda: caplog.messages.count(whole) == 4, "the lines")


def test_a_job_that_mxnet_does_not_connect_in_time_ends():
    job = Job()
    members = [member.join() for member in job.start("cpu0", "cpu1", start_timeout_s=4.0)]
    members[2].session.tell_rank(0)
    all_end(members[2:], r".*1 server\(s\) and 2 worker\(s\) was not complete after 4 s: see the others' logs")


def test_a_worker_that_reaches_a_parameter_server_no_more_ends_the_job_though_both_reach_the_scheduler(quick):
    _, (*others, cut) = running_job()
    connection = cut.session._wire
    cut.session._watch_port("255.255.255.255", 1, "server (host b): the network between them is cut")
    assert not any(member.ended.is_set() for member in others)
    assert cut.ended.wait(DEADLINE_S)
    connection.close()
    all_end(others, r"worker 1 \(cpu1 on .*\) ended: no connection for 2 s with server \(host b\)")


def test_a_port_that_is_closed_on_a_host_that_answers_is_no_cut_link(quick):
    with socket.create_server(("127.0.0.1", 0)) as there:
        assert rendezvous_client._is_reached(*there.getsockname(), False)
    closed = ("127.0.0.1", *free_ports(1))
    assert rendezvous_client._is_reached(*closed, True) and not rendezvous_client._is_reached(*closed, False)
    assert not rendezvous_client._is_reached("255.255.255.255", 1, True)


def test_a_scheduler_that_is_killed_is_named():
    job, (_, *others) = running_job()
    job.server._loop.call_soon_threadsafe(lambda: [connection.close() for connection in job.server._joins])
    all_end(others, f"the scheduler at 127.0.0.1:{job.port} is gone")


def test_processes_that_leave_in_order_are_not_missed():
    job, (scheduler, server, *workers) = running_job()
    for member in (*workers, server, scheduler):
        member.session.leave()
    begin = time.monotonic()
    job.server.close()
    assert time.monotonic() - begin < 1.5  # it waits for none
    assert not any(member.end for member in (scheduler, server, *workers))


# ------------------------------------------------------------------------------------------- plain MXNet programs


def test_a_plain_scheduler_is_taken_as_it_is(caplog):
    session = join_alone(ending(HELLO))
    session.tell_rank(0)
    assert session.gather("speed", 1) is None
    session.leave()
    assert "plain MXNet program: the set-ups of the workers cannot be compared" in caplog.text


def test_a_plain_scheduler_that_is_gone_ends_the_process(quick):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        threading.Thread(target=lambda: listener.accept()[0].sendall(HELLO), daemon=True).start()
        ends, completes = [], threading.Event()
        join_alone(port, role="server", end=lambda *end: ends.append(end), on_complete=completes.set)
        assert completes.is_set()
    wait_for(lambda: ends, "the end", DEADLINE_S)
    assert ends[0][0].startswith(f"no connection for 2 s with the scheduler at 127.0.0.1:{port}: it is gone")


@contextlib.contextmanager
def plain_program(job, *devices):
    """A plain program that has been led to MXNet's own scheduler: its connection, that one's, and our processes."""
    plain = socket.create_connection(("127.0.0.1", job.port), DEADLINE_S)
    plain.sendall(GREETING)
    members = [member.join() for member in job.start(*devices)]
    port = int(members[0].environment["DMLC_PS_ROOT_PORT"])
    with plain, socket.create_server(("127.0.0.1", port)) as own, own.accept()[0] as connection:
        connection.settimeout(DEADLINE_S)
        connection.sendall(b"\xffanswer")
        assert plain.recv(7) == b"\xffanswer"
        yield plain, connection, members


def test_a_plain_program_is_led_to_mxnets_own_scheduler(caplog):
    job = Job(num_workers=2)
    with plain_program(job, "cpu0") as (plain, connection, (_, server, worker)):
        assert connection.recv(10) == GREETING
        plain.sendall(b"more")
        assert connection.recv(4) == b"more"
    assert "a plain MXNet program at 127.0.0.1" in caplog.text
    worker.session.tell_rank(0)
    assert worker.session.gather("speed", 1) is None  # the plain one gives none
    assert not server.end


def reset(connection):
    """Ends a connection as a program that crashed with words unread."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_a_plain_program_that_resets_its_connection_before_the_job_is_no_matter(caplog):
    job = Job(num_workers=1)
    plain = socket.create_connection(("127.0.0.1", job.port), DEADLINE_S)
    plain.sendall(GREETING)
    wait_for(lambda: job.server._plain, "its arrival", DEADLINE_S)
    reset(plain)
    wait_for(lambda: not job.server._plain, "its departure", DEADLINE_S)
    join_all(*job.start("cpu0"))
    assert "a plain MXNet program at 127.0.0.1 went away before the job was complete" in caplog.text


def registration(port):
    """The bytes of a plain program that listens at a port, as ps-lite writes them (PBMeta.control.node)."""
    node = (
        b"\x08\x01\x1a\x09127.0.0.1\x20"
        + bytes([port & 0x7F | 0x80, port >> 7 & 0x7F | 0x80, port >> 14])
        + b"\x28\x00"
    )
    return b"\x00\x20" + node


@pytest.mark.parametrize("ends", [True, False])
def test_a_plain_program_that_no_longer_listens_has_ended_and_ends_the_job(ends, monkeypatch, quick):
    monkeypatch.setattr(rendezvous_server, "LOOK_EVERY_S", 0.05)
    job = Job(num_workers=2)
    with socket.create_server(("127.0.0.1", 0)) as listens, plain_program(job, "cpu0") as (plain, _, members):
        plain.sendall(registration(listens.getsockname()[1]))
        plain.close()  # it has another connection to MXNet's scheduler, as ps-lite does once it is registered
        listens.accept()  # the host looks
        if not ends:
            members[0].session.leave()  # the job is over
    if ends:
        all_end(members[1:2], "a plain MXNet program at 127.0.0.1 is gone: it was killed or has crashed$")


def test_a_process_that_fails_before_it_joins_the_others_ends_them_also_one_that_comes_later(caplog):
    job = Job(num_workers=2)
    members = job.start()
    wait_for(lambda: len(job.server._joins) == 2, "their arrival", DEADLINE_S)
    tell_failure(ClusterSpec("worker", "127.0.0.1", job.port, 1, 2), "worker ended before the job began: no space left")
    all_fail([*members, Member(job, "worker", "cpu0")], "before the job began: no space left")


def test_the_scheduler_waits_for_none_of_those_that_have_failed(monkeypatch):
    monkeypatch.setattr(connections, "LATE_S", DEADLINE_S)
    job = Job(num_workers=2)
    members = job.start()
    wait_for(lambda: len(job.server._joins) == 2, "their arrival", DEADLINE_S)
    begin = time.monotonic()
    for rank in range(2):
        tell_failure(ClusterSpec("worker", "127.0.0.1", job.port, 1, 2), f"worker cpu{rank} ended")
    assert {str(member.failure()) for member in members} == {"worker cpu0 ended"}
    job.server.close()  # as the scheduler does
    assert time.monotonic() - begin < DEADLINE_S / 2


def test_a_plain_program_that_resets_its_connection_to_mxnets_scheduler_is_no_matter():
    with plain_program(Job(num_workers=2), "cpu0") as (plain, connection, (_, _, worker)):
        reset(plain)
        assert connection.recv(len(GREETING)) == GREETING
        assert connection.recv(1) == b""  # it is told
    worker.session.tell_rank(0)
    assert worker.session.gather("speed", 1) is None  # the job goes on


def test_a_plain_program_that_cannot_be_led_on_is_told_with_the_reason(monkeypatch, caplog):
    monkeypatch.setattr(rendezvous_server, "LISTEN_S", 0.1)
    job = Job(num_workers=2)
    with socket.create_connection(("127.0.0.1", job.port), DEADLINE_S) as plain:
        plain.sendall(GREETING)
        scheduler, *_ = (member.join() for member in job.start("cpu0"))
        assert plain.recv(1) == b""
    own = f"127.0.0.1:{scheduler.environment['DMLC_PS_ROOT_PORT']}"
    line = f"the connection to a plain MXNet program at 127.0.0.1 broke (MXNet does not listen at {own})"
    wait_for(lambda: line in caplog.messages, "the line", DEADLINE_S)


@pytest.mark.cluster
@pytest.mark.parametrize("plain", [("scheduler",), ("server0", "worker0")])
def test_plain_mxnet_programs_take_part_in_a_real_job(tmp_path, plain):
    sums_ones = ["tests/helpers/plain_mxnet.py"]
    with cluster(tmp_path, num_workers=2, start=False) as processes:
        for name in ("scheduler", "server0"):
            processes.start(name, name.rstrip("0"), *(sums_ones if name in plain else ["main.py"]))
        for rank in range(2):
            ours = ["tests/helpers/summing_worker.py"]
            processes.start_worker(rank, *(sums_ones if f"worker{rank}" in plain else ours))
        codes = processes.exit_codes()
    assert set(codes.values()) == {0}, "".join(map(processes.log, codes))
    assert "plain MXNet program" in processes.log("worker1")


# ----------------------------------------------------------------------------------------------------------- the token


@pytest.fixture
def guarded(monkeypatch):
    """A job of one worker whose scheduler has a token, and a function that gives one to what starts from then on."""

    def give(token):
        monkeypatch.setenv("ESYNC_TOKEN", token)

    give("right")
    return Job(num_workers=1), give


def overheard(port):
    """A port that leads to another one, and the bytes of one connection that a process sends there."""
    listener, sent = socket.create_server(("127.0.0.1", 0)), bytearray()

    def copy(source, sink, noted):
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                noted += content
                sink.sendall(content)

    def lead():
        with listener, listener.accept()[0] as process, socket.create_connection(("127.0.0.1", port)) as scheduler:
            threading.Thread(target=copy, args=(scheduler, process, bytearray()), daemon=True).start()
            copy(process, scheduler, sent)

    threading.Thread(target=lead, daemon=True).start()
    return listener.getsockname()[1], sent


def test_who_knows_the_token_joins_and_it_neither_travels_nor_is_an_answer_good_twice(guarded, caplog):
    job, _ = guarded
    scheduler, server = job.start()
    direct, (job.port, sent) = job.port, overheard(job.port)
    worker = Member(job, "worker", "cpu0")
    join_all(scheduler, server, worker)
    assert sent.startswith(HELLO) and b"right" not in sent
    with socket.create_connection(("127.0.0.1", direct)) as stranger:
        stranger.sendall(sent)
        assert "has another ESYNC_TOKEN than the scheduler, or none" in end_told(stranger)
    assert "right" not in caplog.text and not worker.end


def end_told(connection):
    """What a connection without a client is told in the end."""
    content = b""
    with contextlib.suppress(ConnectionResetError):  # more came than was read
        while chunk := connection.recv(1 << 16):
            content += chunk
    messages = []
    while content:
        end = LENGTH.size + length_in(content[: LENGTH.size])
        messages.append(read(content[LENGTH.size : end])[0])
        content = content[end:]
    return messages[-1]["end"]


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_process_without_the_token_is_told_so_and_the_job_goes_on(guarded, token, caplog):
    job, give = guarded
    early = job.start()
    wait_for(lambda: len(job.server._joins) == 2, "the first ones")
    give(token)
    told = Member(job, "worker", "cpu0").failure()
    assert isinstance(told, SetupError) and "has another ESYNC_TOKEN than the scheduler, or none: set the" in str(told)
    tell_failure(ClusterSpec("worker", "127.0.0.1", job.port, 1, 1), "it has failed")
    assert caplog.text.count("a connection from 127.0.0.1 was ended: this process has another ESYNC_TOKEN") == 2
    give("right")
    join_all(*early, Member(job, "worker", "cpu0"))


@pytest.mark.parametrize(
    "begins",
    [frame(b'{"to": "scheduler"}'), frame(b'{"to": "scheduler", "nonce": 5, "proof": [5]}'), frame(b"[" * 3000)],
    ids=["at once", "a wrong proof", "deep"],
)
def test_a_strangers_cause_ends_no_job_that_has_a_token(guarded, begins):
    job, _ = guarded
    early = job.start()
    with socket.create_connection(("127.0.0.1", job.port)) as stranger:
        stranger.sendall(HELLO + begins + frame(b'{"failed": "all is lost"}') + frame(json.dumps(WORKER).encode()))
        assert "all is lost" not in end_told(stranger)
    join_all(*early, Member(job, "worker", "cpu0"))


def test_a_plain_program_takes_no_part_in_a_job_with_a_token(guarded, caplog):
    job, _ = guarded
    early = job.start()
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", job.port), DEADLINE_S) as plain:
            plain.sendall(GREETING)
            assert plain.recv(1) == b""
    assert caplog.text.count("a plain MXNet program at 127.0.0.1 wants to take part: it knows no ESYNC_TOKEN") == 1
    join_all(*early, Member(job, "worker", "cpu0"))


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (frame(b'{"welcome": "1"}') + frame(b"{}"), "has another ESYNC_TOKEN, or none: set the same in every process"),
        (frame(b'{"welcome": "1", "challenge": "00"}') + frame(b'{"proof": "5"}'), "has another ESYNC_TOKEN, or none"),
        (HELLO, "is no scheduler with an ESYNC_TOKEN"),
    ],
    ids=["no challenge", "a wrong proof", "a plain scheduler"],
)
def test_a_scheduler_that_does_not_know_the_token_is_not_told_of_this_process(monkeypatch, sent, why):
    monkeypatch.setenv("ESYNC_TOKEN", "right")
    with pytest.raises(SetupError, match=why):
        join_alone(ending(sent))
