"""How training goes on when workers are lost, come or leave: what the workers of a new generation tell each other.

    the sum of a round fails -> take the place in the next generation -> report how far each is -> a worker that is
    behind, or new, gets the model of one that is not -> the workers that have not finished the round sum once more

No local step is lost: the shares n_k / n of the sum are those of the new generation. Where some workers had finished
the round when it broke, their sum held the parts of all, so the others take its outcome. A long step of one worker
delays the others at the sum alone, as in any round.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from algorithms import MEMBERS
from trainer.rendezvous.config_check import ProcessInfo, verdict
from trainer.run_logs.measure import Measure
from trainer.run_logs.round_log import logged_rounds, read_rounds
from trainer.survival.elastic_group import ElasticGroup
from trainer.survival.generations import Generation
from trainer.survival.trainer_state import resume_progress
from trainer.transport.collective import CollectiveSums
from trainer.transport.protocol import SummedArrays
from utils import LEFT, PeerLost, SetupError

if TYPE_CHECKING:
    from trainer.engine import mx
    from trainer.loop import Loop


class HandsOver(Protocol):
    """What an algorithm implements so that workers may be lost and come; SynchronousTrainer documents it."""

    sums: SummedArrays

    def broadcast_arrays(self, statistics: Sequence[mx.nd.NDArray]) -> tuple[list[mx.nd.NDArray], int]: ...
    def come_late(self) -> None: ...
    def shared_state(self) -> list[mx.nd.NDArray]: ...
    def adopt(self, state: Sequence[mx.nd.NDArray]) -> None: ...
    def exchange_failed(self) -> None: ...


@dataclass(frozen=True)
class WorkerReport:
    """What a worker tells the others in a new generation.

    Attributes:
        card: ProcessInfo, as a message.
        takes_part: it is in the job already.
        rounds: finished ones.
        elapsed_s: seconds of the job.
        seen: samples that all workers have trained on.
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
        behind: ranks that take this model.
        newcomers: ranks that come to a job at work.
    """

    is_at_work: bool
    source: int | None = None
    behind: tuple[int, ...] = ()
    newcomers: tuple[int, ...] = ()


def arrange(told: Sequence[WorkerReport]) -> Arrangement:
    """Decides which worker of a new generation gives its model, and to which.

    The source is the lowest rank of those that have finished most rounds; in a job at work only its workers count. A
    worker that has finished fewer rounds is behind, and so is one that comes to a job at work.

    Args:
        told: the workers' reports, by rank.
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
    """The names of its workers for messages, by their names on the state server."""
    return {member.name: name for member, name in zip(generation.start.members, generation.names, strict=True)}


