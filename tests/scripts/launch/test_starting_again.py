"""A job that survives failed processes, with stand-ins for its roles: which processes are restarted, and with what."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_processes import DEADLINE_S, begun, children, free_ports, running, wait_for
from few_images import on_few_images
from round_records import read_rounds
from stand_ins import DONE, FOREVER, ROUND, SERVER, UP, role, tells
from supervised import supervise

import summary
from scripts.launch import health, hosts_file, local_cluster, restarts
from scripts.launch.job_options import first_config
from scripts.launch.losses import Lost
from scripts.launch.process import Kind, Process, Role, RunningProcess
from scripts.launch.restart_policy import RestartPolicy, of_job
from scripts.launch.restarts import Action, Survival
from scripts.launch.roles import JobSpec, Layout, build
from scripts.launch.supervisor import JobOutcome
from trainer.survival.checkpoint_rounds import file_name, worker_name
from utils import EXIT_FORCED, EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, LEFT

DIE = "os.kill(os.getpid(), signal.SIGKILL)"
# Each start of it leaves a mark with its name; at the first it is killed as soon as the others are there.
ONCE = """
mark = here / f'{sys.argv[2]} has died'
if not mark.exists():
    while not (here / 'state-server.pid').exists(): time.sleep(0.01)
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
UNTIL_SERVER = "while not (here / 'server-0.pid').exists(): time.sleep(0.01)\n"
PIDS = "\nwith (here / f'{sys.argv[2]}.pids').open('a') as file: print(os.getpid(), file=file)"
PROSE = "print('training begins'); print('round 1, of cleaning: error rate 0.02; ended for: error', flush=True)\n"
LAST = "while not (here / 'workers are done').exists(): time.sleep(0.01)\n"
LEAVES = tells(ended=LEFT)
# Waits until another one has started for the second time; which of two starts first is not certain.
UNTIL_AGAIN = """
another = here / '{name}.pids'
while not another.exists() or len(another.read_text().split()) < 2: time.sleep(0.01)
"""


def worker(folder: Path, program: str, name: str = "worker 0", **more: object) -> Role:
    return role(folder, Kind.WORKER, program, name, **more)


def service(folder: Path, program: str = PIDS + FOREVER, **more: object) -> Role:
    return role(folder, Kind.SERVICE, program, "state server", **more)


def survive(*roles: Role, policy: RestartPolicy, code: int = EXIT_OK, **more: object) -> list[str]:
    """Runs the roles, which end with this code; returns what the user was told."""
    outcome, lines = supervise(*roles, policy=policy, **more)  # type: ignore[arg-type]
    assert outcome.exit_code == code, lines
    return lines


def all_again(*roles: Role, limit: int = 5, newest: Sequence[int | None] = (None,)) -> RestartPolicy:
    """All start again; `newest` are the rounds of the checkpoint at the start and at each failure, then the last."""
    rounds = list(newest)
    found = lambda left_out: rounds.pop(0) if len(rounds) > 1 else rounds[0]  # noqa: E731
    return RestartPolicy(Survival.RESTART, limit, newest=found, build=lambda flags: roles)


def starts(folder: Path, *names: str) -> list[int]:
    return [len((folder / f"{name}.pids").read_text().split()) for name in names]


def test_when_a_worker_is_killed_all_but_the_state_server_start_again_and_the_job_is_done(tmp_path):
    roles = (
        service(tmp_path),
        role(tmp_path, Kind.SERVER, PIDS + SERVER, "server 0"),
        worker(tmp_path, f"{PIDS}\n{UNTIL_SERVER}{ONCE}{DONE}", title="cpu0"),
    )
    outcome, lines = supervise(*roles, policy=all_again(*roles, newest=(None, 40)))
    assert outcome == JobOutcome(EXIT_OK, was_stopped=False)
    assert starts(tmp_path, "state-server", "server-0", "worker-0") == [1, 2, 2]
    assert lines == [
        "worker 0 (cpu0) was killed by signal 9: what came after round 40 is lost: all are started again and go on "
        "after round 40; 4 more tries without a new checkpoint."
    ]


