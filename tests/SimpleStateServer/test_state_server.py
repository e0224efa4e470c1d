"""The state server as a process of its own, spoken to over real HTTP as workers do: in its one loop (`serve`), and as
published, under Django's `runserver`. Both must say the same."""

import contextlib
import datetime
import itertools
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from state_server_process import StateServerProcess, running_state_server

from utils import version_number

TIMEOUT_S = 10
_job_numbers = itertools.count(1)


WAYS = {"serve": ("serve",), "runserver": ("runserver", "--noreload")}


@pytest.fixture(scope="module", params=WAYS.values(), ids=WAYS)
def server(request: pytest.FixtureRequest) -> Iterator[StateServerProcess]:
    with running_state_server(command=request.param) as process:
        yield process
        assert process.process.poll() is None, "the server must survive everything that the tests send"


class Worker:
    """Speaks the journal's messages for one job over a kept connection."""

    def __init__(self, url: str, job: str, token: str | None = None) -> None:
        self.url, self.job = url, job
        self.session = requests.Session()
        self.session.trust_env = False
        if token:
            self.session.headers["Authorization"] = f"Bearer {token}"

    def send(self, msg_type: str, **fields: Any) -> requests.Response:
        message = {"msg_type": msg_type, "sender": "worker-0", "receiver": "state-server", "job": self.job, **fields}
        return self.session.post(f"{self.url}/message/", json=message, timeout=TIMEOUT_S)

    def reset(self, num_workers: int = 2, policy: str = "journal", **more: Any) -> requests.Response:
        return self.send("RESET", num_workers=num_workers, policy=policy, **more)

    def report(self, **status: Any) -> requests.Response:
        return self.send("REPORT", status={"rank": 0, "round": 1, **status})

    def query(self, **status: Any) -> requests.Response:
        return self.send("QUERY", status={"rank": 0, "round": 1, "local_iteration": 1, "computation_time": 1, **status})


@pytest.fixture
def worker(server: StateServerProcess) -> Worker:
    """A worker of a new job with two workers."""
    worker = Worker(server.url, f"job-{next(_job_numbers)}")
    answer = worker.reset()
    assert answer.status_code == 200, answer.text
    return worker


def post(server: StateServerProcess, path: str, **form: Any) -> requests.Response:
    """As a published worker does: form-encoded, a new connection each time."""
    return requests.post(f"{server.url}{path}", data=form, timeout=TIMEOUT_S)


def applied(server: StateServerProcess, rank: int, steps: int, seconds: float, **more: float) -> int:
    """Whether a published worker that has done so many steps of a round is ready to aggregate."""
    return post(server, "/apply/", **{"r": rank, "k": steps, "c": seconds, "te": time.time(), **more}).json()["ready"]


def reset(server: StateServerProcess, rank: int, round: int) -> requests.Response:
    """A published worker enters a round."""
    return post(server, "/reset/", r=rank, t=round, te=time.time())


def get(server: StateServerProcess, path: str = "", **headers: str) -> requests.Response:
    return requests.get(f"{server.url}{path}", headers=headers, timeout=TIMEOUT_S)


def state(server: StateServerProcess) -> dict[str, Any]:
    answer = get(server)
    assert answer.status_code == 200, answer.text
    return answer.json()


