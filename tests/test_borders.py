"""The imports between components are those of the table in docs/architecture.md, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
ROW = re.compile(r"^\| `([\w/ ]+)` \| .* \| (`[^|]*`|nothing) \|$", re.MULTILINE)
BASE = {
    *("algorithm_row.py", "algorithms.py", "config.py", "flag_parser.py", "flag_values.py", "rates.py", "start.py"),
    "utils.py",
}
NESTED = ("trainer", "scripts", "experiments")
FOLDERS = ("esync", "trainer", "models", "report", "scripts", "experiments", "SimpleStateServer")


def files() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return [path.relative_to(ROOT) for path in (*ROOT.glob("*.py"), *found)]


FILES = {str(path.with_suffix("")).replace("/", ".").removesuffix(".__init__"): path for path in files()}
FILES |= {name.removeprefix("SimpleStateServer."): path for name, path in FILES.items()}  # as the state server names it


def component(path: Path) -> str:
    """The folder, or what the top level's files are for."""
    first, *rest = path.parts
    if not rest:
        return "base" if first in BASE else "programs"
    if first == "SimpleStateServer":
        return "SimpleStateServer policies" if "policies" in rest else first
    return f"{first}/{rest[0]}" if first in NESTED and len(rest) > 1 else first


def imports(path: Path, for_types: bool = True) -> Iterator[Path]:
    """The project's files that a file imports, wherever in it; packages without content are none.

    Args:
        for_types: also those that only type checkers see.
    """
    nodes = [*ast.walk(ast.parse((ROOT / path).read_text()))]
    guards = [node for node in nodes if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"]
    for_checkers = {inner for guard in guards for inner in ast.walk(guard)}
    for node in nodes if for_types else (node for node in nodes if node not in for_checkers):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.append(whole if whole in FILES else node.module or "")
        for name in names:
            if name in FILES and (FILES[name].name != "__init__.py" or FILES[name].parts[0] == "models"):
                yield FILES[name]


def found() -> dict[str, set[str]]:
    known: dict[str, set[str]] = {}
    for path in files():
        known.setdefault(component(path), set()).update(component(other) for other in imports(path))
    return {name: others - {name} for name, others in known.items()}


def test_components_import_each_other_as_the_table_says():
    table = {name: set(re.findall(r"`([\w/ ]+)`", others)) for name, others in ROW.findall(PAGE.read_text())}
    there = found()
    assert table.keys() == there.keys()
    for name, others in there.items():
        assert others == table[name], f"{name}: change the import, or the table of docs/architecture.md"


def test_the_product_knows_no_experiment_and_the_base_the_client_alone():
    known = found()
    for name, others in known.items():
        if not name.startswith("experiments") and name != "programs":
            assert not any(other.startswith("experiments") for other in others), name
    assert all(other.startswith("SimpleStateServer") for other in known["SimpleStateServer"])
    assert known["base"] == {"esync"} and not known["esync"]


def test_an_algorithm_knows_no_survival_rendezvous_collective_or_simulation():
    others = found()["trainer/algorithms"]
    assert not others & {"trainer/survival", "trainer/rendezvous", "trainer/collectives", "trainer/simulation"}


def test_no_import_leads_back_to_its_file():
    graph = {path: {*imports(path, for_types=False)} for path in files()}
    assert [*TopologicalSorter(graph).static_order()]  # raises CycleError, which names the files of a circle


def test_an_import_for_types_alone_is_no_circle(tmp_path, monkeypatch):
    (tmp_path / "one.py").write_text("from trainer import context\n")
    (tmp_path / "two.py").write_text("if TYPE_CHECKING:\n    from trainer import context\n")
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    found = [[*imports(Path(name), for_types)] for name in ("one.py", "two.py") for for_types in (True, False)]
    assert found == [[Path("trainer/context.py")]] * 3 + [[]]
