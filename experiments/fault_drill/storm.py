"""The storm: faults of nine kinds, one after the other, in one job of eight workers, beside three undisturbed twins.
The soak: kills, freezes and cuts, of one of four equal workers each time.

    .venv/bin/python -m experiments.fault_drill.storm --jobs esync-ring     # as root: 60 faults in half an hour
    .venv/bin/python -m experiments.fault_drill.storm --jobs soak --faults 30 --seconds 600 --twins 1
    .venv/bin/python -m experiments.fault_drill.storm --table               # of finished storms

Each worker is on a host of its own, a network namespace, and its logs are on a disk of its own; state server, scheduler
and parameter server are on a ninth host. The schedule follows from --seed alone. The twins run at the same time, with
the same flags, each on one host. A job is a line of FOLDER/storms.jsonl, with its faults.
"""

from __future__ import annotations

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import contextlib
import gzip
import itertools
import json
import math
import os
import random
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from algorithms import folder_name
from config import CONTINUE, HUB, RESTART
from esync.measure import LINES_FILE
from experiments import markdown
from experiments.fault_drill import drilled_cut, drilled_disk
from experiments.fault_drill.drilled_job import ROOT, Job, kib, name_of, parsed, send
from experiments.fault_drill.drilled_logs import END_S, LONGEST_S, ROUNDS_BEFORE, Logs, wait_for
from experiments.fault_drill.drilled_tables import spread
from experiments.fault_drill.faults import AMONG_WORKERS, PORT
from experiments.fault_drill.replay import replay
from flag_parser import FlagParser
from scripts.launch import forking, job_options
from trainer.run_logs.rounds import Round, read_rounds
from utils import SetupError, append_line

if TYPE_CHECKING:
    from namespaces import Host, Network

# How many workers each kind strikes at once.
KINDS = {
    "kill": 1, "two kills": 2, "freeze": 1, "cut": 1, "one direction": 2, "full disk": 1, "state server frozen": 0,
    "damaged checkpoint": 1, "newcomer": 0,
}  # fmt: skip
STEPS_S = (0.3, 0.3, 0.4, 0.4, 0.5, 0.5, 0.6, 0.8)


@dataclass(frozen=True)
class Plan:
    """What a job is, and what happens to it.

    Attributes:
        steps_s: seconds a step, of each worker; the newcomer has those of the first.
        lasts_s: seconds for which a fault lasts that is no kill.
        exchange: of a mode that sums and is to continue.
    """

    way: str
    mode: str
    kinds: Sequence[str] = (*KINDS,)
    steps_s: tuple[float, ...] = STEPS_S
    lasts_s: float = 20.0
    exchange: str = "ring"  # of a mode that sums and is to continue

    @property
    def newcomer(self) -> int:
        """The number of the worker that comes."""
        return len(self.steps_s)


JOBS = {
    "esync-ring": Plan(CONTINUE, "esync"),
    "esync-hub": Plan(CONTINUE, "esync", exchange=HUB),
    "sync-hub": Plan(CONTINUE, "sync", exchange=HUB),
    "decoupled": Plan(CONTINUE, "decoupled"),
    "sync-ring": Plan(CONTINUE, "sync"),
    "wbsp": Plan(CONTINUE, "wbsp"),
    "esync-ps": Plan(RESTART, "esync", [kind for kind in KINDS if kind != "newcomer"]),
    "soak": Plan(CONTINUE, "sync", ("kill", "freeze", "cut"), (0.3,) * 4, lasts_s=8.0),
    "esync-ring-32": Plan(CONTINUE, "esync", steps_s=4 * STEPS_S),
    "esync-hub-32": Plan(CONTINUE, "esync", steps_s=4 * STEPS_S, exchange=HUB),
}
MORE_S = 3.0
START_S = 5.0  # of a killed worker
CALM_S = 25.0  # at the end
EVALUATOR = "evaluator"  # its process, which shares its worker's log
POLL_S, SAMPLE_S, WARM_S = 0.05, 10.0, 60.0
DISK_MIB = 64
NEIGHBOURS = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
RECORD = "ESYNC_RECORD"  # server/rendezvous/record.py
FILE = "storms.jsonl"


