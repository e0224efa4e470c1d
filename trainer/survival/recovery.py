"""Recovery from lost workers: training continues with the next generation, a new set of connected workers.

    a sum fails -> each worker joins the next generation -> all report their finished rounds -> workers that are
    behind, or new, get the model of one that is not -> if no worker has finished the round, its sum is repeated

No local step is lost: the repeated sum has the shares n_k / n of the new generation. If some workers had finished the
round, their sum contained the updates of all, so the others copy the result. Joining and leaving work likewise.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from algorithms import MEMBERS
from trainer.membership import Begin, Company, How
from trainer.rendezvous.generations import end_together
from trainer.rendezvous.joining import Start
from trainer.rendezvous.rendezvous_info import RendezvousInfo
from trainer.transport.collective import CollectiveSums, CollectiveTransport
from utils import LEFT, JobOver, PeerLost

if TYPE_CHECKING:
    from trainer.loop import Loop
    from trainer.trainer import Trainer


class HandsOver(Protocol):
    """Hooks of an algorithm for recovery; SynchronousTrainer documents them."""

    sums: CollectiveSums

    def broadcast_arrays(self, statistics: Sequence[np.ndarray]) -> tuple[list[np.ndarray], int]: ...
    def set_global_model(self) -> None: ...
    def shared_state(self) -> list[np.ndarray]: ...
    def adopt(self, state: Sequence[np.ndarray]) -> None: ...
    def exchange_failed(self) -> None: ...


@dataclass(frozen=True)
class WorkerReport:
    """A worker's message to all others in a new generation."""

    takes_part: bool  # it is already training
    rounds: int  # finished so far
    elapsed_s: float  # age of the job
    step_s: float  # of its last step; 0: it has done none
    seen: int  # samples used by all workers
    accuracy: float | None  # the newest value of the metric
    updates: int  # steps that the optimizer has counted (Stepper.updates)
    meets: bool  # a barrier precedes each sum (CollectiveSums.meets)
    job: str  # its name on the state server, if any
    is_over: bool  # the last round is done


@dataclass(frozen=True)
class Arrangement:
    """How the workers of a new generation continue."""

    is_at_work: bool  # some are already training
    source: int | None = None  # the rank that broadcasts its model; None if all begin with round 1
    behind: tuple[int, ...] = ()  # ranks that adopt this model
    newcomers: tuple[int, ...] = ()  # ranks that join a running job


def arrange(reports: Sequence[WorkerReport]) -> Arrangement:
    """Decides which worker of a new generation sends its model, and which adopt it, from their reports by rank.

    The source is the lowest rank among those with the most finished rounds; newcomers to a running job cannot be it.
    Workers with fewer finished rounds, and newcomers, are behind.
    """
    training = [rank for rank, report in enumerate(reports) if report.takes_part]
    able = training or list(range(len(reports)))
    latest = max(reports[rank].rounds for rank in able)
    newcomers = tuple(rank for rank, report in enumerate(reports) if training and not report.takes_part)
    if not training and not latest:
        return Arrangement(is_at_work=False)
    source = next(rank for rank in able if reports[rank].rounds == latest)
    behind = tuple(rank for rank, report in enumerate(reports) if report.rounds < latest or rank in newcomers)
    return Arrangement(bool(training), source, behind, newcomers)


