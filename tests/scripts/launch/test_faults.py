"""Nothing hangs: whatever is missing or dies, every process ends soon, with one line that says what happened."""

import contextlib
import http.server
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cluster_processes import DATA, DEADLINE_S, ROOT, begun, children, cluster, free_ports, ran, wait_for
from error_lines import ENDLESS, assert_one_error_line, port_that_hangs_up, run_main, worker_environment
from few_images import few_images, on_few_images
from state_server_process import http_client, report

from esync.clock import RealClock
from esync.http import HttpLink
from utils import DIVERGED, EXIT_BUG, EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, JobError, SetupError


@pytest.mark.parametrize(
    ("flags", "words", "code"),
    [
        ("-m local -dd DATA", ("GPU 0", "-c 1"), EXIT_SETUP),
        ("-m local -c 1 -dd FOLDER/nowhere", ("nowhere/fashion-mnist", "get_data.sh"), EXIT_SETUP),
        ("-m local -c 1 -dd DATA -ld FOLDER/file", ("log folder", "-ld"), EXIT_SETUP),
        ("-m local -c 1 -n lenet -b 99999999999 FEW", ("99999999999", "6000", "-b"), EXIT_SETUP),
        ("-m local -c 1 -n lenet -l 1e30 -e 1000 FEW", (DIVERGED, "-l"), EXIT_BUG),
        ("-m sync -c 1", ("DMLC_ROLE", "-m local"), EXIT_SETUP),  # a mode that needs a cluster without one
        (
            "-m local -c 1 -n lenet --straggler-trace FOLDER/slow-link.csv",
            ("slow-link.csv", "mode local exchanges nothing"),
            EXIT_SETUP,
        ),
    ],
)
def test_what_a_worker_cannot_work_with_is_one_line_and_leaves_earlier_logs(tmp_path, flags, words, code):
    (tmp_path / "file").touch()
    (tmp_path / "slow-link.csv").write_text("start_s,duration_s,extra_s,kind\n1,2,0.1,network\n")
    (earlier := tmp_path / "cpu" / "iter-1.txt").parent.mkdir()
    earlier.write_text("{}")
    known = {"DATA": str(DATA), "FOLDER": str(tmp_path), "FEW": " ".join(on_few_images())}
    for name, text in known.items():
        flags = flags.replace(name, text)
    assert_one_error_line(run_main(tmp_path, *flags.split()), *words, code=code)
    assert earlier.exists() == (code == EXIT_SETUP)  # else it has trained, which moves them


@pytest.mark.parametrize(
    ("flags", "variables", "words"),
    [
        ([*ENDLESS, "-port", "FREE"], {}, ("http://127.0.0.1:FREE", "state_server.sh")),
        ([*ENDLESS, "-m", "sync", "--straggler-trace", "bad.csv"], {}, ("bad.csv, line 2", "much")),
        (["-m", "local", "-c", "1"], {}, ("DMLC_ROLE",)),
        ([], {"DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_PORT": None}, ("DMLC_PS_ROOT_PORT",)),
        ([], {"DMLC_ROLE": "scheduler"}, (f"port {port_that_hangs_up()} is in use",)),
        *(
            ([*ENDLESS, "-m", "sync"], {"DMLC_ROLE": role, name: value}, (name,))
            for role in ("worker", "server")
            for name, value in (
                ("PS_RESEND", "1"),
                ("DMLC_PS_ROOT_URI", "no.such.host.invalid"),
                ("DMLC_INTERFACE", "nosuch0"),
            )
        ),
    ],
)
def test_what_a_process_of_a_cluster_cannot_work_with_is_one_line(tmp_path, flags, variables, words):
    (tmp_path / "bad.csv").write_text("start_s,duration_s,extra_s\n1,2,much\n")
    (free,) = map(str, free_ports(1))
    flags = [{"FREE": free, "bad.csv": str(tmp_path / "bad.csv")}.get(word, word) for word in flags]
    given = worker_environment() | {"DMLC_PS_ROOT_PORT": port_that_hangs_up()} | variables
    environment = {name: value for name, value in given.items() if value is not None}
    assert_one_error_line(run_main(tmp_path, *flags, **environment), *(word.replace("FREE", free) for word in words))


