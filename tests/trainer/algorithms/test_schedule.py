"""Sync-Switch's course through its phases: small jobs worked by hand, and what must hold for every job."""

from __future__ import annotations

import pytest

from trainer.algorithms.schedule import Outcome, Schedule, SyncProtocol

NOTHING = Outcome((), ())


def together(*ranks: int) -> Outcome:
    """The gradients of these workers are one update, and the same workers go on."""
    return Outcome(ranks, ranks)


def applied(rank: int) -> Outcome:
    """The gradient is an update of its own, and its worker waits."""
    return Outcome((rank,), ())


def last_of_asp(rank: int, num_workers: int) -> Outcome:
    """The gradient is an update of its own, and all go on."""
    return Outcome((rank,), tuple(range(num_workers)))


def arrive(
    schedule: Schedule, *ranks: int, out_of_step: tuple[int, ...] = (), stop: tuple[int, ...] = ()
) -> list[Outcome]:
    """What each arrival leads to; some workers were told not to stay in step, some want the job to end."""
    return [schedule.arrive(rank, rank in out_of_step, rank in stop) for rank in ranks]


def done(schedule: Schedule) -> list[int]:
    return [phase.done for phase in schedule.phases]


def is_over(schedule: Schedule, finished: bool) -> bool:
    return schedule.over and schedule.finished is finished


# --------------------------------------------------------------------------------------------------- BSP and ASP


def test_bsp_applies_a_round_when_all_are_there() -> None:
    schedule = Schedule("1", [2], 3, "none")
    assert arrive(schedule, 2, 0, 1) == [NOTHING, NOTHING, together(0, 1, 2)]
    assert (schedule.batches, schedule.over) == (3, False)
    assert arrive(schedule, 0, 1, 2) == [NOTHING, NOTHING, together(0, 1, 2)]
    assert schedule.batches == 6
    assert is_over(schedule, finished=True)


def test_asp_applies_each_gradient_at_once_and_waits_at_the_end_for_those_on_the_way() -> None:
    schedule = Schedule("0", [2], 3, "none")  # six batches
    assert arrive(schedule, 0, 0, 1) == [together(0), together(0), together(1)]
    # Four are done, and with this one two are left: those of the two others.
    assert arrive(schedule, 0) == [applied(0)]
    assert schedule.protocol is SyncProtocol.CLOSING
    assert not schedule.over
    assert arrive(schedule, 2, 1) == [applied(2), last_of_asp(1, 3)]
    assert done(schedule) == [6]
    assert is_over(schedule, finished=True)


def test_one_worker_alone_never_waits() -> None:
    schedule = Schedule("10", [1, 2], 1, "none")
    assert arrive(schedule, 0, 0, 0) == [together(0)] * 3
    assert is_over(schedule, finished=True)


def test_bsp_then_asp() -> None:
    schedule = Schedule("10", [1, 2], 2, "none")
    assert arrive(schedule, 1, 0) == [NOTHING, together(0, 1)]
    assert (schedule.current, schedule.protocol) == (1, SyncProtocol.ASP)
    assert arrive(schedule, 1, 1, 1, 0) == [together(1), together(1), applied(1), last_of_asp(0, 2)]
    assert done(schedule) == [2, 4]
    assert is_over(schedule, finished=True)


def test_asp_then_bsp() -> None:
    schedule = Schedule("01", [2, 1], 2, "none")
    assert schedule.protocol is SyncProtocol.ASP
    assert arrive(schedule, 0, 0, 0, 1) == [together(0), together(0), applied(0), last_of_asp(1, 2)]
    assert (schedule.current, schedule.protocol, schedule.over) == (1, SyncProtocol.BSP, False)
    assert arrive(schedule, 1, 0) == [NOTHING, together(0, 1)]
    assert done(schedule) == [4, 2]
    assert is_over(schedule, finished=True)


def test_bsp_asp_bsp() -> None:
    schedule = Schedule("101", [1, 1, 1], 3, "none")
    arrive(schedule, 0, 1, 2)
    # An ASP phase of one step closes with its first gradient.
    assert arrive(schedule, 1, 2, 0) == [applied(1), applied(2), last_of_asp(0, 3)]
    assert (schedule.current, schedule.protocol) == (2, SyncProtocol.BSP)
    assert arrive(schedule, 0, 2, 1) == [NOTHING, NOTHING, together(0, 1, 2)]
    assert done(schedule) == [3, 3, 3]
    assert is_over(schedule, finished=True)


def test_from_one_asp_phase_to_the_next_all_begin_together() -> None:
    schedule = Schedule("00", [1, 2], 2, "none")
    assert arrive(schedule, 0, 1) == [applied(0), last_of_asp(1, 2)]
    assert (schedule.current, schedule.protocol) == (1, SyncProtocol.ASP)
    assert arrive(schedule, 0, 0, 0, 1) == [together(0), together(0), applied(0), last_of_asp(1, 2)]
    assert done(schedule) == [2, 4]