def assert_json_error(answer: requests.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/json"
    assert int(answer.headers["Content-Length"]) == len(answer.content)
    error = answer.json()
    assert isinstance(error["error"], str)
    assert "Traceback" not in answer.text
    return error


# ------------------------------------------------------------------------------------- the published interface


def test_a_published_job_trains_unchanged(server: StateServerProcess) -> None:
    """Two workers of 0.2 s and 4 s: what each sends in two rounds, and what it is told."""
    answer = post(server, "/init/", num_workers=2, epsilon=0.5)
    assert (answer.status_code, answer.content) == (200, b"")
    assert state(server)["policy"] == "preprint"
    assert [applied(server, rank, 0, 0.0) for rank in (0, 1)] == [0, 0]
    # The first that asks is the slowest one known.
    assert [applied(server, 1, 1, 4.0), applied(server, 0, 1, 0.2)] == [1, 1]
    answer = reset(server, 0, 2)
    assert (answer.status_code, answer.content) == (200, b"")
    assert applied(server, 0, 1, 0.2) == 0  # the slowest has not entered round 2
    reset(server, 1, 2)
    assert applied(server, 0, 2, 0.2) == 0  # 4 s are left, 0.2 s + 0.5 s fit in
    assert [applied(server, 1, 1, 4.0), applied(server, 0, 3, 0.2)] == [1, 1]


def test_init_has_the_published_defaults_and_starts_a_new_job_each_time(server: StateServerProcess) -> None:
    assert post(server, "/init/").status_code == 200
    first = state(server)
    assert (first["num_workers"], first["t"], first["epsilon"]) == (6, 1, 0.5)
    assert first["records"] == [[rank, 0, 0.0, 0.0, False, 1] for rank in range(6)]
    reset(server, 0, 2)
    post(server, "/init/")
    second = state(server)
    assert second["t"] == 1 and second["job"] != first["job"]


NO_FORMS = {
    "multipart": {"files": {"num_workers": (None, "3"), "epsilon": (None, "0.1")}},
    "JSON": {"json": {"num_workers": 3}},
    "no type": {"data": b"num_workers=3"},
    "another type": {"data": b"num_workers=3", "headers": {"Content-Type": "text/plain"}},
    "multipart by the name of a form": {
        "data": b'--b\r\nContent-Disposition: form-data; name="num_workers"\r\n\r\n3\r\n--b--\r\n',
        "headers": {"Content-Type": "application/x-www-form-urlencoded"},
    },
    "a form of something else": {"data": {"workers": 3}},
    "a form of very many fields": {"data": {"num_workers": 3} | {f"field-{number}": 1 for number in range(100)}},
}


@pytest.mark.parametrize("path", ["/init/", "/apply/", "/reset/"])
@pytest.mark.parametrize("body", NO_FORMS.values(), ids=NO_FORMS)
def test_a_body_that_is_no_form_is_refused_and_starts_no_job_with_default_values(
    server: StateServerProcess, path: str, body: dict[str, Any]
) -> None:
    post(server, "/init/", num_workers=2)
    before = state(server)
    error = assert_json_error(requests.post(f"{server.url}{path}", timeout=TIMEOUT_S, **body), 400)
    assert error["error"]
    assert state(server) == before


def test_the_state_is_published_as_rows_whatever_else_a_form_has(server: StateServerProcess) -> None:
    assert post(server, "/init/", num_workers="02", epsilon=".25", comment="ours").status_code == 200
    for round in (2, 3):
        reset(server, 1, round)
    before = time.time()
    applied(server, 1, 4, 0.5, te=1)
    published = state(server)
    assert (published["num_workers"], published["t"], published["epsilon"]) == (2, 3, 0.25)
    rank, steps, capability, finished, ready, round = published["records"][1]
    assert (rank, steps, capability, ready, round) == (1, 4, 0.5, True, 3)
    assert [type(row[4]) for row in published["records"]] == [bool, bool]  # true and false, as published: not 1 and 0
    assert abs(finished - before) < 5  # the server's own clock: te said 1970


def test_the_workers_clock_decides_nothing(server: StateServerProcess) -> None:
    for fast, slow in ((0.0, 0.0), (1e6, -1e6), (-1e9, 1e9)):
        post(server, "/init/", num_workers=2, epsilon=0.5)
        applied(server, 1, 1, 100, te=slow)
        for rank, clock in enumerate((fast, slow)):
            post(server, "/reset/", r=rank, t=2, te=clock)
        assert applied(server, 0, 1, 0.1, te=fast) == 0


def test_init_can_choose_the_journals_policy_and_apply_may_tell_the_transmission_time(
    server: StateServerProcess,
) -> None:
    post(server, "/init/", num_workers=2, policy="journal")
    reset(server, 0, 1)
    # The journal's rule waits for the first step of worker 1, the preprint's would not.
    assert applied(server, 0, 1, 0.1, m=50) == 0
    assert applied(server, 1, 1, 10, m=0.1) == 1
    # 50.1 s against 10.1 s: by the computing times alone worker 1 would be the straggler.
    for rank in (0, 1):
        reset(server, rank, 2)
    assert applied(server, 1, 1, 10, m=0.1) == 0
    assert applied(server, 0, 1, 0.1, m=50) == 1


# What is sound of each call, and the wrong values of its fields; None: the field is missing.
SOUND = {"/init/": {}, "/apply/": {"r": "0", "k": "1", "c": "1", "te": "1"}, "/reset/": {"r": "0", "t": "2", "te": "1"}}
WRONG_IN_FORMS = {
    "/init/": {"num_workers": ("0", "100001", "many", "2.5"), "epsilon": ("-1", "nan", "inf"), "policy": ("best",)},
    "/apply/": {
        "r": (None, "-1", "2", "x"),
        "k": (None, "-1", "1.5", "1.0"),
        "c": (None, "nan", "-0.5", "1e7"),
        "te": ("later", "inf"),
        "m": ("nan",),
    },
    "/reset/": {"t": (None, "0", "two"), "r": (None, "2")},
}


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [(path, field, each) for path, of in WRONG_IN_FORMS.items() for field, values in of.items() for each in values],
)
def test_a_wrong_published_field_is_named_and_changes_nothing(
    server: StateServerProcess, path: str, field: str, value: str | None
) -> None:
    post(server, "/init/", num_workers=2)
    before = state(server)
    error = assert_json_error(post(server, path, **{**SOUND[path], field: value}), 400)
    assert error["field"] == field
    assert state(server) == before


