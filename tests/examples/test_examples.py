"""The examples of job files: short, plain, and trained in virtual time and by real processes."""

import ast
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_processes import ROOT, device_folders, run_cluster
from few_images import few_images

import simulate
from algorithms import ENTRIES, OWNERS
from esync.metric import Metric, logged_value
from scripts.launch import local_cluster
from trainer.command_line import parse
from trainer.jobs.job import job_of
from trainer.jobs.network import build
from trainer.jobs.sources import OWN_MODULES
from trainer.simulation import virtual_cluster
from utils import RUN_FILE, SetupError, read_json

PAGE = (ROOT / "docs" / "own-job.md").read_text()
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
# What no better than chance is, as each metric has it: that of the mean target, or of the most frequent class.
CHANCE = {
    **{"finetune": 0.62, "image_folder": 0.5, "own_loop": 0.0, "table": 0.0, "text": 0.55, "two_inputs": 1.0},
    **{"torch_own_loop": 0.0, "torch_resnet18": 0.2, "torch_table": 0.0, "torch_text": 0.35, "torch_transformer": 0.19},
}
ROUNDS = {"torch_resnet18": 16, "torch_text": 10, "torch_transformer": 12}  # of others 50
OF_GLUON = [each for each in EXAMPLES if "torch" not in each.stem]


def need_libraries(example: Path) -> None:
    """Skips the test where the example's libraries are not installed."""
    if "torch" in example.stem:
        pytest.importorskip("torch", reason="no torch: scripts/setup.sh --torch")
    if "transformer" in example.stem:
        pytest.importorskip("transformers", reason="no transformers: .venv/bin/pip install transformers")


def commands(example: Path, program: str) -> list[list[str]]:
    """The words behind a program on the lines of the docstring."""
    text = (ast.get_docstring(ast.parse(example.read_text())) or "").replace("\\\n", " ")
    return [shlex.split(found, comments=True) for found in re.findall(rf"^{re.escape(program)} (.*)$", text, re.M)]


@every_example
def test_an_example_is_at_most_40_lines_which_begin_with_its_command_and_import_nothing_of_this_project(example):
    assert len(example.read_text().splitlines()) <= 40
    (command,) = commands(example, "scripts/local_cluster.sh")
    assert local_cluster.parse(command).job_file == example
    tree = ast.parse(example.read_text())
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert modules and not {module.split(".")[0] for module in modules} & {*OWN_MODULES}


