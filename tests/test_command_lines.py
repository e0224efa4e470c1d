"""All programs: help without any package, one line for a mistake, and a quiet end by Ctrl-C while they start."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import simulate
from config import FIELDS, names_of
from scripts import demo
from scripts.launch import cluster, local_cluster, worker
from trainer import command_line

ROOT = Path(__file__).resolve().parents[1]
WALK = ROOT / "tests" / "helpers" / "every_command_line.py"
FOLDERS = ("experiments", "report", "scripts", "trainer")
FILES = sorted([*ROOT.glob("*.py"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))])
SOURCES = {str(path.relative_to(ROOT)): path.read_text() for path in FILES}
BEGINS = re.compile(r'^if __name__ == "__main__":\n(?:.*\n){0,5}    import start ', re.MULTILINE)
PROGRAMS = [name for name, text in SOURCES.items() if BEGINS.search(text)]
NOT_BY_USERS = {  # other programs start them
    "scripts/launch/fork_server.py",
    "scripts/launch/remote.py",
}


def test_every_program_begins_with_the_same_import_and_has_the_parser_whose_errors_are_one_line():
    assert {name for name, text in SOURCES.items() if '== "__main__"' in text} - {*PROGRAMS} == NOT_BY_USERS
    for name in PROGRAMS:
        code = SOURCES[name].split('"""', 2)[2]  # without the docstring
        first = set(re.findall(r"^ *(?:import|from) (\w+)", code[: BEGINS.search(code).end()], re.MULTILINE))
        assert first <= {"__future__", "sys", "pathlib", "start"}, name
    assert not [name for name, text in SOURCES.items() if "ArgumentParser(" in text]