def test_a_reset_of_another_round_than_the_next_moves_nothing(server: StateServerProcess) -> None:
    post(server, "/init/", num_workers=1)
    for round in (10**9, 3):
        assert assert_json_error(reset(server, 0, round), 409)["code"] == "round-ahead"
    assert applied(server, 0, 1, 1) == 1
    for round in (2, 3):
        assert reset(server, 0, round).status_code == 200
    assert assert_json_error(reset(server, 0, 2), 409)["code"] == "stale"
    assert state(server)["records"][0][5] == 3


def test_the_time_that_a_published_worker_tells_before_its_first_step_counts(server: StateServerProcess) -> None:
    """Worker 1 is known to be slow before it has done a step, so worker 0 is not told to aggregate after its first."""
    post(server, "/init/", num_workers=2, epsilon=0.5)
    assert [applied(server, *told) for told in ((0, 0, 0.1), (1, 0, 60), (0, 1, 0.1))] == [0, 0, 0]


# ------------------------------------------------------------------------------------------- journal's messages


def test_a_journal_conversation(worker: Worker) -> None:
    answer = worker.reset()
    assert answer.json() == {
        "msg_type": "RESPONSE",
        "sender": "state-server",
        "receiver": "worker-0",
        "job": worker.job,
        "reason": "the job has 2 worker(s) and is in round 1",
        "server": answer.json()["server"],
    }
    assert len(answer.json()["server"]) == 8
    full = {"local_iteration": 0, "computation_time": 0.0, "transmission_time": 0.0, "timestamp": time.time()}
    answer = worker.send(
        "REPORT",
        status={"rank": 0, "round": 1, **full},
        device={"host": "node-1", "device": "cpu0"},
        samples=64,
        accuracy=0.25,
        anything="unknown fields are ignored",
    )
    assert answer.status_code == 200
    assert "action" not in answer.json()

    answer = worker.query(rank=0).json()
    assert (answer["msg_type"], answer["action"]) == ("RESPONSE", "TRAIN")
    assert "worker 1 is not known yet" in answer["reason"]
    answer = worker.query(rank=1, computation_time=30).json()
    assert answer["action"] == "SYNC"
    answer = worker.query(rank=0, local_iteration=2).json()
    assert (answer["action"], answer["reason"]) == ("SYNC", "straggler 1 has done a step in this round")


WRONG_IN_MESSAGES: dict[str, tuple[Any, ...]] = {
    "msg_type": (None, "RESPONSE", ["QUERY"]),
    "sender": ("", "a b"),
    "receiver": ("worker-1",),
    "job": (None, "x" * 65, "../x", 7),
    "status": (None, [1]),
    "rank": (None, -1, 2, True, "0", 0.5),
    "round": (None, 0, 10**30),
    "local_iteration": (-1,),
    "computation_time": (None, -0.001, 1e7, "fast"),
    "transmission_time": (-1,),
    "timestamp": ("now",),
    "device": ("cpu", {"device": "x" * 256}),
    "host": ("a\nb",),
    "samples": (-1,),
    "accuracy": (1.5,),
}
HOLDERS = {"host": "device"} | dict.fromkeys(
    ("rank", "round", "local_iteration", "computation_time", "transmission_time", "timestamp"), "status"
)


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG_IN_MESSAGES.items() for value in values]
)
def test_a_wrong_field_of_a_message_is_named_and_changes_nothing(
    worker: Worker, server: StateServerProcess, field: str, value: Any
) -> None:
    message: dict[str, Any] = {
        "msg_type": "QUERY",
        "sender": "worker-0",
        "receiver": "state-server",
        "job": worker.job,
        "status": {"rank": 0, "local_iteration": 1, "round": 1, "computation_time": 1.0},
        "device": {},
    }
    (message[HOLDERS[field]] if field in HOLDERS else message)[field] = value
    before = state(server)
    answer = worker.session.post(f"{server.url}/message/", json=message, timeout=TIMEOUT_S)
    assert assert_json_error(answer, 400)["field"] == field
    assert state(server) == before


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"num_workers": None}, "num_workers"),
        ({"num_workers": 0}, "num_workers"),
        ({"num_workers": 100_001}, "num_workers"),
        ({"policy": None}, "policy"),
        ({"policy": "best"}, "policy"),
        ({"epsilon": -0.1}, "epsilon"),
        ({"anchor": -1}, "anchor"),
        ({"anchor": "many"}, "anchor"),
    ],
)
def test_a_wrong_field_of_a_reset_does_not_end_the_running_job(
    worker: Worker, server: StateServerProcess, settings: dict[str, Any], field: str
) -> None:
    about = {"num_workers": 2, "policy": "journal", **settings}
    status = {"rank": 0, "local_iteration": 0, "round": 1}
    other = Worker(server.url, "another")
    for answer in (other.send("RESET", **about), other.send("REPORT", status=status, settings=about)):
        assert assert_json_error(answer, 400)["field"] == field
    assert state(server)["job"] == worker.job


