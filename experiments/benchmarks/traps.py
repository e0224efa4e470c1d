"""A job that trains beside a state server that is attacked: whether it loses a round, and how the server bears it.

    python experiments/benchmarks/traps.py [--only "NAME;NAME"] [--hold 12]

A real ESync job (lenet, Fashion-MNIST, two workers, a server and a scheduler) asks a real `manage.py serve`; one attack
after the other (attacks.py) comes from another address of this machine. For each:

    rounds/s         of the job: in the 3 s before, while the attack lasts (-: shorter than 1 s), in the 3 s after
    longest (s)      the longest that a round took, from before the attack to after it
    healthz (ms)     the longest that `GET /healthz` on a new connection took while the attack lasted; failed: how many
                     got no answer within 20 s, or were refused
    RSS (MB)         of the server, at most
    job              "lives", or how it died; then the next attack gets a new one
    server           how it took the attack: answers, and what it did with connections

At the end each job that lives is told to stop. Its workers must end with 0, and their logs must have the same rounds,
each from 1 on: none was lost.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from experiments.benchmarks import attacks, process_stat  # noqa: E402
from experiments.benchmarks.attacks import HOST, Attack, Target  # noqa: E402
from experiments.benchmarks.trap_job import Job, StateServer  # noqa: E402

BEFORE_S = AFTER_S = 3.0
PROBE_EVERY_S = 0.05
PROBE_TIMEOUT_S = 20.0
LONGEST_ATTACK_S = 90.0
DOWN_S = 5.0
SHORTEST_S = 1.0  # of an attack during which rounds are counted
COLUMNS = "{:<22} {:>6} {:>6} {:>6} {:>11} {:>12} {:>6} {:>8}  {:<5}  {}"


@dataclass(frozen=True)
class Trap:
    """An attack, by name. `holds`: it lasts as long as it is let; otherwise until it is done."""

    name: str
    attack: Attack
    holds: bool = False
    from_here: bool = False  # from the address of the workers, not from another


def kill_and_wait(server: StateServer) -> Attack:
    """kill -9 of the server, and a while of nothing before it is started again on the same port."""

    def attack(target: Target) -> str:
        server.kill()
        target.over.wait(DOWN_S)
        server.start()
        return f"down for {DOWN_S:g} s"

    return attack


def traps(server: StateServer) -> tuple[Trap, ...]:
    """All of them."""
    return (
        Trap("nothing", lambda _: "-", holds=True),
        Trap("1 half body", attacks.half_bodies(1), holds=True),
        Trap("1000 half bodies", attacks.half_bodies(1000), holds=True),
        Trap("1000 small halves", attacks.half_bodies(1000, length=100), holds=True),
        Trap("1000 half heads", attacks.half_heads(1000), holds=True),
        Trap("5000 idle", attacks.idle_connections(5000), holds=True),
        Trap("5000 idle, same host", attacks.idle_connections(5000), holds=True, from_here=True),
        Trap("1 GB upload", attacks.upload),
        Trap("64 KB of double names", attacks.double_names(20)),
        Trap("10000 random requests", attacks.random_requests(10_000)),
        Trap("100 other jobs", attacks.other_jobs(100)),
        Trap("an /init/", attacks.empty_init),
        Trap("stray /reset/s", attacks.stray_resets),
        Trap("a page's POSTs", attacks.cross_site),
        Trap("kill -9, 5 s down", kill_and_wait(server)),
    )


class Probe:
    """Asks /healthz again and again on new connections, and looks at the server's memory."""

    def __init__(self, server: StateServer) -> None:
        self._server = server
        self.worst_ms = 0.0
        self.failures = 0
        self.resident_mb = 0.0

    def once(self) -> None:
        """Asks once."""
        begin = time.monotonic()
        connection = http.client.HTTPConnection(HOST, self._server.port, timeout=PROBE_TIMEOUT_S)
        try:
            connection.request("GET", "/healthz")
            self.failures += connection.getresponse().status != 200
        except (OSError, http.client.HTTPException):
            self.failures += 1
        finally:
            connection.close()
        self.worst_ms = max(self.worst_ms, (time.monotonic() - begin) * 1e3)
        self.resident_mb = max(self.resident_mb, self._server.resident_mb())


def spring(trap: Trap, job: Job, server: StateServer, hold_s: float) -> str:
    """Tries one trap; returns its line of the table."""
    time.sleep(BEFORE_S)
    target = Target(server.port, source=HOST if trap.from_here else attacks.STRANGER)
    outcome: list[str] = []
    attacker = threading.Thread(target=lambda: outcome.append(trap.attack(target)), daemon=True)
    probe = Probe(server)
    begin = time.monotonic()
    attacker.start()
    while time.monotonic() < begin + (hold_s if trap.holds else LONGEST_ATTACK_S):
        probe.once()
        if not trap.holds and not attacker.is_alive():
            break
        time.sleep(PROBE_EVERY_S)
    target.over.set()
    attacker.join(PROBE_TIMEOUT_S)
    end = time.monotonic()
    time.sleep(AFTER_S)
    longest = job.longest(begin - BEFORE_S, end + AFTER_S)
    before, after = job.rate(begin - BEFORE_S, begin), job.rate(end, end + AFTER_S)
    during = f"{job.rate(begin, end):.1f}" if end - begin >= SHORTEST_S else "-"
    figures = [f"{before:.1f}", during, f"{after:.1f}", f"{longest:.2f}", f"{probe.worst_ms:.1f}", probe.failures]
    lives = "lives" if job.lives() and after else "died"
    took = outcome[0] if outcome else "the attack did not end"
    return COLUMNS.format(trap.name, *figures, f"{probe.resident_mb:.1f}", lives, took)


def run(chosen: Sequence[str], hold_s: float, folder: Path) -> bool:
    """Prints the table; returns whether no job lost a round."""
    process_stat.allow_many_files()
    header = ("trap", "before", "during", "after", "longest (s)", "healthz (ms)", "failed", "RSS (MB)", "job", "server")
    print(COLUMNS.format(*header))
    lost: list[str] = []
    with StateServer(folder / "state-server.log") as server:
        server.start()
        all_traps = traps(server)
        job, number = None, 0
        for trap in all_traps:
            if chosen and trap.name not in chosen:
                continue
            if job is None:
                number += 1
                job = Job(folder / f"job{number}", server.port)
                job.wait_until_it_trains()
            print(spring(trap, job, server, hold_s), flush=True)
            if not job.lives():
                lost.append(f"job {number} died of {trap.name!r}: {job.last_words()}")
                job.kill()
                job = None
        if job is not None:
            print(f"\njob {number}: {job.stop()}")
            lost += job.losses
    for line in lost:
        print(line)
    return not lost


def main() -> int:
    """The command."""
    names = [trap.name for trap in traps(StateServer(Path()))]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"with semicolons, out of: {'; '.join(names)}")
    parser.add_argument("--hold", type=float, default=12.0, help="seconds that connections are held (%(default)s)")
    given = parser.parse_args()
    chosen = [name.strip() for name in given.only.split(";") if name.strip()]
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"--only has {unknown[0]!r}; choose from {'; '.join(names)}")
    with tempfile.TemporaryDirectory() as folder:
        return 0 if run(chosen, given.hold, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
