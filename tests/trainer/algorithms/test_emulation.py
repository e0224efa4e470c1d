"""Each algorithm as a black box, beside an emulation of its events in numpy that shares no line with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import emulation
import numpy as np
import pytest
from emulation import Worker, Workers

import simulate
from trainer.simulation import virtual_cluster

JOB = Path(emulation.__file__).with_name("recorded_job.py")
STEPS_S = (0.2717, 0.4151, 0.1103)  # no two steps end at once
SAMPLES = 32
LIMIT_S = 6.0
BY_STEP = ("sync", "async", "ringmaster", "ringleader", "rescaled", "fastest-sync")  # -l counts, else -ll
RATE = 0.01
CLOSE = 1e-5  # of the largest change of a weight: the program has 32 bits

Emulation = Callable[..., object]


def recorded(folder: Path, mode: str, flags: str) -> list[dict[str, np.ndarray]]:
    """What each worker trained on, and its weights, in a run of the program."""
    rate = "-l" if mode in BY_STEP else "-ll"
    words = ["-m", mode, rate, str(RATE), "-b", "4", "--max-seconds", str(LIMIT_S), *flags.split()]
    place = ["--job", str(JOB), "-dd", str(folder), "--log-base", str(folder / "logs")]
    workers = ["--workers", ",".join(map(str, STEPS_S))]
    _, (run,) = simulate.parse([*words, *place, *workers])
    virtual_cluster.run(run.job)
    return [dict(np.load(path)) for path in sorted(folder.glob("*.npz"))]


def workers_of(found: list[dict[str, np.ndarray]], momentum: float) -> Workers:
    """The emulated ones, before their first step."""
    held = [SAMPLES // len(found) + (rank < SAMPLES % len(found)) for rank in range(len(found))]
    steps_s = [step_s for step_s in STEPS_S if step_s in sorted(STEPS_S)[: len(found)]]  # the fastest
    return [
        Worker(
            *(each[name].astype(np.float64) for name in ("x", "y")),
            each["w"][0].astype(np.float64),
            step_s,
            len(found) * count / SAMPLES,
            RATE,
            momentum,
        )
        for each, step_s, count in zip(found, steps_s, held, strict=True)
    ]


def difference(folder: Path, mode: str, flags: str, emulate: Emulation, momentum: float) -> float:
    """The largest of any weight after any step, over the largest change of a weight since the start."""
    found = recorded(folder, mode, f"{flags} --momentum {momentum}")
    workers = workers_of(found, momentum)
    emulate(workers, LIMIT_S)
    assert sum(len(worker.after) for worker in workers) >= 30
    apart = [np.abs(each["w"][1 : 1 + len(of.after)] - of.after).max() for each, of in zip(found, workers, strict=True)]
    moved = max(np.abs(np.array(of.after) - each["w"][0]).max() for each, of in zip(found, workers, strict=True))
    assert 0.1 < moved < 10
    return float(max(apart) / moved)


def esync(workers: Workers, limit_s: float, anchor: int = 1, **outer: float) -> None:
    emulation.averaged(workers, limit_s, emulation.counts_of_esync(workers, anchor), **outer)


def local_sgd(workers: Workers, limit_s: float, every: int = 2, **outer: float) -> None:
    emulation.averaged(workers, limit_s, [every for _ in workers], **outer)


sync = partial(emulation.sync, rate=RATE)
OUTER = {"outer": 0.9, "outer_rate": 0.7}
OUTER_FLAGS = "--outer-momentum 0.9 -gl 0.7"
NESTEROV = f"--outer-nesterov 1 {OUTER_FLAGS}"


def decoupled(grace: str, quorum: int) -> tuple[str, str, Emulation]:
    grace_s = None if grace == "auto" else float(grace)
    flags = f"--sync-every 2 --quorum {quorum} --grace {grace} {OUTER_FLAGS}"
    return "decoupled", flags, partial(emulation.decoupled, every=2, quorum=quorum, grace_s=grace_s, **OUTER)


def async_local(dylu: int, delay: int) -> tuple[str, str, Emulation]:
    flags = f"--sync-every 4 --dylu {dylu} --delay-momentum {delay} {OUTER_FLAGS}"
    emulate = partial(emulation.async_local, every=4, dylu=bool(dylu), delay_momentum=bool(delay), **OUTER)
    return "async-local", flags, emulate


def asgd(mode: str, flags: str = "", **more: object) -> tuple[str, str, Emulation]:
    return mode, flags, partial(emulation.asynchronous, rate=RATE, **more)


CASES = [
    ("sync", "", sync),
    asgd("async"),
    ("local-sgd", "--sync-every 2", local_sgd),
    ("local-sgd", f"--sync-every 2 {NESTEROV}", partial(local_sgd, **OUTER)),
    ("esync", "", esync),
    ("esync-outer", OUTER_FLAGS, partial(esync, **OUTER)),
    ("esync-anchor", "--anchor 3", partial(esync, anchor=3)),
    asgd("ringmaster", "--max-delay 3", max_delay=3),
    asgd("ringmaster", "--max-delay 1", max_delay=1),
    asgd("ringleader", table=True),
    asgd("rescaled", rescale=True),
    *(async_local(dylu, delay) for dylu in (0, 1) for delay in (0, 1)),
    *(decoupled(grace, quorum) for grace in ("auto", "0", "0.3") for quorum in (1, 2)),
    decoupled("auto", 3),
    ("fastest-sync", "--fastest 2", sync),
    ("fastest-local", "--fastest 2 --sync-every 2", local_sgd),
    ("fastest-outer", "--fastest 2 --sync-every 2", partial(local_sgd, **OUTER)),
]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("mode", "flags", "emulate"), CASES, ids=[" ".join(case[:2]) for case in CASES])
def test_the_weights_after_every_step_are_those_of_the_emulation(tmp_path, mode, flags, emulate, momentum) -> None:
    if mode in BY_STEP:
        emulate = partial(emulate, momentum=momentum)
    found = difference(tmp_path, mode, flags, emulate, momentum)
    print(f"\n{found:.1e} {mode} {flags} --momentum {momentum}")
    assert found < CLOSE
