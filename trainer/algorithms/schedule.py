"""The phases of Sync-Switch: which gradients are applied when, and which workers continue. Pure: no MXNet, no clock.

Source: Li et al., ICDCS 2021, arXiv:2104.08364; the rules below are ours where the paper leaves them open. A batch is
one gradient of one worker. Progress is counted in parts, N to a step: a phase of S steps has S * N parts.

- Under BSP the members' gradients wait until all are there and are applied as one update. It is one step, however many
  members there are.
- Under ASP each gradient is applied when it arrives, and is one part. Then every worker has one in flight. So an ASP
  phase closes when as many parts are left as there are other workers: each gradient is still applied on arrival, but
  its worker waits. So the phase ends with its last part, no batch is lost, and BSP begins with equal weights.
- greedy: while the policy takes a worker out of step, the job runs under ASP. The gradients that wait then are applied
  as one update at once and are one part each, so the phase may end up to one step beyond its last part. Batches under
  ASP count for the next ASP phase; when that is used up, BSP continues, straggler or not. The rest of that phase may be
  less than the workers have in flight; the gradients beyond it are dropped.
- elastic: a worker that is out of step is left out from the round that it has just computed for to the end of the
  phase. The others do the phase's steps without its batches.
- A lost worker takes no further part, and its waiting gradient is dropped. A phase keeps its parts: under BSP a round
  of the remaining workers is one step, under ASP they do the missing batches.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class SyncProtocol(enum.Enum):
    """How an arriving gradient is applied."""

    BSP = "BSP"
    ASP = "ASP"
    CLOSING = "closing ASP"  # applied as under ASP, but its worker waits for the others' last


@dataclass
class Phase:
    """One phase of the job; `parts` and `done` are parts of a step."""

    bsp: bool
    parts: int
    done: int = 0

    @property
    def left(self) -> int:
        # The last BSP round of greedy may go beyond the phase.
        return max(0, self.parts - self.done)


@dataclass(frozen=True)
class Outcome:
    """The effect of an arrival."""

    apply: tuple[int, ...]  # ranks whose gradients make one update
    answered: tuple[int, ...]  # ranks that continue after it


class Schedule:
    """The job's place in its phases. Call `arrive` for every gradient, in the order of arrival."""

    def __init__(
        self,
        order: str,  # the phases, 1 for BSP and 0 for ASP
        steps: Sequence[int],  # of each phase
        num_workers: int,
        policy: str,  # none, greedy or elastic
        done: Sequence[int] | None = None,  # of a resumed job, parts done of each phase
        batches: int = 0,  # of a resumed job, batches done
    ) -> None:
        self.phases = [Phase(kind == "1", count * num_workers) for kind, count in zip(order, steps, strict=True)]
        for phase, parts in zip(self.phases, done or (), strict=False):
            phase.done = parts
        self.policy = policy
        self.current = 0  # index of the phase
        self.protocol = SyncProtocol.BSP
        self.finished = False  # all phases are done
        self.over = False  # the job is finished or stopped; workers that arrive now leave
        self.left_out: set[int] = set()  # ranks that elastic has left out
        self.batches = batches  # number of gradients that were applied
        self.processed_at = [batches] * num_workers  # by rank, `batches` after its last applied or dropped gradient
        self.dropped = [0] * num_workers  # by rank, number of gradients that arrived when no part was left
        self._parts = num_workers  # of a step
        self.ranks = frozenset(range(num_workers))  # that are not lost
        self._arrived: set[int] = set()  # and wait
        self._out_of_step: set[int] = set()
        # A worker wants the job to end: it ends after this round, or with the next gradient under ASP.
        self.stop_wanted = False
        self._enter_phase()

    @property
    def steps(self) -> int:
        """Whole steps done in all phases."""
        return sum(phase.done for phase in self.phases) // self._parts

    @property
    def policy_applies(self) -> bool:
        """Whether the policy tells workers to stay in step: in a BSP phase, even while a straggler makes it ASP."""
        return not self.over and self.phases[self.current].bsp

    @property
    def counts_for(self) -> int:
        """Index of the phase that gradients count for: the current one, or the next ASP phase while a straggler makes a
        BSP phase ASP (greedy)."""
        return self.current if self.protocol is SyncProtocol.BSP else self._asp_index

    def arrive(self, rank: int, out_of_step: bool) -> Outcome:
        """A worker's gradient has arrived; `out_of_step`: the policy told the worker not to stay in step."""
        (self._out_of_step.add if out_of_step else self._out_of_step.discard)(rank)
        self._arrived.add(rank)
        if self.protocol is SyncProtocol.BSP and not self.over:
            return self._arrive_under_bsp()
        return self._arrive_under_asp(rank)

    def remove_worker(self, rank: int) -> Outcome:
        """A worker is lost. The others no longer wait for its gradient."""
        self.ranks -= {rank}
        for group in (self._arrived, self._out_of_step, self.left_out):
            group.discard(rank)
        if self.left_out == self.ranks:  # they could never end the phase
            self.left_out.clear()
        if self.over or not self._arrived:
            return Outcome((), ())
        if self.protocol is SyncProtocol.BSP:
            return self._arrive_under_bsp()
        closes = self.protocol is SyncProtocol.CLOSING and self._arrived == self.ranks
        return Outcome((), self._close_asp() if closes else ())

    def add_worker(self, rank: int) -> None:
        """A lost worker is back, and the others wait for its gradient again."""
        self.ranks |= {rank}

    def _arrive_under_asp(self, rank: int) -> Outcome:
        phase = self.phases[self._asp_index]
        apply = (rank,) if phase.left else ()
        phase.done += len(apply)
        self.dropped[rank] += 1 - len(apply)
        self._mark_processed((rank,), len(apply))
        if self.protocol is SyncProtocol.ASP and not self.over:
            self.over = self.stop_wanted
            if not self.over and self._asp_must_close():
                self.protocol = SyncProtocol.CLOSING
        if self.protocol is SyncProtocol.CLOSING and not self.over:
            return Outcome(apply, self._close_asp() if self._arrived == self.ranks else ())
        self._arrived.discard(rank)
        return Outcome(apply, (rank,))

    def _arrive_under_bsp(self) -> Outcome:
        members = self.ranks - self.left_out
        complete = self._arrived >= members
        to_asp = self.policy == "greedy" and bool(self._out_of_step) and self._asp_left >= len(self.ranks)
        if not complete and not to_asp:
            return Outcome((), ())
        ranks = tuple(sorted(self._arrived & members))
        self.phases[self.current].done += self._parts if complete else len(ranks)
        self._mark_processed(ranks, len(ranks))
        self.over = self.stop_wanted
        if not self.phases[self.current].left:
            self._enter_phase()
        elif self.policy == "elastic" and members - self._out_of_step:  # not all of them
            self.left_out |= self._out_of_step
        if to_asp and self.protocol is SyncProtocol.BSP and not self.over:
            self.protocol = SyncProtocol.ASP
        stay = set() if self.over else self.left_out
        answered = tuple(sorted(self._arrived - stay))
        self._arrived &= stay
        return Outcome(ranks, answered)

    def _mark_processed(self, ranks: Sequence[int], batches: int) -> None:
        self.batches += batches
        for rank in ranks:
            self.processed_at[rank] = self.batches

    @property
    def _asp_index(self) -> int:
        """Of the phase whose parts are done under ASP: the first ASP phase from the current one on, else the last."""
        last = len(self.phases) - 1
        return next((index for index in range(self.current, last) if not self.phases[index].bsp), last)

    @property
    def _asp_left(self) -> int:
        return self.phases[self._asp_index].left

    def _asp_must_close(self) -> bool:
        in_bsp_phase = self.phases[self.current].bsp  # greedy, while a straggler lasts
        return self._asp_left < len(self.ranks) or (in_bsp_phase and not self._out_of_step)

    def _close_asp(self) -> tuple[int, ...]:
        """All workers have ended ASP; returns those that continue."""
        self.over = self.stop_wanted
        self._enter_phase()
        self._arrived.clear()
        return tuple(sorted(self.ranks))

    def _enter_phase(self) -> None:
        """Continues with the first phase that has parts left; without one in the last, which is done."""
        self.left_out.clear()
        with_parts = [index for index, phase in enumerate(self.phases) if phase.left]
        self.current = next(iter(with_parts), len(self.phases) - 1)
        if with_parts:
            self.protocol = SyncProtocol.BSP if self.phases[self.current].bsp else SyncProtocol.ASP
        else:
            self.finished = self.over = True
