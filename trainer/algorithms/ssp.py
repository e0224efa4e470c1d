"""SSP, stale synchronous parallel (Ho et al., "More effective distributed ML via a stale synchronous parallel parameter
server", NIPS 2013): w <- w - eta * g at once as in ASGD, but a worker that is more than s steps ahead of the slowest
waits for its answer. With s = 0 all workers are in step, with a large s it is ASGD."""

from algorithm_row import Algorithm, GradientSteps, end_of_head
from flag_parser import Flag
from flag_values import at_least


class Settings(GradientSteps):
    """SSP's flags."""

    staleness: int = Flag(3, at_least(0)).means("steps that a worker may be ahead of the slowest")


ROW = Algorithm(
    name="ssp",
    title="SSP",
    paper="Ho et al., NIPS 2013",
    settings=Settings,
    trainer="SSPTrainer",
    server="SSPServer",
    stem="SSP",
)
end_of_head(globals())

from typing import Any

from trainer.algorithms.asynchronous import AsyncServer, AsyncTrainer
from trainer.hub.server_part import KEPT, Answer, Answers, Arrays, Message, Served


class SSPServer(AsyncServer):
    """Keeps the answers of workers that are too far ahead."""

    def __init__(self, job: Served, settings: Settings) -> None:
        super().__init__(job, settings)
        self._staleness = settings.staleness  # s
        clocks = job.saved.get("clocks", ())
        # Steps of each worker, by rank
        self._clocks = list(clocks) if len(clocks) == job.num_workers else [0] * job.num_workers
        self._waiting: dict[int, Arrays] = {}  # by rank, the memory of the answer

    def act(self, rank: int, message: Message, arrays: Arrays) -> Answers:
        return super().act(rank, message, arrays) or self._released()  # it may be a wish to stop

    def due(self, rank: int, message: Message, memory: Arrays) -> Answers:
        self._clocks[rank], self._waiting[rank] = message["round"], memory
        return self._released()

    def joined(self, rank: int) -> Answer:
        self._clocks[rank] = max(self._clocks[rank], self._slowest_but(rank))
        return super().joined(rank)

    def lost(self, rank: int) -> Answers:
        self._waiting.pop(rank, None)
        super().lost(rank)
        return self._released()

    def kept(self) -> dict[str, Any]:
        return {**super().kept(), "clocks": [*self._clocks]}

    def _released(self) -> Answers:
        near = [
            rank
            for rank in self._waiting
            if self.stop or self._clocks[rank] - self._slowest_but(rank) <= self._staleness
        ]
        return {rank: self.answer(rank, self._waiting.pop(rank)) for rank in near}

    def _slowest_but(self, rank: int) -> int:
        """The least clock of the other workers."""
        return min((self._clocks[other] for other in self.there - {rank}), default=self._clocks[rank])


class SSPTrainer(AsyncTrainer):
    """ASGD whose answers may come late."""

    def broadcast(self) -> None:
        said = self.begin_at_hub()
        if not self.rounds:  # perhaps in the place of a lost worker
            self.rounds = said[KEPT]["clocks"][self.membership.rank]