def test_a_log_goes_on_behind_that_of_the_start_before(tmp_path):
    program = f"print('hello', flush=True)\n{ONCE.replace('state-server', 'worker-0')}{DONE}"
    roles = (worker(tmp_path, UP + "\n" + program, show_all=True),)
    survive(*roles, policy=all_again(*roles))
    first, again, second = (tmp_path / "worker 0.log").read_text().splitlines()
    assert (first, second) == ("hello", "hello")
    assert again.startswith("=== started again: 20")


def test_an_error_of_the_start_before_and_one_that_was_survived_are_not_taken_for_that_of_this_one(tmp_path):
    program = (
        f"if not (here / 'again').exists(): {tells(error='error: the first')}; (here / 'again').touch()\n"
        f"else: print('no answer (TimeoutError); training goes on without it', flush=True)\n{DIE}"
    )
    roles = (worker(tmp_path, program),)
    lines = survive(*roles, policy=all_again(*roles, limit=1), code=EXIT_PEER_LOST)
    assert "begins anew" in lines[0] and lines[0].endswith("says: error: the first")
    assert "given up after 1 start without a new checkpoint (--restarts)" in lines[-1]
    assert not [line for line in lines[1:] if "the first" in line] and "TimeoutError" not in lines[-1]


def test_a_state_server_that_dies_is_started_again_alone(tmp_path):
    until_again = UNTIL_AGAIN.format(name="state-server")
    roles = (service(tmp_path, f"{UP}\n{PIDS}\n{ONCE}{FOREVER}"), worker(tmp_path, f"{PIDS}\n{until_again}{DONE}"))
    lines = survive(*roles, policy=all_again(*roles, newest=(None, 40)))
    assert starts(tmp_path, "worker-0") == [1]
    assert "state server was killed by signal 9: nothing is lost: it is started again, and training goes on" in lines[0]


def test_where_the_others_go_on_a_worker_that_is_killed_is_started_again_alone(tmp_path):
    """Worker 1 ends long before, as with --leave; worker 2 trains until worker 0 is back."""
    until_again = UNTIL_AGAIN.format(name="worker-0")
    lines = survive(
        service(tmp_path),
        worker(tmp_path, f"{PIDS}\n{ONCE}{LAST}os._exit(0)", title="cpu0"),
        worker(tmp_path, LEAVES, "worker 1"),
        worker(tmp_path, f"{PIDS}\n{until_again}time.sleep(0.5)\n{DONE}; os._exit(0)", "worker 2"),
        policy=RestartPolicy(Survival.AMONG_WORKERS),
        leave_together=True,
        grace_s=0.4,  # for workers that leave together
    )
    assert starts(tmp_path, "state-server", "worker-0", "worker-2") == [1, 2, 1]
    assert lines == [
        "worker 0 (cpu0) was killed by signal 9: the others go on; the lost worker is started again, and comes back "
        "between two rounds; 4 more tries in less than 60 s each."
    ]


def test_a_worker_that_fails_again_and_again_is_left_out_and_the_tries_of_the_others_stay(tmp_path):
    """Worker 0 dies at each start, then worker 1 once: it is started again, and both others finish the job."""
    fails = f"{PIDS}\nwhile not (here / 'worker-2.pids').exists(): time.sleep(0.01)\n"
    until_left_out, until_back = (UNTIL_AGAIN.format(name=f"worker-{number}") for number in range(2))
    lines = survive(
        worker(tmp_path, f"{fails}print('error: disk full', flush=True); sys.exit({EXIT_SETUP})"),
        worker(tmp_path, f"{PIDS}\n{until_left_out}{ONCE}{DONE}", "worker 1"),
        worker(tmp_path, f"{tells(begun=True)}\n{PIDS}\n{until_back}time.sleep(0.3)", "worker 2"),
        service(tmp_path),
        policy=RestartPolicy(Survival.AMONG_WORKERS, 1, min_workers=2),
    )
    assert starts(tmp_path, "worker-0", "worker-1", "worker-2") == [2, 2, 1]
    said = [line for line in lines if " | " not in line]
    assert "worker 0 ended with exit code 2: the others go on; the lost worker is started again" in said[0]
    given_up = "given up after 1 start in less than 60 s each (--restarts), and the others go on"
    assert any(given_up in line for line in said)
    assert any(line.startswith("worker 1 was killed by signal 9: the others go on; the lost worker") for line in said)


