"""Real jobs whose processes die, whose links are cut or whose disk is full, and tables of what happens.

    scripts/fault_drill.sh                                  # all ways to survive, modes and faults: hours
    scripts/fault_drill.sh --ways continue --faults worker,rank-0
    scripts/fault_drill.sh --ways continue --faults cut-5,cut-20,cut          # as root
    scripts/fault_drill.sh --table                          # of finished jobs

LeNet-5, three workers of 0.03, 0.06 and 0.15 s a step, for --seconds each. The fault comes in the middle of a round,
when every worker has done some. The table has seconds from the fault until another process reports it / until all
remaining workers (all, where all are restarted) have done two more rounds (in brackets: until restarted or new workers
have) / rounds lost. A job is a line of FOLDER/drill.jsonl and is not run again.

As root also: cut-5, cut-20 and cut cut the link of the slowest worker, for 5 s, 20 s or until the job ends
(scripts/cluster.sh, each worker on its own host, a network namespace; in brackets: from the end of the cut, by which
the job is longer; a cut to the end leads to exit code 3, as that host's logs are missing). link and direction cut the
link between the two slowest workers, no-server that between the slowest and the parameter server, for 20 s;
state-server-unreached cuts the slowest off from the state server alone. late-closed starts a worker on a fourth host,
which takes no connections: the longest pause of the others (in brackets: until it has done two rounds). disk-full fills
the disk of logs and checkpoints, a tmpfs, for 10 s, disk-of-one that of the slowest worker's logs alone: the longest
time between two rounds of a worker. flapping kills the slowest worker three times, 5 s apart, with --restarts 2: the
longest pause of the others.
"""

from __future__ import annotations

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from config import CONTINUE, RESTART
from experiments.fault_drill import drilled_cut, drilled_disk
from experiments.fault_drill.drilled_job import FLAGS, Job, parsed
from experiments.fault_drill.drilled_logs import END_S, LONGEST_S, noticed_s
from experiments.fault_drill.drilled_tables import is_in_order, summary, table
from experiments.fault_drill.faults import FAULTS, can_happen
from flag_parser import FlagParser
from scripts.launch import job_options
from utils import append_line

Row = dict[str, Any]
Planned = tuple[str, str, str]  # a job by its way, its mode and its fault


def drill(way: str, mode: str, name: str, seconds: float, folder: Path) -> Row:
    """One job with one fault."""
    fault = FAULTS[name]
    row: Row = {"way": way, "mode": mode, "fault": name, "seconds": seconds}
    if fault.cut_s:
        return row | drilled_cut.drill(way, mode, fault, seconds, folder / "logs")
    if fault.is_closed:
        return row | drilled_cut.drill_late(way, mode, seconds, folder / "logs")
    if fault.fills_disk:
        return row | drilled_disk.drill(way, mode, fault, seconds, folder / "disk")
    with Job(way, mode, seconds, folder / "logs", *([fault.times - 1] if fault.times > 1 else [])) as job:
        if job.wait_for(job.has_begun, LONGEST_S) and name != "none":
            row |= job.strike(fault, way)
        row["exit_code"] = job.end(seconds + END_S)
    time.sleep(0.5)
    if "began" in row:  # its line on the console may come after the next rounds
        row["noticed_s"] = noticed_s(job.lines, row.pop("began"))
    return row | job.logs.left() | {"said": job.notices()}


def possible(todo: Sequence[Planned]) -> list[Planned]:
    """The jobs that can run on this machine as this user; prints which cannot, and why."""
    left = [*todo]
    for what, maker in (("cut_s", drilled_cut), ("is_closed", drilled_cut), ("fills_disk", drilled_disk)):
        names = {name: None for _, _, name in left if name in FAULTS and getattr(FAULTS[name], what)}
        if names and (why := maker.missing()):
            print(f"left out: {', '.join(names)}: {why}", flush=True)
            left = [planned for planned in left if planned[2] not in names]
    return left


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the missing jobs and prints the table."""
    parser = FlagParser("scripts/fault_drill.sh", doc=__doc__)
    for flag, choices in (("--ways", (CONTINUE, RESTART)), ("--modes", FLAGS), ("--faults", FAULTS)):
        parser.add_argument(flag, type=job_options.names(choices), default=tuple(choices))
    given, folder = parsed(parser, arguments, 20.0, "logs/fault-drill", "only the tables of finished jobs")
    path = folder / "drill.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(row["way"], row["mode"], row["fault"]) for row in rows}
    todo = [
        (way, mode, name)
        for mode in given.modes
        for way in given.ways
        for name in given.faults
        if can_happen(name, way, mode) and (way, mode, name) not in done
    ]
    todo = [] if given.table else possible(todo)
    for number, (way, mode, name) in enumerate(todo, start=1):
        row = drill(way, mode, name, given.seconds, folder)
        append_line(path, json.dumps(row))
        rows.append(row)
        print(f"{number} of {len(todo)}: {json.dumps(row)}", flush=True)
    table(rows)
    summary(rows)
    return int(not all(is_in_order(row) and not row["left_running"] for row in rows))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # unmounts the disk, removes the hosts
    start.run(main)
