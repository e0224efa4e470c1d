"""Sync-Switch (Li et al., "Sync-Switch: Hybrid parameter synchronization for distributed deep learning", ICDCS 2021,
arXiv:2104.08364): phases under BSP and under ASP in one running job (schedule.py). An update of n workers' gradients is
v <- mu * v + (sum of the n) / n; w <- w - eta * (n / N) * v: the learning rate follows the samples of an update, so
it is divided by N from BSP to ASP and multiplied back, and the momentum does not change.

The server part holds weights and velocity, knows the phases and decides which workers stay in step. It switches modes
between two updates; workers do not stop.
"""

from typing import TypeVar

from algorithm_row import RESUME, Algorithm, EventKind, GradientSteps, end_of_head
from flag_parser import Flag
from flag_values import at_least, phase_momentum, rate_schedule, switch_order
from utils import SetupError

SWITCH = EventKind("switch", "|", 15, 2.0, is_hollow=False)  # the next phase began
GREEDY = EventKind("greedy", "*", 9)  # this straggler policy acted
ELASTIC = EventKind("elastic", "d", 8)
SAME = "same"  # as a phase's momentum: that of --momentum
T = TypeVar("T")


class Settings(GradientSteps):
    """Sync-Switch's flags."""

    switch_order: str = Flag("10", switch_order).means("the phases, 1 for BSP and 0 for ASP")
    train_steps: tuple[int, ...] = Flag((400, 7600), at_least(1), nargs="+", metavar="STEPS").means(
        "steps of each phase; a step is one update under BSP, as many batches as workers under ASP"
    )
    phase_lr: tuple[float, ...] = Flag((0.0,), at_least(0, float), nargs="+", metavar="RATE").means(
        "learning rate of an update in each phase: of the mean of all workers' gradients under BSP, of each gradient "
        "under ASP; one number, or one for each phase (0: -l)"
    )
    phase_lr_schedule: tuple[str, ...] = Flag(("constant",), rate_schedule, nargs="+", metavar="SCHEDULE").means(
        "--lr-schedule by the samples of the phase alone; one, or one for each phase"
    )
    phase_momentum: tuple[str, ...] = Flag((SAME,), phase_momentum, nargs="+", metavar="MOMENTUM").means(
        "momentum in each phase: a number, 0..0.9:50000 for one that grows over 50,000 samples of the phase, or same "
        "(--momentum); one, or one for each phase"
    )
    phase_batch_size: tuple[int, ...] = Flag((0,), at_least(0), nargs="+", metavar="SAMPLES").means(
        "samples per step on each device in each phase; one number, or one for each phase (0: -b)"
    )
    straggler_policy: str = Flag("none", choices=("none", GREEDY.name, ELASTIC.name)).means(
        "response to a transient straggler under BSP: none, switch to ASP while it lasts (greedy), or leave it out for "
        "the rest of the phase (elastic)"
    )

    def of_phases(self, given: tuple[T, ...]) -> tuple[T, ...]:
        """A value for each phase, of a flag with one for all or one for each."""
        return given * len(self.switch_order) if len(given) == 1 else given

    def step_sizes(self, batch_size: int, num_workers: int) -> list[tuple[str, float, int]]:
        # Without --phase-lr a gradient under ASP takes one share of the step that the gradients of all take under BSP.
        rates = {"1": ("BSP", self.learning_rate), "0": ("ASP", self.learning_rate / num_workers)}
        phases = zip(
            map(rates.__getitem__, self.switch_order),
            self.of_phases(self.phase_lr),
            self.of_phases(self.phase_batch_size),
            strict=True,
        )
        return [(kind, own or rate, size or batch_size) for (kind, rate), own, size in phases]

    def check(self, num_workers: int | None) -> None:
        order, phases = self.switch_order, len(self.switch_order)
        if len(self.train_steps) != phases:
            raise SetupError(
                f"--switch-order {order} has {phases} phase(s), --train-steps {len(self.train_steps)} number(s): "
                "give one number for each phase"
            )
        for field in ("phase_lr", "phase_lr_schedule", "phase_momentum", "phase_batch_size"):
            if (given := len(getattr(self, field))) not in (1, phases):
                raise SetupError(
                    f"--switch-order {order} has {phases} phase(s), {self.FLAGS[field].names[0]} {given} number(s): "
                    "give one number, or one for each phase"
                )
        if all(self.phase_lr) and self.learning_rate != type(self).learning_rate:
            raise SetupError(
                f"-l {self.learning_rate} does nothing where --phase-lr says it for every phase: leave it out"
            )
        if self.momentum and SAME not in self.phase_momentum:
            raise SetupError(
                f"--momentum {self.momentum} does nothing where --phase-momentum says it for every phase: leave it out"
            )
        if self.straggler_policy == GREEDY.name and not ("1" in order and order.endswith("0")):
            raise SetupError(
                "--straggler-policy greedy takes steps of the next ASP phase while a straggler lasts, so each BSP "
                f"phase needs one after it; --switch-order is {order}: choose one with a 1 that ends with 0, or "
                "another policy"
            )
        if self.straggler_policy == ELASTIC.name and "1" not in order:
            raise SetupError(f"--straggler-policy elastic acts under BSP; --switch-order {order} has no BSP phase")