BODIES = {  # that are no message, and the field that is named
    b"": None,
    b"{": None,
    b"[]": None,
    b"7": None,
    b"\xff\xfe{}": None,
    b'{"msg_type": NaN}': None,
    b'{"status": {"computation_time": Infinity}}': None,
    b'{"job": "a", "job": "b"}': "job",
    b"[" * 60_000: None,
    b'{"rank": ' + b"9" * 5000 + b"}": None,
    b"msg_type=QUERY&job=a": None,
    b'{"msg_type": "QUERY", "sender": "w", "job": "a", "status": {"rank": 0, "round": 1, "local_iteration": 1, '
    b'"computation_time": 1e999}}': "computation_time",
}


@pytest.mark.parametrize(("body", "field"), BODIES.items(), ids=range(len(BODIES)))
def test_a_body_that_is_no_message_is_refused(server: StateServerProcess, body: bytes, field: str | None) -> None:
    headers = {"Content-Type": "application/json"}
    answer = requests.post(f"{server.url}/message/", data=body, headers=headers, timeout=TIMEOUT_S)
    assert assert_json_error(answer, 400)["field"] == field


def test_a_body_above_64_kib_is_refused_and_the_session_can_be_used_again(worker: Worker) -> None:
    answer = worker.session.post(f"{worker.url}/message/", data=b" " * 65_537, timeout=TIMEOUT_S)
    assert_json_error(answer, 413)
    assert worker.query().status_code == 200


def test_a_job_that_nobody_began_is_not_known(server: StateServerProcess) -> None:
    nobody = Worker(server.url, "nobody")
    for answer in (nobody.query(), nobody.report(round=7)):
        assert assert_json_error(answer, 409)["code"] == "unknown-job"
    for path in ("/jobs/nobody/", "/jobs/nobody/status.json"):
        assert_json_error(get(server, path), 404)


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
    ids=["origin", "opaque", "fetch-site"],
)
@pytest.mark.parametrize("path", ["/message/", "/init/", "/apply/", "/reset/"])
def test_a_page_in_a_browser_can_change_nothing(
    server: StateServerProcess, worker: Worker, path: str, headers: dict[str, str]
) -> None:
    before = state(server)
    form = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
    assert_json_error(requests.post(f"{server.url}{path}", data=b"", headers=form, timeout=TIMEOUT_S), 403)
    assert state(server) == before


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_message_must_say_that_it_is_json(server: StateServerProcess, kind: str) -> None:
    """A browser sends the first three for any page, without asking the server first."""
    body = b'{"msg_type": "RESET", "sender": "w", "job": "page", "num_workers": 1, "policy": "journal"}'
    headers = {"Content-Type": kind} if kind else {}
    assert_json_error(requests.post(f"{server.url}/message/", data=body, headers=headers, timeout=TIMEOUT_S), 400)
    assert get(server, "/jobs/page/").status_code == 404


# ------------------------------------------------------------------------------------------------ HTTP itself


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/message/", "/init/", "/apply/", "/reset/"])
def test_only_post_changes_anything(server: StateServerProcess, worker: Worker, method: str, path: str) -> None:
    before = state(server)
    answer = requests.request(method, f"{server.url}{path}?num_workers=3&r=0&t=9", timeout=TIMEOUT_S)
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "POST"
    if method != "HEAD":
        assert "error" in answer.json()
    assert state(server) == before