@pytest.mark.parametrize(("program", "grace_s", "lead_s"), [(ROUND + FOREVER, 0.3, 60.0), (FOREVER, 60.0, 0.3)])
def test_a_worker_that_stays_when_the_others_have_done_the_job_is_killed_soon_if_it_has_not_trained(
    tmp_path, program, grace_s, lead_s
):
    roles = (worker(tmp_path, program), worker(tmp_path, "", "worker 1"))
    lines = survive(*roles, policy=RestartPolicy(Survival.AMONG_WORKERS), grace_s=grace_s, lead_s=lead_s)
    assert lines == ["worker 0 did not end within 0.3 s after the others: the job is done without it."]


@pytest.mark.parametrize(
    ("end", "other", "code", "line"),
    [
        (ROUND + DIE, DONE, EXIT_OK, "worker 0 was killed by signal 9: the others go on; the lost worker is started"),
        # All wait for it, whatever it has printed.
        (PROSE + DIE, DONE, EXIT_PEER_LOST, "error: worker 0 was killed by signal 9; stopping the job. Its log: /"),
        # It was frozen, and wakes up when the job is over; or it never does.
        (f"{ROUND}{LAST}time.sleep(0.3); sys.exit(3)", DONE, EXIT_OK, "worker 0 ended with exit code 3: the others go"),
        (ROUND + FOREVER, DONE, EXIT_OK, "warning: worker 0 did not end with the others; killed"),
        # The other one was asked to leave, and did.
        (f"{ROUND}time.sleep(2)\n{DIE}", LEAVES, EXIT_PEER_LOST, "error: worker 0 was killed by signal 9; stopping"),
    ],
)
def test_a_hub_goes_on_with_the_workers_that_are_left(end, other, code, line, tmp_path):
    other = f"time.sleep(0.8)\n{other}" if other == DONE else other
    roles = (role(tmp_path, Kind.HUB, SERVER), worker(tmp_path, end), worker(tmp_path, other, "worker 1"))
    lines = survive(*roles, policy=RestartPolicy(Survival.AT_HUB), code=code, lead_s=1.5, leave_together=True)
    assert any(said.startswith(line) for said in lines), lines


@pytest.mark.parametrize(("deaths", "others_continue"), [(1, True), (2, True), (1, False)])
def test_a_hub_that_is_killed_is_started_again_alone_where_the_workers_go_on(deaths, others_continue, tmp_path):
    dies = f"if len((here / 'server-0.pids').read_text().split()) <= {deaths}: time.sleep(0.3); {DIE}"
    has_begun = "while not (here / 'worker-0.pid').exists(): time.sleep(0.01)\n"
    until_again = UNTIL_AGAIN.format(name="server-0").replace("< 2", f"<= {deaths}")
    roles = (
        role(tmp_path, Kind.HUB, f"{PIDS}\n{has_begun}{dies}{SERVER}", "server 0"),
        worker(tmp_path, f"{PIDS}\n{tells(begun=True)}{UP}{until_again}{DONE}"),
    )
    survival = Survival.AT_HUB if others_continue else Survival.RESTART
    policy = RestartPolicy(survival, 2, build=lambda flags: roles)
    lines = survive(*roles, policy=policy, lead_s=0.2)  # shorter than the wait before the second start again
    assert starts(tmp_path, "server-0", "worker-0") == [deaths + 1, 1 if others_continue else 2]
    assert all(line.startswith("server 0 was killed by signal 9: ") for line in lines) and len(lines) == deaths


@pytest.mark.parametrize("was_lost", [False, True])
def test_beside_a_hub_each_worker_has_its_own_rounds_and_a_lost_one_the_grace_of_the_others(was_lost, tmp_path):
    lost = f"{ROUND}{PIDS}\n{ONCE.replace('state-server', 'worker-1')}{FOREVER}"
    others = UNTIL_AGAIN.format(name="worker-0") if was_lost else ""
    lines = survive(
        worker(tmp_path, lost if was_lost else ROUND),
        worker(tmp_path, f"{UP}{ROUND}{others}", "worker 1"),
        worker(tmp_path, f"{ROUND}{others}time.sleep(0.8)\nprint('has all rounds')", "worker 2"),
        policy=RestartPolicy(Survival.AT_HUB),
        leave_together=True,
        grace_s=0.2,
        lead_s=0.1,
    )
    assert (tmp_path / "worker 2.log").read_text().splitlines()[-1] == "has all rounds"
    assert lines[1:] == ["worker 0 did not end within 0.2 s after the others: the job is done without it."] * was_lost


