"""What becomes of a job when processes of it die, a link is cut or the disk is full: real clusters, in a table.

    scripts/fault_drill.sh                                  # all ways to survive, modes and faults: hours
    scripts/fault_drill.sh --ways continue --faults worker,rank-0
    scripts/fault_drill.sh --soak 40                        # faults at random, in jobs of 40 s, each beside a calm one
    scripts/fault_drill.sh --ways continue --faults cut-5,cut-20,cut          # as root
    scripts/fault_drill.sh --table                          # what was measured so far

LeNet-5, three workers of 0.03, 0.06 and 0.15 s a step, for --seconds each. The fault comes in the middle of a round,
when every worker has done some. The table has seconds from the fault until another process says so first / until all
workers that are left (all of them, where all are started again) have done two more rounds (in brackets: until those
have who had died, or have come) / rounds lost. A run is a line of FOLDER/drill.jsonl (soak.jsonl); what stands there is
not done again.

As root also: cut-5, cut-20 and cut take the cable of the slowest worker out, for so many seconds or until the job is
over (scripts/cluster.sh, each worker on a host of its own, a network namespace; in brackets: from its return; a cut
that ends makes the job so much longer; one that does not ends it with exit code 3: that host's logs are missing).
disk-full fills the disk of logs and checkpoints, a tmpfs, until the job has ended; then there is room again, and the
same command with --resume is started, from which on the seconds until all train again count.

come: a fourth worker stands in the hosts file of scripts/cluster.sh, which reads it again: the longest pause of the
others between two rounds (in brackets: from the signal until the new worker has done two).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from config import CONTINUE, RESTART
from scripts import drilled_cut, drilled_disk, drilled_hosts
from scripts.drilled_job import FLAGS, Job, listening
from scripts.drilled_logs import BATCH, END_S, LONGEST_S, noticed_s
from scripts.faults import AMONG_WORKERS, FAULTS, can_happen, of_soak
from utils import EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, append_line

LAST_S = 15.0  # of a soak without a new fault
PAUSE_S = (30.0, 60.0)  # between two faults of a soak

Row = dict[str, Any]
Planned = tuple[str, str, str]  # a job by its way, its mode and its fault


def drill(way: str, mode: str, name: str, seconds: float, folder: Path) -> Row:
    """One job with one fault."""
    fault = FAULTS[name]
    row: Row = {"way": way, "mode": mode, "fault": name, "seconds": seconds}
    if fault.cut_s:
        return row | drilled_cut.drill(way, mode, fault.cut_s, seconds, folder / "logs")
    if fault.fills_disk:
        return row | drilled_disk.drill(way, mode, seconds, folder / "disk")
    if fault.in_hosts:
        return row | drilled_hosts.drill(way, mode, seconds, folder / "logs")
    job = Job(way, mode, seconds, folder / "logs")
    try:
        if job.wait_for(job.has_begun, LONGEST_S) and name != "none":
            row |= job.strike(fault, way)
        row["exit_code"] = job.end(seconds + END_S)
    finally:
        job.end(0.0)
    time.sleep(0.5)
    if "began" in row:  # its line on the console may come after the next rounds
        row["noticed_s"] = noticed_s(job.lines, row.pop("began"))
    return row | job.logs.left() | {"said": job.notices()}


def is_in_order(row: Mapping[str, Any]) -> bool:
    """Whether a job has ended as it should. A full disk ends it first with the code for what users can put right; where
    a host is cut off to the end, its logs are missing."""
    code = EXIT_PEER_LOST if row.get("hosts_lost") else EXIT_OK
    return row["exit_code"] == code and row.get("full_exit_code", EXIT_SETUP) == EXIT_SETUP


def possible(todo: Sequence[Planned]) -> list[Planned]:
    """Those jobs that can be run on this machine and as this user; prints which others cannot, and why."""
    left = [*todo]
    for what, missing in (("cut_s", drilled_cut.missing), ("fills_disk", drilled_disk.missing)):
        names = {name: None for _, _, name in left if name in FAULTS and getattr(FAULTS[name], what)}
        if names and (why := missing()):
            print(f"left out: {', '.join(names)}: {why}", flush=True)
            left = [planned for planned in left if planned[2] not in names]
    return left


def soak(way: str, mode: str, seconds: float, folder: Path, choose: random.Random | None) -> Row:
    """One job with random faults, one after the other.

    Args:
        choose: the faults and the pauses; None: there are none.
    """
    faults = of_soak(way, mode)
    ports, job = listening(), Job(way, mode, seconds, folder / "logs")
    row: Row = {"way": way, "mode": mode, "fault": "soak" if choose else "none", "seconds": seconds, "faults": []}
    try:
        job.wait_for(job.has_begun, LONGEST_S)
        row["before"] = row["after"] = job.resources()
        until = time.monotonic() + (choose.uniform(*PAUSE_S) / 2 if choose else seconds)
        while not job.is_over:
            if choose and time.monotonic() >= until and job.logs.trained_s() < seconds - LAST_S:
                name = choose.choice(faults)
                row["faults"].append({"fault": name, "again_s": job.strike(FAULTS[name], way)["again_s"]})
                until = time.monotonic() + choose.uniform(*PAUSE_S)
            if job.pids():
                row["after"] = job.resources()
            time.sleep(0.2)
        row["exit_code"] = job.end(END_S)
    finally:
        job.end(0.0)
    time.sleep(0.5)
    row |= job.logs.left() | {"said": job.notices(), "ports": [ports, listening()]}
    return row | {"samples_s": round(row["steps"] * BATCH / row["trained_s"], 1) if row["trained_s"] else None}


def table(rows: Sequence[Mapping[str, Any]]) -> None:
    """For each way to survive: a line for each fault, a column for each mode; and what holds of all runs."""
    for way in dict.fromkeys(row["way"] for row in rows):
        of_way = {(row["fault"], row["mode"]): row for row in rows if row["way"] == way}
        modes = [*dict.fromkeys(mode for _, mode in of_way)]
        print(f"| {way} | {' | '.join(modes)} |\n{'| --- ' * (len(modes) + 1)}|")
        for fault in FAULTS:
            cells = [_cell(of_way[fault, mode]) if (fault, mode) in of_way else "" for mode in modes]
            if fault != "none" and any(cells):
                _print([fault, *cells])
        faults = [row for (fault, _), row in of_way.items() if fault != "none"]
        ended, left = sum(map(is_in_order, faults)), sum(row["left_running"] for row in faults)
        print(f"\n{ended} of {len(faults)} jobs ended in order, {left} processes were left;")
        print(f"accuracies less those of undisturbed jobs as long: {_differences(of_way)}\n")


def cut_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """A line for each job of which a link was cut; nothing where there is none."""
    cut = [row for row in rows if row["fault"] in FAULTS and FAULTS[row["fault"]].cut_s and "pause_s" in row]
    if cut:
        print(
            "| way | mode | cut for | longest pause of the others, s | rounds of theirs meanwhile | back after, s "
            "| rounds that it missed | exit code |"
        )
        print("| --- " * 8 + "|")
    for row in sorted(cut, key=lambda row: row["way"]):
        cut_s, sums = FAULTS[row["fault"]].cut_s, _sums_of(row)
        cut_for = "to the end" if math.isinf(cut_s) else f"{cut_s:g} s"
        told = [row[key] for key in ("pause_s", "rounds_meanwhile", "back_s")]
        missed = row["rounds_missed"] if sums else None  # elsewhere each worker has as many rounds as it can do
        _print([row["way"], f"{row['mode']}{sums and ', '}{sums}", cut_for, *told, missed, row["exit_code"]])


def _sums_of(row: Mapping[str, Any]) -> str:
    """The schedule of sums among the workers; empty where there is a parameter server."""
    return AMONG_WORKERS.get(row["mode"], "") if row["way"] == CONTINUE else ""


def _cell(row: Mapping[str, Any]) -> str:
    """Seconds until it was noticed, until all trained again, and until who had died did; rounds lost."""
    cells = [row.get("noticed_s"), row.get("again_s"), row.get("rounds_lost")]
    back = f" ({row['back_s']})" if row.get("back_s") else ""
    noticed, again, lost = ("-" if cell is None else str(cell) for cell in cells)
    return f"{noticed} / {again}{back} / {lost}"


def _differences(of_way: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    found = [
        row["accuracy"] - of_way["none", mode]["accuracy"]
        for (fault, mode), row in of_way.items()
        if fault != "none"
        and row["accuracy"]
        and ("none", mode) in of_way
        and of_way["none", mode]["seconds"] == row["seconds"]
    ]
    return f"{min(found):+.3f} to {max(found):+.3f}, median {statistics.median(found):+.3f}" if found else "none"


def soak_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """A line for each job with faults, beside the undisturbed one that was run just before it, where there is one."""
    print(
        "| way | mode | faults | trains again, s | samples/s, of the undisturbed | accuracy | undisturbed "
        "| rounds missing | files, MiB and ports, before and after | left running |"
    )
    print("| --- " * 10 + "|")
    calm = {(row["way"], row["mode"], row.get("seed", 0)): row for row in rows if row["fault"] == "none"}
    for row in rows:
        if row["fault"] != "none":
            other = calm.get((row["way"], row["mode"], row.get("seed", 0)), {})
            cells = [row["way"], row["mode"], ", ".join(each["fault"] for each in row["faults"])]
            cells += [", ".join(str(each["again_s"]) for each in row["faults"])]
            share = f"{row['samples_s'] / other['samples_s']:.0%}" if other else None
            cells += [share, row["accuracy"], other.get("accuracy"), row["missing"]]
            files, kib = ([_total(row[when], what) for when in ("before", "after")] for what in ("files", "kib"))
            ports = row["ports"]
            numbers = f"{files[0]}, {files[1]}; {kib[0] / 1024:.0f}, {kib[1] / 1024:.0f}; {ports[0]}, {ports[1]}"
            _print([*cells, numbers, row["left_running"]])


def _total(resources: Mapping[str, Mapping[str, int]], what: str) -> int:
    return sum(of_process[what] for of_process in resources.values())


def _print(cells: Sequence[object]) -> None:
    print("| " + " | ".join("-" if cell is None else f"{cell}" for cell in cells) + " |")


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what is not done yet, and prints the table."""
    parser = argparse.ArgumentParser(
        prog="scripts/fault_drill.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ways", default=f"{CONTINUE},{RESTART}")
    parser.add_argument("--modes", default=",".join(FLAGS))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each job")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="of each job; with faults at random")
    parser.add_argument("--seed", type=int, default=0, help="of the soak; another one has other faults")
    parser.add_argument("--folder", type=Path, default=Path("logs/fault-drill"))
    parser.add_argument("--table", action="store_true", help="only print what there is")
    given = parser.parse_args(arguments)
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("soak.jsonl" if given.soak else "drill.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(row["way"], row["mode"], row["fault"], row.get("seed", 0)) for row in rows}
    names = ("none", "soak") if given.soak else given.faults.split(",")
    todo = [
        (way, mode, name)
        for mode in given.modes.split(",")
        for way in given.ways.split(",")
        for name in names
        if can_happen("all" if given.soak else name, way, mode)  # of a soak all must come back
        and (way, mode, name, given.seed) not in done
    ]
    todo = [] if given.table else possible(todo)
    for number, (way, mode, name) in enumerate(todo, start=1):
        if given.soak:
            choose = random.Random(f"{given.seed} {way} {mode}") if name == "soak" else None
            row = soak(way, mode, given.soak, folder, choose) | {"seed": given.seed}
        else:
            row = drill(way, mode, name, given.seconds, folder)
        append_line(path, json.dumps(row))
        rows.append(row)
        print(f"{number} of {len(todo)}: {json.dumps(row)}", flush=True)
    for show in (soak_table,) if given.soak else (table, cut_table):
        show(rows)
    return int(not all(is_in_order(row) and not row["left_running"] for row in rows))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # unmounts the disk, removes the hosts
    sys.exit(main())
