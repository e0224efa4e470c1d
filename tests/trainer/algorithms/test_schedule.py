"""Sync-Switch's course through its phases: small jobs worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trainer.algorithms.schedule import Outcome, Schedule

# What an entry of a course says: of the schedule then, or of the phases by their numbers.
SAID: dict[str, Callable[[Schedule], object]] = {
    "protocol": lambda schedule: schedule.protocol.name,
    "phase": lambda schedule: schedule.current,
    "done": lambda schedule: ",".join(str(phase.done) for phase in schedule.phases),
    "left": lambda schedule: ",".join(str(phase.left) for phase in schedule.phases),
    "steps": lambda schedule: schedule.steps,
    "batches": lambda schedule: schedule.batches,
    "processed_at": lambda schedule: ",".join(map(str, schedule.processed_at)),
    "dropped": lambda schedule: ",".join(map(str, schedule.dropped)),
    "left_out": lambda schedule: "".join(map(str, sorted(schedule.left_out))),
    "job": lambda schedule: ("finished" if schedule.finished else "stopped") if schedule.over else "goes-on",
}


def ranks(text: str) -> tuple[int, ...]:
    return tuple(map(int, text))


def outcome(text: str) -> Outcome:
    """`01`: their gradients are one update, and they go on; `0|01`: the gradient of 0 is one, and 0 and 1 go on."""
    apply, bar, answered = text.partition("|")
    return Outcome(ranks(apply), ranks(answered if bar else apply))


def follow(schedule: Schedule, course: str) -> None:
    """Follows a course, whose entries are in order of time, and compares.

    `0`: worker 0's gradient arrives, and all wait; `0=01`: what it leads to (see `outcome`). Behind the rank: `!`: the
    worker was told not to stay in step; `.`: it wants the job to end. `-0`: worker 0 is lost; `stop`: one that waits
    wants the job to end. Anything else is a name of SAID, and what is said.
    """
    for entry in course.split():
        what, _, expected = entry.partition("=")
        if what in SAID:
            assert str(SAID[what](schedule)) == expected, entry
        elif what == "stop":
            schedule.stop_wanted = True
        elif what.startswith("-"):
            assert schedule.remove_worker(int(what[1:])) == outcome(expected), entry
        else:
            schedule.stop_wanted |= "." in what
            assert schedule.arrive(int(what[0]), "!" in what) == outcome(expected), entry


Job = tuple[str, list[int], int, str]  # order, steps, workers and policy

COURSES: dict[str, tuple[Job, str]] = {
    "a new job is neither finished nor over": (("10", [1, 1], 2, "none"), "job=goes-on batches=0 phase=0"),
    # ------------------------------------------------------------------------------------------------ BSP and ASP
    "BSP applies a round when all are there": (
        ("1", [2], 3, "none"),
        "2 0 1=012 batches=3 job=goes-on 0 1 2=012 batches=6 job=finished",
    ),
    "ASP applies each gradient at once and waits at the end for those on the way": (
        ("0", [2], 3, "none"),  # six batches: with the fourth, two are left, those of the two others
        "0=0 0=0 1=1 0=0| protocol=CLOSING job=goes-on 2=2| 1=1|012 done=6 job=finished",
    ),
    "one worker alone never waits": (("10", [1, 2], 1, "none"), "0=0 0=0 0=0 job=finished"),
    "BSP, then ASP": (
        ("10", [1, 2], 2, "none"),
        "1 0=01 phase=1 protocol=ASP 1=1 1=1 1=1| 0=0|01 done=2,4 job=finished",
    ),
    "ASP, then BSP": (
        ("01", [2, 1], 2, "none"),
        "protocol=ASP 0=0 0=0 0=0| 1=1|01 phase=1 protocol=BSP job=goes-on 1 0=01 done=4,2 job=finished",
    ),
    "BSP, ASP and BSP: an ASP phase of one step closes with its first gradient": (
        ("101", [1, 1, 1], 3, "none"),
        "0 1 2=012 1=1| 2=2| 0=0|012 phase=2 protocol=BSP 0 2 1=012 done=3,3,3 job=finished",
    ),
    "from one ASP phase to the next all begin together": (
        ("00", [1, 2], 2, "none"),
        "0=0| 1=1|01 phase=1 protocol=ASP 0=0 0=0 0=0| 1=1|01 done=2,4",
    ),
    "without a policy nobody leaves the step": (("10", [2, 1], 2, "none"), "0! 1!=01 1!"),
    # ---------------------------------------------------------------------------------------------------- greedy
    "greedy applies what waits as one update and goes over to ASP, whose batches are those of its phase": (
        ("10", [4, 4], 4, "greedy"),
        "2 0 1!=012 phase=0 protocol=ASP done=3,0 0!=0 1!=1 3!=3 done=3,3",
    ),
    "greedy begins with a complete round where the last to arrive says so": (
        ("10", [4, 4], 3, "greedy"),
        "0 1 2!=012 phase=0 protocol=ASP done=3,0",
    ),
    "greedy comes back to BSP when nobody was told to go alone any more": (
        ("10", [2, 4], 3, "greedy"),
        # Worker 2 hears last that the straggler has cleared.
        "0!=0 1!=1 2!=2 0!=0 0=0 1=1 protocol=ASP 2=2| protocol=CLOSING 1=1| 0=0|012 phase=0 protocol=BSP "
        # One gradient went over, so of six batches of BSP five are left: two rounds, with a batch too much.
        "done=1,8 0 1 2=012 phase=0 protocol=BSP 0 1 2=012 done=7,8 phase=1 protocol=ASP "
        # Four of ASP's twelve batches are left.
        "0=0 0=0| 1=1| 2=2|012 done=7,12 job=finished",
    ),
    "greedy goes back to BSP when the batches of ASP are used up, straggler or not": (
        ("10", [2, 1], 2, "greedy"),
        "0!=0 0!=0| 1!=1|01 protocol=BSP done=1,2 0! 1!=01 1! 0!=01 done=5,2 job=finished",
    ),
    "greedy takes the batches of the next ASP phase and not of a later one": (
        ("1010", [2, 1, 1, 3], 2, "greedy"),
        "0!=0 0!=0| 1!=1|01 done=1,2,0,0 0 1=01 0 1=01 phase=2 protocol=BSP 1!=1 1!=1 done=5,2,1,1",
    ),
    "greedy goes back to BSP when the straggler is lost": (
        ("10", [4, 6], 3, "greedy"),
        "2!=2 protocol=ASP -2 0=0| 1=1|01 protocol=BSP 0 1=01 0 1=01 0 1=01",
    ),
    # --------------------------------------------------------------------------------------------------- elastic
    "elastic leaves a straggler out after its round and takes it back at the phase's end": (
        ("10", [3, 2], 3, "elastic"),
        "0 1 2!=012|01 left_out=2 1 0=01 steps=2 batches=5 phase=0 "
        # The phase has its three steps; then worker 2 goes on, whose gradient was applied long ago.
        "0 1=01|012 done=9,0 batches=7 left_out= phase=1 protocol=ASP 2=2",
    ),
    "a gradient is dealt with when it is applied and not when its worker goes on": (
        ("10", [2, 2], 2, "elastic"),
        "0 1!=01|0 0=0|01 processed_at=3,2 0=0 1=1 processed_at=4,5",
    ),
    "elastic leaves out a second straggler too": (
        ("1", [4], 3, "elastic"),
        "0 1 2!=012|01 0 1!=01|0 left_out=12 0=0",
    ),
    "elastic never leaves everybody out": (
        ("1", [4], 2, "elastic"),
        "0! 1!=01 left_out= 0 1!=01|0 left_out=1 0!=0",
    ),
    "elastic leaves nobody out for what was said in a phase's last round": (
        ("10", [1, 2], 2, "elastic"),
        "0! 1=01 left_out=",
    ),
    "nor in the next phase": (("11", [1, 2], 2, "elastic"), "0! 1=01 0 1=01 left_out="),
    "who alone was left out takes part again": (("1", [3], 2, "elastic"), "0 1!=01|0 left_out=1 -0=1"),
    # -------------------------------------------------------------------------------------------------- the stop
    "a stop request under BSP ends the job with the round": (("10", [9, 9], 3, "none"), "0. 1 2=012 job=stopped"),
    "a worker that waits may request the stop": (("10", [9, 9], 2, "none"), "0 stop job=goes-on 1=01 job=stopped"),
    "a stop request under ASP ends the job at once and the gradients on the way count": (
        ("0", [9], 3, "none"),
        "1.=1 job=stopped 0=0 2=2 batches=3",
    ),
    "a wish to stop while ASP closes ends the job when all are there": (
        ("01", [1, 9], 3, "none"),
        "0=0| stop 1=1| job=goes-on 2=2|012 job=stopped",
    ),
    "a wish to stop frees whoever was left out": (("1", [9], 3, "elastic"), "0 1! 2=012|02 0. 2=02|012 job=stopped"),
    "whoever would be left out by the last round goes on too": (("1", [9], 2, "elastic"), "0! 1.=01"),
    "a wish of one who waits when greedy goes over to ASP counts at once": (
        ("10", [9, 9], 3, "greedy"),
        "0. 1!=01 job=stopped 2=2",  # its gradient was under way, and it leaves
    ),
    # ------------------------------------------------------------------------------------------------ the losses
    "a round under BSP ends with the loss of the last for whom it waits, and ASP does the batches of the lost": (
        ("10", [1, 2], 3, "none"),
        # At the end one part is left, and worker 2 has it.
        "0 2 -1=02 protocol=ASP done=3,0 0=0 0=0 0=0 0=0 0=0| 2=2|02 job=finished",
    ),
    "ASP ends with the loss of the last in flight": (("01", [1, 1], 2, "none"), "0=0| -1=|0 job=goes-on"),
}

RESUMED: dict[str, tuple[Job, dict[str, Any], str]] = {  # with what was saved
    "a job goes on in the phase where it was": (
        ("101", [2, 2, 2], 2, "none"),
        {"done": [4, 1, 0], "batches": 5},
        "phase=1 protocol=ASP steps=2 batches=5 0=0 0=0| 1=1|01 done=4,4,0",
    ),
    "in the middle of a phase under BSP": (
        ("10", [2, 1], 2, "none"),
        {"done": [2, 0]},
        "phase=0 protocol=BSP job=goes-on 0 1=01 phase=1 protocol=ASP",
    ),
    "saved without a straggler it has the steps and the batches that were done": (
        ("10", [3, 2], 3, "elastic"),
        {"done": [6, 0], "batches": 5},
        "steps=2 batches=5 left_out= 0 1 2=012 steps=3 batches=8 phase=1",
    ),
    "a phase that has gone beyond its end is done": (
        ("10", [2, 2], 3, "greedy"),
        {"done": [7, 0]},
        "phase=1 protocol=ASP left=0,6",
    ),
    "of a finished job nothing is left": (
        ("10", [2, 1], 2, "none"),
        {"done": [4, 2]},
        "job=finished 1=|1 0=|0 dropped=1,1",
    ),
    "greedy leaves ASP alone where less than a step of it is left": (
        ("10", [2, 1], 3, "greedy"),
        {"done": [0, 1]},
        "0! protocol=BSP",
    ),
    "a phase under BSP that ends when greedy acts is followed by its ASP, which clearing does not end": (
        ("10", [1, 2], 2, "greedy"),
        {"done": [1, 0]},
        "0!=0 phase=1 protocol=ASP 0=0 0=0",
    ),
}


@pytest.mark.parametrize("name", COURSES)
def test_a_course_by_hand(name: str) -> None:
    job, course = COURSES[name]
    follow(Schedule(*job), course)


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_job_by_hand(name: str) -> None:
    job, saved, course = RESUMED[name]
    follow(Schedule(*job, **saved), course)
