"""The status page: what it gets, on a virtual clock, and what a real headless Chromium makes of it."""

import contextlib
import html
import html.parser
import itertools
import json
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from scripted_job import ScriptedJob
from state_server_process import StateServerProcess, running_state_server

from server.messages import Reset, Settings
from server.policies import POLICIES
from server.status import SHOWN_JOBS, SHOWN_WORKERS

TIMEOUT_S = 10
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
_job_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[StateServerProcess]:
    with running_state_server() as process:
        yield process


# ------------------------------------------------------------------------------- what is shown, on a virtual clock


@pytest.mark.parametrize("policy", list(POLICIES))
def test_the_payload_is_bounded_and_names_the_slowest_of_a_large_job(policy: str) -> None:
    job = ScriptedJob(10_000, policy)
    for rank in range(10_000):
        job.query(rank, 1, 1, 1.0 + (rank == 7_777), 0.5)
    for round in range(2, 40):
        for rank in range(100):
            job.query(rank, round, 1, 1.0, 0.5 * round)
    shown = job.status(20.0)
    assert len(shown["workers"]) == SHOWN_WORKERS
    assert 7_777 in [worker["rank"] for worker in shown["workers"]]
    assert (shown["cells"]["each"], len(shown["cells"]["letters"])) == (10, 1000)
    assert sum(shown["states"].values()) == 10_000
    assert len(json.dumps(shown)) < 96 * 1024


def test_of_many_workers_the_marked_and_the_silent_come_first_and_a_few_stand_in_the_order_of_their_ranks() -> None:
    job = ScriptedJob(40)
    job.all_report(1, 0.0)
    for rank in range(40):
        if rank != 20:
            job.query(rank, 1, 1, 9.0 if rank == 30 else 1.0 + rank / 10, 29.0)
    shown = job.status(31.0)
    assert [worker["rank"] for worker in shown["workers"][:4]] == [20, 30, 39, 38]
    assert (shown["workers"][0]["state"], shown["cells"]["letters"][20]) == ("silent", "s")
    few = ScriptedJob(16).status(1.0)
    assert ([worker["rank"] for worker in few["workers"]], few["many"]) == ([*range(16)], False)


def test_a_decision_is_shown_until_the_next_one() -> None:
    job = ScriptedJob(1)
    job.query(0, 1, 1, 1.0, 1.0)
    job.report(0, 2, 2.0)
    worker = job.status(2.0)["workers"][0]
    assert (worker["action"], worker["state"]) == ("SYNC", "training")
    assert "is the straggler" in worker["reason"]


@pytest.mark.parametrize("more", [{}, {"title": "of its own"}])
def test_a_rules_name_and_whom_it_calls_slow_are_shown(more: dict[str, str]) -> None:
    job = ScriptedJob(3, "wbsp", **more)
    for rank in range(3):
        job.query(rank, 1, 1, 1.0 + rank, 3.0, way="ASP")
    shown = job.status(3.5)
    assert (shown["title"], shown["way"]) == (more.get("title", "WBSP"), "ASP")
    assert "releases" in shown["caption"]
    assert [worker["mark"] for worker in shown["workers"]] == ["", "", "slowest"]


def test_the_list_of_jobs_has_those_first_that_are_at_work() -> None:
    job = ScriptedJob(1)
    for number in range(40):
        job.handlers.reset(Reset("w", f"job-{number}", Settings(1, "journal", 0.5)), 1.0 + number)
    jobs = job.status(45.0)["jobs"]
    assert jobs["count"] == 41
    assert len(jobs["shown"]) == SHOWN_JOBS
    assert [line["job"] for line in jobs["shown"][:2]] == ["job-39", "job-38"]
    job.report(0, 1, 500.0)
    assert [line["state"] for line in job.status(500.0)["jobs"]["shown"][:2]] == ["at work", "quiet"]


