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
from cluster_processes import DATA, DEADLINE_S, ROOT, children, cluster, free_ports, wait_for
from error_lines import ENDLESS, assert_one_error_line, port_that_hangs_up, run_main, worker_environment
from few_images import few_images, on_few_images
from state_server_process import http_client, report

from esync.clock import RealClock
from esync.http import HttpLink
from utils import DIVERGED, EXIT_BUG, EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, JobError, SetupError


def test_a_gpu_that_is_not_there(tmp_path):
    assert_one_error_line(run_main(tmp_path, "-m", "local", "-dd", str(DATA)), "GPU 0", "-c 1")


def test_data_that_is_not_there(tmp_path):
    finished = run_main(tmp_path, "-m", "local", "-c", "1", "-dd", str(tmp_path / "nowhere"))
    assert_one_error_line(finished, "nowhere/fashion-mnist", "get_data.sh")


def test_a_log_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    finished = run_main(tmp_path / "file", "-m", "local", "-c", "1", "-dd", str(DATA))
    assert_one_error_line(finished, "log folder", "-ld")


def test_a_state_server_that_is_not_there(tmp_path):
    (port,) = free_ports(1)
    finished = run_main(tmp_path, *ENDLESS, "-port", str(port), **worker_environment())
    assert_one_error_line(finished, f"http://127.0.0.1:{port}", "state_server.sh")


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PS_RESEND", "1"),
        ("DMLC_PS_ROOT_URI", "no.such.host.invalid"),
        ("DMLC_INTERFACE", "nosuch0"),
    ],
)
@pytest.mark.parametrize("role", ["worker", "server"])
def test_a_setting_that_cannot_work(tmp_path, name, value, role):
    environment = worker_environment() | {"DMLC_PS_ROOT_PORT": port_that_hangs_up(), "DMLC_ROLE": role, name: value}
    assert_one_error_line(run_main(tmp_path, *ENDLESS, "-m", "sync", **environment), name)


def test_a_batch_larger_than_the_data(tmp_path):
    finished = run_main(tmp_path, "-m", "local", "-c", "1", "-n", "lenet", "-b", "99999999999", *on_few_images())
    assert_one_error_line(finished, "99999999999", "6000", "-b")


def test_a_malformed_straggler_trace(tmp_path):
    (tmp_path / "trace.csv").write_text("start_s,duration_s,extra_s\n1,2,much\n")
    flags = [*ENDLESS, "-m", "sync", "--straggler-trace", str(tmp_path / "trace.csv")]
    finished = run_main(tmp_path, *flags, **worker_environment() | {"DMLC_PS_ROOT_PORT": port_that_hangs_up()})
    assert_one_error_line(finished, "trace.csv, line 2", "much")


def test_a_slow_link_where_nothing_is_exchanged(tmp_path):
    (tmp_path / "trace.csv").write_text("start_s,duration_s,extra_s,kind\n1,2,0.1,network\n")
    flags = ["-m", "local", "-c", "1", "-n", "lenet", "--straggler-trace", str(tmp_path / "trace.csv")]
    assert_one_error_line(run_main(tmp_path, *flags), "trace.csv", "mode local exchanges nothing")


def test_a_step_size_that_diverges(tmp_path):
    flags = ["-m", "local", "-c", "1", "-n", "lenet", "-l", "1e30", "-e", "1000", *on_few_images()]
    finished = run_main(tmp_path, *flags)
    assert_one_error_line(finished, DIVERGED, "-l", code=EXIT_BUG)


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


@pytest.mark.cluster
def test_a_worker_that_fails_after_it_has_joined_ends_the_job(tmp_path):
    (tmp_path / "fails.py").write_text(FAILS)
    with cluster(tmp_path, num_workers=2) as processes:
        for rank in range(2):
            flags = [*ENDLESS, "-m", "sync", "-ld", str(tmp_path), "--device-name", f"cpu{rank}"]
            processes.start_worker(rank, "main.py", *flags, "--job", str(tmp_path / "fails.py"))
        codes = processes.exit_codes()
    assert codes == {
        "scheduler": EXIT_PEER_LOST, "server0": EXIT_PEER_LOST, "worker0": EXIT_PEER_LOST, "worker1": EXIT_SETUP
    }  # fmt: skip
    for name in ("scheduler", "server0", "worker0"):
        assert "error: worker 1 (cpu1 on host" in processes.log(name)
        assert "OSError: the lens is dirty" in processes.log(name)
    assert "OSError: the lens is dirty" in processes.log("worker1")


def test_a_mode_that_needs_a_cluster_without_one(tmp_path):
    assert_one_error_line(run_main(tmp_path, "-m", "sync", "-c", "1"), "DMLC_ROLE", "-m local")


def test_local_mode_inside_a_cluster(tmp_path):
    finished = run_main(tmp_path, "-m", "local", "-c", "1", **worker_environment())
    assert_one_error_line(finished, "DMLC_ROLE")


def test_an_incomplete_cluster_environment(tmp_path):
    finished = run_main(tmp_path, DMLC_ROLE="scheduler", DMLC_PS_ROOT_URI="127.0.0.1")
    assert_one_error_line(finished, "DMLC_PS_ROOT_PORT")


def test_a_scheduler_port_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        finished = run_main(tmp_path, **worker_environment() | {"DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_PORT": port})
    assert_one_error_line(finished, f"port {port} is in use")