class Elsewhere(RunningProcess):
    """A process on a host that ends with a code; or the connection to one, which ends when a file is there."""

    def __init__(self, given: Role, code: int | None = None, until: Path | None = None, **told: object) -> None:
        super().__init__(given)
        self._code, self._until, self._status = code, until, told

    @property
    def status(self) -> dict[str, object]:
        return self._status

    @property
    def exit_code(self) -> int | None:
        return 255 if self._until and self._until.exists() else self._code

    def new_lines(self) -> list[str]:
        return []

    def send(self, number: signal.Signals) -> None:
        self.end(-number)

    def end(self, code: int) -> None:
        self._code = code if self._code is None else self._code

    def reap(self) -> None: ...


def way_to(folder: Path, host: str) -> Elsewhere:
    """The connection to a host, until a file of its name is there."""
    link = Elsewhere(role(folder, Kind.SERVICE, "", f"the way to {host}", host=host), until=folder / host)
    link.role.log.touch()
    return link


@pytest.mark.parametrize("has_trained", [True, False])
def test_the_others_go_on_without_a_host_that_is_gone(has_trained, tmp_path):
    there = worker(tmp_path, "", "worker 1", host="b")
    here = worker(tmp_path, "time.sleep(0.3); (here / 'b').touch(); time.sleep(0.7)")
    how = "the way to b ended with exit code 255"

    class Unconfirmed(Elsewhere):
        def send(self, number: signal.Signals) -> None: ...

    (first, *_) = survive(
        here,
        there,
        policy=RestartPolicy(Survival.AMONG_WORKERS),
        start=lambda given: Unconfirmed(given, trained=has_trained) if given.host else Process(given),
        links=[way_to(tmp_path, "b")],
        code=EXIT_OK if has_trained else EXIT_PEER_LOST,
    )
    if has_trained:
        assert first == f"{how}: the others go on without the workers there."
    else:  # all wait for the missing worker
        assert first.startswith(f"error: {how}; stopping the job.")


def test_a_host_that_is_lost_while_its_checkpoints_are_asked_for_is_left_out(tmp_path):
    here, there = (worker(tmp_path, "", f"worker {host}", host=host) for host in "ab")
    codes = {"worker a": [None, EXIT_OK], "worker b": [EXIT_PEER_LOST]}
    asks = iter([lambda: None, (tmp_path / "b").touch])

    def newest(left_out: object) -> int:
        next(asks, lambda: None)()
        return 5

    lines = survive(
        here,
        there,
        policy=RestartPolicy(Survival.RESTART, newest=newest, build=lambda flags: [here]),
        start=lambda given: Elsewhere(given, codes[given.name].pop(0), trained=True),
        links=[way_to(tmp_path, host) for host in "ab"],
    )
    how = "the way to b ended with exit code 255"
    assert lines[-1].startswith(f"{how}: what came after round 5 is lost: all others are")
    assert lines[-1].endswith("; 4 more tries without a new checkpoint.")  # worker b's end and the host's are one loss


@pytest.mark.parametrize("lost_at", ["the wait", "its end"])
@pytest.mark.parametrize("service", [Kind.SERVER, None])
def test_a_host_may_be_lost_in_the_wait_before_a_start(lost_at, service, tmp_path, monkeypatch):
    """Its scheduler would be missing there too."""
    monkeypatch.setattr(restarts, "LONGEST_WAIT_S", 0.3)
    here, there = (worker(tmp_path, "", f"worker {host}", host=host) for host in "ab")
    more = [role(tmp_path, service, "", "scheduler", host="b")] if service else []
    for each in more:
        each.log.touch()
    codes = {"worker a": [-9, -9, EXIT_OK], "worker b": [None, None], "scheduler": [None, None]}
    asked = []

    def newest(left_out: object) -> int:
        asked.append(1)
        if len(asked) == 5 and lost_at == "its end":  # it is asked once more, and does not answer
            (tmp_path / "b").touch()
        return 5

    def hears(line: str) -> None:
        if "in 0.3 s" in line and lost_at == "the wait":
            threading.Timer(0.1, (tmp_path / "b").touch).start()

    starts = iter([[here, there, *more], [here]])
    lines = survive(
        *(here, there, *more),
        policy=RestartPolicy(Survival.RESTART, newest=newest, build=lambda flags: next(starts)),
        code=EXIT_PEER_LOST if service else EXIT_OK,
        hears=hears,
        start=lambda given: Elsewhere(given, codes[given.name].pop(0), trained=True),
        links=[way_to(tmp_path, host) for host in "ab"],
    )
    how = "the way to b ended with exit code 255"
    if service:
        assert lines[-1] == f"error: {how}; stopping the job."
    else:
        assert lines[-1].startswith(f"{how}: what came after round 5 is lost: all others are started again in 0.3 s")


