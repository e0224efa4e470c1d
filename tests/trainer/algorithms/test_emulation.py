"""Algorithms as black boxes, in simulate.py, beside an emulation of their events that shares no line with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import emulation
import numpy as np
import pytest
from emulation import Worker, Workers
from recorded_job import SAMPLES

import simulate
from trainer.simulation import virtual_cluster

JOB = Path(emulation.__file__).with_name("recorded_job.py")
STEPS_S = (0.2717, 0.4151, 0.1103)  # no two steps end at once
LIMIT_S = 4.5
BATCH = 4
RATE, MOMENTUM = 0.003, 0.9
CLOSE = 1e-5  # of the largest change of a weight: the program has 32 bits
OUTER = {"outer": 0.9, "outer_rate": 0.7}
OUTER_FLAGS = "--outer-momentum 0.9 -gl 0.7"

Emulation = Callable[[Workers, float], object]
Case = tuple[str, str, Emulation]


def decoupled(grace: str, quorum: int) -> Case:
    grace_s = None if grace == "auto" else float(grace)
    flags = f"-ll {RATE} --sync-every 2 --quorum {quorum} --grace {grace} {OUTER_FLAGS}"
    return "decoupled", flags, partial(emulation.decoupled, every=2, quorum=quorum, grace_s=grace_s, **OUTER)


def async_local(dylu: bool, delay: bool) -> Case:
    flags = f"-ll {RATE} --sync-every 4 --dylu {dylu:d} --delay-momentum {delay:d} {OUTER_FLAGS}"
    return "async-local", flags, partial(emulation.async_local, every=4, dylu=dylu, delay_momentum=delay, **OUTER)


def by_gradients(mode: str, flags: str, emulate: Callable[..., object], **more: object) -> Case:
    return mode, f"-l {RATE} {flags}", partial(emulate, rate=RATE, momentum=MOMENTUM, **more)


def anchored(workers: Workers, limit_s: float) -> None:
    emulation.averaged(workers, limit_s, emulation.counts_of_esync(workers, anchor=3))


CASES: list[Case] = [
    *(decoupled("auto", quorum) for quorum in (1, 2, 3)),
    *(decoupled(grace, 2) for grace in ("0", "0.3")),
    *(async_local(dylu, delay) for dylu, delay in ((True, True), (True, False), (False, True))),
    by_gradients("ringmaster", "--max-delay 3", emulation.asynchronous, max_delay=3),
    by_gradients("ringleader", "", emulation.ringleader),
    by_gradients("rescaled", "", emulation.asynchronous, rescale=True),
    ("esync-anchor", f"-ll {RATE} --anchor 3", anchored),
    ("fastest-outer", f"-ll {RATE} --sync-every 2 --fastest 2", partial(emulation.averaged, counts=[2, 2], **OUTER)),
]


def recorded(folder: Path, mode: str, flags: str, steps_s: Sequence[float] = STEPS_S) -> list[dict[str, np.ndarray]]:
    """What each worker trained on, and its weights, in a run of the program."""
    job = ["-m", mode, "--job", str(JOB), "-b", str(BATCH), "--momentum", str(MOMENTUM), *flags.split()]
    cluster = ["--workers", ",".join(map(str, steps_s)), "--max-seconds", str(LIMIT_S)]
    folder.mkdir(exist_ok=True)
    _, (run,) = simulate.parse([*job, *cluster, "-dd", str(folder), "--log-base", str(folder / "logs")])
    virtual_cluster.VirtualRun(run.job).run()
    return [dict(np.load(path)) for path in sorted(folder.glob("*.npz"))]


def workers_of(found: list[dict[str, np.ndarray]]) -> Workers:
    """The emulated ones, before their first step."""
    count = len(found)
    held = [SAMPLES // count + (rank < SAMPLES % count) for rank in range(count)]
    fastest = [step_s for step_s in STEPS_S if step_s in sorted(STEPS_S)[:count]]
    return [
        Worker(each["x"], each["y"], each["w"][0].astype(np.float64), step_s, count * n / SAMPLES, RATE, MOMENTUM)
        for each, step_s, n in zip(found, fastest, held, strict=True)
    ]


@pytest.mark.parametrize(("mode", "flags", "emulate"), CASES, ids=[" ".join(case[:2]) for case in CASES])
def test_the_weights_after_every_step_are_those_of_the_emulation(tmp_path, mode, flags, emulate) -> None:
    found = recorded(tmp_path, mode, flags)
    workers = workers_of(found)
    emulate(workers, LIMIT_S)
    assert sum(len(worker.after) for worker in workers) >= 30
    apart, moved = 0.0, 0.0
    for each, worker in zip(found, workers, strict=True):
        after = np.array(worker.after)
        apart = max(apart, np.abs(each["w"][1 : 1 + len(after)] - after).max())
        moved = max(moved, np.abs(after - each["w"][0]).max())
    assert 0.1 < moved < 20  # nothing diverges: there 32 bits are not enough
    assert apart / moved < CLOSE


# --------------------------------------------------------------------------------------------- on the K fastest


PAIR_S = (0.2717, 0.0603)
AMONG_OTHERS = {"unlike": (0.4151, 0.2717, 0.6011, 0.0603), "of equal ones the first": (0.4151, 0.2717, 0.0603, 0.2717)}
Batches = Iterator[tuple[np.ndarray, np.ndarray]]


def logged_counts(folder: Path) -> list[tuple[int, ...]]:
    """Each round's local steps, by rank."""
    logs = [path.read_text().splitlines() for path in sorted(folder.rglob("rounds.jsonl"))]
    return list(zip(*([json.loads(row)["num_samples"] // BATCH for row in rows] for rows in logs), strict=True))


def with_outer_nesterov(w: np.ndarray, batches: Sequence[Batches], counts: Sequence[Sequence[int]]) -> np.ndarray:
    """v <- outer v + d; w <- w - outer_rate (d + outer v), where d is the mean over the workers of w less theirs."""
    velocity = 0.0 * w
    for of_round in counts:
        local = [w for _ in of_round]
        for rank, count in enumerate(of_round):
            for _ in range(count):
                local[rank] = local[rank] - RATE * emulation.gradient(local[rank], *next(batches[rank]))
        d = w - np.mean(local, axis=0)
        velocity = OUTER["outer"] * velocity + d
        w = w - OUTER["outer_rate"] * (d + OUTER["outer"] * velocity)
    return w


@pytest.mark.parametrize("steps_s", AMONG_OTHERS.values(), ids=AMONG_OTHERS)
def test_the_fastest_of_a_cluster_train_as_a_job_of_these_alone(tmp_path, steps_s) -> None:
    """The emulation gets the first weights and the batches of the job that has no other workers. Its two workers hold
    equally many samples, so they weigh the same."""
    flags = f"-ll {RATE} --momentum 0"
    alone = recorded(tmp_path / "alone", "esync-outer", flags, PAIR_S)
    found = recorded(tmp_path / "fastest", "esync-outer", f"{flags} --fastest 2", steps_s)
    counts = logged_counts(tmp_path / "fastest")
    assert set(counts) == {(1, 4)}  # four steps of 0.0603 s fit into one of 0.2717 s
    assert len(counts) == 17  # the last begins before the limit
    assert len(np.unique(np.concatenate([*alone[0]["x"], *alone[1]["x"]]), axis=0)) == SAMPLES
    first = alone[0]["w"][0].astype(np.float64)
    expected = with_outer_nesterov(first, [zip(each["x"], each["y"], strict=True) for each in alone], counts)
    moved = np.abs(expected - first).max()
    assert moved > 0.1
    for each in found:
        assert np.abs(each["w"][-1] - expected).max() / moved < CLOSE
