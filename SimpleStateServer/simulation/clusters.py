"""The clusters of the two papers, as far as their published figures say what they were, and one with a slow link.

Transmission. The preprint gives, for ResNet-18-v1 on 6 workers with batch 64: SSGD trains 45 samples/s at 31 MB/s of
traffic; a step takes 3.5 s on a CPU and 0.03 s on a GPU. So one SSGD round takes 6 * 64 / 45 = 8.53 s. Without the
CPU's step, 5.03 s of it are the push and the pull of all workers: m = 2.52 s each. Three other published figures agree:

- 31 MB/s for 8.53 s are 265 MB a round, and 6 models of 44.7 MB are 268 MB (traffic counted one way): 8.65 s a round;
- the CPU's computing time ratio under SSGD is 0.40, and 3.5 / 8.53 = 0.41;
- 268 MB through the parameter server's one link at 1 Gb/s (the journal's network) take 2.15 s: m cannot be less, and
  2.52 s is 85 % of the line rate.

ESync's own traffic, 21 MB/s, does not fit: it would be rounds of 12.8 s, in which the CPU's ratio could not be 0.40.
"""

from __future__ import annotations

import dataclasses

from simulation.cluster import WorkerModel

MODEL_BYTES = 44.7e6  # ResNet-18-v1 for 10 classes: 11.2 million parameters of 4 bytes
LINK_BYTES_PER_S = 1e9 / 8  # 1 Gb/s; journal

PREPRINT_BATCH = 64
PREPRINT_FAST_STEP_S = 0.03  # GTX 1080TI
PREPRINT_SLOW_STEP_S = 3.5  # Xeon E5-2650v4
PREPRINT_FAST, PREPRINT_SLOW = 4, 2  # workers
PREPRINT_SSGD_SAMPLES_PER_S = 45.0
PREPRINT_SSGD_TRAFFIC = 31e6  # bytes/s

JOURNAL_BATCH = 32
JOURNAL_GPUS, JOURNAL_CPUS = 6, 6  # workers

# The cluster with a slow link is this project's: LeNet-5, and one worker of four far away.
LENET_BYTES = 246_824
SLOW_LINK_BYTES_PER_S = 10e6 / 8  # 10 Mbit/s
SLOW_LINK_LATENCY_S = 0.025  # one way
SLOW_LINK_BATCH = 64


def preprint_ssgd_round_s() -> float:
    """Seconds of a round of SSGD, from the published throughput."""
    return (PREPRINT_FAST + PREPRINT_SLOW) * PREPRINT_BATCH / PREPRINT_SSGD_SAMPLES_PER_S


def preprint_ssgd_round_by_traffic_s() -> float:
    """The same from the published traffic, if it counts every model once."""
    return (PREPRINT_FAST + PREPRINT_SLOW) * MODEL_BYTES / PREPRINT_SSGD_TRAFFIC


def preprint_transmission_s() -> float:
    """Seconds of a push, and of a pull, in the preprint's cluster."""
    return (preprint_ssgd_round_s() - PREPRINT_SLOW_STEP_S) / 2


def line_rate_transmission_s(num_workers: int) -> float:
    """Seconds in which the models of all workers go one way through the parameter server's link at its full rate."""
    return num_workers * MODEL_BYTES / LINK_BYTES_PER_S


def preprint_cluster(round_trip_s: float = 0.0, noise: float = 0.0) -> list[WorkerModel]:
    """4 GPUs and 2 CPUs, in this order."""
    fast = WorkerModel(PREPRINT_FAST_STEP_S, preprint_transmission_s(), round_trip_s, noise)
    slow = dataclasses.replace(fast, step_s=PREPRINT_SLOW_STEP_S)
    return [fast] * PREPRINT_FAST + [slow] * PREPRINT_SLOW


def journal_cluster(heterogeneity: float, round_trip_s: float = 0.0, noise: float = 0.0) -> list[WorkerModel]:
    """6 GPUs and 6 CPUs, in this order, at 1 Gb/s.

    The journal gives the ratio of their step times, not the times. A batch is half of the preprint's, so the CPU's step
    is taken to be half of the preprint's at the journal's ratio of 150, and the GPU's to be the same at every ratio.

    Args:
        heterogeneity: longest step time over the shortest; 150 in the journal, varied from 10 to 300.
        round_trip_s: of a message to the state server.
        noise: as in WorkerModel.
    """
    gpu_step_s = PREPRINT_SLOW_STEP_S / 2 / 150
    transmission_s = line_rate_transmission_s(JOURNAL_GPUS + JOURNAL_CPUS)
    gpu = WorkerModel(gpu_step_s, transmission_s, round_trip_s, noise)
    cpu = dataclasses.replace(gpu, step_s=heterogeneity * gpu_step_s)
    return [gpu] * JOURNAL_GPUS + [cpu] * JOURNAL_CPUS


def slow_link_cluster(step_s: float = 0.1, round_trip_s: float = 0.001, noise: float = 0.0) -> list[WorkerModel]:
    """Four workers that compute equally fast: three at 1 Gb/s, and the last behind a link of 10 Mbit/s and 25 ms.

    Args:
        step_s: seconds of a local step.
        round_trip_s: of the three's messages to the state server; the last one's take its link's latency on top.
        noise: as in WorkerModel.
    """
    near = WorkerModel(step_s, LENET_BYTES / LINK_BYTES_PER_S, round_trip_s, noise)
    far = dataclasses.replace(
        near,
        transmission_s=LENET_BYTES / SLOW_LINK_BYTES_PER_S + SLOW_LINK_LATENCY_S,
        round_trip_s=round_trip_s + 2 * SLOW_LINK_LATENCY_S,
    )
    return [near] * 3 + [far]