ROW = Algorithm(
    name="sync-switch",
    title="Sync-Switch",
    paper="Li et al., ICDCS 2021, arXiv:2104.08364",
    settings=Settings,
    trainer="SyncSwitchTrainer",
    server="SyncSwitchServer",
    rule="sync-switch-{straggler_policy}",
    page_only=True,
    events=(SWITCH, GREEDY, ELASTIC, RESUME),
    stem="SyncSwitch",
)
end_of_head(globals())

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from esync.measure import GLOBAL_AGGREGATE
from flag_values import parse_ramp, parse_schedule
from rates import Ramp, RateSchedule
from trainer.algorithms.schedule import Outcome, Schedule, SyncProtocol
from trainer.algorithms.server_policies import Action, PolicyRunner, UploadReport
from trainer.context import Context
from trainer.hub.hub_trainer import HubTrainer
from trainer.hub.server_part import (
    BAD,
    KEPT,
    SHOWN,
    WANTS_STOP,
    Answer,
    Answers,
    Arrays,
    GlobalModel,
    Message,
    Served,
    in_shapes,
)
from trainer.membership import How
from trainer.steps import sgd_step, sum_of
from utils import JobOver

TELL_EVERY_S = 1.0  # between reports to the state server without news
GOES_ON_WAITING = "waits"  # in a message: the worker was told that it is left out, and asks for its answer


class PhaseRule(NamedTuple):
    """Hyper-parameters of a phase."""

    learning_rate: float  # eta, of the mean of all N workers' gradients; an update of n of them takes n / N of it
    momentum: Ramp  # mu, by the samples of the phase
    schedule: RateSchedule  # factor on eta, by the samples of the phase
    batch_size: int
    of_each: bool = False  # eta is of each single gradient, not of N


def phase_rules(settings: Settings, batch_size: int) -> tuple[PhaseRule, ...]:
    """The hyper-parameters of each phase, from the flags."""
    flags = (settings.phase_lr, settings.phase_momentum, settings.phase_lr_schedule, settings.phase_batch_size)
    return tuple(
        PhaseRule(
            rate or settings.learning_rate,
            Ramp(settings.momentum, settings.momentum) if momentum == SAME else parse_ramp(momentum),
            parse_schedule(schedule),
            size or batch_size,
            of_each=bool(rate) and kind == "0",
        )
        for kind, rate, momentum, schedule, size in zip(
            settings.switch_order, *map(settings.of_phases, flags), strict=True
        )
    )


