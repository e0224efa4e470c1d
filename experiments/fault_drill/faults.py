"""The faults of experiments/fault_drill/fault_drill.py, and the jobs that they can happen to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from algorithms import OWNERS, TransportKind
from config import CONTINUE, HUB, RESTART, transport_of

NAMES = ("worker0", "worker1", "worker2")  # of the workers' logs; the last is the slowest
# A schedule of sums for each mode that needs no parameter server: all three are drilled.
AMONG_WORKERS = {"esync": "ring", "sync": "butterfly", "local-sgd": "binary-blocks"}
# All; the link with the next slowest worker, and one direction of it; the parameter server alone.
ALL, LINK, DIRECTION, SERVER = "all", "link", "direction", "server"

ONE = "one"  # worker's disk

PORT = 10010  # of the state server on hosts of the drill's own


@dataclass(frozen=True)
class Fault:
    """An event in a job.

    Attributes:
        text: the event in words.
        victims: processes that are killed, by the names of their logs.
        ways: to survive, in which it is tried.
        then: processes that are killed AGAIN_S later.
        freeze_s: seconds for which the victims are frozen, in place of kill -9.
        damages: cuts the newest checkpoint of rank 0 in half first.
        comes: another worker joins, and none dies.
        is_closed: the new worker is behind a firewall that closes all of its ports.
        leaves_out: jobs with a hub can continue without the victims.
        cut_s: seconds without network of the slowest worker's host (infinite: until the job ends).
        cuts: what of its network is cut then; ALL or another one below.
        cut_port: that alone is cut off from the host, in place of ALL.
        fills_disk: of logs and checkpoints, or of the logs of ONE worker.
        times: each victim is killed; one more than --restarts allows.
    """

    text: str
    victims: Sequence[str] = ()
    ways: Sequence[str] = (CONTINUE, RESTART)
    then: Sequence[str] = ()
    freeze_s: float = 0.0
    damages: bool = False
    comes: bool = False
    is_closed: bool = False
    leaves_out: bool = False
    cut_s: float = 0.0
    cuts: str = ALL
    cut_port: int = 0
    fills_disk: str = ""
    times: int = 1


FAULTS = {
    "none": Fault("", leaves_out=True),
    "worker": Fault("the slowest worker is killed", ["worker2"], leaves_out=True),
    "rank-0": Fault("rank 0 is killed", ["worker0"], leaves_out=True),
    "two": Fault("two workers at once are killed", ["worker0", "worker2"], leaves_out=True),
    "all": Fault("all workers and the state server are killed", [*NAMES, "state-server"]),
    "again": Fault("a worker is killed, and another one while all recover", ["worker2"], then=["worker0"]),
    "freeze": Fault("a worker is frozen for 20 s", ["worker2"], freeze_s=20.0, leaves_out=True),
    "late": Fault("a worker comes", ways=(CONTINUE,), comes=True),
    "late-closed": Fault("a worker comes behind a firewall", ways=(CONTINUE,), comes=True, is_closed=True),
    "server": Fault("the parameter server, or the hub, is killed", ["server0"], ways=(RESTART,)),
    "scheduler": Fault("the scheduler is killed", ["scheduler"], ways=(RESTART,)),
    "worker-and-server": Fault("a worker and the parameter server are killed", ["worker2", "server0"], ways=(RESTART,)),
    "damaged": Fault("a worker is killed, and its checkpoint damaged", ["worker2"], ways=(RESTART,), damages=True),
    "state-server": Fault("the state server is killed", ["state-server"]),
    "state-server-frozen": Fault("the state server is frozen for 90 s", ["state-server"], freeze_s=90.0),
    "state-server-unreached": Fault("a worker cannot reach the state server for 20 s", cut_s=20.0, cut_port=PORT),
    "cut-5": Fault("a worker's link is cut for 5 s", cut_s=5.0, leaves_out=True),
    "cut-20": Fault("a worker's link is cut for 20 s", cut_s=20.0, leaves_out=True),
    "cut": Fault("a worker's link is cut for ever", cut_s=math.inf, leaves_out=True),
    "link": Fault("the link between two workers is cut for 20 s", ways=(CONTINUE,), cut_s=20.0, cuts=LINK),
    "direction": Fault("one direction of that link is cut for 20 s", ways=(CONTINUE,), cut_s=20.0, cuts=DIRECTION),
    "no-server": Fault(
        "a worker is cut off from the parameter server, or the hub",
        ways=(CONTINUE,),
        cut_s=20.0,
        cuts=SERVER,
        leaves_out=True,
    ),
    "disk-full": Fault("the disk of logs and checkpoints is full for 10 s", fills_disk=ALL),
    "disk-and-kill": Fault(
        "that disk is full, and a worker and the state server are killed",
        ["worker2", "state-server"],
        ways=(CONTINUE,),
        fills_disk=ALL,
    ),
    "disk-of-one": Fault("the disk of a worker's logs is full for 10 s", fills_disk=ONE, leaves_out=True),
    "flapping": Fault("a worker is killed three times, with `--restarts 2`", ["worker2"], leaves_out=True, times=3),
}


def leaves_out(way: str, mode: str) -> bool:
    """Whether the others continue at a hub without lost workers; such a job has no checkpoints."""
    return way == CONTINUE and mode not in AMONG_WORKERS


def can_happen(fault: str, way: str, mode: str) -> bool:
    """Whether a job of this mode can survive in this way, and the fault can happen to it."""
    has_server_part = OWNERS[mode].transport is TransportKind.HUB
    if fault in ("server", "scheduler") and (transport_of(mode) == HUB or (way == CONTINUE and has_server_part)):
        return fault == "server"  # the hub is started again alone
    if way not in FAULTS[fault].ways:
        return False
    if FAULTS[fault].cuts == SERVER and not leaves_out(way, mode):
        return False
    if leaves_out(way, mode):
        return FAULTS[fault].leaves_out and has_server_part
    return not fault.startswith("state-server") or OWNERS[mode].has_state_server or way == CONTINUE