# ------------------------------------------------------------------------------------------------- JSON or page


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "application/json, text/html;q=0.5"])
def test_programs_get_json(server: StateServerProcess, accept: str | None) -> None:
    requests.post(f"{server.url}/init/", timeout=TIMEOUT_S)
    headers = {} if accept is None else {"Accept": accept}
    answer = requests.get(server.url, headers=headers, timeout=TIMEOUT_S)
    assert answer.headers["Content-Type"] == "application/json"
    assert {"num_workers", "t", "epsilon", "records"} <= answer.json().keys()


def test_browsers_get_one_page_without_outside_assets(server: StateServerProcess) -> None:
    answer = requests.get(server.url, headers=BROWSER, timeout=TIMEOUT_S)
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Vary"] == "Accept"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert set(re.findall(r"https?://[^\s\"']+", answer.text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|img|iframe)[^>]* src=|<link[^>]*stylesheet", answer.text)


# ------------------------------------------------------------------------------------------------- in a browser


class Dom(html.parser.HTMLParser):
    """Text by element id, cells by table row, and the classes, links and tags there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.by_id: dict[str, str] = {}
        self.rows: list[list[str]] = []
        self.classes: list[str] = []
        self.links: list[str] = []
        self.tags: dict[str, dict[str, str | None]] = {}  # the attributes of the last one of each kind
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = self.tags[tag] = dict(attributes)
        self.classes.append(values.get("class") or "")
        self.links += [values["href"] or ""] if tag == "a" and "href" in values else []
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")
        if tag not in ("meta", "link", "img"):
            self._open.append((tag, values.get("id")))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for identity in filter(None, (identity for _, identity in self._open)):
            self.by_id[identity] = self.by_id.get(identity, "") + data
        if any(tag == "td" for tag, _ in self._open):
            self.rows[-1][-1] += data

    def column(self, *numbers: int) -> list[Any]:
        """A column of the table of workers, or several side by side."""
        cells = [[row[number] for number in numbers] for row in self.rows if row]
        return [of[0] for of in cells] if len(numbers) == 1 else cells


def browse(url: str, virtual_ms: int = 3500, *flags: str) -> Dom:
    """The page as Chromium has it after some seconds of its own, virtual time."""
    assert CHROMIUM is not None
    quiet = ("background-networking", "extensions", "default-apps", "breakpad", "component-update", "sync")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr", *flags)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        about = (f"--user-data-dir={profile}", f"--virtual-time-budget={virtual_ms}", "--dump-dom")
        command = [CHROMIUM, *(f"--disable-{each}" for each in quiet), *about, *flags, url]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert ":CONSOLE" not in result.stderr, result.stderr
    return Dom(result.stdout)


class Job:
    """A job on the server, spoken for by the test."""

    def __init__(self, server: StateServerProcess, num_workers: int, **settings: Any) -> None:
        self._server = server.url
        self._session = requests.Session()
        self.name = f"page-{next(_job_numbers)}"
        self.url = f"{server.url}/jobs/{self.name}/"
        self.send("RESET", num_workers=num_workers, policy="journal", **settings)

    def send(self, msg_type: str, **fields: Any) -> dict[str, Any]:
        message = {"msg_type": msg_type, "sender": "test", "receiver": "state-server", "job": self.name, **fields}
        answer = self._session.post(f"{self._server}/message/", json=message, timeout=TIMEOUT_S)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def shown(self) -> None:
        """Waits until the page's data, which may be half a second old, hold every message that was sent."""

        def shot() -> tuple[str, float]:
            status = self._session.get(f"{self._server}/status.json", timeout=TIMEOUT_S).json()
            return status["job"], status["elapsed_s"]

        first, give_up = shot(), time.monotonic() + TIMEOUT_S
        while (latest := shot()) == first or latest[0] != self.name:
            assert time.monotonic() < give_up, latest

    def report(self, rank: int, round: int, **more: Any) -> None:
        self.send("REPORT", status={"rank": rank, "round": round}, **more)

    def query(self, rank: int, round: int, steps: int, seconds: float) -> str:
        times = {"computation_time": seconds, "transmission_time": 0.05}
        status = {"rank": rank, "round": round, "local_iteration": steps, **times}
        return str(self.send("QUERY", status=status, samples=64)["action"])


