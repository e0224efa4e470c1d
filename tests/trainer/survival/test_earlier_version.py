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
FLAGS = (
    "-m esync-outer --workers 0.02,0.05 -b 16 -ll 0.001 --optimizer adam --seed 1 -e 4 --max-seconds 1.2 "
    "--ckpt-frequency 4"
)


def folder_of(tree):
    return tree / "job" / "esync-outer" / "virtual"


def test_a_job_goes_on_as_if_it_had_never_stopped_and_its_log_has_all_rounds(tmp_path):
    """ESync with Adam, outer momentum and BatchNorm, two workers. Bits differ by processor; in a bias before BatchNorm,
    whose gradient is but rounding, Adam makes steps of that."""
    left = shutil.copytree(LEFT, tmp_path / "left")
    for tree, further in ((left / "tree", ["--resume", "1"]), (tmp_path / "whole", [])):
        checkpoints = left / "checkpoints" if further else tmp_path / "checkpoints"
        places = ["--job", left / "job.py", "--log-base", tree, "--checkpoint", checkpoints]
        command = [sys.executable, "simulate.py", *FLAGS.split(), *further, *map(str, places)]
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    resumed, whole = (
        mx.nd.load(str(folder_of(tree) / "cpu0" / "final-0024.params")) for tree in (left / "tree", tmp_path / "whole")
    )
    for name in resumed.keys() - {"0.bias", "1.running_mean"}:
        np.testing.assert_allclose(resumed[name].asnumpy(), whole[name].asnumpy(), atol=1e-5)
    for device in ("cpu0", "cpu1"):
        lines = (folder_of(left / "tree") / device / "rounds.jsonl").read_text().splitlines()
        assert [json.loads(line)["num_iters"] for line in lines] == [*range(1, 25)]


def test_a_saved_network_is_read_with_its_layers_and_into_a_network_of_the_job():
    path = folder_of(LEFT / "tree") / "cpu0" / "final.json"
    inputs = mx.nd.array(np.random.default_rng(1).standard_normal((5, 10)))
    expected = SavedModel.find(path).load()(inputs).asnumpy()
    block = load(LEFT / "job.py").network()
    block.initialize()
    block(inputs)
    network = GluonNetwork(block, mx.cpu())
    assert initial_parameters.load(network, path).startswith("8 of 8 initial parameters are from")
    np.testing.assert_allclose(network.layers(inputs).asnumpy(), expected, atol=1e-6)
