"""Compression of summed arrays (--compression): the kinds, and where each is possible; without MXNet.

- fp16: numbers travel as IEEE half precision, 11 significant bits, rounded to nearest. They are summed in float32, and
  the sum is rounded once more before it comes back, so all workers get the same bits.
- 2bit: MXNet's own gradient compression (Strom, "Scalable distributed DNN training using commodity GPU cloud
  computing", Interspeech 2015): a worker pushes -threshold, 0 or +threshold for each number and keeps the rest, to add
  it to its next push. Pulls are float32: the sums of all pushes.

Counts and BatchNorm's statistics always travel exactly.
"""

import math
from dataclasses import dataclass

from config import AMONG_WORKERS, FP16, KVSTORE, TWO_BIT, UNCOMPRESSED, Config, one_of
from utils import SetupError

# Half of float16's greatest number, so that sums which are rounded several times stay below it too.
LARGEST_SUM = 2.0**15
# Values of --exchange; None: any
CARRIED_BY = {UNCOMPRESSED: None, FP16: (KVSTORE, *AMONG_WORKERS), TWO_BIT: (KVSTORE,)}
WHY = {FP16: "MPI and the hub add up numbers of one kind", TWO_BIT: "it is a part of MXNet's parameter server"}


@dataclass(frozen=True)
class Compression:
    """How sums travel."""

    kind: str = UNCOMPRESSED  # of config.COMPRESSIONS
    threshold: float = 0.0  # of 2bit

    def largest(self, num_workers: int) -> float:
        """Magnitude up to which a worker's number can be part of any sum over `num_workers` workers."""
        return LARGEST_SUM / num_workers if self.kind == FP16 else math.inf


AS_IT_IS = Compression()


def halved(num_bytes: int) -> int:
    """The bytes as float16 of float32 numbers."""
    return num_bytes // 2


def in_two_bits(num_bytes: int) -> int:
    """The bytes at two bits each of float32 numbers: MXNet packs 16 into four bytes."""
    return -(-num_bytes // 64) * 4


def check_flags(config: Config) -> None:
    """Checks that the chosen --exchange has the chosen --compression. Raises SetupError if it has not, or 2bit has no
    threshold."""
    kind, carried_by = config.compression, CARRIED_BY[config.compression]
    if carried_by is not None and config.transport not in carried_by:
        raise SetupError(
            f"--compression {kind} does not go with --exchange {config.transport}: {WHY[kind]}; leave it out, or "
            f"take --exchange {one_of(carried_by)}"
        )
    if kind == TWO_BIT and not config.compression_threshold:
        raise SetupError(
            "--compression 2bit needs --compression-threshold, about as large as the larger numbers that travel: "
            "of gradients of the summed loss (sync, lb-bsp) such as 0.5, of model updates (esync, local-sgd) such as "
            "0.001"
        )