@needs_chromium
def test_a_browser_shows_every_worker_and_the_last_rounds(server: StateServerProcess) -> None:
    browse(server.url)  # the browser's first start may take longer than a worker may be silent
    job = Job(server, 3)
    hosts = [f"<img src=x onerror=document.title='no'></script><b>{rank}" for rank in range(3)]  # only ever text
    for round in (1, 2, 3):
        for rank, host in enumerate(hosts):
            measured = {} if rank else {"accuracy": 0.25 * round}
            job.report(rank, round, device={"host": host, "device": "{{ 7 }}"}, **measured)
        if round < 3:
            told = [job.query(rank, round, 1, seconds) for rank, seconds in enumerate((0.03, 0.42, 700.0))]
            told += [job.query(rank, round, 2, seconds) for rank, seconds in enumerate((0.03, 0.42))]
            assert told == ["TRAIN", "TRAIN", "SYNC", "SYNC", "SYNC"]
    assert job.query(0, 3, 7, 0.03) == "TRAIN"
    job.shown()

    page = browse(server.url)
    shown = {
        "job": job.name,
        "title": "ESync",
        "workers-count": "33 training",
        "value": "75.0 %best 75.0 %",
        "policy": "journalbalances the reach-server time",
    }
    assert page.by_id | shown == page.by_id
    for name, begin in (("round", "3"), ("status", "{")):
        assert page.by_id[name].startswith(begin)
    assert page.by_id["throughput"].endswith("/ssamples")
    assert "img" not in page.tags
    assert page.column(0, 1, 2, 3, 4, 5, 6) == [
        ["0", hosts[0], "{{ 7 }}", "training", "7", "30 ms", "50 ms"],
        ["1", hosts[1], "{{ 7 }}", "training", "0", "420 ms", "50 ms"],
        ["2", hosts[2], "{{ 7 }}", "trainingstraggler", "0", "11 min 40 s", "50 ms"],
    ]
    assert page.column(10)[0].startswith("TRAIN straggler 2 is due in ")
    # Three rounds of three workers, two of which are over; the last evaluation is the best.
    counts = {each: page.classes.count(each) for each in ("computing", "waiting", "dot", "best")}
    assert counts == {"computing": 9, "waiting": 6, "dot": 1, "best": 0}
    assert int(page.tags["body"]["data-refreshes"] or 0) >= 2


@needs_chromium
def test_another_metric_is_shown_by_its_name_in_its_own_unit_and_direction(server: StateServerProcess) -> None:
    metric = {"name": "rmse (m/s)", "more_is_better": False}
    job = Job(server, 1, metric=metric, limits={"target": -0.5})
    for round, value in ((1, 31234.5), (2, 0.251234), (3, 7)):
        job.report(0, round + 1, value=value, elapsed=round)
    job.shown()
    page = browse(job.url)
    assert page.by_id["value"] == "7best 0.2512, target -0.5"
    assert page.by_id["left"] == "ends at test rmse (m/s) -0.5"
    assert page.by_id["evaluations"].startswith("0100002000030000")
    assert "Test rmse (m/s)" in page.by_id["content"] and "accuracy" not in page.by_id["content"]


@needs_chromium
def test_the_page_follows_the_job_by_itself(server: StateServerProcess) -> None:
    job = Job(server, 1)
    watched = threading.Event()

    def train() -> None:
        for round in itertools.count(1):
            job.report(0, round)
            if watched.wait(0.005):
                return

    worker = threading.Thread(target=train)
    worker.start()
    try:
        # Virtual time runs ahead of the server's, which computes the status every half second at most.
        page = browse(server.url, 120_000)
    finally:
        watched.set()
        worker.join()
    at_first = json.loads(page.by_id["status"])["round"]
    assert int(re.sub(r"\D", "", page.by_id["round"])) > at_first > 0