def test_without_a_policy_nobody_leaves_the_step() -> None:
    schedule = Schedule("10", [2, 1], 2, "none")
    assert arrive(schedule, 0, 1, out_of_step=(0, 1)) == [NOTHING, together(0, 1)]
    assert arrive(schedule, 1, out_of_step=(1,)) == [NOTHING]


# -------------------------------------------------------------------------------------------------------- greedy


def test_greedy_applies_what_waits_as_one_update_and_goes_over_to_asp() -> None:
    schedule = Schedule("10", [4, 4], 4, "greedy")
    assert arrive(schedule, 2, 0, 1, out_of_step=(1,)) == [NOTHING, NOTHING, together(0, 1, 2)]
    assert (schedule.current, schedule.protocol) == (0, SyncProtocol.ASP)
    assert done(schedule) == [3, 0]
    # From here on the batches are those of the phase under ASP.
    assert arrive(schedule, 0, 1, 3, out_of_step=(0, 1, 3)) == [together(0), together(1), together(3)]
    assert done(schedule) == [3, 3]


def test_greedy_begins_with_a_complete_round_where_the_last_to_arrive_says_so() -> None:
    schedule = Schedule("10", [4, 4], 3, "greedy")
    assert arrive(schedule, 0, 1, 2, out_of_step=(2,))[-1] == together(0, 1, 2)
    assert (schedule.current, schedule.protocol) == (0, SyncProtocol.ASP)
    assert done(schedule) == [3, 0]


def test_greedy_comes_back_to_bsp_when_nobody_was_told_to_go_alone_any_more() -> None:
    schedule = Schedule("10", [2, 4], 3, "greedy")
    arrive(schedule, 0, 1, out_of_step=(0, 1))
    assert arrive(schedule, 2, 0, out_of_step=(2, 0)) == [together(2), together(0)]
    assert arrive(schedule, 0, 1) == [together(0), together(1)]  # worker 2 has not heard better
    assert schedule.protocol is SyncProtocol.ASP
    assert arrive(schedule, 2) == [applied(2)]  # the straggler has cleared
    assert schedule.protocol is SyncProtocol.CLOSING
    assert arrive(schedule, 1, 0) == [applied(1), last_of_asp(0, 3)]
    assert (schedule.current, schedule.protocol) == (0, SyncProtocol.BSP)
    # Two gradients went over, so of six batches of BSP four are left: two rounds, with two batches too much.
    assert done(schedule) == [1, 8]
    arrive(schedule, 0, 1, 2)
    assert (schedule.current, schedule.protocol) == (0, SyncProtocol.BSP)
    assert arrive(schedule, 0, 1, 2)[-1] == together(0, 1, 2)
    assert done(schedule) == [7, 8]
    assert (schedule.current, schedule.protocol) == (1, SyncProtocol.ASP)
    # Four of ASP's twelve batches are left.
    assert arrive(schedule, 0, 0, 1, 2) == [together(0), applied(0), applied(1), last_of_asp(2, 3)]
    assert done(schedule) == [7, 12]
    assert is_over(schedule, finished=True)


def test_greedy_goes_back_to_bsp_when_the_batches_of_asp_are_used_up() -> None:
    schedule = Schedule("10", [2, 1], 2, "greedy")
    assert arrive(schedule, 0, out_of_step=(0,)) == [together(0)]
    assert arrive(schedule, 0, 1, out_of_step=(0, 1)) == [applied(0), last_of_asp(1, 2)]
    assert (schedule.protocol, done(schedule)) == (SyncProtocol.BSP, [1, 2])
    # Both are out of step, but nothing is left to be done under ASP: straggler or not, BSP it is.
    assert arrive(schedule, 0, 1, out_of_step=(0, 1)) == [NOTHING, together(0, 1)]
    assert arrive(schedule, 1, 0, out_of_step=(0, 1)) == [NOTHING, together(0, 1)]
    assert done(schedule) == [5, 2]
    assert is_over(schedule, finished=True)  # the phase under ASP is done already


def test_greedy_leaves_asp_alone_where_less_than_a_step_of_it_is_left() -> None:
    schedule = Schedule("10", [2, 1], 3, "greedy", done=[0, 1])
    assert arrive(schedule, 0, out_of_step=(0,)) == [NOTHING]
    assert schedule.protocol is SyncProtocol.BSP