@dataclass(frozen=True)
class Strike:
    """A fault of the storm: seconds from the time when all train, and the numbers of the workers."""

    at_s: float
    kind: str
    workers: tuple[int, ...]


def schedule(plan: Plan, seed: int, count: int, seconds: float) -> list[Strike]:
    """All faults of a storm: as many of each kind, and the rest of kinds that are drawn; one in each slot of time."""
    choose = random.Random(seed)
    kinds = [*plan.kinds] * (count // len(plan.kinds)) + choose.sample([*plan.kinds], count % len(plan.kinds))
    choose.shuffle(kinds)
    slot = (seconds - CALM_S) / max(count, 1)
    return [
        Strike(
            round(slot * (number + choose.uniform(0.0, 0.1)), 2),
            kind,
            (*choose.sample(range(plan.newcomer), KINDS[kind]),),
        )
        for number, kind in enumerate(kinds)
    ]


class Watch(threading.Thread):
    """Notes when each worker has logged a round, and the KiB, open files and threads of the job's processes.

    Attributes:
        times: of the rounds, by worker.
        seen: times and numbers of each process, by name and id.
    """

    def __init__(self, job: StormJob | TwinJob) -> None:
        super().__init__(daemon=True)
        self._job, self.is_ending, self.is_over = job, False, False
        self.times: dict[int, list[float]] = defaultdict(list)
        self.seen: dict[tuple[str, int], list[tuple[float, list[int]]]] = defaultdict(list)

    def run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)  # a round is noted when it is logged
        threading.Thread(target=self._sample, daemon=True).start()
        paths = {number: self._job.rounds_file(number) for number in range(self._job.planned.newcomer)}
        sizes = dict.fromkeys(paths, 0)
        while not self.is_over:
            for number, path in paths.items():
                with contextlib.suppress(OSError):
                    found = path.stat()
                    if found.st_size != sizes[number]:
                        sizes[number] = found.st_size
                        self.times[number].append(found.st_mtime)
            time.sleep(POLL_S)

    def _sample(self) -> None:
        while True:
            time.sleep(SAMPLE_S)
            if self.is_ending:
                return
            for name, pid in self._job.all_pids().items():
                with contextlib.suppress(OSError, IndexError):  # it has ended
                    numbers = [kib(pid), *(len([*Path(f"/proc/{pid}/{what}").iterdir()]) for what in ("fd", "task"))]
                    self.seen[name, pid].append((time.time(), numbers))

    def has_begun(self) -> bool:
        """Whether every worker has done some rounds, and workers can be forked."""
        workers = range(self._job.planned.newcomer)
        return all(len(self.times[number]) > ROUNDS_BEFORE for number in workers) and self._job.can_fork()

    def pause_s(self, worker: int, since: float, until: float, round_s: float) -> float:
        """The longest time between two rounds that ends after `since` and begins between the times a round before
        `since` and a round before `until`: a pause counts for the fault that has begun it."""
        pairs = itertools.pairwise([*self.times[worker], max(until, *self.times[worker][-1:])])
        ours = (b - a for a, b in pairs if b > since and since - round_s < a < until - round_s)
        return round(max(ours, default=0.0), 2)

    def growth(self) -> list[dict[str, Any]]:
        """The numbers of each process WARM_S after it came, and its last ones."""
        found = []
        for (name, _), seen in self.seen.items():
            if warm := [each for each in seen if each[0] > seen[0][0] + WARM_S]:
                (since, first), (until, last) = warm[0], warm[-1]
                found.append({"name": name, "seconds": round(until - since), "first": first, "last": last})
        return found