def test_a_cluster_that_never_becomes_complete(tmp_path):
    finished = run_main(tmp_path, *ENDLESS, "-m", "sync", "--start-timeout", "2", **worker_environment())
    assert_one_error_line(finished, "not complete after 2 s", code=EXIT_PEER_LOST)


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_the_scripts_of_scheduler_and_server_wait_as_long_as_they_are_told(role):
    (port,) = free_ports(1)
    finished = subprocess.run(
        [ROOT / "scripts" / f"{role}.sh", "--start-timeout", "1.5"],
        env={**os.environ, "DMLC_PS_ROOT_PORT": str(port)}, capture_output=True, text=True, timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip
    assert_one_error_line(finished, "not complete after 1.5 s (--start-timeout): ", code=EXIT_PEER_LOST)


def test_where_the_server_is_a_hub_a_scheduler_ends_at_once_and_two_servers_are_refused():
    (port,) = free_ports(1)
    environment = {**os.environ, "DMLC_PS_ROOT_PORT": str(port), "DMLC_NUM_SERVER": "2"}
    scheduler, server = (
        subprocess.run(
            [ROOT / "scripts" / f"{role}.sh", "-m", "wbsp"],
            env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )
        for role in ("scheduler", "server")
    )  # fmt: skip
    assert (scheduler.returncode, "its workers meet at the server" in scheduler.stdout) == (EXIT_OK, True)
    assert_one_error_line(server, "mode wbsp has one server, the hub, here there are 2")


def test_earlier_logs_survive_a_start_that_fails(tmp_path):
    earlier = tmp_path / "cpu" / "iter-1.txt"
    earlier.parent.mkdir()
    earlier.write_text("{}")
    assert run_main(tmp_path, "-m", "local", "-c", "1", "-dd", str(tmp_path)).returncode == EXIT_SETUP
    assert earlier.exists()


@pytest.mark.cluster
def test_unequal_flags_end_every_process_before_a_step_is_trained(tmp_path):
    with cluster(tmp_path, num_workers=2) as processes:
        for rank, batch_size in enumerate(("64", "32")):
            flags = [*ENDLESS, "-m", "sync", "-ld", str(tmp_path), "--device-name", f"cpu{rank}", "-b", batch_size]
            processes.start_worker(rank, "main.py", *flags)
        codes = processes.exit_codes()
    assert set(codes.values()) == {EXIT_SETUP}
    for name in codes:
        for rank, size in enumerate((64, 32)):
            found = rf"worker \(cpu{rank} on host {socket.gethostname()}, 127.0.0.1:\d+\) has -b {size}"
            assert re.search(found, processes.log(name))
    assert not list(tmp_path.glob("cpu*/iter-*.txt"))


@pytest.mark.cluster
def test_a_killed_worker_ends_the_others_without_any_supervisor(tmp_path):
    with cluster(tmp_path, num_workers=2) as processes:
        for rank in range(2):
            flags = [*ENDLESS, "-m", "sync", "-ld", str(tmp_path), "--device-name", f"cpu{rank}"]
            processes.start_worker(rank, "main.py", *flags, "--min-step-time", "0.05")
        wait_for((tmp_path / "cpu1" / "iter-3.txt").exists, "round 3")
        processes.running["worker1"].send(signal.SIGKILL)
        begin = time.monotonic()
        codes = processes.exit_codes()
        assert time.monotonic() - begin < 60
    assert codes.pop("worker1") == -signal.SIGKILL
    assert codes == {"scheduler": EXIT_PEER_LOST, "server0": EXIT_PEER_LOST, "worker0": EXIT_PEER_LOST}
    for name in codes:
        assert f"error: worker 1 (cpu1 on host {socket.gethostname()}, 127.0.0.1:" in processes.log(name)


@pytest.mark.cluster
def test_a_frozen_worker_is_named_by_all(tmp_path):
    with cluster(tmp_path, num_workers=2) as processes:
        for rank in range(2):
            flags = [*ENDLESS, "-m", "sync", "-ld", str(tmp_path), "--device-name", f"cpu{rank}"]
            processes.start_worker(rank, "main.py", *flags, "--min-step-time", "0.05")
        wait_for((tmp_path / "cpu1" / "iter-3.txt").exists, "round 3")
        processes.running["worker1"].send(signal.SIGSTOP)
        frozen = processes.running.pop("worker1")
        try:
            codes = processes.exit_codes()
        finally:
            frozen.send(signal.SIGKILL)
            frozen.reap()
    assert set(codes.values()) == {EXIT_PEER_LOST}
    for name in codes:
        named = re.escape(f"error: no sign of life from worker 1 (cpu1 on host {socket.gethostname()}")
        assert re.search(named + r"[^)]*\) for 8 s: it is frozen, or its host", processes.log(name))


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
    with subprocess.Popen(
        [sys.executable, "-m", "scripts.launch.local_cluster", *words, "--", *flags],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as supervisor:  # fmt: skip
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


@pytest.mark.cluster
@pytest.mark.parametrize("role", ["server", "scheduler"])
def test_a_killed_role_ends_a_local_cluster_within_seconds(tmp_path, role):
    job = ["--log-base", str(tmp_path), "--workers", "0.02,0.1", "--data-dir", str(few_images())]
    with subprocess.Popen(
        [sys.executable, "-m", "scripts.launch.local_cluster", *job, "--", "-e", "1000", "--dataset", "mnist"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as supervisor:  # fmt: skip
        wait_for(lambda: len(list(tmp_path.glob("lenet/esync/*/cpu0/iter-2.txt"))), "round 2")
        pids = roles_of(supervisor.pid)
        assert set(pids) == {"worker", "server", "scheduler", "state server", "fork server"}
        os.kill(pids[role], signal.SIGKILL)
        output, _ = supervisor.communicate(timeout=45)
    assert supervisor.returncode == EXIT_PEER_LOST, output
    (line,) = (line for line in output.splitlines() if line.startswith("error: "))
    assert line.startswith(f"error: {role}")
    assert "killed by signal 9" in line
    for pid in pids.values():
        assert not Path(f"/proc/{pid}").exists()
