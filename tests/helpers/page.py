"""A state server that is only told: keeps what a worker's notices say. Not a test itself."""

from __future__ import annotations

from typing import Any


class Page:
    """In place of a StateClient.

    Attributes:
        told: (round, steps, step_s, transmission_s, decision) of each notice.
        left: what the farewell of its worker told.
    """

    left: tuple[int, ...] | None = None

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def join(self, *about: Any) -> None:
        """Of no worker in particular."""

    def tell(
        self,
        round_: int,
        steps: int,
        step_s: float,
        transmission_s: float,
        decision: tuple[str, str] | None = None,
    ) -> None:
        """Keeps it."""
        self.told.append((round_, steps, step_s, transmission_s, decision))

    def tell_doing(self) -> None:
        """What a worker does now."""

    def leave(self, *about: int) -> None:
        """A worker has left."""
        self.left = about
