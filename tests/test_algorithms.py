"""The one table: it fits the flags, the trainers, the policies and docs/algorithms.md, and a row can be added."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import os
import pkgutil
import re
import shlex
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from contexts import by_flags
from few_images import few_images
from memory_cluster import Worker, batch, gradient, train

from algorithms import ENTRIES, EVENTS, OWNERS, PRESETS, TABLE, Algorithm, TransportKind, Workers, entry_name
from config import FIELDS, MODES, Config, modes_of, one_of, preset_flags
from scripts.launch import local_cluster
from server.policies import POLICIES
from trainer.command_line import parse

ROOT = Path(__file__).resolve().parents[1]
PROJECT = (
    *("algorithm_row.py", "algorithms.py", "config.py", "draw.py", "flag_parser.py", "flag_values.py", "main.py"),
    "rates.py",
    *("simulate.py", "start.py", "summary.py", "utils.py", "CONTRIBUTING.md", "README.md", "VERSION", "pyproject.toml"),
    *("docs", "esync", "models", "report", "scripts", "trainer", "tests", "SimpleStateServer"),
)
TIMEOUT_S = 180.0


def without_packages(*lines: str) -> str:
    """What a program prints in a Python that has the standard library alone."""
    code = "\n".join(("import sys; sys.path.insert(0, sys.argv[1])", *lines))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, ROOT], check=False, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout


def test_the_table_and_the_flags_need_the_standard_library_alone():
    told = without_packages(
        "import algorithms, config",
        "for entry in algorithms.ENTRIES.values(): print(entry.title, entry.look.colour)",
        "for name in config.FIELDS: print(config.names_of(name), config.titles_of(name), config.FIELDS[name].help)",
        "from trainer import command_line",
        "print(command_line.parse(['-m', 'sync-switch']).settings.train_steps)",
    )
    assert len(told.splitlines()) == len(ENTRIES) + len(FIELDS) + 1


def test_to_read_them_loads_no_other_file_of_trainer_and_nothing_that_takes_long():
    told = without_packages("import algorithms, config", "print(*sys.modules)").split()
    assert not [name for name in told if name.startswith("trainer")]
    assert "difflib" not in told


@pytest.mark.parametrize("words", ["main.py --help", "-m scripts.launch.local_cluster --help"])
def test_help_loads_no_numpy_even_where_it_is_there(words):
    command = [sys.executable, "-X", "importtime", *words.split()]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    loaded = set(re.findall(r"^import time: .* \|\s+(\w+)$", done.stderr, re.MULTILINE))
    assert "argparse" in loaded and not {"numpy", "mxnet", "torch", "matplotlib"} & loaded


def test_a_file_that_is_imported_after_its_head_was_read_keeps_the_head():
    from trainer.algorithms.asynchronous import ROW, AsyncTrainer, Settings

    row = OWNERS["async"]
    assert row.settings is Settings and row == replace(ROW, module=AsyncTrainer.__module__, look=row.look)
    assert isinstance(Config(mode="async").settings, Settings)


def test_no_two_entries_share_a_name_or_a_file_and_events_have_one_look():
    entries = [*TABLE, *(preset for presets in PRESETS.values() for preset in presets)]
    assert {*PRESETS} <= {*MODES}
    assert len({entry.name for entry in entries}) == len({entry.stem for entry in entries}) == len(entries)
    assert [kind for row in TABLE for kind in row.events if EVENTS[kind.name] != kind] == []


def test_a_flag_of_several_algorithms_is_one_flag():
    for row in TABLE:
        assert [name for name, its in row.settings.FLAGS.items() if FIELDS[name] is not its] == []


def test_a_flag_counts_where_an_algorithm_or_its_kind_has_it():
    assert modes_of("batch_size") == modes_of("momentum") == MODES
    assert modes_of("staleness") == ("ssp",)
    assert modes_of("quorum") == ("decoupled",)
    assert {"local-sgd", "async-local", "decoupled"} <= {*modes_of("sync_every")} < {*MODES}
    assert modes_of("query_delay") == tuple(row.name for row in TABLE if row.has_state_server)
    assert modes_of("split_by_class") == tuple(row.name for row in TABLE if row.is_distributed)
    assert modes_of("job_name") == tuple(row.name for row in TABLE if row.transport is TransportKind.SUM)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_what_a_row_names_is_there(row):
    for name, parameters in ((row.trainer, ["context", "settings"]), (row.server, ["job", "settings"])):
        if name:
            assert [*inspect.signature(pkgutil.resolve_name(f"{row.module}:{name}")).parameters] == parameters
    assert bool(row.server) == (row.transport is TransportKind.HUB)


@pytest.mark.parametrize("row", [row for row in TABLE if row.has_state_server], ids=lambda row: row.name)
def test_every_rule_is_a_policy_of_the_state_server(row):
    assert set(rules(row)) <= set(POLICIES)


def rules(row: Algorithm) -> Iterator[str]:
    """All that a row's rule can be."""
    fields = [field for _, field, _, _ in string.Formatter().parse(row.rule) if field]
    for values in itertools.product(*(FIELDS[field].arguments["choices"] for field in fields)):
        yield Config(mode=row.name, **dict(zip(fields, values, strict=True))).rule


