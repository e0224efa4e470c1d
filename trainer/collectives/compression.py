"""Compression of summed arrays (--compression), and where it is possible; without MXNet.

As fp16 numbers travel as IEEE half precision, 11 significant bits, rounded to nearest. They are summed in float32, and
the sum is rounded once more before it comes back, so all workers get the same bits. Counts and BatchNorm's statistics
always travel exactly.
"""

import math

from config import AMONG_WORKERS, FP16, KVSTORE, Config, one_of
from utils import SetupError

# Half of float16's greatest number, so that sums which are rounded several times stay below it too.
LARGEST_SUM = 2.0**15
CARRIED_BY = KVSTORE, *AMONG_WORKERS  # values of --exchange


def largest(num_workers: int, as_halves: bool = True) -> float:
    """Magnitude up to which a worker's number can be part of any sum over `num_workers` workers."""
    return LARGEST_SUM / num_workers if as_halves else math.inf


def check_flags(config: Config) -> None:
    """Raises SetupError if the chosen --exchange has not the chosen --compression."""
    if config.compression == FP16 and config.transport not in CARRIED_BY:
        raise SetupError(
            f"--compression {FP16} does not go with --exchange {config.transport}: MPI and the hub add up numbers of "
            f"one kind; leave it out, or take --exchange {one_of(CARRIED_BY)}"
        )
