"""What must hold for every course of a Sync-Switch job, whoever is fast, slow, or wants to stop.

The workers here compute until they arrive, and wait until they are answered. Who arrives next, who was told to go out
of step and who wants to stop is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings, strategies as st

from trainer.algorithms.schedule import Phase, Schedule, SyncProtocol

many = settings(max_examples=80, deadline=None)


@dataclass(frozen=True)
class Update:
    """One that was applied: as what, whose gradients, and for each how many updates were newer than its weights."""

    bsp: bool
    ranks: tuple[int, ...]
    behind: tuple[int, ...]


class Workers:
    """All workers of a job. Asserts what must hold at every arrival."""

    def __init__(self, schedule: Schedule, num_workers: int) -> None:
        self.schedule = schedule
        self.ranks = set(range(num_workers))
        self.computing = set(self.ranks)
        self.arrivals = 0
        self.updates: list[Update] = []
        self._not_applied: set[int] = set()
        self._seen = [0] * num_workers  # updates in the weights that each worker computes at

    @property
    def gradients_applied(self) -> int:
        return sum(len(update.ranks) for update in self.updates)

    @property
    def gradients_dropped(self) -> int:
        return sum(self.schedule.dropped)

    def arrive(self, rank: int, out_of_step: bool) -> None:
        bsp, over = self.schedule.protocol is SyncProtocol.BSP, self.schedule.over
        phase, left_out = self.schedule.current, set(self.schedule.left_out)
        self.computing.remove(rank)
        self._not_applied.add(rank)
        self.arrivals += 1
        dropped = self.schedule.dropped[rank]
        step = self.schedule.arrive(rank, out_of_step)
        if self.schedule.dropped[rank] > dropped:
            assert not step.apply
            self._not_applied.discard(rank)
        assert len(set(step.apply)) == len(step.apply)
        assert set(step.apply) <= self._not_applied  # each arrival's gradient once, and never twice
        self._not_applied -= set(step.apply)
        if step.apply:
            behind = tuple(len(self.updates) - self._seen[other] for other in step.apply)
            self.updates.append(Update(bsp and not over, step.apply, behind))
        assert len(set(step.answered)) == len(step.answered)
        for other in step.answered:
            assert other not in self.computing  # answered once for an arrival
            assert other not in self._not_applied  # and not before its gradient counts or is dropped
            self.computing.add(other)
            self._seen[other] = len(self.updates)
        if over:
            assert step.answered == (rank,)
            assert set(step.apply) <= {rank}
        assert self.computing  # else nobody would ever arrive again
        if self.schedule.over:
            assert self.computing == self.ranks
        else:
            assert not self.schedule.finished
            assert self.schedule.current < len(self.schedule.phases)
            out = self.schedule.left_out  # by elastic, under BSP alone, until the end of the phase, and never all
            assert not out or (self.schedule.protocol is SyncProtocol.BSP and out <= self.ranks - self.computing)
            assert left_out <= out or self.schedule.current != phase


@dataclass(frozen=True)
class Job:
    order: str
    steps: list[int]
    num_workers: int
    policy: str

    def schedule(self, done: list[int] | None = None, batches: int = 0) -> Schedule:
        return Schedule(self.order, self.steps, self.num_workers, self.policy, done, batches)

    @property
    def steps_under_bsp(self) -> int:
        return sum(steps for kind, steps in zip(self.order, self.steps, strict=True) if kind == "1")


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    policy = draw(st.sampled_from(("none", "greedy", "elastic")))
    order = draw(st.text("01", min_size=1, max_size=3))
    if policy == "greedy" and not ("1" in order and order.endswith("0")):  # config.py refuses these
        order = f"1{order[:2]}0"
    steps = draw(st.lists(st.integers(1, 3), min_size=len(order), max_size=len(order)))
    return Job(order, steps, draw(st.integers(1, 4)), policy)


def run(workers: Workers, data: st.DataObject, arrivals: int | None = None) -> None:
    """Until the job is over, or for so many arrivals."""
    schedule = workers.schedule
    most = sum(phase.parts for phase in schedule.phases) + len(workers.ranks) * len(schedule.phases)
    while not schedule.over and workers.arrivals != arrivals:
        workers.arrive(data.draw(st.sampled_from(sorted(workers.computing))), data.draw(st.booleans()))
        assert workers.arrivals <= most


def overshoot(phase: Phase) -> int:
    return phase.done - phase.parts


@settings(max_examples=150, deadline=None)
@given(jobs(), st.data())
def test_every_gradient_counts_once_nobody_waits_for_ever_and_each_phase_has_its_steps(
    job: Job, data: st.DataObject
) -> None:
    workers = Workers(job.schedule(), job.num_workers)
    run(workers, data)
    schedule, updates = workers.schedule, workers.updates
    assert schedule.finished
    assert workers.gradients_applied + workers.gradients_dropped == workers.arrivals
    assert workers.gradients_applied == schedule.batches
    assert workers.gradients_dropped < job.num_workers * len(job.order)
    # Of the newest weights, also when greedy takes those that wait, and when somebody was left out.
    assert all(set(update.behind) == {0} for update in updates if update.bsp)
    assert all(len(update.ranks) == 1 for update in updates if not update.bsp)
    for phase in schedule.phases:  # only greedy makes one longer, under BSP, by less than a step
        assert 0 <= overshoot(phase) < (job.num_workers if phase.bsp and job.policy == "greedy" else 1)
    if job.policy != "greedy":
        under_asp = (sum(job.steps) - job.steps_under_bsp) * job.num_workers
        assert sum(update.bsp for update in updates) == job.steps_under_bsp
        assert sum(not update.bsp for update in updates) == under_asp
        assert (workers.gradients_dropped, schedule.steps) == (0, sum(job.steps))
    if job.policy == "none":
        assert all(update.ranks == tuple(range(job.num_workers)) for update in updates if update.bsp)


@many
@given(jobs(), st.data(), st.integers(0, 20), st.booleans())
def test_after_a_wish_to_stop_nobody_computes_more_than_one_more_gradient(
    job: Job, data: st.DataObject, wish_after: int, waiting: bool
) -> None:
    workers = Workers(job.schedule(), job.num_workers)
    run(workers, data, wish_after)
    schedule = workers.schedule
    if schedule.over:
        return
    schedule.stop_wanted = True
    if not waiting or workers.computing == workers.ranks:
        workers.arrive(data.draw(st.sampled_from(sorted(workers.computing))), data.draw(st.booleans()))
    since: list[int] = []
    while not schedule.over:
        since.append(data.draw(st.sampled_from(sorted(workers.computing))))
        workers.arrive(since[-1], data.draw(st.booleans()))
    assert len(set(since)) == len(since)
    for rank in sorted(workers.ranks):  # and everybody leaves
        workers.arrive(rank, False)
    assert workers.gradients_applied + workers.gradients_dropped == workers.arrivals


@many
@given(jobs(), st.data(), st.integers(0, 20))
def test_a_job_that_is_resumed_does_what_was_left(job: Job, data: st.DataObject, until: int) -> None:
    before = Workers(job.schedule(), job.num_workers)
    run(before, data, until)
    saved = [phase.done for phase in before.schedule.phases]
    batches = before.schedule.batches
    after = Workers(job.schedule(saved, batches), job.num_workers)
    assert (after.schedule.steps, after.schedule.batches) == (before.schedule.steps, batches)
    # In a job that closes ASP with its last part the others' gradients on their way are still to be dropped.
    nothing_is_left = not any(phase.left for phase in before.schedule.phases)
    assert after.schedule.over == (before.schedule.over or nothing_is_left)
    run(after, data)
    assert after.schedule.finished
    assert after.gradients_applied == after.schedule.batches - batches
    for phase, was in zip(after.schedule.phases, saved, strict=True):
        assert phase.done >= was
        assert 0 <= overshoot(phase) < job.num_workers
        assert overshoot(phase) == 0 or job.policy == "greedy"
