"""The event loop's parts by themselves: connections, bounds and requests, with a transport and a clock of our own."""

import itertools
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_processes import ran
from hypothesis import given, strategies as st
from prometheus_client import CollectorRegistry
from state_server_process import SERVER_FOLDER

from server.answers import Answer, Request, json_answer
from server.curve import Curve, Point
from server.jobs import Jobs
from server.log_limit import AT_ONCE, MAX_KINDS, PAUSE_S, LogLimit, note_refusal
from server.messages import Reset, Settings
from server.metrics import Traffic
from server.serving import ConnectionLimits
from server.serving.connections import LINGER_BYTES, Connection, Connections


class FakeLoop:
    """A clock that is set, and calls that wait for their turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns: list[Any] = []
        self.time = lambda: self.now
        self.call_soon = self.turns.append

    def run(self) -> None:
        while self.turns:
            self.turns.pop(0)()


class FakeTransport:
    """Keeps what is written."""

    def __init__(self, address: str = "10.0.0.1") -> None:
        self.get_extra_info = lambda name: (address, 1234)
        self.can_write_eof = lambda: True
        self.written = b""
        self.is_closed = self.is_aborted = self.has_ended = self.is_paused = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data

    def write_eof(self) -> None:
        self.has_ended = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = self.is_closed = True


class House:
    """A service that answers with what it was asked, and its connections."""

    def __init__(self, **limits: Any) -> None:
        self._traffic = Traffic(CollectorRegistry())
        self.connections = Connections(ConnectionLimits(**limits), self._traffic, self.answer)
        self.asked: list[Request] = []
        self.loop = FakeLoop()

    def answer(self, request: Request) -> Answer:
        self.asked.append(request)
        return json_answer({"path": request.path})

    @property
    def refused(self) -> list[int]:
        """The status of each request that was refused."""
        (counted,) = self._traffic.refused.collect()
        return [int(one.labels["status"]) for one in counted.samples if one.name.endswith("_total") and one.value]

    def connect(self, *sent: bytes, address: str = "10.0.0.1") -> tuple[Connection, FakeTransport]:
        """A connection on which this has come."""
        connection, transport = Connection(self.connections, self.loop), FakeTransport(address)  # type: ignore[arg-type]
        connection.connection_made(transport)  # type: ignore[arg-type]
        for data in sent:
            connection.data_received(data)
        return connection, transport


def post(path: str = "/message/", body: bytes = b"{}", *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


# ------------------------------------------------------------------------------------------------- requests


@given(
    bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 2000), max_size=8),
)
def test_requests_are_the_same_wherever_their_bytes_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    house = House()
    connection, transport = house.connect()
    sent = b"".join(post(f"/{number}", body, "X-Number: 1", "X-Number: 2") for number, body in enumerate(bodies))
    edges = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    for begin, end in itertools.pairwise(edges):
        connection.data_received(sent[begin:end])
        house.loop.run()
    assert [(request.target, request.body) for request in house.asked] == [
        (f"/{number}".encode(), body) for number, body in enumerate(bodies)
    ]
    assert {request.headers["x-number"] for request in house.asked} == {"1,2"}
    assert transport.written.count(b"HTTP/1.1 200 OK\r\n") == len(bodies)
    assert not transport.is_closed


def test_whoever_sends_many_requests_at_once_gets_one_answered_a_turn() -> None:
    house = House()
    _, transport = house.connect(post("/greedy") * 100)
    house.connect(post("/other"))
    assert [request.path for request in house.asked] == ["/greedy", "/other"]
    assert transport.is_paused  # no more is read until all of it is answered
    house.loop.run()
    assert len(house.asked) == 101
    assert not transport.is_paused


def test_whoever_does_not_take_its_answers_gets_no_more_and_is_closed_unless_it_takes_them_again() -> None:
    house = House(request_s=10)
    connection, transport = house.connect(post() * 3)
    connection.pause_writing()
    house.loop.run()
    assert len(house.asked) == 1
    assert connection.overdue(9.0) == ""
    assert connection.overdue(11.0) != ""
    connection.resume_writing()
    house.loop.run()
    assert len(house.asked) == 3
    assert not transport.is_paused
    connection.data_received(post() * 2)
    house.loop.run()
    assert len(house.asked) == 5
    connection.pause_writing()
    connection.resume_writing()
    assert not transport.is_paused
    assert connection.overdue(11.0) == ""


def test_whoever_asks_on_and_takes_no_answers_is_not_read_any_more_and_is_closed() -> None:
    house = House(request_s=10)
    connection, transport = house.connect(post())
    connection.pause_writing()
    assert transport.is_paused  # or its next requests would pile up in this process's memory
    for moment in range(1, 11):
        house.loop.now = float(moment)
        connection.data_received(post() * 2)  # was read already
    house.loop.run()
    assert len(house.asked) == 1
    assert transport.is_paused
    assert connection.overdue(11.0) != ""  # since it took something last, whatever else it says


def test_a_connection_that_is_closed_for_another_one_has_no_turn_any_more() -> None:
    house = House(connections_per_address=1)
    _, transport = house.connect(post() * 3)
    house.connect()
    assert transport.is_aborted
    house.loop.run()
    assert len(house.asked) == 1


H2 = b"Host: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "has_body", "is_closed"),
    [
        (post("/a", b"", "Connection: close"), True, True),
        (b"GET /healthz HTTP/1.1\r\n" + H2, True, True),  # a client that asks for HTTP/2 is answered in HTTP/1
        (b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", False, False),
    ],
    ids=["the client does not want it", "HTTP/2", "HEAD"],
)
def test_a_connection_is_kept_or_not_and_the_answer_to_a_head_has_no_body(
    sent: bytes, has_body: bool, is_closed: bool
) -> None:
    house = House()
    _, transport = house.connect(sent)
    head, _, body = transport.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    path = house.asked[0].path
    assert f"Content-Length: {len(json_answer({'path': path}).body)}".encode() in head
    assert bool(body) is has_body
    assert (b"Connection: close" in head, transport.is_closed) == (is_closed, is_closed)


# --------------------------------------------------------------------------------------------------- bounds


HEAD = b"GET /healthz HTTP/1.1\r\nHost: a\r\n"
MANY = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 300) for number in range(60))


@pytest.mark.parametrize("piece", [10**6, 1000])
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 65537\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10001\r\n" + b"x" * 65537, 413),
        (b"GET /" + b"x" * 20_000, 431),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 102, 431),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 20_000, 431),
        (HEAD + MANY + b"\r\n", 431),
        (HEAD + (b"X-Long: " + b"y" * 20_000) * 20, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: many\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ],
    ids=[
        *("long body", "long chunks", "long target", "whole long target", "many headers", "long header"),
        *("large headers", "long headers", "TLS", "no length", "connect"),
    ],
)
def test_what_is_too_much_or_no_request_is_refused_at_once_and_the_connection_ends(
    sent: bytes, status: int, piece: int
) -> None:
    house = House()
    connection, transport = house.connect()
    for at in range(0, len(sent), piece):
        if not house.refused:
            connection.data_received(sent[at : at + piece])
            house.loop.run()
    assert house.refused == [status]
    assert transport.written.startswith(f"HTTP/1.1 {status} ".encode())
    assert transport.has_ended and not transport.is_aborted  # so that the sender can read it
    for more, is_aborted in ((b"x" * LINGER_BYTES, False), (b"x", True)):
        connection.data_received(more)
        assert transport.is_aborted is is_aborted
    assert not any(request.body for request in house.asked)


def test_a_body_beside_a_head_does_not_count() -> None:
    house = House()
    house.connect((post(body=b"{" * 60_000) + HEAD + b"\r\n") * 3)
    house.loop.run()
    assert (len(house.asked), house.refused) == (6, [])


def test_a_request_must_arrive_in_time_however_often_a_piece_of_it_comes() -> None:
    house = House(request_s=10, idle_s=300)
    connection, _ = house.connect(post() + post()[:10])  # a whole one, and the beginning of the next
    for second in range(1, 10):
        house.loop.now = float(second)
        connection.data_received(b"x")
        assert connection.overdue(house.loop.now) == ""
    assert connection.overdue(10.5) == "request not complete in time"


def test_an_idle_connection_is_closed_later() -> None:
    house = House(request_s=10, idle_s=300)
    connection, _ = house.connect()
    house.loop.now = 100.0
    connection.data_received(post())
    assert connection.overdue(399.0) == ""
    assert connection.overdue(401.0) == "idle"


def test_beyond_an_addresss_bound_its_longest_silent_connection_closes() -> None:
    house = House(connections_per_address=3)
    (worker, kept), (_, first), (_, second) = (house.connect() for _ in range(3))
    _, elsewhere = house.connect(address="10.0.0.2")
    worker.data_received(post())  # has just spoken
    house.connect()
    assert [each.is_aborted for each in (kept, first, second, elsewhere)] == [False, True, False, False]
    assert house.connections.number == 4


def test_beyond_the_bound_of_all_the_address_with_the_most_loses_one() -> None:
    house = House(connections=3)
    _, worker = house.connect(address="10.0.0.2")
    (_, first), (_, second), _ = (house.connect() for _ in range(3))
    assert [each.is_aborted for each in (worker, first, second)] == [False, True, False]
    assert house.connections.number == 3


# ----------------------------------------------------------------------------------------- curve, log, start


@given(count=st.integers(1, 3000), best=st.integers(1, 3000))
def test_a_curve_keeps_evenly_spaced_points_the_last_and_the_best(count: int, best: int) -> None:
    curve = Curve(limit=50)
    points = [Point(round, float(round), 0.9 if round == best else 0.5) for round in range(1, count + 1)]
    for point in points:
        curve.add(point)
    rounds = [point.round for point in curve.points]
    assert curve.last == points[-1]
    assert curve.best == max(points, key=lambda point: (point.value, -point.round))
    assert {curve.best.round, count} <= set(rounds)
    evenly = [round for round in rounds if round not in (best, count)]
    strides = {after - before for before, after in itertools.pairwise(evenly)}
    assert len(rounds) <= 52
    assert len(strides) <= 2 and max(strides, default=1) <= 2 * (1 + count // 25)  # one stride, and twice it at a gap


@given(lost=st.integers(1, 40), count=st.integers(41, 120))
def test_a_curve_is_the_same_after_a_restart(lost: int, count: int) -> None:
    points = [Point(round, float(round), round % 7 / 10) for round in range(1, count)]
    whole, restarted = Curve(), Curve()
    for point in points:
        whole.add(point)
    for point in points[lost:]:
        restarted.add(point)
    restarted.merge(points[: lost + 3])
    assert restarted.points == whole.points
    assert (restarted.best, restarted.last) == (whole.best, whole.last)


@pytest.fixture
def limited(caplog: pytest.LogCaptureFixture) -> Iterator[list[float]]:
    """What is logged is bounded by a clock that the test sets."""
    now = [0.0]
    limit = LogLimit(lambda: now[0])
    caplog.handler.addFilter(limit)
    caplog.set_level(logging.INFO)
    yield now
    caplog.handler.removeFilter(limit)


def test_what_is_refused_again_and_again_is_one_line_in_ten_seconds(
    limited: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    refusal = Answer(401, b'{"error": "no token"}', "application/json")
    for _ in range(1000):
        note_refusal("10.0.0.1", "POST /init/", refusal)
    note_refusal("10.0.0.2", "POST /init/", refusal)
    limited[0] = PAUSE_S
    note_refusal("10.0.0.1", "POST /init/", refusal)
    assert caplog.messages == [
        "POST /init/ from 10.0.0.1: 401: no token",
        "POST /init/ from 10.0.0.2: 401: no token",
        "POST /init/ from 10.0.0.1: 401: no token (999 more since the last such line)",
    ]


def test_what_is_remembered_of_refusals_is_bounded(limited: list[float], caplog: pytest.LogCaptureFixture) -> None:
    def told(number: int) -> bool:
        caplog.clear()
        note_refusal(f"10.0.0.{number}", "POST /init/", Answer(401))
        return bool(caplog.messages)

    assert [told(0), told(0)] == [True, False]
    assert all(map(told, range(1, MAX_KINDS + 1)))
    assert told(0)  # it was forgotten


def test_jobs_that_begin_and_end_for_ever_do_not_fill_the_log(
    limited: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    jobs = Jobs(max_jobs=2)
    for number in range(2000):
        limited[0] = number / 100
        reset = Reset("a-worker", f"job-{number}", Settings(1, "journal"))
        jobs.begin(reset, reset.settings, limited[0])
    begun = [line for line in caplog.messages if " begins | " in line]
    assert len(begun) == len(caplog.messages) - len(begun) == AT_ONCE + 1  # and as many are forgotten
    assert begun[AT_ONCE].startswith("job job-10") and begun[AT_ONCE].endswith(" more since the last such line)")


def start(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return ran(sys.executable, "manage.py", *arguments, cwd=SERVER_FOLDER, **environment)


@pytest.mark.parametrize(
    ("address", "environment", "says"),
    [
        ("127.0.0.1:0", {"ESYNC_LOG_LEVEL": "loud"}, "ESYNC_LOG_LEVEL='LOUD' is unknown; choose from DEBUG, INFO"),
        ("127.0.0.1:0", {"ESYNC_POLICY": "best"}, "ESYNC_POLICY='best' is unknown; choose from journal"),
        ("127.0.0.1:0", {"ESYNC_TOKEN": "sécret"}, "ESYNC_TOKEN has a letter that an HTTP header cannot carry"),
        ("127.0.0.1:0", {"ESYNC_MAX_JOBS": "0"}, "ESYNC_MAX_JOBS='0'; give a whole number from 1"),
        ("a..b:0", {"DJANGO_SETTINGS_MODULE": "of.another.project"}, "a..b"),
        ("host.invalid:0", {}, "host.invalid"),
        ("127.0.0.1:65536", {}, "127.0.0.1"),
        ("nowhere", {}, "nowhere"),
        ("two\nlines:10010", {}, "two"),
    ],
)
def test_a_wrong_variable_or_address_is_one_line_and_nothing_starts(
    address: str, environment: dict[str, str], says: str
) -> None:
    finished = start("serve", address, **environment)
    assert finished.returncode == 2
    (line,) = finished.stderr.strip().splitlines()
    assert line.startswith("error: ") and says in line


def test_djangos_own_check_finds_nothing() -> None:
    finished = start("check", "--deploy", "--fail-level", "WARNING", ESYNC_LOG_LEVEL="debug")
    assert finished.returncode == 0, finished.stderr
    assert "no issues" in finished.stdout