@pytest.mark.parametrize("name", ENTRIES)
def test_a_job_is_filed_under_the_name_that_it_was_started_by(name):
    mode = OWNERS[name].name
    config = parse(["-m", mode, *preset_flags(name)], pytest.fail)
    flags_say = name if ENTRIES[name].workers is Workers.ALL else mode
    assert entry_name(mode, config.values_by_name()) == flags_say
    assert entry_name(mode, config.values_by_name(), ENTRIES[name].workers) == name
    assert config.mode_folder == Path(config.network) / flags_say
    assert local_cluster.parse(["-m", name]).mode_folder == Path("lenet") / name


@pytest.mark.parametrize(
    ("who", "step_times_s", "k", "places"),
    [
        (Workers.ALL, (0.4, 0.1), 0, (0, 1)),
        (Workers.FASTEST, (0.3, 0.1, 0.2), 0, (1,)),
        (Workers.FASTEST, (0.2, 0.1, 0.1), 0, (1,)),
        (Workers.BUT_SLOWEST, (0.3, 0.4, 0.2), 0, (0, 2)),
        (Workers.BUT_SLOWEST, (0.4, 0.1, 0.4), 0, (0, 1)),
        (Workers.BUT_SLOWEST, (0.1,), 0, ()),
        (Workers.K_FASTEST, (0.4, 0.1, 0.2, 0.1, 0.2), 0, (1, 2, 3)),  # half, rounded up
        (Workers.K_FASTEST, (0.4, 0.1, 0.2, 0.1, 0.2), 1, (1,)),
        (Workers.K_FASTEST, (0.4, 0.1, 0.2, 0.1, 0.2), 5, (0, 1, 2, 3, 4)),
        (Workers.K_FASTEST, (0.1,), 0, (0,)),
    ],
)
def test_of_equally_fast_workers_the_first_is_the_fastest_and_the_last_the_slowest(who, step_times_s, k, places):
    assert who.among(step_times_s, k) == places


# ------------------------------------------------------------------------------------------------------- page


PAGE = (ROOT / "docs" / "algorithms.md").read_text()


def page_table() -> list[list[str]]:
    """The cells of the table of docs/algorithms.md, row by row."""
    lines = iter(PAGE.splitlines())
    next(line for line in lines if line.startswith("| algorithm |"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), itertools.islice(lines, 1, None))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def linked(papers: str) -> str:
    """The papers of an entry as the page shows them: one with a number is a link to it."""
    sites = {"arXiv": "https://arxiv.org/abs", "doi": "https://doi.org"}
    parts = re.findall(r"(.*?)(?:, (arXiv|doi):(\S+?))?(?:; |$)", papers)
    return "; ".join(f"[{text}]({sites[site]}/{number})" if site else text for text, site, number in parts if text)


def test_the_page_has_the_table():
    told: list[str] = []
    for title, paper, file, start, _ in page_table():
        names = list(dict.fromkeys(re.findall(r"-m ([a-z-]+)", start)))
        told += names
        entry, row = ENTRIES[names[0]], OWNERS[names[0]]
        assert title.lower().startswith(entry.title.lower())
        assert paper == linked(entry.paper)
        assert (ROOT / file.strip("`")).is_file()
        if entry is row:
            assert file == f"`{row.module.replace('.', '/')}.py`"
    assert told == [command.split()[1] for command in COMMANDS] == list(ENTRIES)


