"""The examples of job files: short, plain, and trained in virtual time and by real processes."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cluster_processes import ROOT, device_folders, run_cluster
from few_images import few_images, on_few_images

import simulate
from algorithms import ALGORITHMS, ENTRIES, OWNERS
from scripts.launch import local_cluster
from trainer.engine import mx
from trainer.jobs import job_file
from trainer.jobs.sources import OWN_MODULES
from trainer.run_logs.round_log import read_rounds
from trainer.simulation import virtual_cluster
from utils import read_json

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
# What a predictor without a network reaches, as the metric has it: the mean target, or the most frequent class.
CONSTANT = {"finetune": 0.62, "image_folder": 0.5, "own_loop": 0.0, "table": 0.0, "text": 0.52, "two_inputs": 1.0}


def commands(example: Path, program: str) -> list[list[str]]:
    """The words behind a program on the lines of the docstring."""
    text = (ast.get_docstring(ast.parse(example.read_text())) or "").replace("\\\n", " ")
    return [shlex.split(found, comments=True) for found in re.findall(rf"^{re.escape(program)} (.*)$", text, re.M)]


@every_example
def test_an_example_is_at_most_40_lines_which_import_nothing_of_this_project(example):
    assert len(example.read_text().splitlines()) <= 40
    tree = ast.parse(example.read_text())
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not {module.split(".")[0] for module in modules} & {*OWN_MODULES}


@every_example
def test_an_example_begins_with_the_command_that_trains_it(example):
    (command,) = commands(example, "scripts/local_cluster.sh")
    assert local_cluster.parse(command).job_file == example


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """A data folder with what the example of image files draws, as its docstring says."""
    folder = tmp_path_factory.mktemp("drawn")
    (command,) = commands(ROOT / "examples" / "image_folder.py", ".venv/bin/python")
    subprocess.run([sys.executable, str(ROOT / command[0])], cwd=folder, check=True)
    return folder / "data"


def simulated(base: Path, *arguments: str) -> tuple[str, Path]:
    """A job in virtual time in this process; returns the hash of the weights, and the log folder of its worker 0."""
    _, (run,) = simulate.parse([*arguments, "--log-base", str(base)])
    return virtual_cluster.run(run.job), Path(run.job.config.log_dir) / "cpu0"


@pytest.fixture(scope="module")
def lenet(tmp_path_factory) -> Path:
    """A saved LeNet, trained for a moment."""
    _, folder = simulated(
        tmp_path_factory.mktemp("first"), *("-m", "local", "-n", "lenet", "--workers", "0.1,0.1", *on_few_images()),
        *("-l", "0.003", "--max-rounds", "100", "-e", "100"),
    )  # fmt: skip
    return folder / "final.json"


@pytest.fixture(scope="module")
def flags(images, lenet):
    """The flags of main.py for an example: those of its docstring, with data and initial parameters of the tests."""

    def of(example: Path) -> list[str]:
        (command,) = commands(example, "scripts/local_cluster.sh")
        own = command[command.index("--") + 1 :]
        own = own[: own.index("--max-seconds")]
        if example.stem == "finetune":
            return [*own, *on_few_images(), "--init-from", str(lenet)]
        return [*own, "-dd", str(images)]

    return of


def plain(example: Path) -> ModuleType:
    """The example as a module that a program of one's own imports."""
    sys.path.insert(0, str(example.parent))
    try:
        return importlib.import_module(example.stem)
    finally:
        sys.path.remove(str(example.parent))


def best_of(folder: Path) -> tuple[dict[str, Any], Path]:
    """The description of the best model of a job, and the file of its parameters."""
    about = read_json(folder / "best.json")
    return about, folder / about["parameters"]


@every_example
def test_an_example_learns_by_esync_in_virtual_time_and_its_network_loads_what_was_saved(example, flags, tmp_path):
    _, folder = simulated(
        tmp_path, *("--job", str(example), "-m", "esync", "--workers", "0.1,0.4", "-e", "30", "--max-rounds", "60"),
        *flags(example),
    )  # fmt: skip
    about, parameters = best_of(folder)
    print(example.stem, about)
    plain(example).network().load_parameters(str(parameters))


@pytest.mark.parametrize("mode", ENTRIES)
def test_a_loop_of_ones_own_makes_the_same_weights_as_none(mode, tmp_path):
    steps = ["--train-steps", "2", "6"] if OWNERS[mode].name == "sync-switch" else []
    without, own = (
        simulated(tmp_path, "--job", str(ROOT / "examples" / name), "-m", mode, "--workers", "0.1,0.2,0.4",
                  "--max-seconds", "4", *steps)[0]
        for name in ("table.py", "own_loop.py")
    )  # fmt: skip
    assert own == without


@pytest.mark.cluster
@every_example
def test_an_example_trains_on_a_real_cluster(example, flags, tmp_path):
    data = few_images() if example.stem == "finetune" else flags(example)[-1]
    run_cluster(
        tmp_path, *("--job", str(example), "-m", "esync", "--workers", "0.01,0.04", "--data-dir", str(data)),
        worker_flags=["--max-rounds", "3", "-e", "3", *without_data(flags(example))],
    )  # fmt: skip