def test_those_that_are_left_do_not_wait_for_one_that_has_left(tmp_path):
    """Where all are lost, they begin once as many are there as they expect."""
    roles = [worker(tmp_path, "", f"worker {number}") for number in range(3)]
    roles = [replace(each, environment={"DMLC_NUM_WORKER": "3"}) for each in roles]
    codes, started = [None, EXIT_OK, None, None, None], list[Elsewhere]()

    def end(processes: Sequence[Elsewhere], code: int) -> None:
        for process in processes:
            process.end(code)

    def start(given: Role) -> Elsewhere:
        told = {"ended": LEFT} if given.name == "worker 1" else {}
        started.append(Elsewhere(given, codes[len(started)], **told))
        if len(started) == 3:  # it has left before the others are lost
            threading.Timer(0.3, end, (started[:3], -9)).start()
        elif len(started) == 5:
            end(started[3:], EXIT_OK)
        return started[-1]

    survive(*roles, policy=RestartPolicy(Survival.AMONG_WORKERS), start=start)
    assert [each.role.environment["DMLC_NUM_WORKER"] for each in started] == ["3", "3", "3", "2", "2"]
    beside = RestartPolicy(Survival.AT_HUB)
    assert beside.restarted(roles[0], 2).environment == roles[0].environment  # MXNet expects the number of before


def test_the_deaths_of_a_service_and_of_the_workers_count_apart():
    killed, service = (Lost(kind, -9, name) for kind, name in ((Kind.WORKER, "w"), (Kind.SERVICE, "state server")))
    for first, then in ((service, killed), (killed, service)):
        policy = RestartPolicy(Survival.RESTART, 2, newest=lambda left_out: 5)
        actions = [policy.after([lost]).action for lost in (first, first, first, then)]
        assert actions[2] is Action.END_JOB and actions[3] is not Action.END_JOB


def test_a_host_that_is_lost_while_a_worker_is_left_out_does_not_end_the_job():
    policy = RestartPolicy(Survival.RESTART, 1, newest=lambda left_out: 5)
    killed, host = Lost(Kind.WORKER, -9, "w"), Lost(Kind.SERVICE, 255, "b", is_host=True)
    actions = [policy.after([killed], num_others=3, has_begun=True).action for _ in range(2)]
    assert (actions, policy.left_out) == ([Action.RESTART_ALL, Action.RESTART_WITHOUT], {"w"})
    lost = policy.after([host], is_restarting=True, num_others=2, has_begun=True)
    assert lost.action is Action.RESTART_ALL


def test_the_job_goes_on_without_the_worker_that_has_used_all_tries(tmp_path):
    numbers = "\nwith (here / f'{sys.argv[2]}.n').open('a') as file: print(os.environ['DMLC_NUM_WORKER'], file=file)\n"
    count = "\ndef count(name): return (here / name).exists() and len((here / name).read_text().split())\n"
    lasts = f"{count}{numbers}{PIDS}\nwhile count('worker-0.n') < 3: time.sleep(0.01)"
    others = "min(count('worker-0.pids'), count('worker-2.pids'))"
    dies = f"{count}{PIDS}\nwhile {others} < count('worker-1.pids'): time.sleep(0.01)\n{DIE}"
    programs = enumerate([lasts, dies, lasts])
    roles = [worker(tmp_path, program, f"worker {number}") for number, program in programs]
    roles = [replace(each, environment={**each.environment, "DMLC_NUM_WORKER": "3"}) for each in roles]
    lines = survive(*roles, policy=all_again(*roles, limit=1, newest=(None, 5)))
    assert starts(tmp_path, "worker-0", "worker-1", "worker-2") == [3, 2, 3]
    assert (tmp_path / "worker-0.n").read_text().split() == ["3", "3", "2"]
    assert lines[-1] == (
        "worker 1 was killed by signal 9: given up after 1 start without a new checkpoint (--restarts), each for this "
        "worker: all others are started again without it, and go on after round 5."
    )