@contextlib.contextmanager
def some_other_server(healthz, healthz_status=200, root=b""):
    """A web server that is no state server of this project: it answers 200 to everything else."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(root) if self.path == "/" else self.answer(healthz, healthz_status)

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(b"<html>welcome</html>")

        def answer(self, body, status=200):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def link(port):
    return HttpLink("127.0.0.1", str(port), RealClock())


@pytest.mark.parametrize("healthz", [b"<html>welcome</html>", b"[1]", b"{}"])
def test_another_server_is_not_taken_for_a_state_server(healthz):
    with some_other_server(healthz) as port, pytest.raises(SetupError, match=r"not a state server.*state_server\.sh"):
        link(port).is_published()
    with some_other_server(healthz, 404) as port, pytest.raises(SetupError, match="not a state server: it answers 4"):
        link(port).is_published()


PUBLISHED_STATE = b'{"num_workers": 6, "t": 1, "epsilon": 0.5, "records": [[0, 0, 0.0, 0.0, false, 1]]}'


@pytest.mark.parametrize(
    ("debug", "root"),
    [(True, PUBLISHED_STATE), (True, b"<h1>Server Error (500)</h1>"), (False, PUBLISHED_STATE)],
    ids=["with a job", "before its first job", "without Django's list of paths"],
)
def test_a_published_state_server_is_told_by_what_it_lacks(debug, root):
    with some_other_server(not_found_of_django(debug), 404, root) as port:
        assert link(port).is_published()


def not_found_of_django(debug):
    """Django's own page for a path that a project with the published paths does not have."""
    program = f"""
import sys
from django.conf import settings
from django.http import HttpResponse
from django.urls import path
settings.configure(DEBUG={debug}, ROOT_URLCONF="__main__", ALLOWED_HOSTS=["*"], SECRET_KEY="x")
import django
django.setup()
urlpatterns = [path(name, HttpResponse) for name in ("", "init/", "apply/", "reset/")]
from django.test import Client
sys.stdout.buffer.write(Client().get("/healthz").content)
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=DEADLINE_S).stdout


def test_an_answer_that_is_no_response_is_an_error_at_once():
    with some_other_server(b'{"status": "ok"}') as port:
        assert not link(port).is_published()
        with pytest.raises(JobError, match="welcome"):
            client = http_client(port)
            client.join("job", 0, 1)
            report(client, 1, 0.5, 0.0)


FAILS = """
import sys
from mxnet import gluon
calls = []
def loss(outputs, labels):
    calls.append(1)
    if len(calls) > 20 and "cpu1" in sys.argv:
        raise OSError("the lens is dirty")
    return gluon.loss.SoftmaxCrossEntropyLoss()(outputs, labels)