@needs_chromium
def test_the_page_says_that_no_job_has_begun_and_what_happens_when_the_server_is_gone() -> None:
    with running_state_server() as server:
        page = browse(server.url)
        assert "No job has begun yet" in page.by_id["notice"]
        text = requests.get(server.url, headers=BROWSER, timeout=TIMEOUT_S).text
    with as_file(text.replace('"status.json"', f'"{server.url}/status.json"')) as url:
        page = browse(url, 3500, "--disable-logging")
    assert "has not answered for" in page.by_id["notice"]


@needs_chromium
def test_a_page_says_how_far_the_job_is_who_waits_for_whom_and_when_it_has_ended(server: StateServerProcess) -> None:
    job = Job(server, 2, limits={"rounds": 4, "accuracy": 0.9}, title="ESync, tried out")
    for rank in range(2):
        job.report(rank, 1)
    job.report(0, 1, doing="evaluating")
    assert [job.query(1, round, 1, 0.1) for round in (1, 2)] == ["TRAIN", "TRAIN"]
    job.shown()
    page = browse(job.url)
    assert page.by_id["title"] == "ESync, tried out"
    assert "1 of 4 rounds done" in page.by_id["left"]
    assert "or ends at 90.0 % test accuracy" in page.by_id["left"]
    assert page.column(3) == ["evaluating", "training"]
    other = Job(server, 1)  # is the latest now
    other.report(0, 1)
    for rank in range(2):
        job.report(rank, 2, doing="ended")
    other.shown()
    page = browse(job.url)
    assert page.by_id["job"] == job.name
    assert page.by_id["notice"].startswith("This job has ended after")
    assert {f"../{other.name}/", f"../{job.name}/"} <= {*page.links}
    page = browse(server.url)
    assert page.by_id["job"] == other.name
    assert f"jobs/{job.name}/" in page.links


@needs_chromium
def test_of_many_workers_a_page_shows_a_square_each_and_a_few_rows(server: StateServerProcess) -> None:
    job = Job(server, 120)
    for rank in range(120):
        job.report(rank, 1)
    job.shown()
    page = browse(server.url, 3500, "--window-size=1300,900")
    assert (page.classes.count("training"), len(page.column(0))) == (120, 16)
    assert (page.by_id["more"], page.by_id["counts"]) == ("Show 100 of 120", "120 training")


@needs_chromium
def test_a_page_of_a_job_that_the_server_does_not_know_any_more_says_so(server: StateServerProcess) -> None:
    job = Job(server, 1)
    job.report(0, 1)
    text = requests.get(job.url, headers=BROWSER, timeout=TIMEOUT_S).text
    assert requests.get(f"{server.url}/jobs/no-such-job/", headers=BROWSER, timeout=TIMEOUT_S).status_code == 404
    # Chromium lets no file read an answer of another origin, so the answer is put in its place.
    gone = "const fetch = async () => ({ status: 404, ok: false });"
    with as_file(text.replace('"use strict";', f'"use strict"; {gone}')) as url:
        page = browse(url)
    assert "does not know the job any more" in page.by_id["notice"]


