"""The status page in a real headless Chromium, its numbers on a virtual clock, and the metrics for Prometheus."""

from __future__ import annotations

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
from server.handlers import Handlers
from server.messages import Device, Query, Report, Reset, Status
from server.metrics import metrics
from server.status import SHOWN_WORKERS, TIMELINE_ROUNDS, status
from state_server_process import StateServerProcess, running_state_server

TIMEOUT_S = 10
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here; install Debian's package chromium to test the status page"
)
_job_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[StateServerProcess]:
    with running_state_server() as process:
        yield process


# ------------------------------------------------------------------------------- what is shown, on a virtual clock


def step(
    handlers: Handlers, rank: int, round: int, steps: int, seconds: float, now: float, job: str = "a", samples: int = 64
) -> None:
    handlers.query(Query(f"worker-{rank}", job, Status(rank, steps, round, seconds, 0.5), samples=samples), now)


def enter(handlers: Handlers, rank: int, round: int, now: float, **more: Any) -> None:
    handlers.report(Report(f"worker-{rank}", "a", Status(rank, 0, round), **more), now)


def job_of(num_workers: int) -> Handlers:
    handlers = Handlers()
    handlers.reset(Reset("server-0", "a", num_workers, "journal", 0.5), 0.0)
    return handlers


def states(handlers: Handlers, now: float) -> list[str]:
    return [worker["state"] for worker in status(handlers.snapshot(now))["workers"]]


def test_each_worker_shows_what_it_does() -> None:
    handlers = job_of(3)
    assert states(handlers, 1.0) == ["not seen yet"] * 3
    for rank in range(3):
        enter(handlers, rank, 1, 1.0)
    step(handlers, 0, 1, 1, 1.0, 2.0)
    assert states(handlers, 2.0) == ["training", "training", "training"]
    step(handlers, 2, 1, 1, 4.0, 5.0)
    step(handlers, 1, 1, 1, 4.5, 5.5)  # is the straggler now
    assert states(handlers, 5.5) == ["training", "waiting", "training"]
    step(handlers, 0, 1, 2, 1.0, 5.6)
    step(handlers, 2, 1, 2, 4.0, 9.0)
    assert states(handlers, 9.0) == ["aggregating"] * 3
    enter(handlers, 1, 2, 10.0)
    assert states(handlers, 10.0) == ["aggregating", "training", "aggregating"]


def test_a_lost_worker_is_silent_and_those_that_wait_for_it_are_not() -> None:
    handlers = job_of(2)
    for rank in range(2):
        enter(handlers, rank, 1, 0.0)
    step(handlers, 1, 1, 1, 4.0, 4.0)
    for rank in range(2):
        enter(handlers, rank, 2, 10.0)
    step(handlers, 0, 2, 1, 4.0, 14.0)
    shown = status(handlers.snapshot(56.0))
    assert [worker["state"] for worker in shown["workers"]] == ["waiting", "silent"]
    assert shown["workers"][1]["silence_s"] == 46.0
    assert not shown["quiet"]  # ten reach-server times of the lost one are 45 s, those of worker 0 last until 59
    assert status(handlers.snapshot(60.0))["quiet"]


def test_the_throughput_counts_samples_over_the_time_of_the_rounds_that_are_kept() -> None:
    handlers = job_of(1)
    for round in range(1, 41):
        enter(handlers, 0, round, 10.0 * round)
        step(handlers, 0, round, 5, 1.0, 10.0 * round + 5)
    shown = status(handlers.snapshot(410.0))
    assert shown["samples_per_s"] == 5 * 64 / 10
    assert shown["samples"] == 40 * 5 * 64


def test_the_timeline_tells_who_computed_and_who_waited() -> None:
    handlers = job_of(1)
    enter(handlers, 0, 1, 100.0)
    step(handlers, 0, 1, 1, 6.0, 106.0)
    enter(handlers, 0, 2, 110.0)
    timeline = status(handlers.snapshot(112.0))["timeline"]
    assert timeline["seconds"] == 12.0
    assert timeline["lanes"] == [{"rank": 0, "silent": None, "spans": [[1, 12.0, 6.0, 2.0], [2, 2.0, None, None]]}]