def test_the_page_shows_the_examples_as_they_are():
    shown = dict(re.findall(r"^```python (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    assert shown["examples/torch_table.py"] == (ROOT / "examples" / "torch_table.py").read_text()
    assert len(shown) == 3 and all(part in (ROOT / file).read_text() for file, part in shown.items())
    assert {f"../examples/{example.name}" for example in EXAMPLES} >= set(re.findall(r"\]\((\.\./ex\S+)\)", PAGE))


# What is changed in an example; mistakes.txt has the lines that it then gives.
LINES = Path(__file__).with_name("mistakes.txt").read_text().splitlines()
TABLE, TORCH = "table.py", "torch_table.py"
LOSS, MSE = "loss = mx.gluon.loss.L2Loss()", "loss = nn.MSELoss()"
DICTIONARY = """class Scores(nn.Sequential):
        def forward(self, inputs):
            return {"logits": super().forward(inputs)}

    return Scores("""
MISTAKES = (
    (TABLE, LOSS, "def loss(outputs, targets):\n    return ((outputs - targets) ** 2).mean()"),
    (TABLE, "L2Loss()", "L2Loss"),
    (TABLE, LOSS, ""),
    (TABLE, "    return layers\n", ""),
    (TABLE, "(table[:10000], targets[:10000])", "(table[:10000], targets[:9000])"),
    (TABLE, "return (table[:10000], targets[:10000]),", "return table[:10000], targets[:10000],"),
    (TABLE, "    x = table.T\n", "    x, table[7, 2] = table.T.copy(), np.nan\n"),
    (TABLE, LOSS, "def loss(outputs, targets):\n    return mx.nd.array(outputs.asnumpy()[:, 0])"),
    (TABLE, "import mxnet as mx\n", "import mxnet as mx\nmx.npx.set_np()\n"),
    (TABLE, 'nn.Dense(64, activation="relu"),', 'nn.Dense(64, activation="relu", in_units=9),'),
    (TORCH, MSE, "def loss(outputs, targets):\n    return (outputs.detach() - targets).square().mean()"),
    (TORCH, MSE, "def loss(outputs, targets):\n    return (outputs - outputs.detach() + targets).sum() ** 2"),
    (TORCH, "nn.Linear(10, 64)", "nn.LazyLinear(64)"),
    (TORCH, "nn.Linear(64, 1))", "nn.Linear(64, 1)).double()"),
    (TORCH, "return nn.Sequential(", DICTIONARY),
    (TORCH, "nn.Linear(10, 64)", "nn.Linear(9, 64)"),
    (TABLE, "import numpy as np\n", "\n"),
    (TABLE, "def network():", "def network(size):"),
    (TABLE, "import mxnet as mx", "import mxnet as mx, utils"),
)


@pytest.mark.parametrize(("change", "line"), zip(MISTAKES, LINES, strict=True))
def test_a_mistake_in_a_job_file_gives_its_line(change, line, tmp_path):
    name, old, new = change
    need_libraries(ROOT / "examples" / name)
    text = (ROOT / "examples" / name).read_text()
    assert old in text
    path = tmp_path / "my_job.py"
    path.write_text(text.replace(old, new, 1))
    (tmp_path / "utils.py").touch()
    config = parse(["-m", "local", "-c", "1", "--job", str(path)], pytest.fail)
    with pytest.raises(SetupError) as caught:
        build(config, job_of(config))
    assert str(caught.value).replace(f"{tmp_path}/", "") == line


def test_the_job_of_readme_is_whole(tmp_path):
    need_libraries(ROOT / "examples" / TORCH)
    shown, _ = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "my_job.py").write_text(shown)
    job = ["--job", str(tmp_path / "my_job.py"), "-m", "esync", "--workers", "0.1,0.4", "-ll", "0.001"]
    _, folder = simulated(tmp_path / "logs", *job, "--max-rounds", "40", "-e", "40")
    metric, value = logged_value(read_json(folder / "best.json"))
    assert metric == Metric("test-loss", more_is_better=False) and value < 0.4  # that of the mean target: 10 / 12


def simulated(base: Path, *arguments: str) -> tuple[str, Path]:
    """A job in virtual time in this process; returns the hash of the weights, and the log folder of its worker 0."""
    _, (run,) = simulate.parse([*arguments, "--log-base", str(base)])
    return virtual_cluster.VirtualRun(run.job).run(), Path(run.job.config.log_dir) / "cpu0"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    """A data folder with what the example of image files draws, as its docstring says."""
    folder = tmp_path_factory.mktemp("drawn")
    ((program,),) = commands(ROOT / "examples" / "image_folder.py", ".venv/bin/python")
    subprocess.run([sys.executable, str(ROOT / program)], cwd=folder, check=True)
    return folder / "data"


@pytest.fixture(scope="module")
def lenet(tmp_path_factory) -> Path:
    """A saved LeNet, trained for a moment."""
    limits = ["--max-rounds", "80", "-l", "0.003", "-e", "80"]
    data = ["--dataset", "mnist", "-dd", str(few_images())]
    base = tmp_path_factory.mktemp("first")
    return simulated(base, "-m", "local", "-n", "lenet", "--workers", "0.1,0.1", *data, *limits)[1] / "final.json"


@pytest.fixture(scope="module")
def setting(request):
    """The data folder of an example and its flags of main.py: those of its docstring, without limits."""

    def of(example: Path) -> tuple[Path, list[str]]:
        (command,) = commands(example, "scripts/local_cluster.sh")
        own = command[command.index("--") + 1 : command.index("--max-seconds")]
        if example.stem == "finetune":
            return few_images(), [*own, "--dataset", "mnist", "--init-from", str(request.getfixturevalue("lenet"))]
        if example.stem == "torch_resnet18":
            return few_images(), [*own, "--dataset", "mnist", "-b", "16"]
        return request.getfixturevalue("drawn") if example.stem == "image_folder" else ROOT / "data", own

    return of


def saved(folder: Path, example: Path, monkeypatch) -> tuple[Metric, float]:
    """The metric of the best model of a job, which the network of the example loads by its library's own means."""
    about = read_json(folder / "best.json")
    monkeypatch.syspath_prepend(str(example.parent))
    network, parameters = importlib.import_module(example.stem).network(), str(folder / about["parameters"])
    if "torch" in example.stem:
        network.load_state_dict(pytest.importorskip("torch").load(parameters))
    else:
        network.load_parameters(parameters)
    return logged_value(about)


@every_example
def test_an_example_learns_by_esync_in_virtual_time(example, setting, tmp_path, monkeypatch):
    need_libraries(example)
    data, flags = setting(example)
    cluster, rounds = ["-m", "esync", "--workers", "0.1,0.4", "-dd", str(data)], ROUNDS.get(example.stem, 50)
    limits = ["--max-rounds", str(rounds), "-e", str(min(rounds, 25))]
    _, folder = simulated(tmp_path, "--job", str(example), *cluster, *flags, *limits)
    metric, value = saved(folder, example, monkeypatch)
    assert metric.is_better(value, CHANCE[example.stem])


@pytest.mark.cluster
@pytest.mark.parametrize("example", OF_GLUON, ids=lambda path: path.stem)
def test_an_example_trains_on_a_real_cluster(example, setting, tmp_path, monkeypatch):
    data, flags = setting(example)
    cluster = ["-m", "esync", "--workers", "0.01,0.04", "--data-dir", str(data)]
    if example.stem != "own_loop":  # without MXNet's scheduler and server a job begins and ends sooner
        cluster += ["--exchange", "ring"]
    run_cluster(tmp_path, "--job", str(example), *cluster, worker_flags=[*flags, "--max-rounds", "3", "-e", "3"])
    folders = device_folders(tmp_path / example.stem / "esync")
    assert [read_json(folder / RUN_FILE)["ended"] for folder in folders] == ["3 rounds done"] * 2
    (evaluated,) = (folder for folder in folders if (folder / "best.json").exists())
    assert saved(evaluated, example, monkeypatch)


@pytest.mark.parametrize("mode", ENTRIES)
def test_a_loop_of_ones_own_makes_the_same_weights_as_none(mode, tmp_path):
    limits = ["--train-steps", "2", "6"] if OWNERS[mode].name == "sync-switch" else ["--max-seconds", "2"]
    cluster = ["-m", mode, "--workers", "0.1,0.2,0.4", *limits]
    without, own = (
        simulated(tmp_path, "--job", str(ROOT / "examples" / name), *cluster)[0] for name in ("table.py", "own_loop.py")
    )
    assert own == without
