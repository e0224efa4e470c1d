"""The examples of examples/client: a program under torchrun, one under Slurm, a Trainer of Hugging Face."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_processes import ROOT, free_ports
from few_images import few_images
from state_server_process import running_state_server

pytest.importorskip("torch", reason="no torch: scripts/setup.sh --torch")

FOLDER = ROOT / "examples" / "client"
pytestmark = pytest.mark.cluster


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def test_three_speeds_under_torchrun(tmp_path: Path) -> None:
    """The program of docs/client.md, with fewer images and shorter steps."""
    with running_state_server() as server:
        words = ["-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port", str(free_ports(1)[0])]
        words += [
            str(FOLDER / "images.py"),
            "--data",
            str(few_images() / "mnist"),
            "--images",
            "3000",
            "--rounds",
            "10",
        ]
        done = subprocess.run(
            [sys.executable, *words, "--step-s", "0.005,0.01,0.03", "--out", str(tmp_path)],
            env=environment(ESYNC_SERVER=f"127.0.0.1:{server.port}"),
            stdout=subprocess.PIPE,
            timeout=120,
            check=True,
        )
    assert done.stdout.decode().startswith("round 10: test accuracy 0.")
    assert len([*tmp_path.glob("images/esync-outer/*/cpu*/rounds.jsonl")]) == 3


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None,
    reason="no transformers: .venv/bin/pip install transformers accelerate",
)
def test_a_trainer_of_transformers_averages_by_its_callback_alone(tmp_path: Path) -> None:
    """Ranks differ before a round's sum, so nothing else has summed their gradients, and agree after it."""
    shared = environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_ports(1)[0]), WORLD_SIZE="2")
    program = ROOT / "tests" / "helpers" / "transformers_ranks.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, program, tmp_path],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        first, second = (json.loads(rank.communicate(timeout=120)[0].decode().splitlines()[-1]) for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
    assert [when for when, _ in first] == [when for when, _ in second] == ["before", "before", "before", "after"] * 2
    for (when, one), (_, other) in zip(first, second, strict=True):
        assert (one == other) is (when == "after"), when


def test_slurm_starts_a_rank_on_each_node(tmp_path: Path) -> None:
    """With stand-ins for what Slurm brings: the nodes are this host."""
    for name, text in {
        "scontrol": "echo 127.0.0.1",
        "srun": 'for id in 0 1; do SLURM_PROCID=$id "$@" & done; wait',
        "python": f'[[ "$*" == *images.py* ]] && exec {sys.executable} -c "$SAY"; exec {sys.executable} "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    say = (
        "import os, requests; print(*(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')), "
        "requests.get(f\"http://{os.environ['ESYNC_SERVER']}/healthz\").json()['status'])"
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        [FOLDER / "slurm.sh"],
        cwd=ROOT,
        env=environment(PATH=path, SLURM_JOB_NODELIST="one", SLURM_NTASKS="2", SAY=say),
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    lines = done.stdout.decode().splitlines()
    assert sorted(line for line in lines if line.endswith(" ok")) == ["0 2 0 ok", "1 2 0 ok"]