"""


@contextlib.contextmanager
def two_workers(folder, *flags, of_each=((), ())):
    """The processes of a synchronous job that trains without end."""
    with cluster(folder, num_workers=2) as processes:
        for rank, own in enumerate(of_each):
            its = ["-m", "sync", "-ld", str(folder), "--device-name", f"cpu{rank}", *flags, *own]
            processes.start_worker(rank, "main.py", *ENDLESS, *its)
        yield processes


@pytest.mark.cluster
def test_a_worker_that_fails_after_it_has_joined_ends_the_job(tmp_path):
    (tmp_path / "fails.py").write_text(FAILS)
    with two_workers(tmp_path, "--job", str(tmp_path / "fails.py")) as processes:
        codes = processes.exit_codes()
    assert codes == {
        "scheduler": EXIT_PEER_LOST, "server0": EXIT_PEER_LOST, "worker0": EXIT_PEER_LOST, "worker1": EXIT_SETUP
    }  # fmt: skip
    for name in ("scheduler", "server0", "worker0"):
        assert "error: worker 1 (cpu1 on host" in processes.log(name)
        assert "OSError: the lens is dirty" in processes.log(name)
    assert "OSError: the lens is dirty" in processes.log("worker1")


def test_a_cluster_that_never_becomes_complete(tmp_path):
    finished = run_main(tmp_path, *ENDLESS, "-m", "sync", "--start-timeout", "2", **worker_environment())
    assert_one_error_line(finished, "not complete after 2 s", code=EXIT_PEER_LOST)


def run_script(role, *flags, **environment):
    (port,) = free_ports(1)
    return ran(ROOT / "scripts" / f"{role}.sh", *flags, DMLC_PS_ROOT_PORT=str(port), **environment)


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_the_scripts_of_scheduler_and_server_wait_as_long_as_they_are_told(role):
    finished = run_script(role, "--start-timeout", "1.5")
    assert_one_error_line(finished, "not complete after 1.5 s (--start-timeout): ", code=EXIT_PEER_LOST)


def test_where_the_server_is_a_hub_a_scheduler_ends_at_once_and_two_servers_are_refused():
    scheduler, server = (run_script(role, "-m", "wbsp", DMLC_NUM_SERVER="2") for role in ("scheduler", "server"))
    assert (scheduler.returncode, "its workers meet at the server" in scheduler.stdout) == (EXIT_OK, True)
    assert_one_error_line(server, "mode wbsp has one server, the hub, here there are 2")


@pytest.mark.cluster
def test_unequal_flags_end_every_process_before_a_step_is_trained(tmp_path):
    with two_workers(tmp_path, of_each=(("-b", "64"), ("-b", "32"))) as processes:
        codes = processes.exit_codes()
    assert set(codes.values()) == {EXIT_SETUP}
    for name in codes:
        for rank, size in enumerate((64, 32)):
            found = rf"worker \(cpu{rank} on host {socket.gethostname()}, 127.0.0.1:\d+\) has -b {size}"
            assert re.search(found, processes.log(name))
    assert not list(tmp_path.glob("cpu*/iter-*.txt"))


@pytest.mark.cluster
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_killed_or_frozen_is_named_by_all_without_any_supervisor(tmp_path, fault):
    with two_workers(tmp_path, "--min-step-time", "0.05") as processes:
        wait_for((tmp_path / "cpu1" / "iter-3.txt").exists, "round 3")
        lost = processes.running.pop("worker1")
        try:
            lost.send(fault)
            begin = time.monotonic()
            codes = processes.exit_codes()
            assert time.monotonic() - begin < 60
        finally:
            lost.send(signal.SIGKILL)
            lost.reap()
    assert codes == dict.fromkeys(("scheduler", "server0", "worker0"), EXIT_PEER_LOST)
    whom = re.escape(f"worker 1 (cpu1 on host {socket.gethostname()}, 127.0.0.1:")
    silent = rf"no sign of life from {whom}\d+\) for 8 s: it is frozen, or its host"
    for name in codes:
        assert re.search(f"error: {whom if fault == signal.SIGKILL else silent}", processes.log(name))


def roles_of(supervisor):
    """Process ids of what a supervisor has started, by the role in their environment or command."""
    found = {}
    for pid in children(supervisor):
        try:
            environment, command = (Path(f"/proc/{pid}/{what}").read_text() for what in ("environ", "cmdline"))
        except OSError:
            continue
        roles = [entry[10:] for entry in environment.split("\0") if entry.startswith("DMLC_ROLE=")]
        others = {"main.py": "worker", "fork_server": "fork server", "manage.py": "state server"}  # a worker is forked
        (role, *_) = [*roles, *(role for word, role in others.items() if word in command)]
        found[role] = pid
    return found


@pytest.mark.cluster
def test_a_killed_hub_is_started_again_and_its_workers_train_on(tmp_path):
    words = ["-m", "wbsp", "--log-base", str(tmp_path), "--workers", "0.02,0.1", "--data-dir", str(few_images())]
    flags = ["-e", "1000", "--dataset", "mnist", "--on-worker-death", "continue"]
    with begun(sys.executable, "-m", "scripts.launch.local_cluster", *words, "--", *flags) as supervisor:
        logs = tmp_path / "lenet" / "wbsp"
        wait_for(lambda: len(list(logs.glob("*/cpu*/iter-2.txt"))) == 2, "round 2 of both")
        pids = roles_of(supervisor.pid)
        assert set(pids) == {"worker", "server", "state server", "fork server"}
        os.kill(pids["server"], signal.SIGKILL)
        wait_for(lambda: "goes on with the newest model" in (logs / "server0.log").read_text(), "the hub's return")
        again = 3 + max(int(path.stem[5:]) for path in logs.glob("*/cpu1/iter-*.txt"))
        wait_for(lambda: list(logs.glob(f"*/cpu1/iter-{again}.txt")), "rounds after that")
        supervisor.send_signal(signal.SIGINT)
        output, _ = supervisor.communicate(timeout=45)
    assert supervisor.returncode == EXIT_OK, output
    assert "server 0 was killed by signal 9: it is started again, and gets the newest model that a worker has" in output
    assert "worker 0 (cpu0) " not in output and "worker 1 (cpu1) " not in output  # both are the same processes