@needs_chromium
def test_an_open_page_is_told_of_the_end_and_what_is_left_of_all_jobs_is_one_file(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    with running_state_server(command=("serve", "--page-file", str(file))) as server:
        job, latest = Job(server, 2, title="SSGD"), Job(server, 1)
        for rank in range(2):
            job.report(rank, 1, loss=0.5, elapsed=0, events=[[3, 7.5, "members", "worker 2 is gone"]])
        job.report(0, 1, doing="ended")
        latest.report(0, 1)

        def end_once_the_page_is_open() -> None:
            asked = r'esync_request_seconds_count{path="/jobs/"} ([5-9]|[1-9][0-9]+)[.]'
            while not re.search(asked, requests.get(f"{server.url}/metrics", timeout=TIMEOUT_S).text):
                time.sleep(0.1)
            server.process.terminate()

        launcher = threading.Thread(target=end_once_the_page_is_open)
        launcher.start()
        page = browse(job.url, 300_000, "--disable-logging")
        launcher.join()
        server.process.wait(TIMEOUT_S)
    assert json.loads(page.by_id["status"])["state"] == "at work"
    assert "This job has ended" in page.by_id["notice"]
    assert page.column(3) == ["ended", "lost"]
    page = browse(f"{file.as_uri()}#{job.name}")
    assert set(re.findall(r"https?://[^\s\"']+", file.read_text())) == {"http://www.w3.org/2000/svg"}
    assert "1 of 2 workers had not left it in order" in page.by_id["notice"]
    assert page.column(3) == ["ended", "lost"]
    assert page.links[:2] == [f"#{latest.name}", f"#{job.name}"]
    assert page.by_id["events-list"] == "7 s, round 3membersworker 2 is gone"
    assert page.classes.count("event") == 0  # no curve is as long
    assert page.by_id["losses"].startswith("0")


@pytest.fixture
def page_text(server: StateServerProcess) -> str:
    """The page with long names in it."""
    job = Job(server, 4)
    for rank in range(4):
        host = f"a-very-long-host-name-{rank}.in.a.very.long.domain.example.org"
        job.report(rank, 1, device={"host": host, "device": "gpu0"})
        job.query(rank, 1, 1, 0.5)
    job.shown()
    text = requests.get(server.url, headers=BROWSER, timeout=TIMEOUT_S).text
    assert "REFRESH_MS = 1000;" in text
    return text.replace("REFRESH_MS = 1000;", "REFRESH_MS = 1e8;")  # a file cannot ask the server


@contextlib.contextmanager
def as_file(text: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(text)
        yield path.as_uri()


# Chromium's window is never narrower than 500 pixels; a frame can be.
FRAMES = """<!DOCTYPE html><p id="widths"></p>
{frames}
<script>
onload = () => {{
  const frames = [...document.querySelectorAll("iframe")];
  document.getElementById("widths").textContent = JSON.stringify(frames.map((frame) => [
    frame.contentWindow.innerWidth,
    frame.contentDocument.scrollingElement.scrollWidth,
    frame.contentDocument.getElementById("workers").rows.length,
  ]));
}};
</script>"""


@needs_chromium
def test_nothing_is_cut_off_at_any_width(page_text: str) -> None:
    widths = [320, 390, 600, 820, 1280]
    source = html.escape(page_text)
    frames = "".join(
        f'<iframe width="{width}" height="700" frameborder="0" srcdoc="{source}"></iframe>' for width in widths
    )
    with as_file(FRAMES.format(frames=frames)) as url:
        measured = json.loads(browse(url, 10_000).by_id["widths"])
    assert [[inner, rows] for inner, _, rows in measured] == [[width, 4] for width in widths]
    assert all(0 < content <= inner for inner, content, _ in measured), measured


COLOURS = """<script>
const style = getComputedStyle(document.body);
Object.assign(document.documentElement.dataset, { paper: style.backgroundColor, ink: style.color });
</script></body>"""


@needs_chromium
def test_the_page_is_light_or_dark_as_the_reader_likes(page_text: str) -> None:
    def brightness(part: str) -> int:
        return sum(int(each) for each in re.findall(r"\d+", root[f"data-{part}"] or "")[:3])

    with as_file(page_text.replace("</body>", COLOURS)) as url:
        for scheme, bright, dark in ((1, "paper", "ink"), (0, "ink", "paper")):
            root = browse(url, 5_000, f"--blink-settings=preferredColorScheme={scheme}").tags["html"]
            assert brightness(bright) > 600 > 200 > brightness(dark)