class TwinJob(Job):
    """A job on this machine, of which the rounds are lines."""

    network = "mlp"

    def __init__(self, host: Host, plan: Plan, log_base: Path) -> None:
        self._host, self.planned = host, plan
        self.exchanges = dict.fromkeys(AMONG_WORKERS, plan.exchange)
        self.workers = ",".join(map(str, plan.steps_s))
        super().__init__(plan.way, plan.mode, 0.0, log_base)

    def at_desk(self, command: list[str]) -> list[str]:
        return self._host.command(*command)

    def more_flags(self, way: str, log_base: Path) -> list[str]:
        own = ["--checkpoint", str(log_base / "checkpoints"), "--ckpt-frequency", "1"] if way == RESTART else []
        return ["--max-seconds", "0", "--log-form", "lines", "--eval-seconds", "10", *own]

    def rounds_file(self, number: int) -> Path:
        return self.logs.folder / socket.gethostname() / f"cpu{number}" / LINES_FILE

    def all_pids(self) -> dict[str, int]:
        """The processes of which memory and files are looked at."""
        return self.pids() | {"launcher": self._launcher.pid}

    def rounds(self) -> list[list[Round]]:
        """The logged ones of each worker."""
        folders = [self.rounds_file(number).parent for number in range(self.planned.newcomer)]
        return [[*read_rounds(folder, lambda text: None)] for folder in folders]

    def samples(self) -> list[int]:
        """Logged samples of each worker."""
        return [sum(each.samples for each in rounds) for rounds in self.rounds()]

    def present(self) -> dict[int, int]:
        """How many rounds so many workers have logged."""
        counts = Counter(each.number for rounds in self.rounds() for each in rounds)
        return dict(sorted(Counter(counts.values()).items()))


def logs_of(run: str, mode: str) -> Path:
    """The folder of a storm's logs on the hosts, which share this machine's disks."""
    return ROOT / "logs" / run / TwinJob.network / folder_name(mode, split_by_class=False)