def test_the_payload_is_bounded_and_keeps_the_straggler_of_a_large_job() -> None:
    handlers = job_of(10_000)
    for round in range(1, 4):
        for rank in range(10_000):
            step(handlers, rank, round, 1, 1.0 + (rank == 7_777), 0.5 * round)
    for round in range(4, 40):
        for rank in range(100):
            step(handlers, rank, round, 1, 1.0, 0.5 * round)
    shown = status(handlers.snapshot(20.0))
    assert len(shown["workers"]) == SHOWN_WORKERS
    assert [worker["rank"] for worker in shown["workers"] if worker["straggler"]] == [7_777]
    assert all(len(lane["spans"]) <= TIMELINE_ROUNDS for lane in shown["timeline"]["lanes"])
    assert len(json.dumps(shown)) < 64 * 1024


def test_a_decision_is_shown_until_the_next_one() -> None:
    handlers = job_of(1)
    step(handlers, 0, 1, 1, 1.0, 1.0)
    enter(handlers, 0, 2, 2.0)
    worker = status(handlers.snapshot(2.0))["workers"][0]
    assert (worker["action"], worker["state"]) == ("SYNC", "training")
    assert "is the straggler" in worker["reason"]


# ------------------------------------------------------------------------------------------------------ metrics


def test_metrics_are_in_prometheus_text_format() -> None:
    handlers = job_of(2)
    enter(handlers, 0, 1, 0.0, device=Device('a "host" \\ name', "gpu0"), accuracy=0.75)
    step(handlers, 0, 1, 3, 0.25, 1.0)
    text = metrics(handlers.snapshot(2.0))
    sample = re.compile(r'[a-z_]+(\{[a-z_]+="([^"\\]|\\.)*"(,[a-z_]+="([^"\\]|\\.)*")*\})? -?[0-9.e+-]+')
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) [a-z_]+ .+", line) or sample.fullmatch(line), line
    assert text.endswith("\n")
    lines = text.splitlines()
    host = r'rank="0",host="a \"host\" \\ name",device="gpu0"'
    assert 'esync_messages_total{type="QUERY"} 1' in lines
    assert 'esync_decisions_total{action="TRAIN"} 1' in lines
    assert "esync_round 1" in lines
    assert "esync_test_accuracy 0.75" in lines
    assert f"esync_worker_step_time_seconds{{{host}}} 0.25" in lines
    assert f"esync_worker_samples_total{{{host}}} 192" in lines
    assert f"esync_worker_silence_seconds{{{host}}} 1.0" in lines
    assert 'esync_worker_step_time_seconds{rank="1"' not in text  # it is not known


