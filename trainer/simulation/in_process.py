"""A state server in this process, on the workers' clock: its real handlers and policies, without HTTP and Django."""

from __future__ import annotations

import itertools

from esync.clock import Clock
from esync.protocol import Message, NoAnswer, Reply, Timeouts
from server import wire
from server.answers import refused
from server.errors import BadMessage, Conflict
from server.handlers import Handlers


class InProcessServer:
    """Answers messages over its links, which take the time; an answer itself takes none."""

    handlers: Handlers  # have the server's state

    def __init__(self, clock: Clock) -> None:
        self.is_away = False  # the server does not answer
        self._clock = clock
        self._starts = itertools.count(1)
        self.restart()

    def restart(self) -> None:
        """Forgets its state, as a new process of the server; its answers tell the workers so."""
        self._name = f"start-{next(self._starts)}"
        self.handlers = Handlers()

    def link(self, round_trip_s: float = 0.0) -> InProcessLink:
        return InProcessLink(self, self._clock, round_trip_s)

    def answer(self, message: Message) -> Reply:
        try:
            response = self.handlers.handle(wire.understand(message), self._clock.now())
        except (BadMessage, Conflict) as problem:
            status, said = refused(problem)
            return Reply(status, said, str(problem))
        return Reply(200, response.to_wire(self._name))


class InProcessLink:
    """A worker's link to an InProcessServer: half the round trip passes before the answer, half after it."""

    address = "this process"

    def __init__(self, server: InProcessServer, clock: Clock, round_trip_s: float) -> None:
        self._server = server
        self._clock = clock
        self.round_trip_s = round_trip_s

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        """Takes the round trip, whatever the timeouts."""
        self._clock.sleep(self.round_trip_s / 2)
        if self._server.is_away:
            raise NoAnswer("it is away")
        reply = self._server.answer(message)
        self._clock.sleep(self.round_trip_s / 2)
        return reply
