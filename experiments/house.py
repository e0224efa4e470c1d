"""Measures the borders and the size of the project's code, and prints them as a Markdown table, beside the aims.

    .venv/bin/python -m experiments.house

Lines are those of Python files; the product is all outside tests/ and experiments/. The round of SSGD is the second one
of two workers in memory. A name of a part of `config` is a name in trainer/ that is bound to one of its fields.
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from experiments import markdown
from flag_parser import FlagParser

ROOT = Path(__file__).resolve().parents[1]
LOADED = "import sys, {}; print(*(m.__file__ for m in [*sys.modules.values()] if getattr(m, '__file__', None)))"
ROUND = """
import pathlib, sys, tempfile
import simulate
files = {str(path) for path in pathlib.Path.cwd().glob("trainer/**/*.py")}
others = {*files}
def note(frame, event, argument):
    above = frame if frame.f_code.co_filename in others else None
    while above and above.f_code.co_name != "train_round":
        above = above.f_back
    if above and above.f_locals["self"].trainer.rounds > 1:
        others.remove(frame.f_code.co_filename)
sys.setprofile(note)
logs = tempfile.TemporaryDirectory()
simulate.main([*"-m sync --workers 0.1,0.1 -n mlp --max-rounds 2 --evaluate no --log-base".split(), logs.name])
print(*files - others)
"""


@cache
def _nodes(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text()))]


def _files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def _product() -> list[Path]:
    return [*sorted(ROOT.glob("*.py")), *_files("esync", "trainer", "models", "report", "scripts", "SimpleStateServer")]


def _lines(paths: Iterable[Path]) -> list[str]:
    return [line for path in paths for line in path.read_text().splitlines()]


def _kinds(paths: Sequence[Path]) -> str:
    docs = blanks = 0
    for path in paths:
        alone = (node for node in _nodes(path) if isinstance(node, ast.Expr))
        texts = [node for node in alone if isinstance(getattr(node.value, "value", None), str)]
        doc = {number for node in texts for number in range(node.lineno, (node.end_lineno or 0) + 1)}
        others = [line.strip() for number, line in enumerate(_lines([path]), start=1) if number not in doc]
        docs, blanks = docs + len(doc), blanks + sum(line.startswith("#") or not line for line in others)
    total = len(_lines(paths))
    return f"{total:,}: {total - docs - blanks:,} / {docs:,} / {blanks:,}"


def _of_process(code: str) -> list[Path]:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in _product() if str(path) in done.stdout.splitlines()[-1].split()]


def _overridden() -> list[int]:
    classes = [node for path in _files("trainer") for node in _nodes(path) if isinstance(node, ast.ClassDef)]
    methods = {node.name: {each.name for each in node.body if isinstance(each, ast.FunctionDef)} for node in classes}
    bases = {node.name: {ast.unparse(base).split(".")[-1] for base in node.bases} for node in classes}
    below: set[str] = set()
    while more := {name for name, its in bases.items() if its & {"Trainer", *below}} - below:
        below |= more
    hooks = Counter(name for each in below for name in methods[each] & methods["Trainer"] if not name.startswith("_"))
    return [*hooks.values()]


def measured() -> dict[str, tuple[str, str]]:
    """The value and the aim of each measure."""
    core, hooks = _files("trainer"), _overridden()
    loaded = (_of_process(LOADED.format(f"trainer.algorithms.{name}")) for name in ("local", "esync"))
    local, esync = (f"{len(paths)}, {len(_lines(paths)):,}" for paths in loaded)
    config = {*re.findall(r"(\w+)\s?=\s?(?:\w+\.)*_?config\.\w+(?=[,)\n])", "\n".join(_lines(core)))}
    classes = [(path.parent, name) for path in _product() for name in re.findall(r"\n *class (\w+)", path.read_text())]
    meanings = [sum(n > 1 for n in Counter(each).values()) for each in ([name for _, name in classes], classes)]
    everything = _lines([*_product(), *_files("experiments", "tests")])
    longest = max(len(re.sub(r"\s+# (type: ignore|noqa).*", "", line)) for line in everything)
    names = ("algorithms/sync.py", "algorithms/averaging.py", "algorithms/esync.py", "loop.py")
    four = " / ".join(f"{len(_lines([ROOT / 'trainer' / name]))}" for name in names)
    return {
        "trainer/: files, lines": (f"{len(core)}, {len(_lines(core)):,}", "13,650 lines"),
        "files at its top level": (f"{len([*(ROOT / 'trainer').glob('*.py')])}", "about 20"),
        " / ".join(names): (four, "110 / 110 / 100 / 300"),
        "importing the standalone trainer: modules, lines": (local, "below 2,500 lines"),
        "importing ESync's: modules, lines": (esync, "below 5,000 lines"),
        "files of trainer/ that a round of SSGD enters": (f"{len({*_of_process(ROUND)} & {*core})}", "at most 12"),
        "hooks of Trainer that are overridden; by one class": (f"{len(hooks)}; {hooks.count(1)}", "at most 12"),
        "names of parts of `config`": (f"{len(config)}", "9: half of 7aece70's"),
        "class names with several meanings; in one package": (f"{meanings[0]}; {meanings[1]}", "none in one package"),
        "product: lines of code / docstrings / others": (_kinds(_product()), "30,300 lines"),
        "experiments: the same": (_kinds(_files("experiments")), "6,300 lines"),
        "tests: lines": (f"{len(_lines(_files('tests'))):,}", "35,000"),
        "longest line": (f"{longest}", "120"),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    FlagParser(prog="python -m experiments.house", description=__doc__).parse_args(arguments)
    print(markdown.table([["", "here", "aim"], *([name, *both] for name, both in measured().items())]))


if __name__ == "__main__":
    start.run(main)
