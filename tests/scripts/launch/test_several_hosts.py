"""Whole jobs on several hosts as users start them: scripts/cluster.sh, real sshd, real processes, few images."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from cluster_processes import DEADLINE_S, ROOT, wait_for
from few_images import few_images
from namespaces import Host, Network, network

import summary
from experiments.study import real_slowness
from scripts.launch.forking import NAME
from trainer.run_logs.rounds import iter_files
from utils import RUN_FILE, SetupError, read_json

pytestmark = pytest.mark.cluster

DATASET = ("--dataset", "mnist")
NOT_COPIED = (".git", ".venv*", "data", "logs", "results", "tests", ".*_cache", "__pycache__")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory, namespaces_can_be_made: None) -> Iterator[Network]:
    """Four hosts, each with the project in a folder of its own."""
    with network(tmp_path_factory.mktemp("hosts"), 4) as made:
        for host in made.hosts:
            shutil.copytree(ROOT, project(host), ignore=shutil.ignore_patterns(*NOT_COPIED))
            (project(host) / ".venv").symlink_to(sys.prefix)
            (project(host) / "data").symlink_to(few_images())
        yield made
    assert not Path("/run/netns", made.switch).exists()


def project(host: Host) -> Path:
    return host.folder / "esync"


@pytest.fixture(autouse=True)
def nothing_stays_on_a_host(net: Network) -> Iterator[None]:
    """Once the launcher has ended; one test that fails leaves nothing to the others."""
    yield
    left = net.commands()
    running = [process for process in Launcher.started if process.poll() is None]
    for process in running:
        process.kill()
        process.wait()
    Launcher.started.clear()
    assert left == [] or running


class Launcher:
    """scripts/cluster.sh at the desk, with its logs in `folder`."""

    started: ClassVar[list[subprocess.Popen[bytes]]] = []

    def __init__(self, net: Network, folder: Path, hosts: str, *arguments: str) -> None:
        self.log_base = folder / "logs"
        hosts_file = folder / "hosts.csv"
        hosts_file.write_text(hosts)
        ssh = f"ssh -F {net.ssh_config}"
        command = ["--hosts", hosts_file, "--ssh", ssh, "--log-base", self.log_base, *arguments]
        self.output = folder / "output"
        with self.output.open("w") as output:  # an unread pipe would be full after some hundred rounds
            self.process = subprocess.Popen(
                net.desk.command(ROOT / "scripts" / "cluster.sh", *command),
                env=os.environ | {"VENV": sys.prefix, "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.started.append(self.process)

    def end(self, code: int) -> str:
        """Its output, once it has ended with this exit code."""
        ended, output = self.process.wait(DEADLINE_S), self.output.read_text()
        assert ended == code, output
        return output


def hosts_of(net: Network, count: int = 4, more: str = "") -> str:
    rows = "".join(f"{host.name},1,cpu,,{project(host)}\n" for host in net.hosts[:count])
    return f"address,workers,devices,flags,folder\n{rows}{more}"


def training(host: Host, mode: str, number: int = 3) -> bool:
    return (project(host) / "logs" / "lenet" / mode / host.name / "cpu" / f"iter-{number}.txt").exists()


def commands(host: Host, what: str = "cmdline") -> dict[int, bytes]:
    """Ids and command lines, or what else /proc has, of what runs on a host."""
    found = {}
    for pid in host.pids():
        with contextlib.suppress(OSError):  # it has just ended
            found[pid] = Path(f"/proc/{pid}/{what}").read_bytes()
    return found


def kill_on(host: Host, *words: bytes) -> None:
    """Kills the one process there whose command has these words: a worker, or the agent, with which the worker dies."""
    (pid,) = (pid for pid, line in commands(host).items() if all(word in line for word in words))
    os.kill(pid, signal.SIGKILL)


WORKER, AGENT = (b"--device-name",), (b"python", b"remote.py")


def names(host: Host) -> list[str]:
    """What `ps -o comm` calls the processes on a host."""
    return [name.decode().strip() for name in commands(host, "comm").values()]


def test_a_job_on_four_hosts_trains_and_brings_its_logs_home(net, tmp_path):
    """The job file is here alone: it gets to the hosts with the module that it imports."""
    (tmp_path / "mine.py").write_text("from layers import dense\n\n\ndef network():\n    return dense(10)\n")
    (tmp_path / "layers.py").write_text("from mxnet.gluon.nn import Dense as dense  # \u00e4\n")
    flags = ["-m", "esync", "--job", str(tmp_path / "mine.py"), "--", *DATASET, "--max-rounds", "3", "-e", "3"]
    output = Launcher(net, tmp_path, hosts_of(net), *flags, "--min-step-time", "0.02").end(0)
    folder = tmp_path / "logs" / "mine" / "esync"
    for rank, host in enumerate(reversed(net.hosts)):  # MXNet ranks by the addresses as texts, the greatest first
        run = read_json(folder / host.name / "cpu" / RUN_FILE)
        assert (run["rank"], run["num_workers"], run["ended"]) == (rank, 4, "3 rounds done")
        assert run["config"]["job"] == f"{project(host)}/logs/mine/esync/{host.name}/.job/mine.py"
        assert list(iter_files(folder / host.name / "cpu")) == [1, 2, 3]
        assert re.search(rf"worker {rank}\b.* \| ended after round 3", (folder / f"{host.name}-cpu.log").read_text())
    assert len(re.findall(r"h4 cpu rank 0 \| round \d+", output)) == 3
    assert re.search(rf"status page: http://{re.escape(net.hosts[0].address)}:\d+/\n", output)
    assert "round 1" in (folder / "h2-cpu.log").read_text()
    assert not re.search(r"h2 cpu rank 2 \| round \d+(?!.*accuracy)", output)  # but of the one that evaluates
    assert summary.main(["-b", str(tmp_path / "logs"), "-n", "mine"]) == 0
    assert sorted(read_json(folder / "ESync.json")) == ["h1", "h2", "h3", "h4"]


@pytest.mark.parametrize("flags", [("-m", "esync", "--exchange", "ring"), ("-m", "wbsp")], ids=["ring", "hub"])
def test_a_network_of_pytorch_trains_on_several_hosts(net, tmp_path, flags):
    pytest.importorskip("torch", reason="PyTorch is not installed: scripts/setup.sh --test --torch")
    job = Path(__file__).resolve().parents[3] / "examples" / "torch_table.py"
    more = ["--job", str(job), "--", "--max-seconds", "2", "--min-step-time", "0.02", "-e", "20"]
    Launcher(net, tmp_path, hosts_of(net, 2), *flags, *more).end(0)
    for host in net.hosts[:2]:
        folder = tmp_path / "logs" / "torch_table" / flags[1] / host.name / "cpu"
        assert read_json(folder / RUN_FILE)["num_workers"] == 2
        assert len(list(iter_files(folder))) > 2


def test_a_job_file_is_read_here_where_a_lost_worker_is_to_be_forked_there(net, tmp_path):
    (tmp_path / "mine.py").write_text("from mxnet.gluon.nn import Dense\n\n\ndef network():\n    return Dense(10)\n")
    flags = ["-m", "esync", "--exchange", "ring", "--job", str(tmp_path / "mine.py"), "--", *DATASET]
    flags += ["--max-rounds", "3", "-e", "3", "--min-step-time", "0.02", "--on-worker-death", "continue"]
    Launcher(net, tmp_path, hosts_of(net, 2), *flags).end(0)


def start(net: Network, folder: Path, mode: str, *options: str, more: Sequence[str] = (), count: int = 2) -> Launcher:
    """A job without an end on the first hosts, once all have done some rounds, and the launcher has heard of one."""
    for host in net.hosts:  # what a job before has left is not to be taken for its rounds
        shutil.rmtree(project(host) / "logs" / "lenet" / mode, ignore_errors=True)
    flags = ["-m", mode, *options, "--", *DATASET, "-e", "1000", "--min-step-time", "0.02", *more]
    launcher = Launcher(net, folder, hosts_of(net, count), *flags)
    wait_for(lambda: all(training(host, mode) for host in net.hosts[:count]), "round 3")
    logs = [folder / "logs" / "lenet" / mode / f"{host.name}-cpu.log" for host in net.hosts[:count]]
    wait_for(lambda: all("| round 1, " in log.read_text() for log in logs), "the launcher's knowledge of a round")
    return launcher


def ended_after_more_rounds(launcher: Launcher, mode: str, hosts: Sequence[Host], code: int) -> tuple[int, str]:
    """A round that is later than all so far, and the output of a job that Ctrl-C has ended after it."""
    again = 5 + max(iter_files(project(hosts[0]) / "logs" / "lenet" / mode / hosts[0].name / "cpu"))
    wait_for(lambda: all(training(host, mode, again) for host in hosts), "rounds after that")
    launcher.process.send_signal(signal.SIGINT)
    return again, launcher.end(code)


def test_ctrl_c_ends_the_round_on_all_hosts(net, tmp_path):
    launcher = start(net, tmp_path, "sync", "--exchange", "ring")
    launcher.process.send_signal(signal.SIGINT)
    output = launcher.end(0)
    assert "all 2 workers are connected with each other" in output and "scheduler" not in output
    folders = [tmp_path / "logs" / "lenet" / "sync" / host.name / "cpu" for host in net.hosts[:2]]
    reasons = {read_json(folder / RUN_FILE)["ended"] for folder in folders}
    assert "a signal came" in reasons and reasons <= {"a signal came", "another worker asked for it"}, reasons
    assert len({len(iter_files(folder)) for folder in folders}) == 1


def test_a_job_that_survives_is_forked_again_on_all_hosts_and_goes_on(net, tmp_path):
    flags = ["--ckpt-frequency", "2", "--checkpoint", str(tmp_path / "kept"), "--on-worker-death", "restart"]
    launcher = start(net, tmp_path, "backup", more=flags)
    wait_for(lambda: all(NAME in names(host) for host in net.hosts[:2]), "that processes can be forked")
    kill_on(net.hosts[1], *WORKER)
    wait_for(lambda: all(f"{host.name} cpu" in names(host) for host in net.hosts[:2]), "a start by fork")
    folder = tmp_path / "logs" / "lenet" / "backup"
    wait_for(lambda: "| goes on after round " in (folder / "h2-cpu.log").read_text(), "a checkpoint")
    _, output = ended_after_more_rounds(launcher, "backup", net.hosts[:2], code=0)
    assert re.search(r"h2 cpu .*was killed by signal 9.*: what came after round \d+ is lost: all are", output), output
    for host in net.hosts[:2]:
        rounds = [*iter_files(folder / host.name / "cpu")]
        assert rounds == [*range(1, len(rounds) + 1)]


def test_the_others_go_on_without_a_host_that_is_gone(net, tmp_path):
    launcher = start(net, tmp_path, "wbsp", more=["-ll", "0.0005", "--on-worker-death", "continue"])
    kill_on(net.hosts[1], *AGENT)
    wait_for(lambda: not [line for line in commands(net.hosts[1]).values() if WORKER[0] in line], "the worker's end")
    _, output = ended_after_more_rounds(launcher, "wbsp", net.hosts[:1], code=3)
    assert "the connection to h2 ended with exit code 255: the others go on without the workers there" in output
    assert "the others go on without it" in output  # as the hub tells the worker on h1
    assert "error: the logs of h2 stay there" in output
    assert read_json(tmp_path / "logs" / "lenet" / "wbsp" / "h1" / "cpu" / RUN_FILE)["ended"] == "a signal came"


def test_a_job_that_has_lost_a_host_starts_again_without_it(net, tmp_path):
    flags = ["--ckpt-frequency", "2", "--checkpoint", str(tmp_path / "kept"), "--on-worker-death", "restart"]
    hosts = net.hosts[:3]
    launcher = start(net, tmp_path, "esync", more=["-ll", "0.0005", *flags], count=3)
    wait_for(lambda: all(training(host, "esync", 5) for host in hosts), "checkpoints")
    kill_on(hosts[1], *AGENT)
    folder = tmp_path / "logs" / "lenet" / "esync"
    logs = [folder / f"{host.name}-cpu.log" for host in (hosts[0], hosts[2])]
    wait_for(lambda: all("| goes on after round " in log.read_text() for log in logs), "a checkpoint of each")
    again, output = ended_after_more_rounds(launcher, "esync", (hosts[0], hosts[2]), code=3)
    assert re.search(
        r"the connection to h2 ended with exit code 255: what came after round \d+ is lost: all others are", output
    ), output
    assert "error: the logs of h2 stay there" in output
    for host in (hosts[0], hosts[2]):
        about = read_json(folder / host.name / "cpu" / RUN_FILE)
        assert (about["num_workers"], about["ended"]) == (2, "a signal came")
        rounds = [*iter_files(folder / host.name / "cpu")]
        assert rounds == [*range(1, len(rounds) + 1)] and len(rounds) >= again


def test_nothing_is_left_on_any_host_when_the_launcher_is_killed(net, tmp_path):
    launcher = start(net, tmp_path, "async")
    launcher.process.kill()
    wait_for(lambda: not net.commands(), "the end of every process")
    launcher.process.wait(DEADLINE_S)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("h2,1,cpu,,/nowhere", "line 3: h2: no folder /nowhere here: put the project there"),
        ("10.77.0.99,1,cpu,,", "line 3: 10.77.0.99: ssh: "),
        ("nobody@h2,1,cpu,,", "line 3: 'nobody@h2' is no address"),
    ],
)
def test_a_host_that_cannot_take_part_is_one_line(net, tmp_path, row, complaint):
    (line,) = Launcher(net, tmp_path, hosts_of(net, 1, more=row), "-m", "sync").end(2).splitlines()
    assert line.startswith("error: hosts file ") and complaint in line


def test_a_key_that_is_unknown_is_said_with_what_to_do(net, tmp_path):
    strangers = net.desk.folder / "strangers"
    strangers.write_text(re.sub("UserKnownHostsFile .*", "UserKnownHostsFile /dev/null", net.ssh_config.read_text()))
    launcher = Launcher(net, tmp_path, hosts_of(net, 1), "-m", "sync", "--ssh", f"ssh -F {strangers}")
    output = launcher.end(2)
    assert output.count("\n") == 1
    assert "Host key verification failed" in output and "connect once by hand: ssh h1" in output


@pytest.fixture
def slowed(net: Network) -> Iterator[Host]:
    """A host that has a tenth of a core."""
    host = net.hosts[1]
    try:
        folder = real_slowness.group(host.name, 0.1)
    except SetupError as error:
        pytest.skip(str(error))
    for pid in host.pids():
        (folder / "cgroup.procs").write_text(str(pid))
    yield host
    top = folder.parent / "cgroup.procs"
    for pid in (folder / "cgroup.procs").read_text().split():
        top.write_text(pid)
    real_slowness.remove(folder)


def test_steps_are_timed_on_the_hosts_and_the_fastest_take_part(net: Network, slowed: Host, tmp_path: Path) -> None:
    flags = ("-m", "esync", "--fastest", "1", "-n", "mlp", "--", *DATASET, "--max-rounds", "3", "-b", "64")
    launcher = Launcher(net, tmp_path, hosts_of(net, 2), *flags)
    output = launcher.end(0)
    assert "esync takes the fastest 1 of 2 workers: h1 cpu" in output and f"{slowed.name} cpu rank" not in output
    times = (launcher.log_base / "step-times.csv").read_text().splitlines()
    (fast, slow) = (float(line.rpartition(",")[2]) for line in times[1:])
    assert times[0] == "host,device,step_time_s" and slow > 2 * fast > 0
    run = read_json(launcher.log_base / "mlp" / "esync-k1" / "h1" / "cpu" / RUN_FILE)
    assert (run["num_workers"], run["config"]["of_workers"]) == (1, 2)
