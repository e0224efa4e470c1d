"""Emulates a slower device and a slower link: steps, pushes and pulls take longer."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from esync.clock import Clock

COMPUTE, NETWORK, SAMPLE = "compute", "network", "sample"


@dataclass(frozen=True)
class Slowdown:
    """One entry; all times in seconds."""

    start_s: float
    duration_s: float
    extra_s: float
    kind: str = COMPUTE


@dataclass(frozen=True)
class Speed:
    """The emulated speed of a worker."""

    min_step_s: float = 0.0  # shortest time of a step
    sample_s: float = 0.0  # added to it for each sample of a step
    pace: Callable[[], float] = lambda: 1.0  # factor on both, drawn for each step
    trace: tuple[Slowdown, ...] = ()  # of a transient straggler


def pace_of(seed: int, rank: int, spread: float) -> Callable[[], float]:
    """Draws a worker's paces: lognormal factors of median 1, whose logarithm has this standard deviation."""
    if not spread:
        return lambda: 1.0
    draw = random.Random(f"{seed}-{rank}")
    return lambda: draw.lognormvariate(0.0, spread)


class Emulation:
    """Lengthens one worker's steps and transfers."""

    def __init__(self, speed: Speed, clock: Clock, wait_for_device: Callable[[], None]) -> None:
        self._speed = speed
        self._clock = clock
        self._wait_for_device = wait_for_device
        self._elapsed_s: Callable[[], float] | None = None
        self._step_began = 0.0
        self._samples = 0
        self._extra_s = 0.0
        self.shortest_s = 0.0  # shortest time of the running step
        self.update_s = 0.0  # of the last step's local update, which comes behind the padding and is part of the step
        self.round_s = 0.0  # shortest time of the round's complete steps, with the straggler trace

    def begin(self, elapsed_s: Callable[[], float]) -> None:
        """Training and the straggler trace begin; `elapsed_s` gives the seconds since then."""
        self._elapsed_s = elapsed_s

    def begin_step(self) -> None:
        self._step_began = self._clock.now()

    @property
    def step_age_s(self) -> float:
        """Seconds since the step began."""
        return self._clock.now() - self._step_began

    def set_size(self, samples: int) -> None:
        """Draws the shortest time of the step that has begun."""
        self._samples = samples
        self.shortest_s = (self._speed.min_step_s + samples * self._speed.sample_s) * self._speed.pace()

    def pad(self, share: float) -> None:
        """Waits until a share of the step's shortest time has passed."""
        if self.shortest_s:
            self._wait_for_device()
            self._clock.sleep(self._step_began + share * (self.shortest_s - self.update_s) - self._clock.now())

    def delay_step(self) -> None:
        """Adds the straggler trace's extra time to the step."""
        self._extra_s = self.extra_s(COMPUTE) + self._samples * self.extra_s(SAMPLE)
        if self._extra_s:
            self._wait_for_device()
            self._clock.sleep(self._extra_s)

    def end_step(self) -> None:
        self.round_s += self.shortest_s + self._extra_s

    def link_delay_s(self) -> float:
        """Extra seconds of a push or pull that begins now. Any thread may call it."""
        return self.extra_s(NETWORK)

    def extra_s(self, kind: str) -> float:
        """Seconds that the straggler trace adds now; 0 before training begins."""
        return extra_time(self._speed.trace, kind, self._elapsed_s()) if self._elapsed_s is not None else 0.0


def extra_time(trace: Iterable[Slowdown], kind: str, elapsed_s: float) -> float:
    """Extra seconds of a step (COMPUTE), a sample of a step (SAMPLE), or a push or pull (NETWORK) that begins now."""
    lasting = (entry for entry in trace if entry.start_s <= elapsed_s < entry.start_s + entry.duration_s)
    return sum(entry.extra_s for entry in lasting if entry.kind == kind)
