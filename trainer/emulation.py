"""Emulates a slower device and a slower link: steps, pushes and pulls take longer than they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainer.clock import Clock
from trainer.straggler_trace import COMPUTE, NETWORK, SAMPLE, Slowdown, extra_time

FORWARD_SHARE = 1 / 3  # of a step's computation; the backward pass computes two gradients where it computes one value


@dataclass(frozen=True)
class Speed:
    """How slow one worker is to be.

    Attributes:
        min_step_s: shortest time of a step.
        sample_s: that each sample of a step adds to it.
        pace: factor on both, drawn for each step.
        trace: of a transient straggler.
    """

    min_step_s: float = 0.0
    sample_s: float = 0.0
    pace: Callable[[], float] = lambda: 1.0
    trace: tuple[Slowdown, ...] = ()


class Emulation:
    """What one worker waits for in addition.

    Attributes:
        shortest_s: that the step takes at least.
        round_s: that all complete steps of the round take at least.
    """

    def __init__(self, speed: Speed, clock: Clock) -> None:
        self._speed = speed
        self._clock = clock
        self._elapsed_s: Callable[[], float] | None = None
        self._step_began = 0.0
        self._samples = 0
        self._extra_s = 0.0
        self.shortest_s = 0.0
        self.round_s = 0.0

    def begin(self, elapsed_s: Callable[[], float]) -> None:
        """Training begins, and with it the straggler trace.

        Args:
            elapsed_s: seconds since then.
        """
        self._elapsed_s = elapsed_s

    def begin_step(self) -> None:
        """Time counts for the next step."""
        self._step_began = self._clock.now()

    @property
    def step_age_s(self) -> float:
        """Seconds since the step began."""
        return self._clock.now() - self._step_began

    def set_size(self, samples: int) -> None:
        """Draws the shortest time of the step that has begun."""
        self._samples = samples
        self.shortest_s = (self._speed.min_step_s + samples * self._speed.sample_s) * self._speed.pace()

    def pad(self, share: float, wait: Callable[[], None]) -> None:
        """Waits until a share of the step's shortest time has passed.

        Args:
            wait: waits until the device has done its work.
        """
        if self.shortest_s:
            wait()
            self._clock.sleep(self._step_began + share * self.shortest_s - self._clock.now())

    def delay_step(self, wait: Callable[[], None]) -> None:
        """Adds what the straggler trace says of the step."""
        self._extra_s = self.extra_s(COMPUTE) + self._samples * self.extra_s(SAMPLE)
        if self._extra_s:
            wait()
            self._clock.sleep(self._extra_s)

    def end_step(self) -> None:
        """The step is complete."""
        self.round_s += self.shortest_s + self._extra_s

    def link_delay_s(self) -> float:
        """Seconds by which a push or a pull that begins now takes longer. Any thread may ask."""
        return self.extra_s(NETWORK)

    def wait_for_link(self) -> None:
        """Takes the time by which a push or a pull that begins now takes longer."""
        self._clock.sleep(self.link_delay_s())

    def extra_s(self, kind: str) -> float:
        """Seconds that the straggler trace adds now; 0 before training begins."""
        return extra_time(self._speed.trace, kind, self._elapsed_s()) if self._elapsed_s is not None else 0.0