def test_a_worker_that_comes_back_to_others_looks_for_its_checkpoint_where_there_are_any(tmp_path):
    its, other = worker(tmp_path, ""), service(tmp_path)
    for has_one, flags in ((True, ["--resume", "1"]), (False, [])):
        policy = RestartPolicy(Survival.AMONG_WORKERS, resumes=lambda role, has=has_one: has)
        again = policy.restarted(its)
        assert again.appends and list(again.command) == [*its.command, *flags]
        assert policy.restarted(again).command == again.command  # once is enough
        assert list(policy.restarted(other).command) == list(other.command)


def test_what_an_earlier_job_left_is_nothing_to_come_back_with(tmp_path):
    words = f"-m sync --exchange ring --log-base {tmp_path} --workers 0,0 --"
    given = local_cluster.parse([*words.split(), "--on-worker-death", "continue", "--ckpt-frequency", "5"])
    placed = local_cluster.place(given)
    there = {file_name(worker_name("host-cpu0"), 5): 1, file_name(worker_name("host-cpu1"), 5): 1}
    policy = of_job(given, *placed, first_config(*placed), lambda *_: {**there}, list, local_cluster.place)
    first, second = [each for each in build(*placed) if each.kind is Kind.WORKER]
    assert "--resume" not in policy.restarted(first).command
    del there[file_name(worker_name("host-cpu0"), 5)]  # it is set aside when training begins
    assert "--resume" not in policy.restarted(first).command
    there[file_name(worker_name("host-cpu0"), 5)] = 2
    assert "--resume" in policy.restarted(first).command
    assert "--resume" not in policy.restarted(second).command


def test_a_host_may_have_been_the_only_one_with_workers(tmp_path):
    placed = local_cluster.place(options(tmp_path, own=["-m", "async"]))
    asked = replace(placed[0], hosts=hosts_file.Hosts({"other": hosts_file.Host("other", "h2")}, (), {}))
    policy = of_job(asked, *placed, first_config(*placed), dict, lambda: ["other"], lambda _: placed, lambda *_: [])
    policy.look()
    assert policy.roles() == []  # the supervisor ends the job


def test_two_that_die_at_once_are_both_named(tmp_path):
    def hears(line: str) -> None:
        """Kills both between two polls of the supervisor: a poll in between would see one, and end the other."""
        if "both are here" in line:
            pids = [int((tmp_path / f"worker-{number}.pid").read_text()) for number in range(2)]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: all(" Z " in Path(f"/proc/{pid}/stat").read_text() for pid in pids), "two deaths")

    first = "mark = here / f'{sys.argv[2]} was here'\nif not mark.exists():\n    mark.touch()\n"
    waits = "    while not (here / 'worker-1 was here').exists(): time.sleep(0.01)\n"
    speaks = "    print('warning: both are here', flush=True)"
    roles = (
        service(tmp_path, FOREVER),
        worker(tmp_path, f"{UP}\n{first}{waits}{speaks}\n    time.sleep(90)\n{DONE}"),
        worker(tmp_path, f"{UP}\n{first}    time.sleep(90)\n{DONE}", "worker 1"),
    )
    _, line = survive(*roles, policy=all_again(*roles), hears=hears)
    assert line.startswith("worker 0 was killed by signal 9 and worker 1 was killed by signal 9: ")


def test_a_service_that_does_not_answer_is_started_again_too(tmp_path):
    deaf = f"{PIDS}\nif (here / 'is deaf').exists(): (here / 'answers').touch()\n(here / 'is deaf').touch(){FOREVER}"
    roles = (service(tmp_path, deaf, is_ready=(tmp_path / "answers").exists), worker(tmp_path, ""))
    lines = survive(*roles, policy=all_again(*roles), ready_s=1.0)
    assert starts(tmp_path, "state-server") == [2]
    assert lines[0] == "warning: state server has not answered for 1 s and is killed"
    assert lines[1].startswith("state server was killed by signal 9: nothing is lost: it is started again")


ANSWERS_ONCE = """
import http.server
class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers(); self.wfile.flush()
        if len((here / f"{{sys.argv[2]}}.pids").read_text().split()) == 1: os.kill(os.getpid(), signal.SIGSTOP)
http.server.HTTPServer(("127.0.0.1", {port}), Answers).serve_forever()
"""


