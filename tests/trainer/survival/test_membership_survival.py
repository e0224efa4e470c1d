"""How a job goes on when workers are lost or come: the state server's rule, and workers that ask it in virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server import membership
from server.membership import ALIVE_S, GONE_S, Assignment, Group
from server.messages import Beat, Call, Join, Left, Place
from server.worker import Device

from trainer.survival.recovery import Arrangement, WorkerReport, arrange

PATIENCE_S = 10.0


def join(name: str, number: int, num_workers: int, min_workers: int = 1, **more: Any) -> Join:
    device = Device("h1", f"cpu{number}")
    return Join(name, "a", num_workers, "10.0.0.1", 4000 + number, device, min_workers, PATIENCE_S, **more)


def numbers(place: Place) -> set[int]:
    return {int(member.name.removeprefix("w")) for member in place.members}


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

    def start(self, *numbers: int, lost: Iterable[int] = ()) -> list[str]:
        """These ask: all but the last wait, and with that one a generation begins. Returns its members."""
        calls = [self.join(number, lost).call for number in numbers]
        assert calls == [Call.WAIT] * (len(numbers) - 1) + [Call.START]
        return self.members()

    def members(self) -> list[str]:
        return [one.name for one in self.table.members]


def test_those_that_are_left_start_at_once_when_all_of_them_are_back() -> None:
    job = Job(4)
    assert job.join(0, lost=[2]).call is Call.WAIT
    assert "generation 2 of job 'a' waits for worker 1 (cpu1" in job.reason and "worker 3 (cpu3" in job.reason
    assert job.start(3, 1, lost=[2]) == ["w0", "w1", "w3"]
    for number in (0, 3):  # they hear of it when they ask again
        job.join(number, lost=[2])
    assert {number: place.rank for number, place in job.places.items() if place.generation == 2} == {0: 0, 1: 1, 3: 2}


def test_one_that_only_looked_lost_to_another_has_to_wait_for_the_next_generation() -> None:
    job = Job(3)
    job.join(1)
    assert job.start(0, lost=[1, 2]) == ["w0"]
    assert job.join(1, lost=[0]).call is Call.WAIT and job.join(2, lost=[0]).call is Call.WAIT
    assert job.beat(0).call is Call.PAUSE
    assert job.start(0) == ["w0", "w1", "w2"]


def test_one_that_dies_while_the_others_come_back_is_left_out_too() -> None:
    job = Job(4)
    job.join(1, lost=[3]), job.join(0, lost=[3])
    assert job.start(2, lost=[3, 1]) == ["w0", "w2"]


def test_one_that_is_cut_off_from_this_server_counts_as_lost_after_a_while() -> None:
    job = Job(3)
    job.join(0)
    while job.now <= PATIENCE_S:
        assert job.join(1).call is Call.WAIT
        job.now += 1.0
        job.join(0)
    assert job.start(1) == ["w0", "w1"]
    assert job.join(2).call is Call.WAIT  # it wakes up, and has to wait for the others
    assert job.beat(0).call is Call.PAUSE
    assert job.start(0, 1) == ["w0", "w1", "w2"]


def test_with_too_few_left_the_job_waits_until_others_come() -> None:
    job = Job(3, min_workers=2)
    assert job.join(0, lost=[1, 2]).call is Call.WAIT
    assert job.reason == "1 of at least 2 workers (--min-workers) of job 'a' are there"
    assert job.start(7) == ["w0", "w7"]


def test_a_worker_that_comes_to_a_job_at_work_is_taken_in_when_its_workers_pause() -> None:
    job = Job(2)
    assert job.beat(0).call is None
    assert job.join(5).call is Call.WAIT and "is at work" in job.reason
    assert job.beat(0).call is Call.PAUSE
    assert job.start(0, 1) == ["w0", "w1", "w5"]
    assert job.join(5).call is Call.START


def test_a_newcomer_that_asks_no_more_is_not_waited_for() -> None:
    job = Job(2)
    job.join(5)
    job.now += ALIVE_S + 1
    assert job.beat(0).call is None
    assert job.start(0, 1) == ["w0", "w1"]


def test_a_worker_that_left_in_order_is_not_waited_for() -> None:
    job = Job(3)
    job.leave(1)
    assert job.start(0, 2) == ["w0", "w2"]


def test_a_worker_that_comes_too_late_hears_that_the_job_is_over_and_begins_none() -> None:
    job = Job(2)
    job.join(5)
    job.leave(0), job.leave(1)
    assert job.join(5).call is Call.OVER
    assert job.join(6).call is Call.WAIT and "1 worker(s) of job" in job.reason  # of the next job of this name
    assert job.join(7).call is Call.START


def test_one_that_wakes_up_after_the_job_hears_that_it_is_over() -> None:
    job = Job(3)
    job.join(0, lost=[2])
    job.join(1, lost=[2])
    job.leave(0), job.leave(1)
    assert job.join(2).call is Call.OVER


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
    assert job.members() == ["worker-aa-2", "worker-aa-3"]


def test_when_all_have_died_those_that_listen_in_their_places_begin_anew_at_once() -> None:
    job = Job(2)
    answers = [job._decide(join(f"new{number}", number, 2)) for number in range(2)]
    assert "job 'a' is at work" not in job.reason
    assert answers[1].call is Call.START and job.members() == ["new0", "new1"]


def test_one_that_is_started_anew_in_its_old_place_is_not_waited_for_under_its_old_name() -> None:
    job = Job(3)
    anew = join("new2", 2, 3)
    assert job._decide(anew).call is Call.WAIT
    assert job.beat(0).call is Call.PAUSE
    assert job.start(0, 1) == ["w0", "w1", "new2"]


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
    assert job.members() == ["worker-aa-0", "worker-aa-2", "worker-aa-3"]


def test_a_member_of_another_generation_comes_back_and_is_not_ended() -> None:
    job = Job(2)
    other = msgspec.structs.replace(job.places[1], id="f", lineage="f")
    job.places[1] = other
    assert job.beat(1).call is Call.REGROUP
    assert job.join(1).call is Call.START and job.places[1].id == job.table.id  # its START was lost
    stranger = msgspec.structs.asdict(msgspec.structs.replace(other, generation=9))
    assert job._decide(join("w5", 5, 2, **stranger)).call is Call.WAIT and job.table.generation == 1


@given(st.integers(2, 6), st.data())
def test_whichever_workers_die_in_any_order_one_newest_generation_holds_all_that_live(
    number: int, data: st.DataObject
) -> None:
    """Workers die, one after the other or several at once, also while the others come back."""
    job = Job(number)
    alive, dead = set(range(number)), set[int]()

    def is_broken(one: int) -> bool:
        place = job.places[one]
        return place.generation != job.table.generation or any(other in numbers(place) for other in dead)

    while len(alive) > 1:
        victims = data.draw(st.sets(st.sampled_from(sorted(alive)), min_size=1, max_size=len(alive) - 1))
        between = data.draw(st.lists(st.sampled_from(sorted(alive)), max_size=4))  # ask before they die, or again
        for one in between:
            job.join(one)
        alive, dead = alive - victims, dead | victims
        while any(is_broken(one) for one in alive):
            for one in data.draw(st.permutations(sorted(alive))):
                if is_broken(one):
                    job.join(one, lost=[other for other in dead if other in numbers(job.places[one])])
        newest = {job.places[one].generation for one in alive}
        assert newest == {job.table.generation}
        ranks = [job.places[one].rank for one in sorted(alive)]
        assert len({*ranks}) == len(ranks)
        assert {one.name for one in job.table.members} == {f"w{one}" for one in alive}


# ------------------------------------------------------------------------------------------ whose model all go on with


def report(rounds: int, takes_part: bool = True) -> WorkerReport:
    return WorkerReport(takes_part, rounds, 0.0, 0, None, 0, True, "", False)


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
