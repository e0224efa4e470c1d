"""The metrics for Prometheus: of several jobs, of many workers, and what their labels say."""

import re
import shutil
import subprocess
import time

import pytest
import requests
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from scripted_job import ENDED, ScriptedJob
from state_server_process import StateServerProcess, clients, query, report, running_state_server

from server.messages import Limits, Metric, Reset, Settings
from server.metrics import MAX_WORKER_SERIES, StateCollector
from server.row import Device

TIMEOUT_S = 10
PROMTOOL = shutil.which("promtool")


def exposed(job: ScriptedJob, now: float) -> str:
    """What a scrape at that moment gets."""
    registry = CollectorRegistry()
    registry.register(StateCollector(job.handlers, lambda: now))
    return generate_latest(registry).decode()


def samples(text: str) -> dict[str, float]:
    """Each sample by name and labels, as it stands in the text."""
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if not line.startswith("#")
    }


def test_every_metric_of_a_job_has_its_name_and_values() -> None:
    job = ScriptedJob(2, limits=Limits(rounds=100, seconds=3600.0, accuracy=0.9))
    job.report(0, 1, 0.0, device=Device('a "host" \\ name', "gpu0"), accuracy=0.75)
    job.query(0, 1, 3, 0.25, 1.0)
    text = exposed(job, 2.0)
    assert list(text_string_to_metric_families(text))
    found = samples(text)
    assert found | EXPOSED == found
    assert 'esync_worker_step_time_seconds{job="a",rank="1"}' not in found  # it is not known


EXPOSED = {
    'esync_messages_total{type="QUERY"}': 1,
    'esync_decisions_total{action="TRAIN"}': 1,
    'esync_jobs{state="at work"}': 1,
    'esync_job_info{algorithm="ESync",job="a",policy="journal"}': 1,
    'esync_round{job="a"}': 1,
    'esync_test_accuracy{job="a"}': 0.75,
    'esync_best_test_accuracy{job="a"}': 0.75,
    'esync_limit_rounds{job="a"}': 100,
    'esync_limit_seconds{job="a"}': 3600,
    'esync_target_accuracy{job="a"}': 0.9,
    'esync_workers_in_state{job="a",state="training"}': 1,
    'esync_workers_in_state{job="a",state="not seen yet"}': 1,
    'esync_samples_total{job="a"}': 192,
    'esync_worker_step_time_seconds{job="a",rank="0"}': 0.25,
    'esync_worker_samples_total{job="a",rank="0"}': 192,
    'esync_worker_silence_seconds{job="a",rank="0"}': 1.0,
    'esync_worker_computing_share{job="a",rank="0"}': 0.75,
}


def test_labels_do_not_change_when_a_worker_says_where_it_runs() -> None:
    job = ScriptedJob(1)
    before = samples(exposed(job, 1.0))
    job.report(0, 1, 1.5, device=Device("node", "gpu0"))
    after = samples(exposed(job, 2.0))
    assert set(before) <= set(after)
    assert set(after) - set(before) == {'esync_worker_info{device="gpu0",host="node",job="a",rank="0"}'}


def test_jobs_stand_side_by_side_and_one_that_has_ended_keeps_its_totals() -> None:
    job = ScriptedJob(1)
    job.query(0, 1, 1, 1.0, 1.0)
    job.handlers.reset(Reset("w", "b", Settings(3, "wbsp", 0.5)), 2.0)
    job.report(0, 1, 3.0, doing=ENDED)
    found = samples(exposed(job, 4.0))
    names = (
        'workers{job="a"}',
        'workers{job="b"}',
        'jobs{state="at work"}',
        'jobs{state="ended"}',
        'samples_total{job="a"}',
    )
    assert [found[f"esync_{name}"] for name in names] == [1, 3, 1, 1, 64]
    assert not [name for name in found if name.startswith("esync_worker_") and 'job="a"' in name]