def test_metrics_are_served_before_and_during_a_job() -> None:
    with running_state_server() as server:
        answer = requests.get(f"{server.url}/metrics", timeout=TIMEOUT_S)
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert 'esync_messages_total{type="RESET"} 0' in answer.text
        assert "esync_round" not in answer.text
        assert requests.post(f"{server.url}/init/", timeout=TIMEOUT_S).status_code == 200
        assert "esync_workers 6" in requests.get(f"{server.url}/metrics", timeout=TIMEOUT_S).text


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
    """Text by element id, table rows by cell, and how often each SVG class occurs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.by_id: dict[str, str] = {}
        self.rows: list[list[str]] = []
        self.classes: list[str] = []
        self.tags: list[str] = []
        self.body: dict[str, str | None] = {}
        self.root: dict[str, str | None] = {}
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.tags.append(tag)
        self.classes.append(values.get("class") or "")
        if tag == "body":
            self.body = values
        elif tag == "html":
            self.root = values
        elif tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")
        if tag not in ("meta", "link", "img"):
            self._open.append((tag, values.get("id")))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for _, identity in self._open:
            if identity:
                self.by_id[identity] = self.by_id.get(identity, "") + data
        if any(tag == "td" for tag, _ in self._open):
            self.rows[-1][-1] += data


def browse(url: str, virtual_ms: int = 3500, *flags: str) -> Dom:
    """The page as Chromium has it after some seconds of its own, virtual time."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        result = subprocess.run(
            [
                CHROMIUM,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--enable-logging=stderr",
                f"--user-data-dir={profile}",
                f"--virtual-time-budget={virtual_ms}",
                "--dump-dom",
                *flags,
                url,
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert result.returncode == 0, result.stderr
    console = [line for line in result.stderr.splitlines() if ":CONSOLE" in line]
    assert not console, console
    return Dom(result.stdout)


class Job:
    """A job on the server, spoken for by the test."""

    def __init__(self, server: StateServerProcess, num_workers: int) -> None:
        self._server = server.url
        self._session = requests.Session()
        self.name = f"page-{next(_job_numbers)}"
        self.send("RESET", num_workers=num_workers, policy="journal")

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
        status = {
            "rank": rank,
            "round": round,
            "local_iteration": steps,
            "computation_time": seconds,
            "transmission_time": 0.05,
        }
        return str(self.send("QUERY", status=status, samples=64)["action"])


@needs_chromium
def test_a_browser_shows_every_worker_and_the_last_rounds(server: StateServerProcess) -> None:
    job = Job(server, 3)
    for round in (1, 2, 3):
        for rank in range(3):
            job.report(
                rank,
                round,
                device={"host": f"node-{rank}", "device": "cpu0"},
                **({"accuracy": 0.25 * round} if rank == 0 else {}),
            )
        if round < 3:
            for rank, seconds in ((0, 0.03), (1, 0.42)):
                assert job.query(rank, round, 1, seconds) == "TRAIN"
            assert job.query(2, round, 1, 700.0) == "SYNC"
            for rank, seconds in ((0, 0.03), (1, 0.42)):
                assert job.query(rank, round, 2, seconds) == "SYNC"
    assert job.query(0, 3, 7, 0.03) == "TRAIN"
    job.shown()

    page = browse(server.url)
    assert page.by_id["job"] == job.name
    assert page.by_id["round"] == "3"
    assert page.by_id["workers-count"] == "33 training"
    assert page.by_id["accuracy"] == "75.0 %best 75.0 %"
    assert page.by_id["policy"] == "journalreach-server time"
    assert page.by_id["throughput"].endswith("/ssamples")
    rows = [row for row in page.rows if row]
    assert [row[:3] for row in rows] == [[str(k), f"node-{k}", "cpu0"] for k in range(3)]
    assert [row[3] for row in rows] == ["training", "training", "trainingstraggler"]
    assert [row[4] for row in rows] == ["7", "0", "0"]
    assert [row[5] for row in rows] == ["30 ms", "420 ms", "11 min 40 s"]
    assert [row[6] for row in rows] == ["50 ms"] * 3
    assert rows[0][9].startswith("TRAIN straggler 2 is due in ")
    # Three rounds of three workers, two of which are over.
    assert page.classes.count("computing") == 9
    assert page.classes.count("waiting") == 6
    assert page.tags.count("polyline") == 1
    assert int(page.body["data-refreshes"] or 0) >= 2


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
    assert int(page.by_id["round"].replace(",", "")) > at_first > 0


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
def test_what_a_worker_says_of_itself_is_only_ever_text(server: StateServerProcess) -> None:
    job = Job(server, 1)
    host = "<img src=x onerror=document.title='no'></script><b>"
    job.report(0, 1, device={"host": host, "device": "{{ 7 }}"})
    job.shown()
    page = browse(server.url)
    assert [row[1:3] for row in page.rows if row] == [[host, "{{ 7 }}"]]
    assert "img" not in page.tags
    assert page.by_id.get("status", "").startswith("{")


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
    with as_file(page_text.replace("</body>", COLOURS)) as url:
        light = browse(url, 5_000, "--blink-settings=preferredColorScheme=1").root
        dark = browse(url, 5_000, "--blink-settings=preferredColorScheme=0").root

    def brightness(colour: str | None) -> int:
        return sum(int(part) for part in re.findall(r"\d+", colour or "")[:3])

    assert brightness(light["data-paper"]) > 600 > 200 > brightness(light["data-ink"])
    assert brightness(dark["data-paper"]) < 200 < 600 < brightness(dark["data-ink"])