def walked(cases: str, *options: str) -> dict[str, tuple[int, str, str]]:
    """Exit code, stdout and stderr of each program in each of the cases."""
    command = [sys.executable, *options, WALK, cases, *PROGRAMS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return {name: value for name, value in json.loads(done.stdout).items() if value}


def test_help_needs_no_package():
    for name, (code, said, errors) in walked("--help", "-S").items():
        assert (code, errors) == (0, ""), (name, errors)
        assert said.startswith("usage: "), name


def test_a_mistake_is_one_line():
    found = walked("--no-such-flag,value")
    assert len(found) > len(PROGRAMS) + 15
    for name, (code, said, errors) in found.items():
        assert (code, said) == (2, ""), (name, errors)
        assert len(errors.splitlines()) == 1 and ": error: " in errors, (name, errors)


def behind_the_name(line: str) -> str:
    return line.partition(": error: ")[2]


@pytest.mark.parametrize("parse", [local_cluster.parse, lambda words: cluster.parse(["--hosts", "x", *words])])
def test_a_flag_on_the_wrong_side_of_the_dashes_is_told_its_place(parse, refused):
    words = "-m -n --mode --network --job --exchange --data-dir --split-by-class --state-server-port --page --grace"
    both = {*words.split()}
    for name in {name for field in FIELDS for name in names_of(field)} - both:
        said = behind_the_name(refused(parse, "-m", "sync", name, "1"))
        assert said == f"unknown argument {name}: it is a flag of main.py: give it behind `--`"
    for word in ("--servers", "--log-base=x"):
        said = behind_the_name(refused(parse, "--", word, "1"))
        assert said == f"{word.partition('=')[0]} is an option of this script: give it before `--`"


@pytest.mark.parametrize(
    ("main", "words", "said"),
    [
        (command_line.parse, "--learning-rat 1", "--learning-rat: did you mean --learning-rate?"),
        (command_line.parse, "esync", "esync: main.py --help shows what it takes"),
        (command_line.parse, "--no\nsuch", "--no such: main.py --help shows what it takes"),
        (local_cluster.parse, "--wokers=3", "--wokers: did you mean --workers?"),
        (local_cluster.parse, "-- --max-secs 3", "--max-secs: did you mean --max-seconds?"),
        (simulate.parse, "--clutser demo", "--clutser: did you mean --cluster?"),
        (lambda words: worker.main_flags(words, "host"), "--rn x", "--rn: did you mean --run?"),
        (demo.parse, "--evalseconds 1", "--evalseconds: did you mean --eval-seconds?"),
    ],
)
def test_an_unknown_flag_is_told_which_was_meant(main, words, said, refused):
    assert behind_the_name(refused(main, *words.split(" "))) == f"unknown argument {said}"


README_OF = {  # the command lines that the READMEs of published programs print
    "wbsp": ["--job_name=worker --worker_index=0 --base_dir=wbsp/ --port_base=2606"],
    "sync-switch": [
        "--job-name j --num-ps 1 --num-worker 4 --bucket-dir b --model m --hparam-set h --problem p --data-dir d "
        "--train-steps 1 1 --ckpt-frequency 1 2 --cluster-name c --eval-name e --switch-order 10 --hparams h=1 h=2",
        *("--model resnet", "--problem x", "--hparams x=1", "--num-worker 8"),
    ],
}


@pytest.mark.parametrize("main", [command_line.parse, simulate.parse, local_cluster.parse])
@pytest.mark.parametrize(("mode", "words"), [(mode, words) for mode, lines in README_OF.items() for words in lines])
def test_a_published_programs_own_command_line_is_told_the_page_and_the_command_here(main, mode, words, refused):
    before = ["--"] if main is local_cluster.parse else []
    said = refused(main, *before, *words.split())
    assert f"such as scripts/local_cluster.sh -m {mode}; docs/other-programs.md has a table" in said
    page = (ROOT / "docs" / "other-programs.md").read_text()
    assert not [word for word in words.split() if word.startswith("--") and word.partition("=")[0] not in page]


@pytest.mark.parametrize(
    ("main", "words", "said"),
    [
        (local_cluster.parse, "--workers -1,0.02", "-1 is out of range; give 0 or more"),
        (simulate.parse, "--workers -1,0.02", "-1 is out of range; give 0 or more"),
        (simulate.parse, "--seeds -1..3", "'-1..3' is no list of seeds"),
        (command_line.parse, "--max-seconds -1e-3", "-1e-3 is out of range; give 0 or more"),
        (command_line.parse, "-e -1", "-1 is out of range; give 1 or more"),
        (command_line.parse, "--target -inf", "-inf is out of range; give a finite number"),
        (demo.parse, "--seconds -5", "-5 is out of range; give a number above 0"),
        (command_line.parse, "--device-name -x", "give it a value; one that begins with - behind ="),
    ],
)
def test_a_value_that_begins_with_a_minus_is_told_what_is_allowed(main, words, said, refused):
    assert said in refused(main, *words.split())
    assert command_line.parse(["--target", "-1e-3"]).target == -0.001


def test_a_launchers_command_line_is_one_of_the_simulation():
    own, (run,) = simulate.parse(
        ["-m", "sync", "-n", "mlp", "--workers", "0.1,0.2", "--", "-l", "0.5", "--max-rounds", "3"]
    )
    assert (run.job.config.settings.learning_rate, run.job.config.max_rounds, own.workers) == (0.5, 3, (0.1, 0.2))


@pytest.mark.parametrize(
    ("program", "package"),
    [("draw.py", "matplotlib"), ("SimpleStateServer/manage.py", "django"), ("experiments/study/study.py", "numpy")],
)
def test_ctrl_c_while_a_program_imports_ends_it_quietly(program, package, tmp_path):
    (tmp_path / f"{package}.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, program, "serve"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )
    try:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert (process.wait(timeout=10), process.communicate()[1]) == (130, "")
    finally:
        process.kill()


@pytest.mark.parametrize(
    "words", ["why.sh", "state_server.sh", "worker.sh -m local", "remote.sh", "container.sh -m local"]
)
def test_ctrl_c_in_the_start_of_a_scripts_python_waits_for_the_programs_first_lines(words, tmp_path):
    """SIGINT is sent while Python imports `site`, which waits for it: then it would be a traceback."""
    (tmp_path / "sitecustomize.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    name, *more = words.split()
    done = subprocess.run(
        [ROOT / "scripts" / name, *more],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "VENV": sys.prefix, "STATE_SERVER_PORT": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0 if name == "remote.sh" else 130, "")


PROGRAM = """
import os, signal, start

def main():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        print("tidied")

start.run(main)
"""


@pytest.mark.parametrize(("before", "code"), [("default_int_handler", 130), ("SIG_IGN", 0)])
def test_ctrl_c_in_a_program_tidies_up_quietly_and_is_ignored_where_it_was(before, code):
    program = f"import signal; signal.signal(signal.SIGINT, signal.{before})\n{PROGRAM}"
    assert run(sys.executable, "-c", program) == (code, "tidied\n", [])


def run(*command: str, **environment: str) -> tuple[int, str, list[str]]:
    """Exit code, stdout and the lines of stderr of a program."""
    given = {**os.environ, **environment}
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr.splitlines()


@pytest.mark.parametrize(
    "words", ["draw.py", "main.py -m local -c 1", "simulate.py", "SimpleStateServer/manage.py serve"]
)
def test_a_package_that_is_not_installed_is_one_line(words):
    code, said, (line,) = run(sys.executable, "-S", *words.split())
    assert (code, said) == (2, "")
    assert re.search(r"error: there is no \w+ for .*: \.venv/bin/python has it, which scripts/setup.sh makes$", line)


@pytest.mark.parametrize(("words", "closed", "ends"), [("main.py --help", "2>&-", 0), ("draw.py -b /nowhere", "", 2)])
def test_a_program_whose_output_is_closed_does_not_miss_it(words, closed, ends):
    code, _, errors = run("sh", "-c", f"{sys.executable} {words} >&- {closed}")
    assert (code, len(errors)) == (ends, 1 if ends else 0), errors


@pytest.mark.parametrize(
    "words",
    [
        "experiments/study/real_comparison.py /nowhere /nowhere",
        "draw.py -b FOLDER",  # whose matplotlibrc is no text
    ],
)
def test_what_a_program_cannot_work_with_is_one_line(words, tmp_path):
    (tmp_path / "matplotlibrc").write_bytes(b"\xff\n")
    environment = {"MATPLOTLIBRC": str(tmp_path)} if "draw" in words else {}
    code, said, errors = run(sys.executable, *words.replace("FOLDER", str(tmp_path)).split(), **environment)
    (line,) = [each for each in errors if not each.startswith("Cannot decode")]  # matplotlib's own
    assert (code, said, line[:7]) == (2, "", "error: ")
