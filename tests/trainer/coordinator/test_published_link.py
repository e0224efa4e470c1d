"""What a worker's client sends to a published state server, and what it makes of the answers. A server in memory, in
virtual time, stands for the published one; tests/trainer/rendezvous/test_foreign_programs.py has a real one."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from state_server_process import query, report

from esync.client import StateClient
from esync.progress import EVALUATING
from esync.protocol import NoAnswer, Reply, Timeouts
from esync.queries import Queries
from trainer import command_line
from trainer.coordinator.published import Holds, PublishedLink, State, checked, holds
from trainer.simulation.virtual_clock import VirtualClock
from utils import JobError, PeerLost, SetupError

DJANGO_500 = "<html><head><title>IndexError\n   at /apply/</title></head>\n<body>" + 50_000 * "x" + "</body></html>"


class Published:
    """The published server's paths, where HttpLink would ask: every worker that asks with k > 0 is ready.

    Attributes:
        heard: path and form of each POST.
        ready: what /apply/ says.
        instead: answers of some paths that are others than the published ones.
        is_away: the server does not answer.
    """

    address = "http://published"
    round_trip_s = 0.0

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.ready = 1
        self.instead: dict[str, Reply] = {}
        self.is_away = False
        self.restart()

    def restart(self, num_workers: int = 0) -> None:
        self.num_workers, self.t = num_workers, 1
        self.records: list[list[Any]] = [[rank, 0, 0.0, 0.0, False, 1] for rank in range(num_workers)]

    def is_published(self) -> bool:
        return True

    def get(self, path: str, timeouts: Timeouts) -> Reply:
        state = {"num_workers": self.num_workers, "t": self.t, "epsilon": 0.5, "records": self.records}
        return self.instead.get(path, Reply(200, state))

    def post(self, path: str, timeouts: Timeouts, form: dict[str, Any]) -> Reply:
        self.heard.append((path, form))
        if self.is_away:
            raise NoAnswer("Connection refused")
        if path in self.instead:
            return self.instead[path]
        if path == "/init/":
            self.restart(form["num_workers"])
            return Reply(200, {})
        if form["r"] >= len(self.records):
            return Reply(500, {}, DJANGO_500)
        row = self.records[form["r"]]
        if path == "/reset/":
            row[3:] = form["te"], False, form["t"]
            self.t = max(self.t, form["t"])
            return Reply(200, {})
        row[1:4] = form["k"], form["c"], form["te"]
        return Reply(200, {"ready": self.ready if form["k"] else 0})

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.heard]


@pytest.fixture
def server() -> Published:
    return Published()


@pytest.fixture
def client(server: Published, clock: VirtualClock) -> Callable[[int], StateClient]:
    """Makes the worker of a rank in a job of two."""

    def made(rank: int) -> StateClient:
        client = StateClient(PublishedLink(server, clock, 2), clock, "journal", 0.25)  # type: ignore[arg-type]
        client.join("job", rank, 2)
        return client

    return made


def test_a_job_is_four_forms_and_the_first_tells_the_time_of_a_step_before_any_is_done(server, clock, client) -> None:
    first = client(0)
    report(first, 1, 0.1, 0.0)
    clock.sleep(2.0)
    assert query(first, 1, 1, 0.2, 0.5) is True
    report(first, 2, 0.2, 0.5)
    assert server.heard == [
        ("/init/", {"num_workers": 2, "epsilon": 0.25}),
        ("/reset/", {"r": 0, "t": 1, "te": 0.0}),
        ("/apply/", {"r": 0, "k": 0, "c": 0.1, "te": 0.0}),
        ("/apply/", {"r": 0, "k": 1, "c": 0.2, "te": 2.0}),
        ("/reset/", {"r": 0, "t": 2, "te": 2.0}),
    ]


def test_rank_0_begins_the_job_and_the_others_tell_nothing_before(server, client) -> None:
    server.restart(6)  # of another job
    first, second = client(0), client(1)
    report(second, 1, 0.1, 0.0)
    assert query(second, 1, 1, 0.1, 0.0) is False
    assert not server.heard
    report(first, 1, 0.1, 0.0)
    assert query(second, 1, 2, 0.1, 0.0) is True
    assert server.paths == ["/init/", "/reset/", "/apply/", "/reset/", "/apply/"]


def test_what_the_forms_cannot_say_and_what_was_overtaken_is_not_sent(server, client) -> None:
    second = client(1)
    server.restart(2)
    report(second, 1, 0.1, 0.0)
    query(second, 2, 3, 0.1, 0.0)  # overtakes the report of its round, which tells the same
    before = list(server.paths)
    assert before[-2:] == ["/reset/", "/apply/"]
    report(second, 2, 0.1, 0.0)
    assert query(second, 2, 2, 0.1, 0.0) is False
    assert query(second, 1, 9, 0.1, 0.0) is False
    second._progress.activity = EVALUATING
    second.tell_doing()
    second.leave()
    assert server.paths == before


def test_a_server_that_was_restarted_is_told_of_the_job_once_and_the_rounds_go_on(caplog, server, client) -> None:
    both = [client(0), client(1)]
    for one in both:
        report(one, 7, 0.1, 0.0)
    server.restart()
    server.heard.clear()
    assert query(both[1], 7, 1, 0.1, 0.0) is True
    assert query(both[0], 7, 1, 0.1, 0.0) is True
    assert server.paths == ["/apply/", "/init/", "/reset/", "/apply/", "/apply/"]
    assert caplog.messages == [
        "the state server at http://published does not answer (500: IndexError at /apply/); asking again"
    ]


def test_a_server_that_was_away_is_told_the_round_again(server, clock, client) -> None:
    first = client(0)
    report(first, 7, 0.1, 0.0)
    server.is_away, server.heard = True, []
    back = clock.start(lambda: (clock.sleep(1.0), setattr(server, "is_away", False)), "back")
    assert query(first, 7, 1, 0.1, 0.0) is True
    back.result()
    assert server.paths[-2:] == ["/reset/", "/apply/"]


@pytest.mark.parametrize(("slowest_s", "waited_s"), [(0.1, 30.0), (9.0, 90.0)])
def test_a_worker_that_is_never_ready_aggregates_in_the_end(slowest_s, waited_s, caplog, server, clock, client) -> None:
    server.ready = 0
    both = [client(0), client(1)]
    for one, step_s in zip(both, (0.1, slowest_s), strict=True):
        report(one, 1, step_s, 0.0)
    begin, steps = clock.now(), 0
    while True:
        clock.sleep(1.0)
        steps += 1
        if query(both[0], 1, steps, 0.1, 0.0):
            break
    assert clock.now() - begin == pytest.approx(waited_s, abs=1.5)
    (warning,) = caplog.messages
    assert f"has not said ready for {waited_s:.0f} s; this worker aggregates" in warning


HTML = "<!doctype html>\n<html><title>Sign in\n please</title></html>"


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        ("/apply/", Reply(200, {}, HTML), "/apply/ gets 200 'Sign in please'"),
        ("/apply/", Reply(200, {"ready": 2}, '{"ready": 2}'), """/apply/ gets 200 '{"ready": 2}'"""),
        ("/apply/", Reply(200, {"ready": "1"}, '{"ready": "1"}'), """/apply/ gets 200 '{"ready": "1"}'"""),
        ("/apply/", Reply(200, {"ready": None}), "/apply/ gets 200"),
        ("/init/", Reply(403, {}, HTML), "/init/ gets 403 'Sign in please'"),
        ("/reset/", Reply(404, {}, "a\nb"), "/reset/ gets 404 'a b'"),
        ("/apply/", Reply(500, {}, DJANGO_500), "(500: IndexError at /apply/); tried for 60 s"),
        ("/init/", Reply(502, {}, "bad\ngateway"), "(502: bad gateway); tried for 60 s"),
    ],
)
def test_other_answers_end_the_worker_with_one_line(path, answer, said, server, clock, client) -> None:
    server.instead[path] = answer
    first = client(0)
    with pytest.raises(PeerLost) as error:
        report(first, 1, 0.1, 0.0)
        query(first, 1, 1, 0.1, 0.0)
    assert said in str(error.value) and "\n" not in str(error.value)
    assert clock.now() <= 61.0


def test_while_no_question_is_answered_rounds_go_on_with_the_steps_of_the_round_before(server, clock, client) -> None:
    first = client(0)
    queries, taken = Queries(first, clock, waits=False), []
    server.instead["/apply/"] = Reply(502, {}, "bad gateway")
    for round_ in range(1, 101):
        queries.report(round_, 0.1, 0.0)
        for steps in range(1, 100):
            clock.sleep(0.1)
            if queries.ask(round_, steps, 0.1, 0.0):
                break
        taken.append(steps)
    assert taken[0] <= 5 and {*taken[1:]} == {1}
    del server.instead["/apply/"]
    clock.sleep(1.1)
    (_, entered), (_, asked) = server.heard[-2:]  # what it has missed
    assert (entered["t"], asked["k"]) == (100, 1)
    queries.close()


@pytest.mark.parametrize("root", [Reply(200, {}, HTML), Reply(200, {"records": "x"}), Reply(500, {}, DJANGO_500)])
def test_a_server_that_answers_nothing_but_errors_is_given_up(root, server, client) -> None:
    server.instead = {"/": root, "/apply/": Reply(500, {}, DJANGO_500)}
    first = client(0)
    with pytest.raises(PeerLost, match=r"\(500: IndexError at /apply/\); tried for 60 s"):
        report(first, 1, 0.1, 0.0)


def test_of_two_jobs_on_one_server_the_one_that_has_no_row_any_more_ends(server, client) -> None:
    second = client(1)
    server.restart(2)
    report(second, 5, 0.1, 0.0)
    server.restart(1)
    server.post("/apply/", Timeouts(1, 1), {"r": 0, "k": 1, "c": 0.3, "te": 9.0})
    with pytest.raises(JobError, match="has lost this job: another one has begun there"):
        query(second, 5, 1, 0.1, 0.0)


@pytest.mark.parametrize(
    ("state", "whose"),
    [
        (None, Holds.NONE),
        (State(0, 1, (), False), Holds.NONE),
        (State(6, 1, (0.0,) * 6, False), Holds.NONE),
        (State(2, 1, (0.0, 0.0), False), Holds.OURS),
        (State(2, 6, (0.1, 0.1), True), Holds.OURS),
        (State(2, 7, (0.1, 0.1), True), Holds.ANOTHER),
        (State(6, 5, (0.1,) * 6, True), Holds.ANOTHER),
        (State(1, 5, (0.1,), True), Holds.ANOTHER),
    ],
)
def test_whose_job_a_state_is(state: State | None, whose: Holds) -> None:
    assert holds(state, num_workers=2, round_=5) is whose


@pytest.mark.parametrize(
    "said",
    [
        "[]",
        '{"num_workers": 2, "t": 1, "records": [[0, 0]]}',
        '{"num_workers": 1e999, "t": 1, "records": []}',
        '{"num_workers": 1, "t": 1, "records": [[0, 0, NaN, 0, false, 1]]}',
        '{"num_workers": 1, "t": 1, "records": [{"rank": 0}]}',
        '{"num_workers": null, "t": 1, "records": []}',
    ],
)
def test_what_is_no_state_is_not_read(said: str) -> None:
    value = json.loads(said)
    assert State.read(value if isinstance(value, dict) else {}) is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("-m esync", "(computing time, epsilon 0.5 s), and --policy journal does nothing."),
        ("-m esync --policy upload-aware", "and --policy upload-aware does nothing."),
        ("-m esync --policy preprint --epsilon 0.1", "(computing time, epsilon 0.1 s). It counts"),
    ],
)
def test_esync_speaks_the_published_form_and_says_what_is_lost(
    flags: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    link = checked(Published(), clock, command_line.parse(flags.split()), 2)  # type: ignore[arg-type]
    assert isinstance(link, PublishedLink)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert said in record.getMessage()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("-m lb-bsp", "and its rule is not that of mode lb-bsp"),
        ("-m esync --anchor auto", "and its rule has no --anchor auto; start this project's"),
        ("-m esync --exchange ring --job-name a", "through which the workers of --exchange ring find each other"),
        ("-m sync --exchange butterfly --job-name a", "through which the workers of --exchange butterfly find"),
    ],
)
def test_what_needs_this_projects_server_says_why(flags: str, said: str) -> None:
    with pytest.raises(SetupError) as error:
        checked(Published(), VirtualClock(), command_line.parse(flags.split()), 2)  # type: ignore[arg-type]
    assert said in str(error.value)
    assert "scripts/state_server.sh" in str(error.value)
    assert error.value.exit_code == 2