def test_greedy_takes_the_batches_of_the_next_asp_phase_and_not_of_a_later_one() -> None:
    schedule = Schedule("1010", [2, 1, 1, 3], 2, "greedy")
    arrive(schedule, 0, out_of_step=(0,))
    arrive(schedule, 0, 1, out_of_step=(0, 1))
    assert done(schedule) == [1, 2, 0, 0]
    assert arrive(schedule, 0, 1, 0, 1)[-1] == together(0, 1)
    assert (schedule.current, schedule.protocol) == (2, SyncProtocol.BSP)  # over the used one
    assert arrive(schedule, 1, out_of_step=(1,)) == [together(1)]
    assert arrive(schedule, 1, out_of_step=(1,)) == [together(1)]
    assert done(schedule) == [5, 2, 1, 1]


def test_a_phase_under_bsp_that_ends_when_greedy_acts_is_followed_by_its_asp() -> None:
    schedule = Schedule("10", [1, 2], 2, "greedy", done=[1, 0])
    assert arrive(schedule, 0, out_of_step=(0,)) == [together(0)]
    assert (schedule.current, schedule.protocol) == (1, SyncProtocol.ASP)
    assert arrive(schedule, 0, 0) == [together(0), together(0)]  # of its own phase: clearing does not end it


# ------------------------------------------------------------------------------------------------------- elastic


def test_elastic_leaves_a_straggler_out_after_its_round_and_takes_it_back_at_the_phases_end() -> None:
    schedule = Schedule("10", [3, 2], 3, "elastic")
    assert arrive(schedule, 0, 1, 2, out_of_step=(2,)) == [NOTHING, NOTHING, Outcome((0, 1, 2), (0, 1))]
    assert schedule.left_out == {2}
    assert arrive(schedule, 1, 0) == [NOTHING, together(0, 1)]
    assert (schedule.steps, schedule.batches, schedule.current) == (2, 5, 0)
    # The phase has its three steps; then worker 2 goes on, whose gradient was applied long ago.
    assert arrive(schedule, 0, 1) == [NOTHING, Outcome((0, 1), (0, 1, 2))]
    assert (done(schedule), schedule.batches, schedule.left_out) == ([9, 0], 7, set())
    assert (schedule.current, schedule.protocol) == (1, SyncProtocol.ASP)
    assert arrive(schedule, 2) == [together(2)]


def test_a_phase_of_ten_steps_stays_one_of_ten_updates_without_the_straggler() -> None:
    schedule, updates = Schedule("1", [10], 4, "elastic"), 0
    while not schedule.over:
        members = sorted(set(range(4)) - schedule.left_out)
        updates += sum(bool(step.apply) for step in arrive(schedule, *members, out_of_step=(3,)))
    assert (updates, schedule.steps, schedule.batches) == (10, 10, 4 + 9 * 3)


def test_a_gradient_is_dealt_with_when_it_is_applied_and_not_when_its_worker_goes_on() -> None:
    schedule = Schedule("10", [2, 2], 2, "elastic")
    arrive(schedule, 0, 1, out_of_step=(1,))
    arrive(schedule, 0)
    assert schedule.processed_at == [3, 2]
    arrive(schedule, 0, 1)
    assert schedule.processed_at == [4, 5]


def test_elastic_leaves_out_a_second_straggler_too() -> None:
    schedule = Schedule("1", [4], 3, "elastic")
    arrive(schedule, 0, 1, 2, out_of_step=(2,))
    assert arrive(schedule, 0, 1, out_of_step=(1,)) == [NOTHING, Outcome((0, 1), (0,))]
    assert schedule.left_out == {1, 2}
    assert arrive(schedule, 0) == [together(0)]


def test_elastic_never_leaves_everybody_out() -> None:
    schedule = Schedule("1", [4], 2, "elastic")
    assert arrive(schedule, 0, 1, out_of_step=(0, 1)) == [NOTHING, together(0, 1)]
    assert schedule.left_out == set()
    arrive(schedule, 0, 1, out_of_step=(1,))
    assert schedule.left_out == {1}
    assert arrive(schedule, 0, out_of_step=(0,)) == [together(0)]


def test_elastic_leaves_nobody_out_of_the_next_phase_for_what_was_said_in_the_last_round() -> None:
    schedule = Schedule("10", [1, 2], 2, "elastic")
    arrive(schedule, 0, 1, out_of_step=(0,))  # the phase's last round: it leaves out no worker
    assert schedule.left_out == set()
    schedule = Schedule("11", [1, 2], 2, "elastic")
    arrive(schedule, 0, 1, out_of_step=(0,))
    assert arrive(schedule, 0, 1) == [NOTHING, together(0, 1)]
    assert schedule.left_out == set()


# ------------------------------------------------------------------------------------------------------ the stop


def test_a_stop_request_under_bsp_ends_the_job_with_the_round() -> None:
    schedule = Schedule("10", [9, 9], 3, "none")
    assert arrive(schedule, 0, 1, 2, stop=(0,)) == [NOTHING, NOTHING, together(0, 1, 2)]
    assert is_over(schedule, finished=False)