def test_the_page_says_what_an_algorithm_needs():
    text = " ".join(PAGE.split())

    def titles(rows: list[Algorithm]) -> str:
        first, *others = (row.title for row in rows)
        return " and ".join([", ".join([first, *others[:-1]]), *others[-1:]])

    assert f"The state server decides for {titles([row for row in TABLE if row.needs_state_server])}, " in text
    of_hub = titles([row for row in TABLE if row.is_distributed and not row.has_kvstore])
    assert f". {of_hub} have [a hub](hosts.md#with-a-hub) in place of scheduler and parameter servers;" in text
    alone = titles([row for row in TABLE if not row.is_distributed])
    assert f"; {alone.lower()} SGD takes no other process than that of the page." in text


COMMANDS = [command for *_, start, _ in page_table() for command in re.findall(r"`(-m [^`]*)`", start)]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_table_are_jobs_of_their_mode(command):
    assert local_cluster.parse(shlex.split(command)).mode == command.split()[1]


# ------------------------------------------------------------------------- the worked examples of CONTRIBUTING.md


BLOCKS = re.findall(r"^```\w+ (\S+)\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)
EXAMPLES = [dict(BLOCKS[begin : begin + 3]) for begin in range(0, len(BLOCKS), 3)]  # what goes into which file
FLAGS = {"sign-sgd": ("-l", "0.0003"), "easgd": ("-ll", "0.001", "--sync-every", "4")}
TITLES = {"sign-sgd": "SignSGD", "easgd": "EASGD"}


def add_algorithm(project: Path, example: dict[str, str]) -> None:
    """Does what CONTRIBUTING.md says: one file, its name, one line of docs/algorithms.md."""
    before = {"algorithms.py": '    "local",\n)', "docs/algorithms.md": "| standalone SGD |"}
    for name, text in example.items():
        path = project / name
        if name in before:
            assert path.read_text().count(before[name]) == 1
            text = path.read_text().replace(before[name], text + before[name])
        path.write_text(text)


@pytest.fixture(scope="module")
def project_with_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("project")
    for name in PROJECT:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, project / name)
    for example in EXAMPLES:
        if not (project / next(iter(example))).exists():  # else this is a copy that has it already
            add_algorithm(project, example)
    return project


def run(project: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *command], cwd=project, env=environment, timeout=TIMEOUT_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def module_of(example: dict[str, str], folder: Path) -> ModuleType:
    """The example's file, imported from the page."""
    name = next(iter(example))
    path = folder / Path(name).name
    path.write_text(example[name])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_example_takes_one_file_its_name_and_one_line_of_a_page():
    for example, name in zip(EXAMPLES, FLAGS, strict=True):
        assert list(example) == [
            f"trainer/algorithms/{name.replace('-', '_')}.py",
            "algorithms.py",
            "docs/algorithms.md",
        ]
        file, listed, line = example.values()
        assert f'name="{name}"' in file and "look" not in file
        assert listed.count("\n") == line.count("\n") == 1


def test_the_example_signsgd_steps_in_the_direction_that_most_gradients_have(tmp_path):
    """w <- w - eta sign(sum_k sign(g_k)), of three workers."""
    module, eta = module_of(EXAMPLES[0], tmp_path), 0.25
    workers = [Worker([batch(rank), batch(rank + 1)]) for rank in range(3)]
    trained = train(TransportKind.SUM, workers, by_flags("sync", module.SignSGDTrainer, learning_rate=eta), rounds=4)
    expected = np.zeros((2, 4))
    for step in range(4):
        votes = [np.sign(gradient(expected, batch(rank + step % 2))) for rank in range(3)]
        expected = expected - eta * np.sign(sum(votes))
    for rank in range(3):
        np.testing.assert_array_equal(trained.weights(rank), expected)