def test_reading_endpoints_refuse_a_post_and_an_unknown_path_is_a_json_404(server: StateServerProcess) -> None:
    for path in ("/", "/healthz", "/status.json", "/metrics"):
        answer = post(server, path, a="b")
        assert_json_error(answer, 405)
        assert answer.headers["Allow"] == "GET, HEAD"
    for answer in (get(server, "/nowhere"), post(server, "/nowhere", a=1)):
        assert_json_error(answer, 404)


def test_healthz_the_page_and_the_metrics_tell_the_version(server: StateServerProcess) -> None:
    answer = get(server, "/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "version": version_number()})
    assert f"ESync on MXNet {version_number()}<" in get(server, Accept="text/html").text
    metrics = get(server, "/metrics").text.splitlines()
    assert f'esync_build_info{{version="{version_number()}"}} 1.0' in metrics


def test_a_wrong_content_length_is_refused(server: StateServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as connection:
        connection.sendall(b"POST /init/ HTTP/1.1\r\nHost: a\r\nContent-Length: many\r\n\r\n")
        assert connection.recv(4096).split()[1] == b"400"


def test_a_half_sent_body_holds_up_nobody_else(server: StateServerProcess, worker: Worker) -> None:
    with contextlib.ExitStack() as stalled:
        for _ in range(50):
            connection = stalled.enter_context(socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S))
            connection.sendall(b"POST /message/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{")
        assert worker.query().status_code == 200
    assert worker.query().status_code == 200


def test_a_kept_connection_is_not_held_up_by_delayed_acknowledgements(worker: Worker) -> None:
    """With Nagle's algorithm every query of a kept connection takes 40 ms and more."""
    durations = []
    for steps in range(1, 42):
        begin = time.perf_counter()
        assert worker.query(local_iteration=steps).status_code == 200
        durations.append(time.perf_counter() - begin)
    assert sorted(durations)[len(durations) // 2] < 0.035


def test_32_workers_train_at_the_same_time(server: StateServerProcess) -> None:
    """Each does ten rounds without a wait for others: every query is answered, and the table adds up. Half of them keep
    their connection, the others have a new one for each message; another job does not matter."""
    num_workers, rounds = 32, 10
    job = f"job-{next(_job_numbers)}"
    Worker(server.url, job).reset(num_workers=num_workers)
    post(server, "/init/", num_workers=3)

    def train(rank: int) -> set[str]:
        worker, actions = Worker(server.url, job), set()
        for round in range(1, rounds + 1):
            assert worker.report(rank=rank, round=round).status_code == 200
            for steps in (1, 2):
                worker = worker if rank % 2 else Worker(server.url, job)
                answer = worker.query(rank=rank, round=round, local_iteration=steps, computation_time=0.01 * rank)
                assert answer.status_code == 200, answer.text
                actions.add(answer.json()["action"])
        return actions

    with ThreadPoolExecutor(num_workers) as pool:
        assert set().union(*pool.map(train, range(num_workers))) <= {"TRAIN", "SYNC"}
    published = get(server, f"/jobs/{job}/").json()
    assert (published["job"], published["t"]) == (job, rounds)
    assert [(row[0], row[1], row[5]) for row in published["records"]] == [(k, 2, rounds) for k in range(num_workers)]
    assert state(server)["num_workers"] == 3  # the latest


# -------------------------------------------------------------------------------------------------- the process


def test_before_a_job_there_is_nothing_to_ask() -> None:
    with running_state_server() as server:
        for path in ("/apply/", "/reset/"):
            assert assert_json_error(post(server, path, **SOUND[path]), 409)["code"] == "no-job"
        nothing = {"num_workers": 0, "t": 0, "epsilon": 0.5, "records": [], "job": None, "policy": None}
        assert state(server) == nothing
        assert assert_json_error(Worker(server.url, "a").query(), 409)["code"] == "unknown-job"
        assert get(server, "/healthz").status_code == 200


@pytest.mark.parametrize("command", WAYS.values(), ids=WAYS)
def test_a_job_begun_with_a_token_needs_it_on_a_server_without_one_which_warns_where_others_reach_it(
    command: tuple[str, ...],
) -> None:
    with running_state_server(command=command, host="0.0.0.0") as server:
        assert server.log.read_text().count("warning: every program that reaches 0.0.0.0 can disturb jobs here") == 1
        owner, stranger = Worker(server.url, "a", token="s3cret"), Worker(server.url, "a")
        join = {"num_workers": 2, "address": "10.0.0.1", "port": 4000}
        for call in (lambda worker: worker.reset(), lambda worker: worker.send("JOIN", **join)):
            assert call(owner).status_code == 200
            assert call(stranger).json()["code"] == "token"
        assert post(server, "/init/").status_code == 200  # as published


@pytest.mark.parametrize("command", WAYS.values(), ids=WAYS)
def test_with_a_token_every_post_needs_it(command: tuple[str, ...]) -> None:
    with running_state_server(command=command, ESYNC_TOKEN="s3cret", ESYNC_POLICY="journal") as server:
        assert Worker(server.url, "a", token="s3cret").reset().status_code == 200
        before = state(server)
        wrong = ("Bearer wrong", "Bearer s3cre", "Bearer s3cretX", "s3cret", "Basic s3cret", "Bearer \xe9")
        for authorization in (None, *wrong):
            headers = {} if authorization is None else {"Authorization": authorization.encode("latin-1")}
            for path in ("/message/", "/init/", "/apply/", "/reset/"):
                answer = requests.post(f"{server.url}{path}", data={"r": 0}, headers=headers, timeout=TIMEOUT_S)
                assert_json_error(answer, 401)
                assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert state(server) == before
        for scheme in ("bearer", "BEARER ", "Bearer"):  # schemes are case-insensitive (RFC 9110, 11.1)
            headers = {"Authorization": f"{scheme} s3cret"}
            assert requests.post(f"{server.url}/init/", headers=headers, timeout=TIMEOUT_S).status_code == 200
        assert state(server)["policy"] == "journal"  # of ESYNC_POLICY


@pytest.mark.parametrize("command", WAYS.values(), ids=WAYS)
def test_with_a_token_the_server_tells_of_jobs_by_its_own_names_alone(command: tuple[str, ...]) -> None:
    """A page elsewhere can have its own name lead to this server's address, and read what a browser gets."""

    def status(path: str, name: str) -> int:
        answer = get(server, path, Host=name)
        if answer.status_code != 200:
            assert "is not" in assert_json_error(answer, 421)["error"] and "jobs" not in answer.json()
        return answer.status_code

    hosts = {"ESYNC_TOKEN": "s3cret", "ESYNC_HOSTS": "page.example, tunnel.example"}
    with running_state_server(command=command, **hosts) as server:
        here = socket.gethostname()
        own = ("localhost", "a.LOCALHOST:80", here, f"127.0.0.1:{server.port}", "[::1]:80", "10.0.0.3")
        evil = ("evil.example", f"{here}.evil.example", "127.0.0.1.evil.example", "a b", "@", "")
        for path in ("/", "/status.json", "/metrics", "/jobs/one/", "/jobs/one/status.json"):
            names = (*own, "page.example", "tunnel.example:1") if "jobs" not in path else ()
            assert {status(path, name) for name in names} <= {200}
            assert [status(path, name) for name in evil] == [421] * len(evil), path
        assert status("/healthz", "evil.example") == 200


# ------------------------------------------------------------------------------------------------ own failures


def test_a_failing_handler_is_a_json_500_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "SimpleStateServer.settings")
    import django

    django.setup()
    from server.answers import Request
    from server.views import answer, app

    def fail(message: object, now: float) -> None:
        raise ZeroDivisionError("the handler fails")

    def post(path: str, body: bytes) -> Any:
        return answer(Request("", "POST", path.encode(), {"content-type": "application/x-www-form-urlencoded"}, body))

    monkeypatch.setattr(app().handlers, "query", fail)
    assert post("/init/", b"").status == 200
    failed = post("/apply/", b"r=0&k=1&c=1&te=1")
    assert failed.status == 500
    assert json.loads(failed.body) == {"error": "the state server failed on this request; its log says why"}
    assert answer(Request("", "GET", b"/")).status == 200


def test_log_lines_have_the_machines_time():
    with running_state_server(TZ="UTC-9") as server:  # nine hours ahead of UTC
        requests.post(f"{server.url}/init/", data={"num_workers": "none"}, timeout=10)
        (line,) = (line for line in server.log.read_text().splitlines() if "POST /init/ from 127.0.0.1: 400" in line)
    logged = datetime.datetime.fromisoformat(line[:19])
    there = datetime.datetime.now(datetime.timezone(datetime.timedelta(hours=9))).replace(tzinfo=None)
    assert abs(logged - there) < datetime.timedelta(minutes=5)