@pytest.mark.parametrize("survives", [True, False])
def test_a_state_server_that_is_frozen_is_started_again_alone_in_every_job(tmp_path, monkeypatch, survives):
    monkeypatch.setattr(health, "FROZEN_S", 0.3)
    monkeypatch.setattr(health, "ASK_EVERY_S", 0.1)
    (port,) = free_ports(1)
    program = f"{UP}{PIDS}{ANSWERS_ONCE.format(port=port)}"
    asked = service(tmp_path, program, is_ready=health.Health("127.0.0.1", port))
    trains = worker(tmp_path, f"{PIDS}{UNTIL_AGAIN.format(name='state-server')}{DONE}")
    lines = survive(asked, trains, policy=RestartPolicy(Survival.RESTART if survives else Survival.NONE))
    assert starts(tmp_path, "state-server", "worker-0") == [2, 1]
    assert lines[0] == "warning: state server has not answered for 10 s and is killed"
    assert "state server was killed by signal 9: " in lines[1] and "it is started again" in lines[1]


@pytest.mark.parametrize("is_for_page", [True, False])
def test_a_state_server_that_dies_again_and_again_is_given_up_in_every_job(tmp_path, monkeypatch, is_for_page):
    monkeypatch.setattr(restarts, "LONGEST_WAIT_S", 0.05)
    dies, is_up = f"{PIDS}{UP}\ntime.sleep(0.8); {DIE}", (tmp_path / "state-server.pid").exists
    until_given_up = UNTIL_AGAIN.format(name="state-server").replace("< 2", "< 3")
    lines = survive(
        service(tmp_path, dies, is_ready=is_up, is_for_page=is_for_page),
        worker(tmp_path, f"{until_given_up}time.sleep(2.5)"),
        policy=RestartPolicy(limit=2),
        code=EXIT_OK if is_for_page else EXIT_PEER_LOST,
    )
    assert starts(tmp_path, "state-server") == [3]
    assert "it is started again, and training goes on; 1 more try in less than 60 s each" in lines[0]
    assert len(lines) == 2 or "stopping the job: given up after 2 starts in less than 60 s each" in lines[-1]


def test_a_wrong_set_up_is_not_tried_again(tmp_path):
    roles = (worker(tmp_path, f"{PIDS}\nsys.exit({EXIT_SETUP})"),)
    lines = survive(*roles, policy=all_again(*roles), code=EXIT_SETUP)
    assert starts(tmp_path, "worker-0") == [1]
    assert lines[-1].startswith("error: worker 0 ended with exit code 2; stopping the job. Its log")


def test_a_signal_ends_the_wait_before_a_start_at_once(tmp_path):
    def hears(line: str) -> None:
        if "begins anew in 1 s" in line:
            os.kill(os.getpid(), signal.SIGTERM)

    roles = (service(tmp_path, FOREVER), worker(tmp_path, PIDS + "\n" + DIE, "w"))
    outcome, lines = supervise(*roles, policy=all_again(*roles), hears=hears)
    assert outcome == JobOutcome(EXIT_FORCED, was_stopped=True)
    assert starts(tmp_path, "w") == [2]
    assert lines[-1] == "stopped before every worker had begun"


def test_a_death_after_a_signal_ends_the_job(tmp_path):
    program = f"signal.signal(signal.SIGTERM, lambda *_: {DIE}){PIDS}\nos.kill({os.getpid()}, signal.SIGTERM){FOREVER}"
    roles = (worker(tmp_path, program),)
    lines = survive(*roles, policy=all_again(*roles), code=EXIT_PEER_LOST)
    assert starts(tmp_path, "worker-0") == [1]
    assert "worker 0 was killed by signal 9; stopping the job" in lines[-1]


# ------------------------------------------------------------------------------------------------- the launcher


def options(folder: Path, *arguments: str, own: Sequence[str] = ()) -> JobSpec:
    behind = ["--ckpt-frequency", "5", "--on-worker-death", "restart", *arguments]
    return local_cluster.parse(["--log-base", str(folder), "--workers", "0,0", *own, "--", *behind])