class Status(NamedTuple):
    """Where the job is, and one worker in it: in each answer."""

    over: bool  # the job has ended for all workers
    finished: bool  # all phases are done
    phase: int  # index of the current one
    counts_for: int  # index of the phase that gradients count for (Schedule.counts_for)
    bsp: bool  # the job runs under BSP
    steps: int  # done in all phases
    dropped: int  # number of this worker's gradients that were not applied
    processed_at: int  # batches of all workers when its last gradient was applied or dropped
    in_step: bool  # the latest decision tells it to stay in step with the others
    left_out: Sequence[int]  # ranks that elastic has left out
    reason: str  # of the latest decision on this worker, in words


class SyncSwitchServer:
    """Weights, velocity and schedule, and the policy that tells workers to stay in step."""

    def __init__(self, job: Served, settings: Settings) -> None:
        saved, num_workers = job.saved, job.num_workers
        self._job, self._settings, self._model = job, settings, GlobalModel(job)
        self._rules = phase_rules(settings, job.config.batch_size)
        self._rate_schedule = parse_schedule(settings.lr_schedule)  # factor on eta, by the samples of all phases
        order, done, batches = settings.switch_order, saved.get("done"), saved.get("batches", 0)
        self._schedule = Schedule(order, settings.train_steps, num_workers, settings.straggler_policy, done, batches)
        self._samples = list(saved.get("samples", [0] * len(order)))  # of all workers, by phase
        weights = job.model[: job.num_weights]
        self._velocity: list[np.ndarray] = []
        if any(rule.momentum.first or rule.momentum.last for rule in self._rules):
            zeros = [np.zeros_like(weight) for weight in weights]
            self._velocity = in_shapes(saved.get("velocity", ()), weights) or zeros
        self._policy = PolicyRunner(f"sync-switch-{settings.straggler_policy}", num_workers, job.now())
        self._uploads = [0] * num_workers
        self._arrived: dict[int, tuple[int, Arrays]] = {}  # by rank, samples and arrays of its newest upload
        self._in_step, self._reasons = [True] * num_workers, [""] * num_workers
        self._left_out: set[int] = set()  # ranks, as all have heard
        self._told: set[int] = set()  # those of them that have heard it, and do not wait again yet

    def act(self, rank: int, message: Message, arrays: Arrays) -> Answers:
        if message[WANTS_STOP]:
            self._schedule.stop_wanted = True
        if GOES_ON_WAITING in message:
            self._told.discard(rank)
            waits = rank in self._schedule.left_out and not self._schedule.over
            return {} if waits else self._answers((rank,))
        if not arrays:  # it waits, or its answer is on its way
            return {}
        if BAD in message:  # the worker continues at once with its next batch
            return self._answers((rank,))
        report = UploadReport(*message["report"])
        self._arrived[rank] = report.samples, arrays
        return self._answers(self._arrive(rank, report).answered)

    def joined(self, rank: int) -> Answer:
        self._schedule.add_worker(rank)
        self._told.discard(rank)
        return self._answer(rank, self._model.arrays)

    def lost(self, rank: int) -> Answers:
        if rank not in self._schedule.ranks:
            return {}
        self._told.discard(rank)
        self._policy.remove_worker(rank)
        phase = self._schedule.counts_for
        answers = self._answers(self._applied(self._schedule.remove_worker(rank), phase).answered)
        self._arrived.pop(rank, None)
        return answers

    def _arrive(self, rank: int, report: UploadReport) -> Outcome:
        """In a BSP phase the policy decides whether the worker stays in step; the schedule decides the rest."""
        now = self._job.now()
        self._uploads[rank] += 1
        self._policy.enter(rank, self._uploads[rank], now)
        self._policy.uploaded(rank, report, now)
        out_of_step = False
        if self._schedule.policy_applies:
            decision = self._policy.decide(rank, now)
            out_of_step = decision.action is Action.TRAIN
            self._in_step[rank], self._reasons[rank] = not out_of_step, decision.reason
        phase = self._schedule.counts_for  # before it may be the next one
        return self._applied(self._schedule.arrive(rank, out_of_step), phase)

    def _applied(self, outcome: Outcome, phase: int) -> Outcome:
        """Makes one update of the gradients that are to be applied, summed in the order of ranks, not of arrival; the
        phase gives the hyper-parameters."""
        if not (count := len(outcome.apply)):
            return outcome
        rule, uploads = self._rules[phase], [self._arrived.pop(rank) for rank in outcome.apply]
        share = count / len(self._schedule.ranks)
        samples = sum(number for number, _ in uploads)
        self._samples[phase] += samples
        of_phase = self._samples[phase]
        factor = self._rate_schedule.factor(sum(self._samples)) * rule.schedule.factor(of_phase)
        momentum = rule.momentum.value(of_phase)
        arrays = zip(self._model.to_change(), *(uploaded for _, uploaded in uploads), strict=True)
        for position, (target, *arrived) in enumerate(arrays):
            mean = arrived[0] if count == 1 else sum_of(arrived) / count
            if position >= self._job.num_weights:
                target += share * (mean - target)
                continue
            decay = self._settings.weight_decay * samples / count * self._job.decays[position]
            velocity = self._velocity[position] if self._velocity else None
            rate = rule.learning_rate * (count if rule.of_each else share)
            sgd_step(target, mean, rate * factor, decay, velocity, momentum)
        return outcome

    def _answers(self, ranks: Iterable[int]) -> Answers:
        """To these workers. One that elastic leaves out hears of it at once, and asks again for its answer."""
        answers = {rank: self._answer(rank, self._model.arrays) for rank in ranks if rank not in self._told}
        news = self._schedule.left_out - self._left_out - answers.keys()
        self._left_out = set(self._schedule.left_out)
        self._told |= news
        return answers | {rank: self._answer(rank) for rank in sorted(news)}

    def _answer(self, rank: int, model: Arrays = ()) -> Answer:
        schedule = self._schedule
        status = Status(
            schedule.over,
            schedule.finished,
            schedule.current,
            schedule.counts_for,
            schedule.protocol is SyncProtocol.BSP,
            schedule.steps,
            schedule.dropped[rank],
            schedule.processed_at[rank],
            self._in_step[rank],
            sorted(schedule.left_out),
            self._reasons[rank],
        )
        return Answer({KEPT: self._counts(), "status": status}, model)

    def _counts(self) -> dict[str, Any]:
        done = [phase.done for phase in self._schedule.phases]
        return {"done": done, "batches": self._schedule.batches, "samples": [*self._samples]}

    def state(self) -> dict[str, Any]:
        # Without the gradients that wait for others.
        return {SHOWN: self._model.arrays, **self._counts(), "velocity": self._velocity}


