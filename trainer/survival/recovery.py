"""How training goes on when workers are lost, come, or leave: what the workers of a new generation tell each other.

    the sum of a round fails -> take the place in the next generation -> say how far each is -> a worker that is behind,
    or has just come, gets the model of one that is not -> the workers that have not finished the round sum once more

Nothing that a worker has computed in the round is lost: the shares n_k / n of the sum are those of the new generation.
Where some had finished the round when it broke, their sum held what all others gave, so these take its outcome.
A worker that computes a long step holds the others up at the sum alone, as in any round.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from algorithms import MEMBERS
from trainer.rendezvous.config_check import ProcessInfo, verdict
from trainer.run_logs.round_log import Measure, logged_rounds, read_rounds
from trainer.survival.generations import Generation, Generations
from trainer.transport.collective import CollectiveTransport
from utils import LEFT, PeerLost, SetupError

if TYPE_CHECKING:
    from trainer.algorithms.sync import SynchronousTrainer
    from trainer.rendezvous.cluster import Gathers


@dataclass(frozen=True)
class ElasticGroup:
    """The other workers of a job that survives.

    Attributes:
        card: this worker's, with its set-up.
    """

    generations: Generations
    transport: CollectiveTransport
    attendance: Gathers
    card: ProcessInfo


@dataclass(frozen=True)
class WorkerReport:
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


@dataclass(frozen=True)
class Arrangement:
    """How the workers of a new generation go on.

    Attributes:
        is_at_work: some of them train already.
        source: the rank that gives its model; None where all begin with the first round.
        behind: ranks that take it.
        newcomers: ranks that come to a job at work.
    """

    is_at_work: bool
    source: int | None = None
    behind: tuple[int, ...] = ()
    newcomers: tuple[int, ...] = ()


def arrange(told: Sequence[WorkerReport]) -> Arrangement:
    """Decides who gives its model in a new generation, and to whom.

    The source is a worker that has finished most rounds, of those in the job where it is at work. A worker that has
    finished fewer is behind, and of a job at work so is one that comes to it.

    Args:
        told: what each worker says, by rank.
    """
    inside = [rank for rank, report in enumerate(told) if report.takes_part]
    able = inside or list(range(len(told)))
    latest = max(told[rank].rounds for rank in able)
    newcomers = tuple(rank for rank, report in enumerate(told) if inside and not report.takes_part)
    if not inside and not latest:
        return Arrangement(is_at_work=False)
    source = next(rank for rank in able if told[rank].rounds == latest)
    behind = tuple(rank for rank, report in enumerate(told) if report.rounds < latest or rank in newcomers)
    return Arrangement(bool(inside), source, behind, newcomers)


def members_of(generation: Generation) -> dict[str, str]:
    """What people call its workers, by their own names on the state server."""
    return {member.name: name for member, name in zip(generation.start.members, generation.names, strict=True)}


class Recovery:
    """What the loop asks, in place of the trainer, where a job survives: to come together, to exchange, and to part."""

    def __init__(self, elastic_group: ElasticGroup, trainer: SynchronousTrainer) -> None:
        self._group = elastic_group
        self._trainer = trainer
        self._rounds_done = 0
        self._takes_part = False
        self._is_over = False  # this worker has done its last round, or was behind others who have done theirs
        self._missed = 0  # rounds in which it took no part, until they are logged
        self._events: list[dict[str, str]] = []
        self._members = members_of(elastic_group.generations.taken)
        self.job_age_s: float | None = None  # when this worker came to a job at work

    @property
    def is_broken(self) -> bool:
        """Whether the round cannot end with the workers with whom it began."""
        return self._group.generations.is_broken

    @property
    def wants_pause(self) -> bool:
        """Whether this worker wants all to come together anew after the round: another one waits, or it leaves."""
        return self._group.generations.newcomer_waits or self._wants_to_leave

    @property
    def _wants_to_leave(self) -> bool:
        """Whether this worker leaves after the round, while the others go on."""
        return self._trainer.context.leaves()

    def come_together(self) -> None:
        """A worker that comes to a job at work gets its model, and evaluates or not as all of them agree. Where others
        are lost before all are ready, those that are left come together once more."""
        self._rounds_done = self._trainer.rounds  # of the checkpoint that this worker goes on from
        while not self._until_met(first=True):
            try:
                self._trainer.come_together()
            except PeerLost:
                if not self.is_broken:
                    raise
                self._take_place()
                self._rounds_done = self._trainer.rounds
            else:
                break
        self._takes_part = True
        if self._trainer.context.keeper is not None:
            self._trainer.context.keeper.set_aside(self._trainer.rounds)  # it may have one that is later than the job

    def open_measure(self, folder: Path) -> Measure:
        """As Trainer's; rounds and seconds of a job at work are those of the others."""
        trainer = self._trainer
        if self.job_age_s is None:
            measure = trainer.open_measure(folder)
        else:
            before_it_was_lost = list(read_rounds(folder, logging.warning))
            trainer.progress.go_on(before_it_was_lost, trainer.is_evaluator)
            lines = trainer.context.logs_lines
            measure = Measure(folder, trainer.clock.now, trainer.rounds, self.job_age_s, as_lines=lines)
        self._missed = trainer.rounds - max([0, *logged_rounds(folder, logging.warning)])
        return measure

    def synchronize(self, wants_stop: bool) -> bool:
        """Exchanges with the other workers, and with those that are left where some are lost meanwhile."""
        while True:
            try:
                agreed = self._trainer.synchronize(wants_stop)
            except PeerLost:
                if not self.is_broken:
                    raise
                if self._regroup():
                    return self._is_over
                self._trainer.exchange_failed()
            else:
                break
        self._rounds_done = self._trainer.rounds
        if self._trainer.pauses and not agreed:
            self._pause()
            if self._trainer.has_left:
                self._trainer.finished = LEFT
                return True
        return agreed

    def part(self) -> None:
        """After the last round: waits until all have done theirs."""
        if self._trainer.has_left:
            return
        self._is_over = True
        while True:
            self._group.generations.let_leave()
            try:
                self._group.transport.barrier()
            except PeerLost:
                if not self.is_broken:
                    raise
                self._regroup()
            else:
                return

    def notes(self) -> dict[str, Any]:
        """What the log of the round says of it."""
        notes: dict[str, Any] = {}
        if self._events:
            notes["events"], self._events = self._events, []
        if self._missed:
            notes["missed"], self._missed = self._missed, 0
        return notes

    def _regroup(self) -> bool:
        """The round's sum has failed: goes on with the workers that are left; returns whether these have
        finished the round.

        Raises:
            JobError: this worker can take part no more.
        """
        self._take_place()
        before = self._rounds_done
        self._until_met()
        return self._rounds_done > before

    def _pause(self) -> None:
        """All have agreed to come together anew: after the round, here."""
        if self._wants_to_leave:
            self._trainer.has_left = True
            self._group.generations.leave()  # at once: the others wait for this
            return
        self._group.generations.pause()
        self._regroup()

    # -------------------------------------------------------------------------------------------- a new generation

    def _take_place(self) -> None:
        self._group.transport.go_over_to(self._group.generations.take().group)

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
        """Tells the others how far this worker is, and goes on as all of them decide; returns whether the job is at
        work."""
        trainer, generation = self._trainer, self._group.generations.taken
        trainer.take_place()
        self._group.transport.barrier()  # a newcomer warms up first: reports give the job's seconds after that
        told = [WorkerReport(**each) for each in self._group.attendance.gather("where", vars(self._report())) or ()]
        decided = arrange(told)
        self._check_setups(told, decided)
        if decided.source is None:
            return False
        if first:
            trainer.come_late()
        report = told[decided.source]
        if decided.behind:
            self._hand_over(decided.source, report if generation.start.rank in decided.behind else None)
        if decided.is_at_work:
            trainer.go_on_with(report.meets, report.job, generation.number)
            self._note(generation, decided.newcomers)
            trainer.choose_evaluator()
        return decided.is_at_work  # else all go on from the newest checkpoint, and the job begins

    def _report(self) -> WorkerReport:
        trainer = self._trainer
        return WorkerReport(
            dataclasses.asdict(self._group.card),
            self._takes_part,
            self._rounds_done,
            trainer.measure.elapsed_s if self._takes_part else trainer.resumed_s,
            trainer.seen.of_all,
            trainer.evaluations.accuracy,
            trainer.stepper.updates,
            trainer.sums_meet,
            trainer.context.state_server.job if trainer.context.state_server else "",
            self._is_over,
        )

    def _check_setups(self, told: Sequence[WorkerReport], decided: Arrangement) -> None:
        """Where all begin their set-ups are compared. A worker that comes to a job at work with another set-up is
        refused, and costs the others nothing.

        Raises:
            SetupError: they differ.
        """
        if decided.is_at_work:
            assert decided.source is not None
            at_work = ProcessInfo.from_message(told[decided.source].card)
            if found := verdict([at_work, self._group.card]):
                raise SetupError(f"{found} (worker {decided.source} is at work)")
            return
        if found := verdict([ProcessInfo.from_message(report.card) for report in told]):
            raise SetupError(found)
        logging.info("all %d workers are connected with each other", len(told))

    def _hand_over(self, source: int, report: WorkerReport | None) -> None:
        """Rank `source` gives its model, and what else is the same on all workers.

        Args:
            report: the source's, where this worker is behind.
        """
        trainer = self._trainer
        state = trainer.shared_state()
        self._group.transport.sums().broadcast(state, len(state), source)
        if report is None:
            return
        trainer.adopt(state)
        trainer.stepper.updates = report.updates
        missed = report.rounds - self._rounds_done
        trainer.seen.of_all, trainer.evaluations.accuracy = report.seen, report.accuracy
        self._is_over = report.is_over
        if self._takes_part:  # in the log the round under way is the last of those that the others have finished
            missed -= 1
            trainer.measure.skip(missed)
            self._missed += missed
        elif report.takes_part:
            self.job_age_s = report.elapsed_s
        else:
            trainer.resumed_s = report.elapsed_s
        trainer.rounds = self._rounds_done = report.rounds

    def _note(self, generation: Generation, newcomers: Sequence[int]) -> None:
        """The log of the round tells who has come, and which workers of the generation before are gone."""
        there = {member.name for member in generation.start.members}
        parts = [f"{name} is gone" for one, name in self._members.items() if one not in there]
        parts += [f"{generation.names[rank]} has come" for rank in newcomers]
        self._members = members_of(generation)
        text = "; ".join([f"generation {generation.number}: {len(there)} worker(s)", *parts])
        logging.info("%s, after round %d", text, self._rounds_done)
        self._events.append({"kind": MEMBERS.name, "text": text})
