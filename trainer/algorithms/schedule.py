"""Sync-Switch's course through its phases: whose gradients are applied when, and who goes on. Pure: no MXNet, no clock.

Source: Li et al., ICDCS 2021, arXiv:2104.08364; what the paper leaves open is said here. A batch is one gradient of one
worker. Progress is counted in parts, N to a step: a phase of S steps has S * N parts.

- Under BSP the members' gradients are kept until all are there, and applied as one update, which is one step, whoever
  the members are.
- Under ASP each gradient is applied when it arrives, and is one part. Every worker has one in flight then. So an ASP
  phase closes when as many parts are left as there are other workers: each gradient is applied when it arrives, and its
  worker waits. Thus a phase ends with its last part, no batch is lost, and BSP begins with all workers at the same
  weights.
- greedy: while a worker was told not to stay in step, ASP; the gradients that wait are applied as one update at once,
  and are one part each, so that the last round of the phase may go less than one step beyond it.
  What is done under ASP is of the next ASP phase; when that is used up, BSP goes on, straggler or not.
  What is left of that phase may then be less than the workers have in flight; the gradients beyond it are dropped.
- elastic: a worker that was told so is left out after the round that it has just computed for, until the phase ends.
  The others simply go on: the phase has its steps, and nobody does the missing batches.
- A worker that is lost takes no part any more, and a gradient of it that waits is not applied. A phase keeps its parts:
  under BSP a round of those that are left is one step, under ASP they do the missing batches.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from config import SAME, Config, names_of
from utils import FLOAT32_COUNTS_TO, SetupError


class Way(enum.Enum):
    """What is done with a gradient that arrives."""

    BSP = "BSP"
    ASP = "ASP"
    CLOSING = "closing ASP"  # applied as under ASP, but its worker waits for the others' last


@dataclass
class Phase:
    """One phase of the job, in parts of a step."""

    bsp: bool
    parts: int
    done: int = 0

    @property
    def left(self) -> int:
        """Parts to be done; the last round of BSP may have gone beyond, where greedy has cut one short."""
        return max(0, self.parts - self.done)


@dataclass(frozen=True)
class Step:
    """What an arrival leads to: the workers whose gradients make up one update, and those who go on after it."""

    apply: tuple[int, ...]
    free: tuple[int, ...]


def phase_under(order: str, current: int, bsp: bool) -> int:
    """Index of the phase that gradients count for, and whose hyper-parameters they have: the current one, or, where a
    straggler makes it ASP (greedy), the next one under ASP.

    Args:
        bsp: how the job goes on.
    """
    return current if bsp or order[current] == "0" else order.index("0", current)


class Schedule:
    """Where a job is. `arrive` is told of every gradient, in the order of arrival."""

    def __init__(
        self,
        order: str,
        steps: Sequence[int],
        num_workers: int,
        policy: str,
        done: Sequence[int] | None = None,
        batches: int = 0,
    ) -> None:
        """
        Args:
            order: the phases, 1 for BSP and 0 for ASP.
            steps: of each phase.
            policy: none, greedy or elastic.
            done: parts that were done of each phase, where a job is resumed.
            batches: that were done then.
        """
        self.phases = [Phase(kind == "1", count * num_workers) for kind, count in zip(order, steps, strict=True)]
        for phase, parts in zip(self.phases, done or (), strict=False):
            phase.done = parts
        self.policy = policy
        self.current = 0  # index of the phase
        self.way = Way.BSP
        self.finished = False  # all phases are done
        self.over = False  # finished, or stopped: whoever arrives goes on to leave
        self.left_out: set[int] = set()
        self.batches = batches  # gradients that were applied in all
        self.dealt_with_at = [batches] * num_workers  # by rank: `batches` when its last gradient was applied or dropped
        self.dropped = [0] * num_workers  # by rank, gradients that came when nothing was left to be done
        self._parts = num_workers  # of a step
        self._ranks = frozenset(range(num_workers))  # that take part
        self._arrived: set[int] = set()  # and wait
        self._alone: set[int] = set()  # were told not to stay in step
        self._stop_wanted = False
        self._enter_phase()

    def resumed(self, done: Sequence[int], batches: int) -> Schedule:
        """The same job, behind so many parts of each phase and so many batches."""
        steps = [phase.parts // self._parts for phase in self.phases]
        order = "".join(str(int(phase.bsp)) for phase in self.phases)
        return Schedule(order, steps, self._parts, self.policy, done, batches)

    @property
    def steps(self) -> int:
        """Whole steps that were done in all."""
        return sum(phase.done for phase in self.phases) // self._parts

    @property
    def num_left(self) -> int:
        """Workers that take part."""
        return len(self._ranks)

    @property
    def may_be_left(self) -> bool:
        """Whether workers may be told not to stay in step: in a phase under BSP, even if a straggler makes it ASP."""
        return not self.over and self.phases[self.current].bsp

    @property
    def leaves_out(self) -> bool:
        """Whether workers may be left out."""
        return self.policy == "elastic"

    def want_stop(self) -> None:
        """A worker that waits wants the job to end: after this round, or with the next gradient under ASP."""
        self._stop_wanted = True

    def arrive(self, rank: int, alone: bool, wants_stop: bool) -> Step:
        """A worker's gradient is there.

        Args:
            rank: of the worker.
            alone: whether it was told not to stay in step with the others.
            wants_stop: whether it wants the job to end.
        """
        (self._alone.add if alone else self._alone.discard)(rank)
        self._stop_wanted |= wants_stop
        self._arrived.add(rank)
        if self.way is Way.BSP and not self.over:
            return self._arrive_under_bsp()
        return self._arrive_under_asp(rank)

    def go_on_without(self, rank: int) -> Step:
        """A worker is lost, for whose gradient others may wait."""
        self._ranks -= {rank}
        for group in (self._arrived, self._alone, self.left_out):
            group.discard(rank)
        if self.left_out == self._ranks:  # those alone could never end the phase
            self.left_out.clear()
        if self.over or not self._arrived:
            return Step((), ())
        if self.way is Way.BSP:
            return self._arrive_under_bsp()
        return Step((), self._close_asp() if self.way is Way.CLOSING and self._arrived == self._ranks else ())

    def _arrive_under_asp(self, rank: int) -> Step:
        phase = self._asp_phase
        apply = (rank,) if phase.left else ()
        phase.done += len(apply)
        self.dropped[rank] += 1 - len(apply)
        self._deal_with((rank,), len(apply))
        if self.way is Way.ASP and not self.over:
            self.over = self._stop_wanted
            if not self.over and self._asp_must_close():
                self.way = Way.CLOSING
        if self.way is Way.CLOSING and not self.over:
            return Step(apply, self._close_asp() if self._arrived == self._ranks else ())
        self._arrived.discard(rank)
        return Step(apply, (rank,))

    def _arrive_under_bsp(self) -> Step:
        members = self._ranks - self.left_out
        complete = self._arrived >= members
        to_asp = self.policy == "greedy" and bool(self._alone) and self._asp_phase.left >= len(self._ranks)
        if not complete and not to_asp:
            return Step((), ())
        ranks = tuple(sorted(self._arrived & members))
        self.phases[self.current].done += self._parts if complete else len(ranks)
        self._deal_with(ranks, len(ranks))
        self.over = self._stop_wanted
        if not self.phases[self.current].left:
            self._next_phase()
        elif self.leaves_out and members - self._alone:  # not all of them
            self.left_out |= self._alone
        if to_asp and self.way is Way.BSP and not self.over:
            self.way = Way.ASP
        stay = set() if self.over else self.left_out
        free = tuple(sorted(self._arrived - stay))
        self._arrived &= stay
        return Step(ranks, free)

    def _deal_with(self, ranks: Sequence[int], batches: int) -> None:
        self.batches += batches
        for rank in ranks:
            self.dealt_with_at[rank] = self.batches

    @property
    def _asp_phase(self) -> Phase:
        """The one whose parts are done under ASP: the current one, or the next that there is."""
        rest = self.phases[min(self.current, len(self.phases) - 1) :]
        return next((phase for phase in rest if not phase.bsp), rest[-1])

    def _asp_must_close(self) -> bool:
        borrowed = self.phases[self.current].bsp
        return self._asp_phase.left < len(self._ranks) or (borrowed and not self._alone)

    def _close_asp(self) -> tuple[int, ...]:
        """All have come to the end of ASP; returns who goes on."""
        self.over = self._stop_wanted
        self._enter_phase()
        self._arrived.clear()
        return tuple(sorted(self._ranks))

    def _next_phase(self) -> None:
        self.left_out.clear()
        self._enter_phase()

    def _enter_phase(self) -> None:
        """Goes on with the first phase of which something is left."""
        while self.current < len(self.phases) and not self.phases[self.current].left:
            self.current += 1
        if self.current == len(self.phases):
            self.finished = self.over = True
        else:
            self.way = Way.BSP if self.phases[self.current].bsp else Way.ASP


def check_flags(config: Config, num_workers: int | None) -> None:
    """Makes sure that Sync-Switch's flags fit together.

    Raises:
        SetupError: they do not.
    """
    order, phases = config.switch_order, len(config.switch_order)
    if len(config.train_steps) != phases:
        raise SetupError(
            f"--switch-order {order} has {phases} phase(s), --train-steps {len(config.train_steps)} number(s): "
            "give one number for each phase"
        )
    for field in ("phase_lr", "phase_lr_schedule", "phase_momentum", "phase_batch_size"):
        if (given := len(getattr(config, field))) not in (1, phases):
            raise SetupError(
                f"--switch-order {order} has {phases} phase(s), {names_of(field)[0]} {given} number(s): "
                "give one number, or one for each phase"
            )
    if all(config.phase_lr) and config.learning_rate != Config.learning_rate:
        raise SetupError(
            f"-l {config.learning_rate} does nothing where --phase-lr says it for every phase: leave it out"
        )
    if config.momentum and SAME not in config.phase_momentum:
        raise SetupError(
            f"--momentum {config.momentum} does nothing where --phase-momentum says it for every phase: leave it out"
        )
    if config.straggler_policy == "greedy" and not ("1" in order and order.endswith("0")):
        raise SetupError(
            "--straggler-policy greedy takes steps of the next ASP phase while a straggler lasts, so each BSP phase "
            f"needs one behind it; --switch-order is {order}: choose one with a 1 that ends with 0, or another policy"
        )
    if config.straggler_policy == "elastic" and "1" not in order:
        raise SetupError(f"--straggler-policy elastic acts under BSP; --switch-order {order} has no BSP phase")
    batches = sum(config.train_steps) * (num_workers or 1)
    if batches > FLOAT32_COUNTS_TO:
        raise SetupError(f"--train-steps makes {batches} batches of all workers; {FLOAT32_COUNTS_TO} can be counted")