class SyncSwitchTrainer(HubTrainer):
    """A round sends one gradient and gets the weights: under ASP at once, under BSP when the update is done.

    BatchNorm's statistics move to the mean of an update's workers by the share n / N.
    """

    def __init__(self, context: Context, settings: Settings) -> None:
        super().__init__(context, settings)
        self._settings, self._rules = settings, phase_rules(settings, context.config.batch_size)
        self._state = context.state  # for its page only
        self._told_at = 0.0  # clock time of the last report to the state server
        self._status: Status
        self._events: list[dict[str, str]] = []
        self._steps_lost = 0

    # ---------------------------------------------------------------------------------------------- the hooks

    def broadcast(self) -> None:
        self._status = Status(*self.begin_at_hub()["status"])
        if self._status.finished:
            if self.begin.how is How.JOINS:
                raise JobOver("all workers are done")
            raise SetupError("--resume: the job of this checkpoint is done: nothing is left to train")
        self._note_protocol()
        if self.begin.how is How.NEW:
            self._state.tell(1, 0, self.step_s, 0.0)

    def begin_round(self) -> None:
        """Takes the phase's batch size; reports a resumed job to the state server."""
        self.context.task.batches.resize(self._rules[self._status.counts_for].batch_size)
        if self.begin.how is How.RESUMED and self.rounds == self.begin.rounds + 1:
            self._tell(0)

    def ready(self) -> bool:
        if self.step_is_bad:  # others may wait for this worker's gradient: the next batch belongs to the same round
            return False
        if self._policy_applies or self.clock.now() - self._told_at >= TELL_EVERY_S:
            self._tell(1)
        return True

    def synchronize(self, wants_stop: bool) -> bool:
        """Waits until the server answers the gradient, and takes the weights.

        Push and pull are timed without that wait, so the time is this worker's own even at the slowest one's pace.
        """
        self.measure.enter(GLOBAL_AGGREGATE)
        report = UploadReport(1, self.step_samples, self.step_s, self.transmission.value)
        arrays = [*self.parameters.gradients, *self.parameters.statistics()]
        answer, push_s = self.ask({"report": report, WANTS_STOP: wants_stop}, arrays), self.push_s
        while not answer.arrays:  # it is left out
            self._update_status(answer.message)
            answer = self.ask({GOES_ON_WAITING: True, WANTS_STOP: False})
        self._update_status(answer.message)
        self.transmission.add(push_s + self.pull_s)
        self.parameters.replace(answer.arrays)
        if self._status.finished:
            steps = self._settings.train_steps
            self.finished = f"all {sum(steps)} steps of {len(steps)} phase(s) done"
        return self._status.over

    def notes(self) -> dict[str, Any]:
        notes: dict[str, Any] = {"batches": self._status.processed_at}
        if self._events:
            notes["events"], self._events = self._events, []
        if self._steps_lost:
            notes["steps_lost"], self._steps_lost = self._steps_lost, 0
        return notes

    def end(self) -> None:
        self._state.leave(self.rounds)

    # ---------------------------------------------------------------------------------------- the state server

    @property
    def _policy_applies(self) -> bool:
        """As `Schedule.policy_applies`."""
        return self._settings.switch_order[self._status.phase] == "1"

    def _tell(self, steps: int) -> None:
        status = self._status
        decision = ("SYNC" if status.in_step else "TRAIN", status.reason) if self._policy_applies and steps else None
        self._state.tell(self.rounds, steps, self.step_s, self.transmission.value, decision)
        self._told_at = self.clock.now()

    def _note_protocol(self) -> None:
        self.progress.protocol = "BSP" if self._status.bsp else "ASP"

    # ---------------------------------------------------------------------------------------------- the server

    def _update_status(self, said: Message) -> None:
        """Takes a new status; records events and reports what has changed."""
        before, self._status = self._status, Status(*said["status"])
        status = self._status
        self._note_protocol()
        if status.phase != before.phase and not status.finished:
            self._add_event(SWITCH, f"phase {status.phase + 1} of {len(self._rules)}: {self.progress.protocol}")
        elif status.bsp != before.bsp and not status.over and self._policy_applies:
            self._add_event(GREEDY, "back to BSP" if status.bsp else "ASP while a straggler lasts")
        self._steps_lost += max(0, status.dropped - before.dropped)  # a hub that is started again counts from 0
        if new := set(status.left_out) - set(before.left_out):
            why = f": {status.reason}" if self.membership.rank in new else ""
            self._add_event(
                ELASTIC, f"on without worker(s) {', '.join(map(self.membership.name_of, status.left_out))}{why}"
            )
        if status.in_step != before.in_step:
            # Under elastic only the straggler knows it. A console shows rank 0's lines, and of others the warnings.
            is_elastic = self._settings.straggler_policy == ELASTIC.name
            kind = "warning: " if is_elastic and not status.in_step else ""
            logging.info("%sthe hub says: %s", kind, status.reason)
            self._tell(1)

    def _add_event(self, kind: EventKind, text: str) -> None:
        self._events.append({"kind": kind.name, "text": text})
        logging.info("%s: %s", kind.name, text)
