"""Three ranks of torch.distributed that do what tests/esync/test_worker.py asks for, one after the other; each prints a
line of JSON for each. `python torch_ranks.py FOLDER`, with RANK and the other variables of torch.distributed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import esync

STEP_S = (0.01, 0.02, 0.06)
OUTER = {"rule": "local-sgd-outer", "sync_every": 2}


def change(rank: int, step: int) -> np.ndarray:
    """What a local step adds to the weights."""
    return np.random.default_rng([rank, step]).normal(0, 0.1, (2, 3)).astype(np.float32)


def train(rank: int, steps: int = 10**6, first: int = 0, stops_at: int = 0, **options: Any) -> dict[str, Any]:
    """Trains for so many steps, or until the worker is done; returns what happened."""
    torch.manual_seed(rank)
    model: Any = options.pop("model", None) or torch.nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.SGD([*model.parameters()] or [torch.zeros(1)], lr=1.0)
    rounds: list[dict[str, Any]] = []
    with esync.Worker(model, optimizer, on_round=rounds.append, **options) as worker:
        begun, begin = worker.round, model.weight.tolist()
        for step in range(first, first + steps):
            time.sleep(STEP_S[rank])
            model.weight.grad = torch.from_numpy(-change(rank, step))
            optimizer.step()
            if step + 1 == stops_at:
                worker.stop()
            if worker.step(5, 0.5):
                worker.measured(0.1 * worker.round)
            if worker.is_done:
                break
    return {"begun": begun, "begin": begin, "rounds": rounds, "weights": model.weight.tolist()}


def failure(rank: int, **options: Any) -> str:
    try:
        train(rank, **options)
    except esync.JobError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def killed(rank: int) -> str:
    """Rank 2 is killed in the middle of a round."""
    if rank == 2:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, 0.5)
    return failure(rank, rule="local-sgd", sync_every=4)


def scenario(name: str, rank: int, folder: Path) -> Any:
    saved: dict[str, Any] = {**OUTER, "checkpoint": folder / "saved", "every": 3}
    match name:
        case "outer":
            return train(rank, rounds=5, rule="esync-outer", logs=folder / "logs", name="mine")
        case "plain":
            return train(rank, rounds=3, weight=1.0 + rank)
        case "saved":
            return train(rank, rounds=4, **saved)
        case "resumed":
            return train(rank, rounds=5, first=6, **saved)
        case "uneven":
            return train(rank, steps=3 * rank + 1, rule="local-sgd", sync_every=2)
        case "stopped":
            return train(rank, stops_at=3 if rank == 1 else 0, rule="local-sgd", sync_every=2)
        case "another rule":
            return failure(rank, rule="local-sgd-outer" if rank == 1 else "local-sgd", sync_every=2)
        case "no weights":
            return failure(rank, model=torch.nn.ReLU() if rank == 1 else None, rule="local-sgd", sync_every=2)
        case "another server":
            return failure(rank, server="127.0.0.1:1" if rank == 2 else None)
        case "killed":
            return killed(rank)


SCENARIOS = (
    *("outer", "plain", "saved", "resumed", "uneven", "stopped"),
    *("another rule", "no weights", "another server", "killed"),
)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for name in SCENARIOS:
        said = scenario(name, dist.get_rank(), Path(sys.argv[1]))
        print(json.dumps(said), flush=True)
    os._exit(0)  # the group's threads wait for the killed rank


if __name__ == "__main__":
    main()