class StormJob(TwinJob):
    """The job that is struck: the first host has the services, the next ones a worker each, the last the newcomer."""

    def __init__(self, network: Network, name: str, plan: Plan, log_base: Path) -> None:
        self._network, self._hosts, self._name, self._way = network, network.hosts[: plan.newcomer + 2], name, plan.way
        super().__init__(network.desk, plan, log_base)

    def plan(self, mode: str, log_base: Path) -> tuple[list[str], Logs]:
        log_base.mkdir(parents=True)
        self._file = log_base / "hosts.csv"
        hub, *hosts = self._hosts
        rows = [f"{hub.name},hub,0,,,scheduler server state-server"]
        steps = zip(hosts, self.planned.steps_s, strict=False)
        rows += [f"{host.name},storm-{number},1,cpu,{step_s}," for number, (host, step_s) in enumerate(steps)]
        self._file.write_text("\n".join(["address,name,workers,devices,step_time_s,roles", *rows]) + "\n")
        options = ["scripts.launch.cluster", "--hosts", str(self._file), "--log-base", str(log_base)]
        ssh = ["--ssh", f"ssh -F {self._network.ssh_config}", "--state-server-port", str(PORT)]
        return [*options, "--run", self._name, *ssh], Logs(log_base, logs_of(self._name, mode), "storm-{number}/cpu")

    def disk(self, number: int) -> Path:
        return self.logs.folder / f"storm-{number}"

    def rounds_file(self, number: int) -> Path:
        return self.disk(number) / "cpu" / LINES_FILE

    def all_pids(self) -> dict[str, int]:
        found = {"launcher": self._launcher.pid}
        for host in self._hosts:
            for pid in host.pids():
                with contextlib.suppress(OSError):
                    out = Path(f"/proc/{pid}/fd/1").readlink()
                    if out.suffix == ".log" and name_of(pid) not in (forking.NAME, EVALUATOR):
                        found[out.stem] = pid
        return found

    def can_fork(self) -> bool:
        return all(any(name_of(pid) == forking.NAME for pid in host.pids()) for host in self._hosts[1:-1])

    # ------------------------------------------------------------------------------------------------- faults

    def strike_now(self, strike: Strike, pids: Mapping[str, int]) -> None:
        """Makes a fault happen, and undoes what lasts."""
        hub, *hosts = self._hosts
        struck = [f"storm-{number}-cpu" for number in strike.workers]
        match strike.kind:
            case "kill" | "two kills":
                send(pids, struck, signal.SIGKILL)
            case "damaged checkpoint":
                where = self._file.parent if self._way == RESTART else self.disk(strike.workers[0])
                if newest := max(where.rglob("worker-*.ckpt"), key=lambda path: path.stat().st_mtime, default=None):
                    os.truncate(newest, newest.stat().st_size // 2)
                send(pids, struck, signal.SIGKILL)
            case "freeze" | "state server frozen":
                send(pids, struck or ["state-server"], signal.SIGSTOP)
                time.sleep(self.planned.lasts_s)
                send(pids, struck or ["state-server"], signal.SIGCONT)
            case "cut":
                hosts[strike.workers[0]].unplug()
                time.sleep(self.planned.lasts_s)
                hosts[strike.workers[0]].plug_in()
            case "one direction":
                one, other = (hosts[number] for number in strike.workers)
                one.drop_from(other if self._way == CONTINUE and not self._leaves_out else hub)
                time.sleep(self.planned.lasts_s)
                one.heal()
            case "full disk":
                filler, until = self.disk(strike.workers[0]) / "filler", time.time() + self.planned.lasts_s
                while time.time() < until:
                    drilled_disk.fill(filler)
                    time.sleep(POLL_S)
                filler.unlink()
            case "newcomer":
                self._newcomer()

    def _newcomer(self) -> None:
        """A ninth worker takes part until it has done some rounds, for as long as a fault at most."""
        began, rounds = time.time(), self.rounds_file(self.planned.newcomer)
        _, like, *_, host = self._hosts
        come = drilled_cut.start_worker(
            host, like, self.disk(self.planned.newcomer), self.planned.newcomer, "--leave", "1"
        )
        wait_for(lambda: rounds.exists() and rounds.stat().st_mtime > began, self.planned.lasts_s)
        time.sleep(MORE_S)
        come.terminate()
        threading.Thread(target=come.wait, daemon=True).start()


# ---------------------------------------------------------------------------------------------------- one storm


def drill(
    name: str, seed: int, count: int, seconds: float, beside: int, folder: Path, calm: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """One storm beside its twins, or after the same job without faults, of which `calm` is the row; a row with a part
    for each fault."""
    plan = JOBS[name]
    row: dict[str, Any] = {"job": f"{name}, {plan.way}", "seed": seed, "seconds": seconds, "lasts_s": plan.lasts_s}
    neighbours = int(NEIGHBOURS.read_text()) if NEIGHBOURS.exists() else math.inf
    if (plan.newcomer + 3 + beside) ** 2 > neighbours:  # all hosts share it; beyond it pairs do not find each other
        raise SetupError(f"{NEIGHBOURS} is {neighbours}, too few for {plan.newcomer + 1} hosts: write 8192 to it")
    with contextlib.ExitStack() as stack:
        hosts = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "hosts"
        network = stack.enter_context(drilled_cut.namespaces().network(hosts, plan.newcomer + 2 + beside))
        for number in range(plan.newcomer):  # before the job, whose workers open their logs there
            disk = logs_of(f"storm-{name}", plan.mode) / f"storm-{number}"
            shutil.rmtree(disk, ignore_errors=True)
            stack.enter_context(drilled_disk.mounted(disk, DISK_MIB))
        os.environ[RECORD] = str(record := folder / name / "decisions")
        record.mkdir(parents=True)
        storm = StormJob(network, f"storm-{name}", plan, folder / name / "storm")
        del os.environ[RECORD]
        stack.callback(storm.end, 0.0)
        twins = []
        for number in range(beside):
            twins.append(TwinJob(network.hosts[-1 - number], plan, folder / name / f"twin-{number}"))
            stack.callback(twins[-1].end, 0.0)
        jobs: list[StormJob | TwinJob] = [storm, *twins]
        watches = [Watch(job) for job in jobs]
        for watch in watches:
            watch.start()
            stack.callback(setattr, watch, "is_over", True)
        if not wait_for(lambda: all(watch.has_begun() for watch in watches), 3 * LONGEST_S):
            return row | {"exit_codes": None, "said": [job.lines[-5:] for job in jobs]}
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)  # a strike comes when it is due
        stack.callback(os.setpriority, os.PRIO_PROCESS, threading.get_native_id(), 0)
        began, before = time.time(), [job.samples() for job in jobs]
        planned, strikes = schedule(plan, seed, count, seconds), list[float]()
        for strike in planned:
            time.sleep(max(0.0, began + strike.at_s - time.time()))
            pids = storm.all_pids()
            if storm.is_over:
                break
            strikes.append(time.time())
            print(f"{name} {strikes[-1] - began:.1f} {strike.kind} {strike.workers}", flush=True)
            storm.strike_now(strike, pids)
        time.sleep(max(0.0, began + seconds - time.time()))
        over = time.time()
        for watch in watches:
            watch.is_ending = True
        for job in jobs:
            job.signal(signal.SIGINT)
        row["exit_codes"] = [job.end(END_S + LONGEST_S) for job in jobs]
        for watch in watches:
            watch.is_over = True
            watch.join()
        wait_for(lambda: not network.commands(), drilled_cut.GONE_S)
        row["left_running"] = [len(network.commands()), *(twin.logs.left_running() for twin in twins)]
        row["samples"] = [
            [b - a for a, b in zip(early, job.samples(), strict=True)] for early, job in zip(before, jobs, strict=True)
        ]
        row |= {"trained_s": round(over - began, 2), "growth": [watch.growth() for watch in watches]}
        row["accuracies"] = [job.logs.accuracy() for job in jobs]
        undisturbed = 0 if calm is None and not twins else 1
        row["noticed"] = [job.notices() for job in jobs[undisturbed:]]
        pauses = [
            max(each.pause_s(n, began, over - 5, 0.0) for n in range(plan.newcomer)) for each in watches[undisturbed:]
        ]
        if calm is not None:
            pauses = calm["twins_pause_s"]
            row |= {"calm_s": calm["trained_s"], "noticed": calm["noticed"]}
            row["accuracies"] += calm["accuracies"]
            row["samples"] += [[round(n * row["trained_s"] / calm["trained_s"]) for n in calm["samples"][0]]]
        row["twins_pause_s"], round_s = pauses, max(pauses)
        row["faults"] = [
            asdict(strike)
            | {"at_s": round(at - began, 2)}
            | {"pauses_s": [watches[0].pause_s(n, at, until, round_s) for n in range(plan.newcomer)]}
            for strike, at, until in zip(planned, strikes, [*strikes[1:], over - 1], strict=False)
        ]
        row |= {"present": storm.present(), "decisions": kept(record, folder / f"{name}-decisions")}
        (folder / f"{name}.log").write_text("".join(f"{at - began:8.2f} {line}\n" for at, line in storm.lines))
    return row


def kept(record: Path, packed: Path) -> list[int]:
    """Packs what each process has decided, and returns how many decisions each made. Raises SetupError where a replay
    decides otherwise."""
    found = []
    for number, path in enumerate(sorted(record.iterdir())):
        text = path.read_text()
        found.append(replay(text.splitlines(), path.name))
        packed.with_name(f"{packed.name}-{number}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    return found


# -------------------------------------------------------------------------------------------------------- tables


def excused_s(fault: Mapping[str, Any], lasts_s: float) -> dict[int, float]:
    """Seconds for which each struck worker could not compute: those of the fault, and START_S for a new process."""
    longest = dict.fromkeys(("kill", "two kills", "damaged checkpoint"), START_S)
    longest |= dict.fromkeys(("freeze", "cut", "one direction"), lasts_s)
    struck = fault["workers"][:1] if fault["kind"] == "one direction" else fault["workers"]
    most = longest.get(fault["kind"], 0.0)
    return {number: min(most, fault["pauses_s"][number]) for number in struck}


def pause_s(fault: Mapping[str, Any]) -> float:
    """The longest time without a round of a worker that was not struck."""
    return max(value for number, value in enumerate(fault["pauses_s"]) if number not in fault["workers"])


def made_tables(folder: Path) -> str:
    """What became of each job; the pauses by kind; the processes."""
    rows = [row for line in (folder / FILE).read_text().splitlines() if "faults" in (row := json.loads(line))]
    return "\n\n".join(_tables(rows))


def _tables(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    head = "job|faults|samples, of the twins'|less what could not be computed|accuracy|twins|exit code|left running"
    lines = [head.split("|")]
    for row in rows:
        storm, *twins = row["samples"]
        rates = [statistics.mean(counts) / row["trained_s"] for counts in zip(*twins, strict=True)]
        excused = [excused_s(fault, row.get("lasts_s", Plan.lasts_s)) for fault in row["faults"]]
        lost = sum(rates[n] * seconds for each in excused for n, seconds in each.items())
        whole = statistics.mean(map(sum, twins))
        accuracy_, *others = row["accuracies"]
        shares = [f"{sum(storm) / whole:.1%}", f"{sum(storm) / (whole - lost):.1%}"]
        ends = [str(row["exit_codes"][0]), str(sum(row["left_running"]))]
        of_twins = f"{min(others):.4f} to {max(others):.4f}"
        lines.append([row["job"], str(len(row["faults"])), *shares, f"{accuracy_ or 0:.4f}", of_twins, *ends])
    yield markdown.table(lines)
    lines = [["seconds", *(row["job"] for row in rows)]]
    lines.append(["none (the twins)", *(f"{max(row['twins_pause_s']):.1f}" for row in rows)])
    for kind in KINDS:
        found = [[pause_s(fault) for fault in row["faults"] if fault["kind"] == kind] for row in rows]
        lines.append([kind, *map(spread, found)])
    yield markdown.table(lines)
    lines = [["job", "process", "MiB", "files", "threads", "seconds"]]
    for row in rows:
        for what in ("launcher", "state-server", "storm-"):
            ours = [each for each in row["growth"][0] if each["name"].startswith(what)]
            for each in [max(ours, key=lambda each: each["seconds"])] if ours else ():
                kib, files, threads = zip(each["first"], each["last"], strict=True)
                numbers = [f"{kib[0] / 1024:.1f} to {kib[1] / 1024:.1f}", *(f"{a} to {b}" for a, b in (files, threads))]
                lines.append([row["job"], each["name"].removesuffix("-cpu"), *numbers, str(each["seconds"])])
    yield markdown.table(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the missing storms and prints the tables."""
    parser = FlagParser("experiments.fault_drill.storm", doc=__doc__)
    parser.add_argument("--jobs", type=job_options.names(JOBS), default=tuple(JOBS))
    parser.add_argument("--seed", type=int, default=0, help="of the schedule")
    parser.add_argument("--faults", type=int, default=60, help="their number")
    parser.add_argument("--twins", type=int, default=3, help="undisturbed jobs beside it")
    parser.add_argument("--calm", type=float, default=0.0, help="in their place: seconds of this job without faults")
    given, folder = parsed(parser, arguments, 1800.0, "logs/storm", "only the tables of finished storms, in README.md")
    if not (given.table or given.calm or given.twins):
        parser.error("--twins 0 needs --calm: there is nothing to compare with")
    for name in () if given.table else given.jobs:
        calm = drill(name, given.seed, 0, given.calm, 0, folder / "calm") if given.calm else None
        if calm and calm["exit_codes"] != [0]:
            raise SetupError(f"the job without faults did not end in order: {calm.get('said')}")
        row = drill(name, given.seed, given.faults, given.seconds, 0 if calm else given.twins, folder, calm)
        append_line(folder / FILE, json.dumps(row))
    if given.table:
        markdown.write(folder / "README.md", made_tables(folder))
    else:
        print(made_tables(folder))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # unmounts the disks, removes the hosts
    start.run(main)
