"""Prometheus' own checker has nothing to say about /metrics. Skipped where it is missing (Debian: `prometheus`)."""

import shutil
import subprocess

import pytest
import requests
from state_server_process import clients, query, report, running_state_server

PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool: apt-get install prometheus")
@pytest.mark.parametrize("num_workers", [0, 3])
def test_promtool_finds_nothing_to_complain_about(num_workers):
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
