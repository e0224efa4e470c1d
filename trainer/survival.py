"""How training goes on when workers are lost, come, or leave: what the workers of a new generation tell each other.

    the sum of a round fails -> take the place in the next generation -> say how far each is -> whoever is behind, or
    has just come, gets the model of one who is not -> all who have not finished the round sum again what they have

Nothing that a worker has computed in the round is lost: the shares n_k / n of the sum are those of the new generation.
Where some had finished the round when it broke, their sum held what all others gave, so these take its outcome.
Nobody waits for a worker that computes a long step but at the sum, as in any round.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from algorithms import MEMBERS
from trainer.generations import Generation, Generations
from trainer.setups import Card, verdict
from trainer.transport.collective import CollectiveTransport
from utils import PeerLost, SetupError

if TYPE_CHECKING:
    from trainer.cluster import Gathers
    from trainer.sync import SynchronousTrainer


@dataclass(frozen=True)
class Company:
    """The other workers of a job that survives.

    Attributes:
        card: this worker's, with its set-up.
    """

    generations: Generations
    transport: CollectiveTransport
    attendance: Gathers
    card: Card


@dataclass(frozen=True)
class Word:
    """What a worker says of itself in a new generation.

    Attributes:
        takes_part: in the job already.
        rounds: that it has finished.
        updates: steps that the optimizer of all has taken, where it counts them.
        meets: CollectiveSums.meets.
        job: the job's name on the state server, where it has one.
    """

    card: dict[str, Any]
    takes_part: bool
    rounds: int
    elapsed_s: float
    seen: int
    accuracy: float | None
    updates: int
    meets: bool
    job: str
    is_over: bool


def whose_model(told: Sequence[Word]) -> tuple[int, list[int]] | None:
    """Who gives its model in a new generation, and to whom, by rank; None where all begin with the first round.

    It is a worker that has finished most rounds, of those in the job where it is at work. One that has finished fewer
    is behind, and of a job at work so are those that come to it.

    Args:
        told: what each worker says, by rank.
    """
    inside = [rank for rank, word in enumerate(told) if word.takes_part]
    able = inside or list(range(len(told)))
    latest = max(told[rank].rounds for rank in able)
    if not inside and not latest:
        return None
    source = next(rank for rank in able if told[rank].rounds == latest)
    comes = [bool(inside) and not word.takes_part for word in told]
    return source, [rank for rank, word in enumerate(told) if word.rounds < latest or comes[rank]]


def members_of(generation: Generation) -> dict[str, str]:
    """What people call its workers, by their own names on the state server."""
    return {member.name: name for member, name in zip(generation.start.members, generation.names, strict=True)}


class Survival:
    """One worker's. Where the job ends with the first lost worker it does nothing."""

    def __init__(self, trainer: SynchronousTrainer) -> None:
        self._trainer = trainer
        self._company = trainer.context.company
        self._rounds_done = 0
        self._takes_part = False
        self.is_over = False  # this worker has done its last round, or was behind others who have done theirs
        self.missed = 0  # rounds in which it took no part, until they are logged
        self._events: list[dict[str, str]] = []
        self._members = members_of(self._company.generations.taken) if self._company else {}
        self.job_age_s: float | None = None  # when this worker came to a job at work

    @property
    def is_on(self) -> bool:
        """Whether the job survives."""
        return self._company is not None

    @property
    def is_broken(self) -> bool:
        """Whether the round cannot end with the workers with whom it began."""
        return self._company is not None and self._company.generations.is_broken

    @property
    def wants_pause(self) -> bool:
        """Whether this worker wants all to come together anew after the round: somebody waits, or it leaves."""
        return self._company is not None and (self._company.generations.somebody_waits or self.wants_to_leave)

    @property
    def wants_to_leave(self) -> bool:
        """Whether this worker leaves after the round, while the others go on."""
        return self._company is not None and self._trainer.context.leaves()

    def begin(self) -> bool:
        """Before training: returns whether this worker has come to a job at work, and has its model now."""
        if self._company is None:
            return False
        self._rounds_done = self._trainer.rounds  # of the checkpoint that this worker goes on from
        began = self._until_met(first=True)
        self._takes_part = True
        return began

    def begin_again(self) -> bool:
        """As `begin`, where others were lost before this worker began to train."""
        self._takes_part = False
        self._take_place()
        return self.begin()

    def finished(self, rounds: int) -> None:
        """A round is done here: its sum is in the model."""
        self._rounds_done = rounds

    def regroup(self) -> bool:
        """The round's sum has failed: goes on with those who are left; returns whether these have finished the round.

        Raises:
            JobError: this worker can take part no more.
        """
        self._take_place()
        before = self._rounds_done
        self._until_met()
        return self._rounds_done > before

    def pause(self) -> None:
        """All have agreed to come together anew: after the round, here."""
        assert self._company is not None
        if self.wants_to_leave:
            self._trainer.has_left = True
            self._company.generations.leave()  # at once: the others wait for that word
            return
        self._company.generations.pause()
        self.regroup()

    def part(self) -> None:
        """After the last round: waits until all have done theirs."""
        if self._company is None or self._trainer.has_left:
            return
        self.is_over = True
        while True:
            self._company.generations.let_leave()
            try:
                self._company.transport.barrier()
            except PeerLost:
                if not self.is_broken:
                    raise
                self.regroup()
            else:
                return

    def notes(self) -> dict[str, Any]:
        """What the log of the round says of it."""
        notes: dict[str, Any] = {}
        if self._events:
            notes["events"], self._events = self._events, []
        if self.missed:
            notes["missed"], self.missed = self.missed, 0
        return notes

    # -------------------------------------------------------------------------------------------- a new generation

    def _take_place(self) -> None:
        assert self._company is not None
        generation = self._company.generations.take()
        assert generation.group is not None
        self._company.transport.go_over_to(generation.group)

    def _until_met(self, first: bool = False) -> bool:
        """Meets the others, of the next generation where this one breaks meanwhile."""
        while True:
            try:
                return self._meet(first)
            except PeerLost:
                if not self.is_broken:
                    raise
                self._take_place()

    def _meet(self, first: bool) -> bool:
        """Returns whether the job is at work."""
        company, trainer = self._company, self._trainer
        assert company is not None
        generation = company.generations.taken
        trainer.take_place()
        told = [Word(**each) for each in company.attendance.gather("where", vars(self._word())) or ()]
        inside = any(word.takes_part for word in told)
        if not inside:
            if found := verdict([Card.from_message(word.card) for word in told]):
                raise SetupError(found)
            logging.info("all %d workers are connected with each other", len(told))
        chosen = whose_model(told)
        if chosen is None:
            return False
        source, behind = chosen
        word = told[source]
        if inside:
            self._check_setup(word, source)
        if first:
            trainer.come_late()
        if behind:
            self._hand_over(source, word if generation.start.rank in behind else None)
        if not inside:  # all go on from the newest checkpoint, and the job begins
            return False
        trainer.go_on_with(word.meets, word.job, generation.number)
        self._note(generation, [rank for rank, other in enumerate(told) if not other.takes_part])
        trainer.choose_evaluator()
        return True

    def _word(self) -> Word:
        trainer, company = self._trainer, self._company
        assert company is not None
        return Word(
            dataclasses.asdict(company.card),
            self._takes_part,
            self._rounds_done,
            trainer.measure.elapsed_s if self._takes_part else trainer.resumed_s,
            trainer.seen.of_all,
            trainer.evaluations.accuracy,
            trainer.stepper.updates,
            trainer.sums_meet,
            trainer.context.state_server.job if trainer.context.state_server else "",
            self.is_over,
        )

    def _check_setup(self, word: Word, source: int) -> None:
        """A worker that comes with another set-up is refused, and costs the others nothing."""
        assert self._company is not None
        if found := verdict([Card.from_message(word.card), self._company.card]):
            raise SetupError(f"{found} (worker {source} is at work)")

    def _hand_over(self, source: int, word: Word | None) -> None:
        """Rank `source` gives its model, and what else is the same on all workers.

        Args:
            word: its own, where this worker is behind.
        """
        assert self._company is not None
        trainer = self._trainer
        state = trainer.shared_state()
        self._company.transport.sums().broadcast(state, len(state), source)
        if word is None:
            return
        trainer.adopt(state)
        trainer.stepper.updates = word.updates
        missed = word.rounds - self._rounds_done
        trainer.seen.of_all, trainer.evaluations.accuracy = word.seen, word.accuracy
        self.is_over = word.is_over
        if self._takes_part:  # in the log the round under way is the last of those that the others have finished
            missed -= 1
            trainer.measure.skip(missed)
            self.missed += missed
        elif word.takes_part:
            self.job_age_s = word.elapsed_s
        else:
            trainer.resumed_s = word.elapsed_s
        trainer.rounds = self._rounds_done = word.rounds

    def _note(self, generation: Generation, newcomers: Sequence[int]) -> None:
        """The log of the round tells who has come, and who of the generation before is gone."""
        there = {member.name for member in generation.start.members}
        parts = [f"{name} is gone" for one, name in self._members.items() if one not in there]
        parts += [f"{generation.names[rank]} has come" for rank in newcomers]
        self._members = members_of(generation)
        text = "; ".join([f"generation {generation.number}: {len(there)} worker(s)", *parts])
        logging.info("%s, after round %d", text, self._rounds_done)
        self._events.append({"kind": MEMBERS.name, "text": text})
