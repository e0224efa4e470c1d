"""One job never becomes two: random histories of workers that are killed, frozen and cut off from a state server that
is killed and emptied, whose messages come late, twice and out of order. The rule and what keeps its records are the
real ones; in place of training, a generation trains while each of its members is in it and not frozen.

More histories than the suite has: PYTHONPATH=.:SimpleStateServer python -i with this file, and wrong_in(range(1000)).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from server.errors import Conflict
from server.messages import Beat, Call, Join, Place, Response
from server.rendezvous import membership
from server.rendezvous.groups import Rendezvous
from server.rendezvous.journal import Record
from server.rendezvous.membership import Group
from server.row import Device

TICK_S = 0.5
SILENT = 6  # ticks without a sum until a worker comes back
PATIENCE_S = 4.0
BUSY, CALM = 150, 120  # ticks with faults, and after them


class Disk:
    """In place of the journal's folder."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}

    def read(self, job: str, now: float) -> Group:
        found = self.records.get(job)
        return Group() if found is None else msgspec.json.decode(found, type=Record).to_group(now)

    def write(self, job: str, group: Group) -> None:
        fields = {name: getattr(group, name) for name in Record.__struct_fields__ if name != "launcher"}
        self.records[job] = msgspec.json.encode(Record(**fields, launcher=""))

    def remove(self, job: str) -> None:
        self.records.pop(job, None)


@dataclass(eq=False)
class Worker:
    """A process, in the place of the one before it."""

    name: str
    port: int
    living: tuple[int, ...]
    place: Place | None = None
    trains: bool = False
    lost: tuple[int, ...] = ()  # ranks that it has seen to be gone
    frozen: int = 0  # for so many ticks
    cut: int = 0  # likewise, off from the state server
    starts_in: int = 0  # likewise
    alone: int = 0  # ticks without a sum
    asked: int = 0  # number of its last message: an answer to one before it is not heard