class Survivors(Company):
    """The workers of a job that survives lost ones, and that others may join."""

    def __init__(self, joined: RendezvousInfo, trainer: Trainer) -> None:
        super().__init__(trainer)
        assert isinstance(joined.transport, CollectiveTransport) and joined.generations is not None
        self._transport, self._generations, self._gather = joined.transport, joined.generations, joined.gather
        self._add_round = joined.add_round
        self._round_began: float | None = None  # None: in another generation
        self._loop: Loop
        self._algorithm = cast(HandsOver, trainer)
        self._rounds_done = 0
        self._takes_part = False
        self._is_over = False  # the last round is done, on this worker or on the source
        self._missed = 0  # rounds that the others have done without this worker, in training; 0 once they are logged
        self._events: list[dict[str, str]] = []
        self._start = self._generations.taken.start  # of the newest generation that the log has

    @property
    def is_broken(self) -> bool:
        return self._generations.taken.is_broken

    @property
    def comes_late(self) -> bool:
        return self._generations.taken.start.generation > 1

    @property
    def wants_pause(self) -> bool:
        return self._generations.taken.newcomer_waits or self._trainer.context.peers.leaves()

    def meet(self, loop: Loop) -> None:
        """A worker that joins a running job gets its model, and all choose an evaluator again. If workers are lost
        before all are ready, the remaining ones start over."""
        self._loop = loop
        self._rounds_done = self._trainer.rounds  # of the checkpoint, if resumed
        while not self._until_met(first=True):
            with self._until_broken():
                loop.come_together()
                break
            self._take_place()
            self._rounds_done = self._trainer.rounds
        self._takes_part = True
        if (checkpoints := self._trainer.context.run.checkpoints) is not None:
            checkpoints.set_aside(self._trainer.rounds)  # those of rounds that the job has not done

    def leaves(self) -> bool:
        """Never without the others: they pause after a round, and it leaves then."""
        return False

    def exchange(self, wants_stop: bool) -> bool:
        while True:
            with self._until_broken():
                if not self.is_broken:  # where this worker is alone, no exchange fails
                    agreed = self._trainer.synchronize(wants_stop)
                    break
            if self._regroup():
                return self._is_over
            self._algorithm.exchange_failed()
        now, began = self._trainer.clock.now(), self._round_began
        self._round_began = now
        if began is not None:
            self._add_round(now - began)
        self._rounds_done = self._trainer.rounds
        if self._trainer.pauses and not agreed:  # all have agreed to regroup after this round
            if self._trainer.context.peers.leaves():
                self._trainer.has_left, self._trainer.finished = True, LEFT
                self._generations.leave()  # now: the others wait for it
                return True
            self._generations.pause()
            self._regroup()
        return agreed

    def part(self) -> None:
        """After the last round: waits until all are done."""
        if self._trainer.has_left:
            return
        self._is_over = True
        self._generations.joining.need_no_others()
        while True:
            was_evaluator = self._trainer.is_evaluator
            with self._until_broken():
                end_together(self._generations.taken.connections, self._transport.barrier)
                return
            try:
                self._regroup()
            except JobOver:  # the others have ended without this worker
                return
            if self._trainer.is_evaluator and not was_evaluator:
                self._loop.evaluate_last()

    def notes(self) -> dict[str, Any]:
        notes = {"events": self._events, "missed": self._missed}
        self._events, self._missed = [], 0
        return {name: value for name, value in notes.items() if value}

    @contextlib.contextmanager
    def _until_broken(self) -> Iterator[None]:
        """Ends the block where the generation breaks in it."""
        try:
            yield
        except PeerLost:
            if not self.is_broken:
                raise

    def _regroup(self) -> bool:
        """Joins the next generation, or raises JobError; returns whether one of its workers has finished the failed
        round."""
        self._take_place()
        before = self._rounds_done
        self._until_met()
        return self._rounds_done > before

    # -------------------------------------------------------------------------------------------- a new generation

    def _take_place(self) -> None:
        self._round_began = None
        self._transport.go_over_to(self._generations.take(self._trainer.stop_request).connections.group)

    def _until_met(self, first: bool = False) -> bool:
        """As `_meet`; if the generation breaks meanwhile, in the next one."""
        while True:
            with self._until_broken():
                return self._meet(first)
            self._take_place()

    def _meet(self, first: bool) -> bool:
        """All exchange reports and `arrange` how to continue; returns whether the job is running."""
        trainer, start = self._trainer, self._generations.taken.start
        self._loop.update_membership()
        self._transport.barrier()  # a newcomer comes here once it has its data; times in the reports include that wait
        reports = [WorkerReport(**each) for each in self._gather("where", vars(self._report())) or ()]
        decided = arrange(reports)
        if not decided.is_at_work:
            logging.info("all %d workers are connected with each other", len(reports))
        if decided.source is None:
            return False
        if first:  # in place of `broadcast`
            self._algorithm.sums.prepare(*self._algorithm.broadcast_arrays(trainer.parameters.statistics()))
            self._algorithm.set_global_model()
        report = reports[decided.source]
        if decided.behind:
            self._hand_over(decided.source, report if start.rank in decided.behind else None)
        if decided.is_at_work:
            # A newcomer does no test steps, for which the others would wait: it counts as the slowest at first
            trainer.step_s = trainer.step_s or max(each.step_s for each in reports)
            self._algorithm.sums.continue_with(report.meets)
            if (state_server := trainer.context.peers.state_server) is not None:
                rank, num_workers = trainer.membership.rank, trainer.membership.num_workers
                state_server.join(report.job, rank, num_workers, trainer.progress, start.generation)
            self._note(start, decided.newcomers)
            self._loop.choose_evaluator()
        return decided.is_at_work  # else all resume the newest checkpoint

    def _report(self) -> WorkerReport:
        trainer = self._trainer
        return WorkerReport(
            self._takes_part,
            self._rounds_done,
            trainer.measure.elapsed_s if self._takes_part else trainer.begin.elapsed_s,
            trainer.step_s,
            trainer.seen.of_all,
            trainer.progress.newest,
            trainer.stepper.updates,
            self._algorithm.sums.meets,
            trainer.context.peers.state_server.job if trainer.context.peers.state_server else "",
            self._is_over,
        )

    def _hand_over(self, source: int, report: WorkerReport | None) -> None:
        """Rank `source` broadcasts the shared state; workers that are behind adopt it. On one of these `report` is the
        source's."""
        trainer = self._trainer
        state = self._algorithm.shared_state()
        self._transport.sums().broadcast(state, len(state), source)
        if report is None:
            return
        self._algorithm.adopt(state)
        trainer.stepper.updates = report.updates
        missed = report.rounds - self._rounds_done
        trainer.seen.of_all, trainer.progress.newest = report.seen, report.accuracy
        self._is_over = report.is_over
        if self._takes_part:  # the running round gets the number of the source's last one: it is not missed
            missed -= 1
            trainer.measure.skip(missed)
            self._missed += missed
        elif report.is_over:
            raise JobOver(f"job {trainer.context.config.job_name!r} has ended")
        else:
            how = How.JOINS if report.takes_part else How.RESUMED
            trainer.begin = Begin(how, report.rounds, report.elapsed_s)
        trainer.rounds = self._rounds_done = report.rounds

    def _note(self, start: Start, newcomers: Sequence[int]) -> None:
        """Notes in the round's log which workers have joined or left since the last generation."""
        present, before, self._start = {member.name for member in start.members}, self._start, start
        was_there = zip(before.members, before.names, strict=True)
        parts = [f"{name} is gone" for member, name in was_there if member.name not in present]
        parts += [f"{start.names[rank]} has come" for rank in newcomers]
        text = "; ".join([f"generation {start.generation}: {len(present)} worker(s)", *parts])
        logging.info("%s, after round %d", text, self._rounds_done)
        self._events.append({"kind": MEMBERS.name, "text": text})