class Recovery:
    """What the loop asks, in place of the trainer, where a job survives: to come together, to exchange, and to part."""

    def __init__(self, elastic_group: ElasticGroup, loop: Loop) -> None:
        self._group = elastic_group
        self._loop = loop
        self._trainer = loop.trainer
        self._algorithm = cast(HandsOver, loop.trainer)
        self._rounds_done = 0
        self._takes_part = False
        self._is_over = False  # the last round is done, here or by the others that this worker was behind
        self._missed = 0  # rounds in which this worker took no part, until they are logged
        self._events: list[dict[str, str]] = []
        self._members = members_of(elastic_group.generations.taken)
        self.job_age_s: float | None = None  # when this worker came to a job at work

    @property
    def is_broken(self) -> bool:
        return self._group.generations.is_broken

    @property
    def wants_pause(self) -> bool:
        return self._group.generations.newcomer_waits or self._trainer.context.peers.leaves()

    def come_together(self) -> None:
        """A worker that comes to a job at work gets its model, and all agree anew on which one evaluates. If others are
        lost before all are ready, those that are left come together once more."""
        self._rounds_done = self._trainer.rounds  # of the checkpoint that this worker goes on from
        while not self._until_met(first=True):
            try:
                self._loop.come_together()
            except PeerLost:
                if not self.is_broken:
                    raise
                self._take_place()
                self._rounds_done = self._trainer.rounds
            else:
                break
        self._takes_part = True
        if (checkpoints := self._trainer.context.run.checkpoints) is not None:
            checkpoints.set_aside(self._trainer.rounds)  # one may be later than the job

    def open_measure(self, folder: Path) -> Measure:
        """Rounds and seconds of a job at work are those of the others."""
        trainer = self._trainer
        if self.job_age_s is None:
            measure = self._loop.open_measure(folder)
        else:
            before_it_was_lost = list(read_rounds(folder, logging.warning))
            resume_progress(trainer.progress, before_it_was_lost, trainer.is_evaluator)
            lines = trainer.context.run.logs_lines
            measure = Measure(folder, trainer.clock.now, trainer.rounds, self.job_age_s, as_lines=lines)
        self._missed = trainer.rounds - max([0, *logged_rounds(folder, logging.warning)])
        return measure

    def synchronize(self, wants_stop: bool) -> bool:
        """Exchanges with the other workers; with those that are left where some are lost meanwhile."""
        while True:
            try:
                agreed = self._trainer.synchronize(wants_stop)
            except PeerLost:
                if not self.is_broken:
                    raise
                if self._regroup():
                    return self._is_over
                self._algorithm.exchange_failed()
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
        notes: dict[str, Any] = {}
        if self._events:
            notes["events"], self._events = self._events, []
        if self._missed:
            notes["missed"], self._missed = self._missed, 0
        return notes

    def _regroup(self) -> bool:
        """Joins the workers that are left; returns whether these have finished the round whose sum has failed.

        Raises:
            JobError: this worker can take part no more.
        """
        self._take_place()
        before = self._rounds_done
        self._until_met()
        return self._rounds_done > before

    def _pause(self) -> None:
        """All have agreed to come together anew after this round."""
        if self._trainer.context.peers.leaves():
            self._trainer.has_left = True
            self._group.generations.leave()  # at once: the others wait for this
            return
        self._group.generations.pause()
        self._regroup()

    # -------------------------------------------------------------------------------------------- a new generation

    def _take_place(self) -> None:
        self._group.transport.go_over_to(self._group.generations.take().group)

    def _until_met(self, first: bool = False) -> bool:
        """Meets the others; those of the next generation where this one breaks meanwhile."""
        while True:
            try:
                return self._meet(first)
            except PeerLost:
                if not self.is_broken:
                    raise
                self._take_place()

    def _meet(self, first: bool) -> bool:
        """All report how far they are and decide by `arrange` how to go on; returns whether the job is at work."""
        trainer, generation = self._trainer, self._group.generations.taken
        self._loop.update_membership()
        self._group.transport.barrier()  # a newcomer warms up first: reports give the job's seconds after that
        told = [WorkerReport(**each) for each in self._group.gather("where", vars(self._report())) or ()]
        decided = arrange(told)
        self._check_setups(told, decided)
        if decided.source is None:
            return False
        if first:  # in place of `broadcast`
            self._sums.prepare(*self._algorithm.broadcast_arrays(trainer.parameters.statistics()))
            self._algorithm.come_late()
        report = told[decided.source]
        if decided.behind:
            self._hand_over(decided.source, report if generation.start.rank in decided.behind else None)
        if decided.is_at_work:
            self._sums.continue_with(report.meets)
            self._rejoin_state_server(report.job, generation.number)
            self._note(generation, decided.newcomers)
            self._loop.choose_evaluator()
        return decided.is_at_work  # else all go on from the newest checkpoint, and the job begins

    @property
    def _sums(self) -> CollectiveSums:
        assert isinstance(self._algorithm.sums, CollectiveSums)
        return self._algorithm.sums

    def _rejoin_state_server(self, job: str, generation: int) -> None:
        """Tells the state server of the workers that are left, before any of them asks again."""
        trainer, state_server = self._trainer, self._trainer.context.peers.state_server
        if state_server is None:
            return
        rank, num_workers = trainer.membership.rank, trainer.membership.num_workers
        state_server.join(job, rank, num_workers, trainer.progress, generation)
        if rank == 0:
            state_server.begin_job(resumed=True)
        self._group.transport.barrier()

    def _report(self) -> WorkerReport:
        trainer = self._trainer
        return WorkerReport(
            dataclasses.asdict(self._group.process),
            self._takes_part,
            self._rounds_done,
            trainer.measure.elapsed_s if self._takes_part else trainer.resumed_s,
            trainer.seen.of_all,
            trainer.accuracy.newest,
            trainer.stepper.updates,
            self._sums.meets,
            trainer.context.peers.state_server.job if trainer.context.peers.state_server else "",
            self._is_over,
        )

    def _check_setups(self, told: Sequence[WorkerReport], decided: Arrangement) -> None:
        """Compares all set-ups where all begin. A worker that comes to a job at work compares its own alone, so that a
        wrong one does not stop the others.

        Raises:
            SetupError: they differ.
        """
        if decided.is_at_work:
            assert decided.source is not None
            at_work = ProcessInfo.from_message(told[decided.source].card)
            if found := verdict([at_work, self._group.process]):
                raise SetupError(f"{found} (worker {decided.source} is at work)")
            return
        if found := verdict([ProcessInfo.from_message(report.card) for report in told]):
            raise SetupError(found)
        logging.info("all %d workers are connected with each other", len(told))

    def _hand_over(self, source: int, report: WorkerReport | None) -> None:
        """Rank `source` gives all that is the same on all workers, the model first.

        Args:
            report: the source's, where this worker is behind.
        """
        trainer = self._trainer
        state = self._algorithm.shared_state()
        self._group.transport.sums().broadcast(state, len(state), source)
        if report is None:
            return
        self._algorithm.adopt(state)
        trainer.stepper.updates = report.updates
        missed = report.rounds - self._rounds_done
        trainer.seen.of_all, trainer.accuracy.newest = report.seen, report.accuracy
        self._is_over = report.is_over
        if self._takes_part:  # this worker logs the round under way: the last of those that the others have finished
            missed -= 1
            trainer.measure.skip(missed)
            self._missed += missed
        elif report.takes_part:
            self.job_age_s = report.elapsed_s
        else:
            trainer.resumed_s = report.elapsed_s
        trainer.rounds = self._rounds_done = report.rounds

    def _note(self, generation: Generation, newcomers: Sequence[int]) -> None:
        """Notes for the log of the round which workers have come, and which of the generation before are gone."""
        there = {member.name for member in generation.start.members}
        parts = [f"{name} is gone" for one, name in self._members.items() if one not in there]
        parts += [f"{generation.names[rank]} has come" for rank in newcomers]
        self._members = members_of(generation)
        text = "; ".join([f"generation {generation.number}: {len(there)} worker(s)", *parts])
        logging.info("%s, after round %d", text, self._rounds_done)
        self._events.append({"kind": MEMBERS.name, "text": text})
