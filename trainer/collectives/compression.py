"""What the workers sum may travel in fewer bytes (--compression). What that is, and where it can be; without MXNet.

- fp16: as IEEE half precision, 11 significant bits. What travels is rounded, to nearest; what is added up is float32,
  and the sum is rounded once more before it comes back, for all workers alike. So they get the same bits.
- 2bit: MXNet's own gradient compression (Strom, "Scalable distributed DNN training using commodity GPU cloud
  computing", Interspeech 2015): a worker pushes -threshold, 0 or +threshold for each number and keeps the rest, to add
  it to its next push. What is pulled is float32: the sum of what all have pushed.

Counts and BatchNorm's statistics always arrive as they were.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from config import AMONG_WORKERS, FP16, PS, TWO_BIT, UNCOMPRESSED, Config, one_of
from utils import SetupError

# Half of float16's greatest, so that sums which are rounded again and again stay below it too.
LARGEST_SUM = 2.0**15
CARRIED_BY = {UNCOMPRESSED: None, FP16: (PS, *AMONG_WORKERS), TWO_BIT: (PS,)}  # values of --collective; None: any
WHY = {
    FP16: "MPI adds up numbers of one kind, and has no half precision",
    TWO_BIT: "it is a part of MXNet's parameter server",
}


@dataclass(frozen=True)
class Compression:
    """How sums travel.

    Attributes:
        kind: of config.COMPRESSIONS.
        threshold: of 2bit.
    """

    kind: str = UNCOMPRESSED
    threshold: float = 0.0

    def largest(self, num_workers: int) -> float:
        """Magnitude up to which a number of one worker can be part of any sum of so many workers."""
        return LARGEST_SUM / num_workers if self.kind == FP16 else math.inf


AS_IT_IS = Compression()


def halved(num_bytes: int) -> int:
    """Of float32 numbers that travel as float16."""
    return num_bytes // 2


def in_two_bits(num_bytes: int) -> int:
    """Of float32 numbers that MXNet pushes with two bits each: 16 to a word of four bytes."""
    return -(-num_bytes // 64) * 4


def check_flags(config: Config) -> None:
    """Makes sure that what carries the sums can compress them so.

    Raises:
        SetupError: it cannot.
    """
    kind, carried_by = config.compression, CARRIED_BY[config.compression]
    if carried_by is not None and config.collective not in carried_by:
        raise SetupError(
            f"--compression {kind} does not go with --collective {config.collective}: {WHY[kind]}; leave it out, or "
            f"take --collective {one_of(carried_by)}"
        )
    if kind == TWO_BIT and not config.compression_threshold:
        raise SetupError(
            "--compression 2bit needs --compression-threshold, about as large as the larger numbers that travel: "
            "of gradients of the summed loss (sync, lb-bsp) such as 0.5, of model updates (esync, local-sgd) such as "
            "0.001"
        )
