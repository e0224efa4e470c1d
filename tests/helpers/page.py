"""A state server that is only told: keeps what a worker's notices say. Not a test itself."""

from typing import Any


class Page:
    """In place of a StateClient.

    Attributes:
        told: (round, steps, step_s, transmission_s, decision) of each notice.
    """

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

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

    join = tell_doing = leave = lambda self, *about: None  # of no worker in particular