def run(given: JobSpec, act: Callable[[JobSpec], str]) -> list[tuple[JobSpec, Layout]]:
    """Runs a job of one stand-in, whose program `act` makes from the job. Returns job and layout of each start."""
    seen: list[tuple[JobSpec, Layout]] = []

    def build(started: JobSpec, layout: Layout) -> list[Role]:
        seen.append((started, layout))
        return [role(given.log_base, Kind.WORKER, act(started), "worker 0")]

    assert local_cluster.run(given, build, lambda line: None).exit_code == EXIT_OK
    return seen


def checkpoints(given: JobSpec, *names: tuple[str, int]) -> None:
    folder = given.log_folder / given.hosts.workers[0].host / ".checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    for whose, round_ in names:
        (folder / file_name(whose, round_)).touch()


def test_a_job_goes_on_from_its_checkpoint_with_new_ports(tmp_path):
    given = options(tmp_path, own=["-m", "sync"])

    def act(started: JobSpec) -> str:
        if "--resume" in started.worker_arguments:
            return ""
        checkpoints(given, ("worker-0", 5), ("worker-1", 5))
        return DIE

    (first, before), (second, layout) = run(given, act)
    assert second.worker_arguments == (*first.worker_arguments, "--resume", "1")
    assert second.state_server_port == first.state_server_port
    ports = [worker.port for worker in (*before.workers, *layout.workers)]
    assert len({first.root_port, second.root_port, *ports}) == 6 and ports[2:] == sorted(ports[2:])


def test_a_job_without_a_checkpoint_begins_anew_at_the_port_that_the_user_chose_whatever_an_earlier_job_left(tmp_path):
    given = options(tmp_path, own=["-m", "async", "--root-port", str(local_cluster.free_ports(1)[0])])
    checkpoints(given, ("worker-0", 5), ("worker-1", 5))
    deaths = [DIE]
    (first, _), (second, _) = run(given, lambda started: deaths.pop() if deaths else "")
    assert second.worker_arguments == first.worker_arguments
    assert second.root_port == first.root_port == given.root_port


def test_workers_that_find_each_other_through_the_state_server_do_so_under_a_new_name(tmp_path):
    given = options(tmp_path, "--job-name", "mine", own=["-m", "local-sgd", "--exchange", "ring"])
    deaths = [DIE, DIE]
    seen = run(given, lambda started: deaths.pop() if deaths else "")
    names = [("--job-name", "mine-1"), ("--job-name", "mine-2")]
    assert [started.worker_arguments[-2:] for started, _ in seen[1:]] == names


ROUNDS = 80


@pytest.mark.cluster
@pytest.mark.parametrize(("exchange", "last_saved"), [("kvstore", "worker-0"), ("hub", "server")])
def test_a_job_whose_worker_is_killed_does_all_its_rounds_and_logs_each_once(exchange, last_saved, tmp_path, capsys):
    words = ["-m", "async", "-n", "lenet", "--workers", "0.05,0.05", "--log-base", str(tmp_path)]
    words += ["--exchange", exchange]
    flags = ["-e", "1000", "--max-rounds", str(ROUNDS), "--ckpt-frequency", "5", "--on-worker-death", "restart"]
    job = begun(sys.executable, "-m", "scripts.launch.local_cluster", *words, "--", *flags, *on_few_images())
    try:
        wait_for(lambda: len(list(tmp_path.rglob("cpu1/iter-*.txt"))) > 10, "some rounds")
        wait_for(lambda: list(tmp_path.rglob(f"{last_saved}-*.ckpt")), "a checkpoint")
        (worker,) = (pid for pid in children(job.pid) if b"cpu1" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(worker, signal.SIGKILL)
        output, _ = job.communicate(timeout=DEADLINE_S)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == EXIT_OK, output
    assert re.search(r"worker 1 \(cpu1\) was killed by signal 9: what came after round \d+ is lost", output), output
    for device in (tmp_path / "lenet" / "async").glob("*/cpu*"):
        records = list(read_rounds(device, pytest.fail))
        assert [record["num_iters"] for record in records] == list(range(1, ROUNDS + 1))
        assert sum("steps_lost" in record for record in records) == 1  # it went on once
        assert sorted(record["total_time"] for record in records) == [record["total_time"] for record in records]
    assert summary.main(["-b", str(tmp_path), "-n", "lenet"]) == EXIT_OK
    assert "missing" not in capsys.readouterr().err
    assert running(tmp_path) == []
