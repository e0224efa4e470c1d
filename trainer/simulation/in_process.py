"""A state server in this process, on the workers' clock: its own handlers and policies, without HTTP and Django."""

from __future__ import annotations

import itertools

from trainer import state_server_path  # noqa: F401  (the imports of the server below need it)
from trainer.clock import Clock
from trainer.coordinator.protocol import Message, NoAnswer, Reply, Timeouts
from utils import SetupError

# isort: split
from server import policies, wire
from server.answers import refused
from server.errors import BadMessage, Conflict
from server.handlers import Handlers
from server.router import Router


class InProcessServer:
    """Answers what is sent over its links. How long that travels is the link's; an answer itself takes no time.

    Attributes:
        router: what the server knows, for whoever wants to look at it.
        is_away: nobody answers for the while.
    """

    router: Router

    def __init__(self, clock: Clock) -> None:
        self.is_away = False
        self._clock = clock
        self._starts = itertools.count(1)
        self.restart()

    def restart(self) -> None:
        """Forgets all, as a new process of the server would; the workers can tell."""
        self._name = f"start-{next(self._starts)}"
        self.router = Router(Handlers(), self._clock.now)

    def link(self, round_trip_s: float = 0.0) -> InProcessLink:
        """A worker's way to this server."""
        return InProcessLink(self, self._clock, round_trip_s)

    def answer(self, message: Message) -> Reply:
        """What the server says to a message."""
        try:
            response = self.router.ask(wire.understand(message, policies.POLICIES))
        except (BadMessage, Conflict) as problem:
            status, said = refused(problem)
            return Reply(status, said, str(problem))
        return Reply(200, response.to_wire(self._name))


class InProcessLink:
    """One worker's way to an InProcessServer: half the round trip before the server hears, half after it has spoken."""

    address = "this process"

    def __init__(self, server: InProcessServer, clock: Clock, round_trip_s: float) -> None:
        self._server = server
        self._clock = clock
        self.round_trip_s = round_trip_s

    def check(self) -> None:
        """As coordinator.protocol.Link says."""
        if self._server.is_away:
            raise SetupError("no state server answers in this process")

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        """As coordinator.protocol.Link says. It never takes longer than the round trip."""
        self._clock.sleep(self.round_trip_s / 2)
        if self._server.is_away:
            raise NoAnswer("it is away")
        reply = self._server.answer(message)
        self._clock.sleep(self.round_trip_s / 2)
        return reply