@dataclass
class History:
    """What happens in one job. `why` is what is wrong in it."""

    seed: int
    keeps_records: bool = True
    is_launched: bool = True  # by a launcher, whose word the workers bring; else by hand
    rule: type[Rendezvous] = Rendezvous
    now: int = 0
    why: set[str] = field(default_factory=set)
    trained: list[str] = field(default_factory=list)  # ids of generations, each once
    parents: dict[str, str] = field(default_factory=dict)  # by the id of a generation that began

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.num_workers = 2 + self.seed % 4
        self.same_ports = self.draw.random() < 0.5
        self.disk, self.started, self.down = Disk(), 0, 0
        self.under_way: list[tuple[int, Worker, int, Any]] = []  # when it arrives, sender, number, message
        self.workers: list[Worker] = []
        for slot in range(self.num_workers):
            self.workers.append(self._new(4000 + slot))
        self._restart()

    def _new(self, port: int) -> Worker:
        number, self.started = self.started, self.started + 1
        if not self.is_launched:
            return Worker(f"worker-{number:016x}", 4000 + number, ())
        living = tuple(int(worker.name.split("-")[2]) for worker in self.workers)
        return Worker(f"worker-aa-{number}", port if self.same_ports else 4000 + number, living)

    def _restart(self) -> None:
        self.server = self.rule()
        self.server.journal = self.disk if self.keeps_records else None  # type: ignore[assignment]

    # ------------------------------------------------------------------------------------------------- the server

    def _answer(self, message: Join | Beat) -> Response | None:
        before = self._group
        try:
            answer = self.server.handle(message, self.now * TICK_S)
        except Conflict:
            return None
        after = self._group
        if after.id not in (before.id, "") and after.id not in self.parents:
            known = before if before.generation else Group()
            self.parents[after.id] = known.id
        return answer

    @property
    def _group(self) -> Group:
        if known := self.server._jobs.get("a"):
            return known.group
        return self.disk.read("a", 0.0) if self.keeps_records else Group()

    # ------------------------------------------------------------------------------------------------ the workers

    def _message(self, worker: Worker) -> Join | Beat:
        place = {} if worker.place is None else msgspec.structs.asdict(worker.place)
        if worker.trains:
            return Beat(worker.name, "a", **place)
        device = Device("h", f"cpu{worker.port}")
        about = ("10.0.0.1", worker.port, device, 1, PATIENCE_S)
        return Join(worker.name, "a", self.num_workers, *about, **place, lost=worker.lost, living=worker.living)

    def _hear(self, worker: Worker, answer: Response) -> None:
        if answer.action in (Call.OVER, Call.REFUSED):
            self.why.add(f"a healthy worker was ended: {answer.reason}")
        if worker.trains and answer.action in (Call.PAUSE, Call.REGROUP):
            worker.trains, worker.lost = False, ()
        elif not worker.trains and answer.place is not None and answer.place != worker.place:
            worker.place, worker.trains, worker.alone, worker.lost = answer.place, True, 0, ()

    def _others(self, worker: Worker) -> list[Worker | None]:
        """The members of a worker's generation; None: it has ended."""
        assert worker.place is not None
        there = {each.name: each for each in self.workers}
        return [there.get(member.name) for member in worker.place.members]

    def _look(self, worker: Worker) -> None:
        """A worker that trains sees whether the others do: those that come back end the exchange, and are alive."""
        mine, others = worker.place, self._others(worker)
        assert mine is not None
        gone = [rank for rank, other in enumerate(others) if other is None or self._is_past(mine, other)]
        has_ended = any(
            other and not other.frozen and not other.trains and other.place and other.place.id == mine.id
            for other in others
        )
        stands = any(other is None or other.frozen or not self._is_with(worker, other) for other in others)
        worker.alone = worker.alone + 1 if stands else 0
        if gone or has_ended or worker.alone >= SILENT:
            worker.trains, worker.lost = False, tuple(gone)

    @staticmethod
    def _is_past(place: Place, other: Worker) -> bool:
        """Whether another one trains in a later generation."""
        return not other.frozen and other.place is not None and other.place.generation > place.generation

    def _is_with(self, one: Worker, other: Worker) -> bool:
        assert one.place is not None
        return other.trains and other.place is not None and other.place.id == one.place.id

    # ------------------------------------------------------------------------------------------------------ a tick

    def _strike(self) -> None:
        draw = self.draw
        for worker in self.workers:
            if draw.random() < 0.015:
                worker.frozen = max(worker.frozen, draw.choice([2, 6, 12, 20, 40]))
        if draw.random() < 0.02:
            for worker in draw.sample(self.workers, draw.choice([1, 1, len(self.workers) - 1])):
                worker.cut = draw.choice([3, 10, 40])
        if not self.down and draw.random() < 0.04:
            self.down = draw.choice([1, 3])
        if draw.random() < 0.012:
            struck = draw.sample(self.workers, draw.choice([1, 1, 1, len(self.workers)]))
            for worker in struck:
                self.workers.remove(worker)
            for worker in struck:
                self.workers.append(self._new(worker.port))
                self.workers[-1].starts_in = draw.choice([1, 3, 6])

    def _tick(self) -> None:
        self.now += 1
        if self.now < BUSY:
            self._strike()
        if self.down:
            self.down -= 1
            if not self.down:
                self._restart()
        order = [*self.workers]
        self.draw.shuffle(order)
        for worker in order:
            if worker.starts_in or worker.frozen:
                worker.starts_in, worker.frozen = max(0, worker.starts_in - 1), max(0, worker.frozen - 1)
                continue
            worker.cut = max(0, worker.cut - 1)
            if worker.trains:
                self._look(worker)
            if not worker.cut and self.draw.random() < (0.25 if worker.trains else 0.8):
                worker.asked += 1
                for _ in range(2 if self.draw.random() < 0.05 else 1):
                    late = self.draw.choice([1, 4, 15]) if self.draw.random() < 0.05 else 0
                    self.under_way.append((self.now + late, worker, worker.asked, self._message(worker)))
        self.draw.shuffle(self.under_way)
        arrived = [each for each in self.under_way if each[0] <= self.now]
        self.under_way = [each for each in self.under_way if each[0] > self.now]
        for _, worker, number, message in arrived:
            if self.down:
                continue
            answer = self._answer(message)
            if answer is not None and worker in self.workers and not worker.frozen and number == worker.asked:
                self._hear(worker, answer)
        self._judge()

    def _training(self) -> set[str]:
        """Ids of the generations that train."""
        found = set()
        for worker in self.workers:
            if worker.trains and worker.place is not None:
                others = self._others(worker)
                if all(other is not None and not other.frozen and self._is_with(worker, other) for other in others):
                    found.add(worker.place.id)
        return found

    def _judge(self) -> None:
        training = self._training()
        if len(training) > 1:
            self.why.add("two jobs at once")
        for one in training - {*self.trained[-1:]}:
            self.why |= {"it went back to an older generation"} if one in self.trained else set()
            self.trained.append(one)

    def run(self) -> History:
        while self.now < BUSY + CALM:
            self._tick()
        successors = Counter(self.parents[one] for one in self.trained if self.parents.get(one))
        if any(count > 1 for count in successors.values()):
            self.why.add("a fork")
        if not self._are_together() and self._can_go_on():
            self.why.add("they do not train together at the end")
        return self

    def _can_go_on(self) -> bool:
        """Whether those that live may go on: by hand the server has to know that a member of the newest generation
        does."""
        alive = {worker.name for worker in self.workers}
        return self.is_launched or (self.keeps_records and any(one.name in alive for one in self._group.members))

    def _are_together(self) -> bool:
        places = {worker.place.id if worker.trains and worker.place else "" for worker in self.workers}
        return len(places) == 1 and "" not in places


