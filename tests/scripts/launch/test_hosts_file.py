"""Hosts files: what they say, what is wrong with them, and the processes that come of them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from scripts.launch import cluster, hosts_file, job_options, step_times
from scripts.launch.hosts_layout import example, make_layout, node_of, num_ports, port_ranges
from scripts.launch.process import Kind, Role
from scripts.launch.roles import ROOT, JobSpec, Node, build
from trainer import command_line
from utils import EXIT_OK, SetupError

HEADER = "address,workers,devices,flags\n"


def hosts(folder: Path, rows: str, header: str = HEADER) -> Path:
    path = folder / "hosts.csv"
    path.write_text(header + rows)
    return path


def plan(path: Path, *arguments: str) -> JobSpec:
    return cluster.parse(["--hosts", str(path), "--log-base", str(path.parent / "logs"), *arguments])


def roles(given: JobSpec, cores: int = 8) -> dict[str, Role]:
    """The processes of a job on hosts 10.0.0.1, 10.0.0.2, ... with the ports 1001, 1002, ..."""
    ports = {name: range(1001, 1001 + count) for name, count in num_ports(given).items()}
    return {role.name: role for role in build(*make_layout(given, nodes(given, cores), ports))}


def nodes(given: JobSpec, cores: int = 8) -> dict[str, Node]:
    names = enumerate(given.hosts.hosts, start=1)
    return {name: node_of(given, name, "/py", f"/{name}/esync", cores, f"10.0.0.{n}", f"eth{n}") for n, name in names}


def test_a_row_is_a_host_with_its_workers(tmp_path):
    rows = "# one\nh1, 2, gpu0 gpu1, --min-step-time 1\n\nh2,2,,  # no flags\nh3,0\nh1,1,cpu,--min-step-time 2\n"
    found = hosts_file.read(hosts(tmp_path, rows))
    assert list(found.hosts) == ["h1", "h2", "h3"]
    assert [(worker.host, worker.folder, worker.flags) for worker in found.workers] == [
        ("h1", "gpu0", ("--min-step-time", "1")),
        ("h1", "gpu1", ("--min-step-time", "1")),
        ("h2", "cpu0", ()),
        ("h2", "cpu1", ()),
        ("h1", "cpu", ("--min-step-time", "2")),
    ]
    assert set(found.places.values()) == {("h1",)}


@pytest.mark.parametrize(
    ("header", "rows", "what"),
    [
        *(
            (HEADER, rows, f"line {line}.*{what}")
            for rows, line, what in (
                ("-oProxyCommand=x,1,cpu,\n", 2, "is no address"),
                ("me@h1,1,cpu,\n", 2, "the user has the column user"),
                ("h1,1,cpu,\n\nh2,x,cpu,\n", 4, "column workers: 'x' is no number"),
                ("h1,-1,cpu,\n", 2, "column workers: -1 is out of range"),
                ("h1,1,tpu,\n", 2, "'tpu' is no device; give cpu, or gpu with its number"),
                ("h1,3,gpu0 gpu1,\n", 2, r"3 worker\(s\) and 2 devices \(gpu0 gpu1\)"),
                ("h1,1,cpu,,,x\n", 2, r"has 6 values for 4 column\(s\), address,workers,devices,flags: put a value"),
                ('h1,1,cpu,"-b 1\n', 2, "is no line of a CSV file"),
                ("h1,1,cpu,-b '1\n", 2, "flags .*: No closing quotation"),
            )
        ),
        ("host,workers\n", "h1,1\n", r"line 1: 'host,workers' is no list of columns; give address and"),
        ("address,address\n", "h1,h1\n", "line 1: .* is no list of columns"),
        ("address\n", "", "has no host; give one line for each"),
        ("address,workers\n", "h1,0\n", "has no worker"),
        ("address,roles\n", "h1,boss\n", "line 2: 'boss' is no role; choose from scheduler, server, state-server"),
        ("address,roles\n", "h1,scheduler\nh2,scheduler\n", "h1 and h2 both have the role scheduler"),
        ("address,port\n", "h1,ssh\n", "line 2, column port: 'ssh' is not a port"),
        ("address,name\n", "h1,a/b\n", "line 2, column name: 'a/b' cannot name a folder"),
        ("address,folder\n", "h1,a\nh1,b\n", "line 3: host h1 has folder 'b' here and 'a' in .*line 2"),
        ("address,straggler_trace\n", "h1,gone.csv\n", r"line 2: .*gone\.csv cannot be read"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(tmp_path, header, rows, what):
    with pytest.raises(SetupError, match=rf"hosts\.csv.*{what}"):
        hosts_file.read(hosts(tmp_path, rows, header))


def test_a_job_that_sums_among_its_workers_has_no_ports_of_servers(tmp_path):
    path = hosts(tmp_path, "h1,1,cpu,\nh2,2,cpu,\n")
    given = plan(path, "-m", "sync", "--exchange", "butterfly", "--base-port", "9000")
    assert num_ports(given) == {"h1": 2, "h2": 2}  # the state server, and each worker
    found = roles(given)
    assert list(found) == ["h1 state server", "h1 cpu", "h2 cpu0", "h2 cpu1"]
    assert (found["h2 cpu1"].environment["PORT"], found["h2 cpu1"].environment["DMLC_INTERFACE"]) == ("1002", "eth2")


def test_the_first_host_has_the_other_roles_unless_a_row_says_otherwise(tmp_path):
    first = roles(plan(hosts(tmp_path, "h1,1,cpu,\nh2,1,cpu,\n"), "-m", "esync"))
    assert list(first) == ["h1 state server", "h1 scheduler", "h1 server 0", "h1 cpu", "h2 cpu"]
    rows = "h1,1,\nh2,0,server\nh3,1,scheduler server\nh4,0,state-server\n"
    path = hosts(tmp_path, rows, "address,workers,roles\n")
    given = plan(path, "-m", "esync", "--servers", "3")
    spread = roles(given)
    assert list(spread) == [
        "h4 state server", "h3 scheduler", "h2 server 0", "h3 server 1", "h2 server 2", "h1 cpu", "h3 cpu",
    ]  # fmt: skip
    worker = spread["h1 cpu"]
    assert worker.environment["DMLC_PS_ROOT_URI"] == "10.0.0.3"
    assert worker.environment["DMLC_INTERFACE"] == "eth1"
    assert command_line.parse(worker.command[2:]).state_server_ip == "10.0.0.4"
    assert spread["h4 state server"].command[3].startswith("10.0.0.4:")
    assert spread["h4 state server"].command[-1] == "/h4/esync/logs/lenet/esync/h4/page.html"
    shared = roles(dataclasses.replace(given, is_shared=True))
    assert shared["h4 state server"].command[-1] == str(given.log_folder / "page.html")  # whichever host has it


def test_a_hub_is_on_the_host_of_the_server_with_one_port(tmp_path):
    path = hosts(tmp_path, "h1,1,scheduler\nh2,1,\nh3,0,server\n", "address,workers,roles\n")
    given = plan(path, "-m", "wbsp")
    assert num_ports(given) == {"h1": 2, "h2": 1, "h3": 1}
    spread = roles(given)
    assert list(spread) == ["h1 state server", "h3 server 0", "h1 cpu", "h2 cpu"]
    assert {spread[name].environment["DMLC_PS_ROOT_URI"] for name in ("h3 server 0", "h1 cpu")} == {"10.0.0.3"}
    assert list(spread["h3 server 0"].command[1:]) == ["/h3/esync/main.py", "-m", "wbsp"]
    assert "PORT" not in spread["h3 server 0"].environment
    assert num_ports(plan(path, "-m", "wbsp", "--root-port", "9000")) == {"h1": 2, "h2": 1}
    with pytest.raises(SetupError, match="mode wbsp has one server"):
        plan(path, "-m", "wbsp", "--servers", "2")


def test_processes_run_in_their_hosts_folder_on_ports_of_their_own(tmp_path):
    path = hosts(tmp_path, "h1,2,cpu,--min-step-time 0.1\nh2,1,gpu1,\n")
    given = roles(plan(path, "-m", "dcasgd", "--", "--min-step-time", "0.2", "-e", "7"))
    workers = {name: role for name, role in given.items() if role.kind is Kind.WORKER}
    told = {name: command_line.parse(role.command[2:]) for name, role in workers.items()}
    assert [(flags.min_step_time, flags.eval_duration, flags.settings.use_dcasgd) for flags in told.values()] == [
        (0.1, 7, 1), (0.1, 7, 1), (0.2, 7, 1),
    ]  # fmt: skip
    assert [(flags.cpu, flags.gpu, flags.device) for flags in told.values()] == [
        (1, 0, "cpu0"), (1, 0, "cpu1"), (0, 1, "gpu1"),
    ]  # fmt: skip
    assert told["h2 gpu1"].log_dir == "/h2/esync/logs/lenet/dcasgd/h2"
    assert workers["h2 gpu1"].command[:2] == ["/py", "/h2/esync/main.py"]
    ports = [role.environment.get("PORT") for role in given.values() if role.host == "h1"]
    assert ports == [None, "1003", "1004", "1005", "1006"]  # before them come the meeting's and the state server's
    assert given["h1 scheduler"].environment["DMLC_PS_ROOT_PORT"] == "1001"


def test_processes_that_share_a_host_share_its_cores(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    given = plan(hosts(tmp_path, "h1,3,cpu,\nh2,1,cpu,\n"), "-m", "sync")
    assert roles(given)["h1 cpu0"].environment["OMP_NUM_THREADS"] == "2"  # three workers and a server on 8 cores
    assert "OMP_NUM_THREADS" not in roles(given)["h2 cpu"].environment
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert roles(given)["h2 cpu"].environment["OMP_NUM_THREADS"] == "5"


def test_a_token_for_the_state_server_is_passed_on_and_other_variables_are_not(tmp_path, monkeypatch):
    monkeypatch.setenv("ESYNC_TOKEN", "secret")
    monkeypatch.setenv("DMLC_ROLE", "worker")
    monkeypatch.setenv("HOME", "/mine")
    given = roles(plan(hosts(tmp_path, "h1,1,cpu,\n"), "-m", "esync"))
    assert {role.environment["ESYNC_TOKEN"] for role in given.values()} == {"secret"}
    assert "HOME" not in given["h1 cpu"].environment
    assert "DMLC_ROLE" not in given["h1 state server"].environment
    monkeypatch.delenv("ESYNC_TOKEN")  # then one is drawn, which no command shows
    given = roles(plan(hosts(tmp_path, "h1,1,cpu,\nh2,1,cpu,\n"), "-m", "esync"))
    (drawn,) = {role.environment["ESYNC_TOKEN"] for role in given.values()}
    assert len(drawn) > 30 and not any(drawn in " ".join(role.command) for role in given.values())


@pytest.mark.parametrize("flags", [["-m", "sync"], ["-g", "3"], ["-ld", "x"], ["--device-name", "x"]])
def test_flags_must_not_contradict_the_hosts_file(tmp_path, refused, flags):
    in_file = hosts(tmp_path, f"h1,1,gpu0,{' '.join(flags)}\n")
    told = refused(cluster.main, "--hosts", str(in_file), "-m", "esync", "--log-base", str(tmp_path / "logs"))
    assert "behind `--` or in the hosts file contradicts the cluster" in told
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("root", "state"),
    [(9091, 0), (0, 9091), (9092, 9093), (9097, 9091)],
)
def test_ports_from_a_base_port_on_leave_out_those_that_have_a_flag(tmp_path, root, state):
    path = hosts(tmp_path, "h1,2,cpu,\nh2,1,cpu,\n")
    flags = ["--base-port", "9091", "--root-port", str(root), "--state-server-port", str(state)]
    given = plan(path, "-m", "esync", *flags)
    one_machine = {name: dataclasses.replace(its, address="127.0.0.1") for name, its in nodes(given).items()}
    job, layout = make_layout(given, one_machine, port_ranges(given, 9091, one_machine))
    listening = [layout.scheduler_port, *layout.server_ports, *(worker.port for worker in layout.workers)]
    assert sorted([*listening, job.root_port, job.state_server_port]) == list(range(9091, 9098))
    shown: list[str] = []
    cluster.show(given, shown.append)
    ports = re.findall(r"\bPORT=(\d+)", "\n".join(shown))
    assert len(ports) == 5 and not {str(root), str(state)} & set(ports)


def test_ports_end_at_the_last_one(tmp_path):
    path = hosts(tmp_path, "h1,2,cpu,\n")
    plan(path, "-m", "esync", "--base-port", "65530")
    with pytest.raises(SetupError, match="--base-port 65531: h1 needs ports up to 65536, and the last is 65535"):
        plan(path, "-m", "esync", "--base-port", "65531")


def test_classes_are_not_split_where_each_worker_is_on_its_own(tmp_path):
    with pytest.raises(SetupError, match="--split-by-class does nothing in mode local"):
        plan(hosts(tmp_path, "h1,1,cpu,\n"), "-m", "local", "--split-by-class")


@pytest.mark.parametrize(
    ("behind", "rows", "complaint"),
    [
        (["-b", "16"], "h1,3,cpu,\nh2,1,gpu0,-b 32\n", "worker gpu0 on host h2 (h2) has -b 32, the others -b 16"),
        ([], "h1,1,cpu,-b 16\nh2,1,cpu,\n", "worker cpu on host h2 (h2) has -b 64"),
    ],
)
def test_flags_that_all_workers_must_share_are_compared_before_anything_is_started(
    tmp_path, refused, behind, rows, complaint
):
    path = str(hosts(tmp_path, rows))
    error = refused(cluster.main, "--hosts", path, "-m", "sync", "--log-base", str(tmp_path / "logs"), "--", *behind)
    assert error.startswith("error: the workers' flags differ: ") and complaint in error
    assert error.endswith("give such a flag once, behind `--`")
    assert not (tmp_path / "logs").exists()


def test_standalone_workers_may_differ_in_every_flag(tmp_path):
    given = roles(plan(hosts(tmp_path, "h1,1,cpu,-b 16\nh2,1,cpu,-b 32\n"), "-m", "local", "--page", "0"))
    assert [command_line.parse(role.command[2:]).batch_size for role in given.values()] == [16, 32]


def test_a_preset_chooses_workers_by_the_step_times_of_the_file_and_of_the_flags(tmp_path):
    rows = "h1,0.4,\nh2,0.1,\nh3,,--min-step-time 0.2\n"
    path = hosts(tmp_path, rows, "address,step_time_s,flags\n")
    given = roles(plan(path, "-m", "without-slow"))
    workers = {name: role for name, role in given.items() if role.kind is Kind.WORKER}
    assert list(workers) == ["h2 cpu", "h3 cpu"]
    told = command_line.parse(workers["h3 cpu"].command[2:])
    assert (told.mode, told.log_dir) == ("sync", "/h3/esync/logs/lenet/without-slow/h3")
    assert workers["h3 cpu"].environment["DMLC_NUM_WORKER"] == "2"
    assert plan(path, "-m", "alone").notes[-1] == "alone takes the fastest 1 of 3 workers: h2 cpu"
    two = plan(path, "-m", "esync-outer", "--fastest", "2")
    assert two.notes[-1] == "esync-outer takes the fastest 2 of 3 workers: h2 cpu, h3 cpu"
    assert str(two.mode_folder) == "lenet/esync-outer-k2"


def test_where_a_step_time_is_unknown_who_takes_part_is_open_until_steps_were_timed(tmp_path, capsys):
    path = hosts(tmp_path, "h1,0.1\nh2,\n", "address,step_time_s\n")
    for flags, number, folder in ((("-m", "alone"), 0, "alone"), (("-m", "esync", "--fastest", "1"), 1, "esync-k1")):
        given = plan(path, *flags)
        assert (given.number, len(given.hosts.workers), given.mode_folder.name) == (number, 2, folder)
    with pytest.raises(SetupError, match="--fastest 3: the cluster has 2 worker"):
        plan(path, "-m", "esync", "--fastest", "3")
    arguments = ["--hosts", str(path), "--log-base", str(tmp_path), "-m", "esync", "--fastest", "auto", "--dry-run"]
    assert cluster.main(arguments) == 0
    assert "# of these workers the fastest take part, once 20 steps were timed on each" in capsys.readouterr().out


def test_a_cluster_file_says_who_is_fastest_and_slows_nobody(tmp_path):
    path = hosts(tmp_path, "h1,0.01\nh2,\nh3,\n", "address,step_time_s\n")
    (measured := tmp_path / "cluster.csv").write_text("step_time_s\n0.3\n0.1\n0.2\n")
    given = plan(path, "-m", "fastest-outer", "--cluster", str(measured))
    assert given.number is None and given.notes[-1] == "fastest-outer takes the fastest 2 of 3 workers: h2 cpu, h3 cpu"
    told = [command_line.parse(roles(given)[f"{host} cpu"].command[2:]) for host in ("h2", "h3")]
    assert [flags.min_step_time for flags in told] == [0, 0]
    with pytest.raises(SetupError, match=r"cluster\.csv has 3 worker\(s\), and the hosts have 2"):
        plan(path, "-m", "alone", "--cluster", str(measured), "--without", "h2")
    with pytest.raises(SetupError, match=r"cluster\.csv does nothing in mode esync without --fastest"):
        plan(path, "-m", "esync", "--cluster", str(measured))


def test_hosts_can_be_left_out(tmp_path):
    path = hosts(tmp_path, "h1,scheduler server state-server\nh2,\nh3,\n", "address,roles\n")
    given = plan(path, "--without", "h1,h3").hosts
    assert ([*given.hosts], [worker.host for worker in given.workers]) == (["h2"], ["h2"])
    assert set(given.places.values()) == {("h2",)}
    with pytest.raises(SetupError, match="--without h4: there is no such host; choose from h1, h2, h3"):
        plan(path, "--without", "h4")
    with pytest.raises(SetupError, match="--without h1,h2,h3: no worker is left"):
        plan(path, "--without", "h1,h2,h3")


class Connected:
    """In place of a connection to a host."""

    def __init__(self, error=""):
        self.error = error

    def answers(self):
        if self.error:
            raise SetupError(self.error)
        yield {}


def test_all_hosts_that_do_not_answer_are_named_with_the_words_that_leave_them_out(tmp_path):
    given = plan(hosts(tmp_path, "h1\nh2\nh3\n", "address\n"))
    some = {"h1": Connected(), "h2": Connected("h2: no route"), "h3": Connected("h3: no answer")}
    with pytest.raises(SetupError, match=r"^h2: no route; h3: no answer; or do without: --without h2,h3$"):
        cluster.ask_hosts(given, some)
    with pytest.raises(SetupError, match=r"^h2: no route; h3: no answer$"):  # no host is left
        cluster.ask_hosts(given, {name: some[name] for name in ("h2", "h3")})


def test_the_short_job_that_times_steps_computes_as_the_job_does(tmp_path):
    path = hosts(tmp_path, "h1,0.002\nh2,\n", "address,sample_time_s\n")
    given = plan(path, "-m", "esync", "--fastest", "1", "--exchange", "ring", "--", "-b", "16", "-ll", "0.1")
    timing = step_times.timing_of(given, job_options.first_config(*example(given)))
    told = command_line.parse(roles(timing)["h1 cpu"].command[2:])
    assert (told.mode, told.batch_size, told.max_rounds, told.log_dir) == (
        *("local", 16, step_times.STEPS),
        "/h1/esync/logs/.step-times/lenet/local/h1",
    )
    other = command_line.parse(roles(timing)["h2 cpu"].command[2:])
    assert (told.sample_time, other.sample_time) == (0.002, 0.0)  # each worker's own
    with pytest.raises(SetupError, match="a step of h1 cpu was not timed"):
        step_times.read(tmp_path, given.hosts.workers)


def test_a_trace_lies_beside_the_file_and_is_given_to_its_worker_alone(tmp_path):
    (tmp_path / "late.csv").write_text("start_s,duration_s,extra_s\n20,60,0.01\n")
    rows = f"h1,0.5,../{tmp_path.name}/late.csv,0.002\nh2,,\n"
    path = hosts(tmp_path, rows, "address,step_time_s,straggler_trace,sample_time_s\n")
    given = roles(plan(path, "-m", "sync"))
    told = [command_line.parse(given[name].command[2:]) for name in ("h1 cpu", "h2 cpu")]
    assert [(flags.min_step_time, flags.sample_time, flags.straggler_trace) for flags in told] == [
        (0.5, 0.002, "/h1/esync/logs/lenet/sync/h1/.straggler-trace-cpu.csv"),
        (0.0, 0.0, ""),
    ]


def test_a_job_file_is_sent_to_a_folder_of_each_host(tmp_path):
    (tmp_path / "mine.py").write_text("import helper")
    (tmp_path / "helper.py").write_bytes(b'# coding: latin-1\nx = "\xe4"')
    given = plan(hosts(tmp_path, "h1\nh2\n", "address\n"), "-m", "sync", "--job", str(tmp_path / "mine.py"))
    assert [*given.sources] == ["helper.py", "mine.py"]
    for name in ("h1", "h2"):
        flags = command_line.parse(roles(given)[f"{name} cpu"].command[2:])
        assert flags.job == f"/{name}/esync/logs/mine/sync/{name}/.job/mine.py"
        assert f"{flags.mode_folder}" == "mine/sync"


def test_a_dry_run_shows_every_command_but_no_token_and_starts_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ESYNC_TOKEN", "secret")
    path = hosts(tmp_path, "h1,1,cpu,,me,2222\n", "address,workers,devices,flags,user,port\n")
    arguments = ["--hosts", str(path), "--dry-run", "-m", "esync", "--log-base", str(tmp_path / "logs")]
    assert cluster.main([*arguments, "--ssh", "no-such-ssh -F x", "--root-port", "9999"]) == EXIT_OK
    output = capsys.readouterr().out
    assert "h1: no-such-ssh -F x -o BatchMode=yes" in output
    assert " -p 2222 -l me h1 " in output
    for role in ("scheduler", "server", "worker"):
        assert f"DMLC_ROLE={role} DMLC_PS_ROOT_URI=h1 DMLC_PS_ROOT_PORT=9999" in output
    assert f"{ROOT}/main.py -m esync" in output
    assert not (tmp_path / "logs").exists()
    assert "secret" not in output and output.count(" ESYNC_TOKEN=... ") == 4  # it says that all get one


def test_no_ssh_is_needed_to_the_machine_itself_but_to_another_user(tmp_path, capsys):
    for rows, its in (("127.0.0.1,\nh2,\n", f"sh -c 'cd; cd {ROOT}"), ("127.0.0.1,me\n", "ssh ")):
        path = hosts(tmp_path, rows, "address,user\n")
        assert cluster.main(["--hosts", str(path), "--dry-run", "-m", "sync"]) == EXIT_OK
        output = capsys.readouterr().out
        assert f"127.0.0.1: {its}" in output
        assert ("h2: ssh " in output) == ("h2" in rows)


@pytest.mark.parametrize(
    ("rows", "mode", "flags", "are_apart"),
    [
        ("h1,1,cpu,\nh2,1,cpu,\n", "ssp", ["--ckpt-frequency", "5"], True),
        ("h1,1,cpu,\nh2,1,cpu,\n", "ssp", ["--ckpt-frequency", "5", "--checkpoint", "/shared"], False),
        ("h1,1,cpu,\nh2,1,cpu,\n", "ssp", [], False),
        ("h1,2,cpu,\n", "ssp", ["--ckpt-frequency", "5"], False),
        ("h1,1,cpu,\nh2,1,cpu,\n", "local", ["--ckpt-frequency", "5"], False),  # each goes on alone
    ],
)
def test_checkpoints_that_the_hosts_have_apart_are_warned_of(tmp_path, rows, mode, flags, are_apart):
    path = hosts(tmp_path, rows)
    found = job_options.warnings(*example(plan(path, "-m", mode, "--", "--max-rounds", "3", *flags)))
    assert ["--checkpoint" in line for line in found] == [True] * are_apart
