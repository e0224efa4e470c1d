"""Workers of a test on a virtual clock. Not a test itself."""

import math
from collections.abc import Callable, Sequence

from trainer.simulation.virtual_clock import VirtualClock


def run_all(clock: VirtualClock, workers: Sequence[Callable[[], None]], until: float = math.inf) -> None:
    """Runs workers on a virtual clock from one moment on, until all have ended."""
    for number, worker in enumerate(workers):
        clock.start(worker, f"worker {number}")
    clock.run(until)