def test_a_worker_that_waits_may_request_the_stop() -> None:
    schedule = Schedule("10", [9, 9], 2, "none")
    arrive(schedule, 0)
    schedule.want_stop()
    assert not schedule.over
    assert arrive(schedule, 1) == [together(0, 1)]
    assert is_over(schedule, finished=False)


def test_a_stop_request_under_asp_ends_the_job_at_once_and_the_gradients_on_the_way_count() -> None:
    schedule = Schedule("0", [9], 3, "none")
    assert arrive(schedule, 1, stop=(1,)) == [together(1)]
    assert is_over(schedule, finished=False)
    assert arrive(schedule, 0, 2) == [together(0), together(2)]
    assert schedule.batches == 3


def test_a_wish_to_stop_while_asp_closes_ends_the_job_when_all_are_there() -> None:
    schedule = Schedule("01", [1, 9], 3, "none")
    arrive(schedule, 0)
    schedule.want_stop()
    assert arrive(schedule, 1) == [applied(1)]
    assert not schedule.over
    assert arrive(schedule, 2) == [last_of_asp(2, 3)]
    assert is_over(schedule, finished=False)


def test_a_wish_to_stop_frees_whoever_was_left_out() -> None:
    schedule = Schedule("1", [9], 3, "elastic")
    arrive(schedule, 0, 1, 2, out_of_step=(1,))
    assert arrive(schedule, 0, 2, stop=(0,)) == [NOTHING, Outcome((0, 2), (0, 1, 2))]
    assert is_over(schedule, finished=False)


def test_whoever_would_be_left_out_by_the_last_round_goes_on_too() -> None:
    schedule = Schedule("1", [9], 2, "elastic")
    assert arrive(schedule, 0, 1, out_of_step=(0,), stop=(1,)) == [NOTHING, together(0, 1)]


def test_a_wish_of_one_who_waits_when_greedy_goes_over_to_asp_counts_at_once() -> None:
    schedule = Schedule("10", [9, 9], 3, "greedy")
    assert arrive(schedule, 0, 1, out_of_step=(1,), stop=(0,)) == [NOTHING, together(0, 1)]
    assert is_over(schedule, finished=False)
    assert arrive(schedule, 2) == [together(2)]  # its gradient was under way, and it leaves


# -------------------------------------------------------------------------------------------------------- resume


def test_a_job_goes_on_in_the_phase_where_it_was() -> None:
    schedule = Schedule("101", [2, 2, 2], 2, "none", done=[4, 1, 0], batches=5)
    assert (schedule.current, schedule.protocol, schedule.steps, schedule.batches) == (1, SyncProtocol.ASP, 2, 5)
    assert arrive(schedule, 0, 0, 1) == [together(0), applied(0), last_of_asp(1, 2)]
    assert done(schedule) == [4, 4, 0]


def test_a_job_that_was_saved_without_a_straggler_has_the_steps_and_the_batches_that_were_done() -> None:
    before = Schedule("10", [3, 2], 3, "elastic")
    arrive(before, 0, 1, 2, out_of_step=(2,))
    arrive(before, 0, 1)
    after = Schedule("10", [3, 2], 3, "elastic", done(before), before.batches)
    assert (after.steps, after.batches, after.left_out) == (2, 5, set())
    arrive(after, 0, 1, 2)
    assert (after.steps, after.batches, after.current) == (3, 8, 1)


@pytest.mark.parametrize("policy", ["none", "elastic"])
def test_a_job_goes_on_in_the_middle_of_a_phase_under_bsp(policy: str) -> None:
    schedule = Schedule("10", [2, 1], 2, policy, done=[2, 0])
    assert (schedule.current, schedule.protocol, schedule.over) == (0, SyncProtocol.BSP, False)
    arrive(schedule, 0, 1)
    assert (schedule.current, schedule.protocol) == (1, SyncProtocol.ASP)


def test_a_phase_that_has_gone_beyond_its_end_is_done() -> None:
    schedule = Schedule("10", [2, 2], 3, "greedy", done=[7, 0])
    assert (schedule.current, schedule.protocol) == (1, SyncProtocol.ASP)
    assert [phase.left for phase in schedule.phases] == [0, 6]


def test_of_a_finished_job_nothing_is_left() -> None:
    schedule = Schedule("10", [2, 1], 2, "none", done=[4, 2])
    assert is_over(schedule, finished=True)
    assert arrive(schedule, 1, 0) == [Outcome((), (1,)), Outcome((), (0,))]
    assert schedule.dropped == [1, 1]


def test_a_new_job_is_neither_finished_nor_over() -> None:
    schedule = Schedule("10", [1, 1], 2, "none")
    assert not schedule.over
    assert not schedule.finished
    assert schedule.batches == 0