@pytest.mark.parametrize("samples", [(1, 1, 1), (5, 4, 1)], ids=["equal", "unequal"])
def test_the_example_easgd_pulls_workers_and_center_towards_each_other(tmp_path, samples):
    """x_k <- x_k - beta n_k / n (x_k - x~) and x~ <- x~ + beta sum_k n_k / n (x_k - x~), after two steps each."""
    module, eta, beta = module_of(EXAMPLES[1], tmp_path), 0.5, 0.9
    workers = [Worker([batch(rank), batch(rank + 1)], samples=count) for rank, count in enumerate(samples)]
    build = by_flags("local-sgd", module.EASGDTrainer, local_lr=eta, global_lr=beta, sync_every=2)
    trained = train(TransportKind.SUM, workers, build, rounds=3)
    center, own = np.zeros((2, 4)), [np.zeros((2, 4)) for _ in samples]
    for _ in range(3):
        for rank in range(3):
            for number in (rank, rank + 1):
                own[rank] = own[rank] - eta * gradient(own[rank], batch(number))
        pulls = [beta * count / sum(samples) * (x - center) for x, count in zip(own, samples, strict=True)]
        own = [x - pull for x, pull in zip(own, pulls, strict=True)]
        center = center + sum(pulls)
    for rank in range(3):
        np.testing.assert_allclose(trained.weights(rank), center, rtol=1e-5, atol=1e-6)
        [kept] = trained.trainers[rank].own_state()["own"]
        np.testing.assert_allclose(kept, own[rank], rtol=1e-5, atol=1e-6)
    late = trained.trainers[0]
    late.adopt(late.shared_state())
    assert late.own_state()["own"] == []


@pytest.mark.cluster
def test_added_algorithms_train_and_are_summed_up_and_drawn(project_with_examples, tmp_path):
    job = ["--workers", "0,0", "--log-base", str(tmp_path), "--data-dir", str(few_images())]
    limits = ["--dataset", "mnist", "--max-rounds", "40", "-e", "40", "-b", "32"]
    for name, flags in FLAGS.items():
        launch = ["-m", "scripts.launch.local_cluster", "-m", name, "-n", "lenet", *job, "--", *limits, *flags]
        said = run(project_with_examples, *launch)
        assert float(re.findall(r"round 40,.*accuracy ([\d.]+)", said)[0]) > 0.3  # ten classes: it has learnt
    tree = ["-b", str(tmp_path), "-n", "lenet"]
    summed_up, drawn = (run(project_with_examples, program, *tree) for program in ("summary.py", "draw.py"))
    for title in TITLES.values():
        assert f"{title}.json: 2 device(s)" in summed_up
        assert f"{title} " in drawn
    assert (tmp_path / "lenet" / "figures" / "accuracy-iid.png").exists()


def test_an_added_algorithm_takes_no_flag_of_another(project_with_examples):
    code = "from trainer import command_line; command_line.parse(['-m', 'sign-sgd', '--staleness', '5'])"
    modes = one_of(modes_of("staleness"))
    with pytest.raises(AssertionError, match=f"--staleness 5 belongs to mode {modes}, not to sign-sgd: leave it out"):
        run(project_with_examples, "-c", code)


def test_an_added_algorithm_starts_with_what_is_tuned(project_with_examples):
    code = (
        "from scripts.launch import local_cluster, roles\n"
        "job = local_cluster.parse(['-m', 'easgd', '--workers', '0,0'])\n"
        "print([role.command for role in roles.build(*local_cluster.place(job))])"
    )
    assert run(project_with_examples, "-c", code).count("'--global-lr', '0.9'") == 2


def test_added_algorithms_pass_what_holds_the_others(project_with_examples):
    run(project_with_examples, "-m", "scripts.flags")
    held = ["test_algorithms.py", "report/test_metrics.py", "test_config.py", "trainer/survival/test_resuming.py"]
    of_one_mode = "does_nothing_in_the_mode or test_resuming"  # those of the other modes are as they were
    wanted = f"not added and not example and (not ({of_one_mode}) or {' or '.join(FLAGS)})"
    options = ["-p", "no:cacheprovider", "-k", wanted, *(f"tests/{name}" for name in held)]
    assert " passed" in run(project_with_examples, "-m", "pytest", *options)