def test_another_metric_than_the_accuracy_has_its_name_as_a_label() -> None:
    job = ScriptedJob(1, metric=Metric("rmse", more_is_better=False), limits=Limits(target=0.25))
    job.report(0, 2, 1.0, value=4.0)
    job.report(0, 3, 2.0, value=4.5)
    text = exposed(job, 3.0)
    for sample in ("target_metric{%s} 0.25", "test_metric{%s} 4.5", "best_test_metric{%s} 4.0"):
        assert "esync_" + sample % 'job="a",metric="rmse"' in text.splitlines()
    assert 'accuracy{job="a"}' not in text


def test_no_worker_is_called_a_straggler_where_the_rule_does_not_say_so() -> None:
    job = ScriptedJob(2, "sync-switch-none")
    for rank in range(2):
        job.query(rank, 1, 1, 1.0 + rank, 2.0)
    assert "esync_straggler_rank{" not in exposed(job, 2.5)


@pytest.mark.parametrize("num_workers", [MAX_WORKER_SERIES, MAX_WORKER_SERIES + 1])
def test_of_too_many_workers_there_are_counts_and_a_spread_of_step_times(num_workers: int) -> None:
    job = ScriptedJob(num_workers)
    for rank in range(num_workers):
        job.query(rank, 1, 1, 1.0 + rank, 10_000.0)
    text = exposed(job, 10_000.5)
    found = samples(text)
    one_by_one = [name for name in found if name.startswith("esync_worker_")]
    assert bool(one_by_one) is (num_workers <= MAX_WORKER_SERIES)
    assert len(text) < (1 << 20 if one_by_one else 1 << 14)
    spread = {name: found[f'esync_step_time_seconds{{job="a",worker="{name}"}}'] for name in ("fastest", "slowest")}
    assert spread == {"fastest": 1.0, "slowest": float(num_workers)}


def test_jobs_that_begin_take_no_series_from_one_that_has_them() -> None:
    job = ScriptedJob(600)
    job.handlers.reset(Reset("w", "b", Settings(600, "wbsp", 0.5)), 1.0)
    job.handlers.reset(Reset("w", "c", Settings(100, "wbsp", 0.5)), 1.0)
    found = samples(exposed(job, 2.0))
    jobs = {re.findall(r'job="(\w)"', name)[0] for name in found if name.startswith("esync_worker_")}
    assert jobs == {"a", "c"}


def test_metrics_are_served_before_and_during_a_job_with_those_of_the_process(state_server: StateServerProcess) -> None:
    def get() -> requests.Response:
        return requests.get(f"{state_server.url}/metrics", timeout=TIMEOUT_S)

    answer = get()
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert samples(answer.text)['esync_messages_total{type="RESET"}'] == 0
    assert "esync_round{" not in answer.text
    assert samples(answer.text)["process_resident_memory_bytes"] > 1e6
    assert requests.post(f"{state_server.url}/init/", timeout=TIMEOUT_S).status_code == 200
    give_up = time.monotonic() + TIMEOUT_S
    while "esync_workers{" not in (text := get().text):  # it may be half a second old
        assert time.monotonic() < give_up, text
    assert re.search(r'^esync_workers\{job="init-\w+"\} 6', text, re.MULTILINE)
    assert re.search(r'^esync_request_seconds_count\{path="/metrics"\} [1-9]', text, re.MULTILINE)


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool: apt-get install prometheus")
@pytest.mark.parametrize("num_workers", [0, 3])
def test_promtool_finds_nothing_to_complain_about(num_workers: int) -> None:
    with running_state_server(command=("serve",)) as server:
        made = clients(server, num_workers) if num_workers else []
        for client in made:
            client._progress.measured(1, 0.5)
            report(client, 1, 0.1, 0.01)
        for client in made[1:]:  # of the first one nothing but its REPORT is known
            query(client, 1, 1, 0.1, 0.01)
        requests.post(f"{server.url}/message/", data=b"{", timeout=10)  # and one that is refused
        metrics = requests.get(f"{server.url}/metrics", timeout=10)
    assert metrics.status_code == 200
    checked = subprocess.run([PROMTOOL, "check", "metrics"], input=metrics.content, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b""), metrics.text[:2000]
