"""How a job goes on when workers are lost or come: the state server's rule, and workers that ask it in virtual time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from server.messages import Beat, Call, Join, Left, Place
from server.rendezvous import membership
from server.rendezvous.membership import ALIVE_S, GONE_S, Assignment, Group
from server.row import Device
from trainer.survival.recovery import Arrangement, WorkerReport, arrange

PATIENCE_S = 10.0


def join(name: str, number: int, num_workers: int, min_workers: int = 1, **more: Any) -> Join:
    device = Device("h1", f"cpu{number}")
    return Join(name, "a", num_workers, "10.0.0.1", 4000 + number, device, min_workers, PATIENCE_S, **more)


class Job:
    """Workers that talk to the rule; each knows what it was told last."""

    def __init__(self, num_workers: int, min_workers: int = 1) -> None:
        self.num_workers, self.min_workers = num_workers, min_workers
        self.table = Group()
        self.now, self.drawn = 0.0, 0
        self.places: dict[int, Place] = {}
        self.reason = ""
        for number in (*range(num_workers), *range(num_workers - 1)):  # the last one is told to start at once
            self.join(number)

    def join(self, number: int, lost: Iterable[int] = ()) -> Assignment:
        """Worker `number` asks; it has seen workers `lost` end, by their numbers."""
        before = self.places.get(number)
        ranks = [self.rank_in(before, one) for one in lost] if before else []
        place = msgspec.structs.asdict(before) if before else {}
        answer = self._decide(
            join(f"w{number}", number, self.num_workers, self.min_workers, **place, lost=tuple(ranks))
        )
        if answer.call is Call.START:
            assert answer.place is not None
            self.places[number] = answer.place
        return answer

    def beat(self, number: int) -> Assignment:
        return self._decide(Beat(f"w{number}", "a", **msgspec.structs.asdict(self.places[number])))

    def leave(self, number: int) -> Assignment:
        return self._decide(Left(f"w{number}", "a"))

    def _decide(self, event: Join | Beat | Left) -> Assignment:
        self.drawn += 1
        self.table, answer, self.reason = membership.decide(self.table, event, self.now, drawn=f"{self.drawn:x}")
        return answer

    @staticmethod
    def rank_in(place: Place, number: int) -> int:
        return next(rank for rank, one in enumerate(place.members) if one.name == f"w{number}")

    def follow(self, story: str) -> None:
        """What workers do in turn, and what they are told, as in STORIES. Who asks anew is another process in the place
        of the one before it."""
        for words in story.split("; "):
            if of := re.fullmatch(r"of (\d+)", words):
                self.num_workers = int(of[1])
                continue
            step = re.fullmatch(r"(\d+) (s pass|asks|asks anew|beats|leaves)(?:, lost ([\d ]+))?(?:: (\w+))?", words)
            assert step, words
            number, what, lost, told = int(step[1]), step[2], step[3] or "", step[4]
            if what == "s pass":
                self.now += number
                continue
            if what == "asks anew":
                answer = self._decide(join(f"w{number}0", number, self.num_workers))
            elif what == "asks":
                answer = self.join(number, map(int, lost.split()))
            else:
                answer = (self.beat if what == "beats" else self.leave)(number)
            assert told in (None, answer.call.name if answer.call else "None"), (words, answer, self.reason)

    def members(self) -> str:
        return " ".join(one.name for one in self.table.members)


COMING_BACK = "; ".join(["1 asks: WAIT; 1 s pass; 0 asks"] * int(PATIENCE_S + 1))
STORIES = [
    # Those that are left start at once when all of them are back.
    "4 train; 0 asks, lost 2: WAIT; 3 asks, lost 2: WAIT; 1 asks, lost 2: START; 0 asks: START; w0 w1 w3 train",
    # One that only looked lost to another has to wait for the next generation.
    "3 train; 1 asks; 0 asks, lost 1 2: START; w0 train",
    "3 train; 1 asks; 0 asks, lost 1 2; 1 asks: WAIT; 2 asks, lost 0: WAIT; 0 beats: PAUSE; 0 asks; w0 w1 w2 train",
    # One that dies while the others come back is left out too.
    "4 train; 1 asks, lost 3; 0 asks, lost 3; 2 asks, lost 3 1: START; w0 w2 train",
    # One that is cut off from this server counts as lost after a while, and waits for the others when it is back.
    f"3 train; 0 asks; {COMING_BACK}; 1 asks: START; w0 w1 train",
    f"3 train; 0 asks; {COMING_BACK}; 1 asks; 2 asks: WAIT; 0 beats: PAUSE; 0 asks; 1 asks; w0 w1 w2 train",
    # A worker that comes to a job at work is taken in when its workers pause.
    "2 train; 0 beats: None; 5 asks: WAIT; 0 beats: PAUSE; 0 asks: WAIT; 1 asks: START; 5 asks: START; w0 w1 w5 train",
    # A newcomer that asks no more is not waited for.
    f"2 train; 5 asks; {int(ALIVE_S + 1)} s pass; 0 beats: None; 0 asks; 1 asks: START; w0 w1 train",
    # A worker that left in order is not waited for.
    "3 train; 1 leaves; 0 asks; 2 asks: START; w0 w2 train",
    # A worker that comes too late hears that the job is over, and begins none; but those of the next one do.
    "2 train; 5 asks; 0 leaves; 1 leaves; 5 asks: OVER; 6 asks: WAIT; 7 asks: START; w6 w7 train",
    # One that wakes up after the job hears that it is over.
    "3 train; 0 asks, lost 2; 1 asks, lost 2; 0 leaves; 1 leaves; 2 asks: OVER; w0 w1 train",
    # Before the job begins one that waits no more, or does not ask again, does not count; and none counts twice.
    "0 train; of 2; 0 asks: WAIT; 11 s pass; 1 asks: WAIT; 0 asks: START; w0 w1 train",
    "0 train; of 2; 0 asks: WAIT; 0 leaves; 1 asks: WAIT; 0 asks: START; w0 w1 train",
    "0 train; of 2; 0 asks: WAIT; 0 asks anew: WAIT; 1 asks: START; w00 w1 train",
    # When all have died, those that listen in their places begin anew at once.
    "2 train; 0 asks anew: WAIT; 1 asks anew: START; w00 w10 train",
    # One that is started anew in its old place is not waited for under its old name.
    "3 train; 2 asks anew: WAIT; 0 beats: PAUSE; 0 asks; 1 asks: START; w0 w1 w20 train",
]


@pytest.mark.parametrize("story", STORIES)
def test_who_is_told_what_and_who_trains(story: str) -> None:
    begin, *steps, end = story.split("; ")
    job = Job(int(begin.removesuffix(" train")))
    job.follow("; ".join(steps))
    assert f"{job.members()} train" == end


def test_who_waits_is_told_for_whom() -> None:
    job = Job(4)
    job.follow("0 asks, lost 2: WAIT")
    assert "generation 2 of job 'a' waits for worker 1 (cpu1" in job.reason and "worker 3 (cpu3" in job.reason
    job.follow("3 asks, lost 2; 1 asks, lost 2; 0 asks; 3 asks")
    assert {number: place.rank for number, place in job.places.items() if place.generation == 2} == {0: 0, 1: 1, 3: 2}
    job.follow("5 asks: WAIT")
    assert "is at work" in job.reason


def test_with_too_few_left_the_job_waits_until_others_come() -> None:
    job = Job(3, min_workers=2)
    job.follow("0 asks, lost 1 2: WAIT")
    assert job.reason == "1 of at least 2 workers (--min-workers) of job 'a' are there"
    job.follow("7 asks: START")
    assert job.members() == "w0 w7"


def test_a_job_that_has_fallen_silent_makes_room_for_no_other_and_says_which_command_does() -> None:
    job = Job(2)
    while job.now < GONE_S + 2.0:
        assert job.join(5).call is job.join(6).call is Call.WAIT
        job.now += 1.0
    assert "none of its workers is heard: worker 0 (cpu0 on host h1" in job.reason
    assert job.reason.endswith("If all have ended, start the state server with --begin-anew")


def launched(number: int, *living: int, before: Place | None = None) -> Join:
    """Of a process that a launcher has started as its `number`-th, in a place of its own."""
    place = msgspec.structs.asdict(before) if before else {}
    return msgspec.structs.replace(join("", number, 2, **place), sender=f"worker-aa-{number}", living=living)


def test_when_all_have_ended_by_their_launchers_word_others_begin_anew_at_once() -> None:
    job = Job(0)
    assert job._decide(launched(0)).call is Call.WAIT
    assert job._decide(launched(1, 0)).call is Call.START
    assert job._decide(launched(2, 0)).call is Call.WAIT and "is at work" in job.reason  # worker 1 has ended
    assert job._decide(launched(3, 2)).call is Call.START
    assert job.members() == "worker-aa-2 worker-aa-3"


def test_a_server_without_a_record_waits_for_all_members_of_the_newest_generation_or_for_all_that_live() -> None:
    job = Job(3)
    old = job.places[1]
    for number in (0, 2):
        job.join(number, lost=[1])
    job.join(0)
    job.table = Group()
    job.places[1] = old
    assert job.join(1).call is Call.WAIT and "waits to hear from worker 0 (cpu0 on host h1" in job.reason
    assert job.beat(0).call is None and job.reason.endswith(
        "waits to hear from worker 1 (cpu2 on host h1, 10.0.0.1:4002)"
    )
    assert job.beat(2).call is None and job.reason == "generation 2 is at work"
    assert job.join(1).call is Call.WAIT and job.beat(0).call is Call.PAUSE


def test_a_server_without_a_record_takes_the_launchers_word_for_the_end_of_members_and_hears_all_that_live() -> None:
    job = Job(0)
    job._decide(launched(0)), job._decide(launched(1, 0))
    place = job._decide(launched(0)).place
    job.table = Group()
    assert job._decide(launched(0, before=place)).call is Call.WAIT and "hear from worker 1 (" in job.reason
    job._decide(launched(3, 0, 2))  # 1 has ended
    assert job.reason.endswith("waits to hear from process 2 of the launcher")
    job._decide(launched(2, 0)), job._decide(launched(3, 0, 2))
    assert job._decide(launched(0, before=place)).call is Call.START
    assert job.members() == "worker-aa-0 worker-aa-2 worker-aa-3"


def test_a_member_of_another_generation_comes_back_and_is_not_ended() -> None:
    job = Job(2)
    other = msgspec.structs.replace(job.places[1], id="f", lineage="f")
    job.places[1] = other
    assert job.beat(1).call is Call.REGROUP
    assert job.join(1).call is Call.START and job.places[1].id == job.table.id  # its START was lost
    stranger = msgspec.structs.asdict(msgspec.structs.replace(other, generation=9))
    assert job._decide(join("w5", 5, 2, **stranger)).call is Call.WAIT and job.table.generation == 1


# ------------------------------------------------------------------------------------------ whose model all go on with


def report(rounds: int, takes_part: bool = True) -> WorkerReport:
    return WorkerReport(takes_part, rounds, 0.0, 0.3, 0, None, 0, True, "", False)


@pytest.mark.parametrize(
    ("told", "decided"),
    [
        # Lost in round 5, which two have done.
        (
            [report(3), report(5), report(5), report(0, takes_part=False)],
            Arrangement(True, source=1, behind=(0, 3), newcomers=(3,)),
        ),
        # The newcomer's own checkpoint is later than the job.
        (
            [report(9, takes_part=False), report(5), report(4)],
            Arrangement(True, source=1, behind=(0, 2), newcomers=(0,)),
        ),
        # The first round is under way.
        ([report(0), report(0, takes_part=False)], Arrangement(True, source=0, behind=(1,), newcomers=(1,))),
        # One has left.
        ([report(4), report(4)], Arrangement(True, source=0)),
        # All go on from checkpoints.
        ([report(2, takes_part=False), report(7, takes_part=False)], Arrangement(False, source=1, behind=(0,))),
        # All begin.
        ([report(0, takes_part=False), report(0, takes_part=False)], Arrangement(False)),
    ],
)
def test_a_generation_goes_on_with_the_model_of_a_worker_that_has_done_most_rounds_of_the_job(told, decided) -> None:
    assert arrange(told) == decided
