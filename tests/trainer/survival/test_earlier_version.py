"""What this program left before weights were numpy's (0.6.0, commit 438cad71) goes on: a checkpoint, a saved network
and a log tree."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
from cluster_processes import ROOT

from trainer.engine import mx
from trainer.evaluation import initial_parameters
from trainer.evaluation.saved_model import SavedModel
from trainer.jobs.gluon import GluonNetwork
from trainer.jobs.job_file import load

LEFT = ROOT / "tests" / "helpers" / "version_0_6_0"
# What 0.6.0 itself ended with, after 24 rounds without a stop; these files are of its stop after twelve.
SHA256 = "18dd11affe78bdf055e374662c0761983dba0a2837d551558474c6c9ec865eab"


def test_a_job_goes_on_to_the_same_weights_and_its_log_has_all_rounds(tmp_path):
    """ESync with Adam, outer momentum and BatchNorm, two workers."""
    left = shutil.copytree(LEFT, tmp_path / "left")
    flags = (
        "-m esync-outer --workers 0.02,0.05 -b 16 -ll 0.001 --optimizer adam --seed 1 -e 4 --max-seconds 1.2 "
        "--ckpt-frequency 4 --resume 1"
    )
    places = ["--job", left / "job.py", "--log-base", left / "tree", "--checkpoint", left / "checkpoints"]
    command = [sys.executable, "simulate.py", *flags.split(), *map(str, places)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert f"have SHA-256 {SHA256}" in done.stdout + done.stderr
    for device in ("cpu0", "cpu1"):
        lines = (left / "tree" / "job" / "esync-outer" / "virtual" / device / "rounds.jsonl").read_text().splitlines()
        assert [json.loads(line)["num_iters"] for line in lines] == [*range(1, 25)]


def test_a_saved_network_is_read_with_its_layers_and_into_a_network_of_the_job():
    path = LEFT / "tree" / "job" / "esync-outer" / "virtual" / "cpu0" / "final.json"
    inputs = mx.nd.array(np.random.default_rng(1).standard_normal((5, 10)))
    expected = SavedModel.find(path).load()(inputs).asnumpy()
    block = load(LEFT / "job.py").network()
    block.initialize()
    block(inputs)
    network = GluonNetwork(block, mx.cpu())
    assert initial_parameters.load(network, path).startswith("8 of 8 initial parameters are from")
    np.testing.assert_allclose(network.layers(inputs).asnumpy(), expected, atol=1e-6)
