"""ESync in anybody's loop of PyTorch under torchrun or Slurm: machines of different speed train one model.

    with esync.Worker(model, optimizer) as worker:  # torch.distributed is initialised
        for data, targets in batches:
            ...loss.backward(); optimizer.step()
            worker.step(len(targets))

worker.py says what that does; `python -m esync serve` starts the state server, which decides when the workers average.
The trainers of this project have the same client (client.py, queries.py).
"""

from typing import TYPE_CHECKING, Any

from esync.base import JobError, PeerLost, SetupError

if TYPE_CHECKING:
    from esync.worker import Round, Worker

__all__ = ["JobError", "PeerLost", "Round", "SetupError", "Worker"]


def __getattr__(name: str) -> Any:  # PyTorch is imported where it is used
    if name in ("Round", "Worker"):
        from esync import worker

        return getattr(worker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