def wrong_in(seeds: range, **more: Any) -> Counter[str]:
    """How many histories show what."""
    return Counter(why for seed in seeds for why in History(seed, **more).run().why)


KINDS = [(keeps, launched) for keeps in (True, False) for launched in (True, False)]


@pytest.mark.parametrize(("keeps_records", "is_launched"), KINDS)
def test_one_job_stays_one_whatever_happens(keeps_records: bool, is_launched: bool) -> None:
    found = wrong_in(range(25), keeps_records=keeps_records, is_launched=is_launched)
    if not keeps_records:
        del found["a fork"]  # docs/survival.md says when
    assert found == {}


# ------------------------------------------------------------------------------------------------------ planted faults


def believes_the_first(patch: pytest.MonkeyPatch) -> None:
    def recollect(group: Group, event: Any, now: float) -> tuple[Group, str]:
        if event.before is None:
            return group, "somebody"
        place = event.before
        known = Group(generation=place.generation, id=place.id, lineage=place.lineage, members=place.members)
        return membership.replace(known, survives=True, heard=now), ""

    patch.setattr(membership, "_recollect", recollect)


def writes_a_generation_late(patch: pytest.MonkeyPatch) -> None:
    def keep(self: Rendezvous, job: str, before: Group, group: Group) -> None:
        if before.id not in (group.id, ""):
            rule(self, job, Group(), before)

    rule = Rendezvous._keep
    patch.setattr(Rendezvous, "_keep", keep)


def ends_a_silent_one(patch: pytest.MonkeyPatch) -> None:
    def come_back(group: Group, event: Join, now: float, drawn: str) -> membership.Outcome:
        forming = now if group.forming is None and now - group.heard > PATIENCE_S else group.forming
        return rule(membership.replace(group, forming=forming), event, now, drawn)

    rule = membership._come_back
    patch.setattr(membership, "_come_back", come_back)


@pytest.mark.parametrize(
    ("plant", "keeps_records"),
    [(believes_the_first, False), (writes_a_generation_late, True), (ends_a_silent_one, True)],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], keeps_records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    histories = (History(seed, keeps_records, is_launched=True).run().why for seed in range(40))
    wrong = {"two jobs at once", *(["a fork"] if keeps_records else [])}
    assert any(wrong & why for why in histories)
