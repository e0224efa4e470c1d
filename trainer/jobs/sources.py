"""The files that a job file consists of: itself, and the modules of its folder that it imports, read without running.

Standard library only. When the file is run, its folder is the last of sys.path, so a module there whose name is found
elsewhere would never be imported; it is refused. A link is not followed: the folder is that of the given path.
"""

import ast
import hashlib
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from utils import SetupError

ROOT = Path(__file__).resolve().parents[2]
# Top-level modules of this program, and of SimpleStateServer, which its workers have on sys.path.
OWN_MODULES = (
    *("SimpleStateServer", "algorithm_row", "algorithms", "config", "draw", "esync", "experiments", "flag_parser"),
    *("flag_values", "main"),
    *("manage", "models", "rates", "report", "scripts", "server", "simulate", "start", "summary", "trainer", "utils"),
)


def sources(path: Path) -> dict[str, bytes]:
    """The contents of the job file and of the modules of its folder that it imports, directly or through others. Of an
    imported package all .py files count, since it may import them by names that only a run knows. Returns the contents
    by path relative to the folder, sorted. Raises SetupError if a file cannot be read or parsed, or a module can never
    be imported because of its name."""
    path = path.absolute()
    folder, found = path.parent, dict[str, bytes]()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        name = file.relative_to(folder).as_posix()
        if name not in found:
            found[name] = _read(file)
            for module in sorted(_imports(file, found[name], is_top=file.parent == folder)):
                waiting += _files_of(module, folder, file)
    return dict(sorted(found.items()))


def libraries(path: str | Path) -> set[str]:
    """The installed packages that the job file and its modules import, by their first names; "mxnet" among them where
    the job needs MXNet for all that is known: without torch in its files its network may be of gluon. Raises SetupError
    as `sources`."""
    path = Path(path)
    read = sources(path)
    found = {name for file, content in read.items() for name in _imports(Path(file), content, is_top=False)}
    own = {Path(file).parts[0].removesuffix(".py") for file in read}
    return found - own - {*OWN_MODULES, *sys.stdlib_module_names} | (set() if "torch" in found else {"mxnet"})


def content_hash(path: str) -> str:
    """A hash of names and contents, which all workers compare; "none" without a file. Raises SetupError as
    `sources`."""
    if not path:
        return "none"
    digest = hashlib.sha256()
    for name, content in sources(Path(path)).items():
        digest.update(f"{name}\n{len(content)}\n".encode(errors="surrogateescape") + content)
    return digest.hexdigest()[:16]


def ignored_network(path: str | Path, network: str) -> str:
    """A warning about -n where the job file surely has a network, by statements at its top; else empty. A file that
    cannot be read or parsed is told elsewhere."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    if not any("network" in _bound(node) for node in tree.body):
        return ""
    return f"-n {network} does nothing: {Path(path).name} has a network of its own, and its logs have the file's name"


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    if isinstance(node, ast.Assign) and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        return {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return set()


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SetupError(f"job file {file}: {error.strerror}") from None


def _imports(file: Path, content: bytes, is_top: bool) -> set[str]:
    """The first names of all imports in a file, also in its functions, without those inside its own package. `is_top`:
    the file lies in the job's folder. A file of a package that cannot be parsed is left to the run, which may never
    import it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run repeats them
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if not is_top:
            return set()
        raise SetupError(_complaint(file, error)) from None
    return {name.partition(".")[0] for node in ast.walk(tree) for name in _names(node, is_top)}


def _names(node: ast.AST, is_top: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and (is_top or not node.level):
        yield from [node.module] if node.module else (alias.name for alias in node.names)


def _complaint(file: Path, error: Exception) -> str:
    if not isinstance(error, SyntaxError):
        return f"{file}: invalid syntax: {str(error) or 'nested too deeply'}"
    text = (error.text or "").strip() if error.msg == "invalid syntax" else error.msg
    return f"{file}, line {error.lineno or 1}: invalid syntax: {text:.200}"


def _files_of(module: str, folder: Path, importer: Path) -> list[Path]:
    """The files of an imported module, if it is one of the folder. Raises SetupError if the name of the module is found
    before the folder."""
    found, file = folder / module, folder / f"{module}.py"
    is_regular = (found / "__init__.py").is_file()
    if file.is_file() and not is_regular:
        found, files, is_regular = file, [file], True
    else:
        files = [each for each in found.rglob("*.py") if each.is_file()]
    if not files:
        return []
    if folder.resolve() == ROOT and module in OWN_MODULES:
        raise SetupError(
            f"{importer} imports {module}, a module of this program: put the job file and its own modules into a "
            "folder of their own"
        )
    owner = _owner(module, folder)
    if owner and (is_regular or module in OWN_MODULES):
        raise SetupError(f"{found} has the name of {owner}: rename it, and its import in {importer.name}")
    return [] if owner else files  # a folder without __init__.py gives way to a module with its name


def _owner(module: str, folder: Path) -> str:
    """What has the name of a module before the folder is searched; empty: nothing."""
    if module in OWN_MODULES:
        return "a module of this program"
    if module in sys.stdlib_module_names:
        return "a module of Python's standard library"
    spec = PathFinder.find_spec(module, [each for each in sys.path if Path(each).resolve() != folder.resolve()])
    return "an installed package" if spec is not None and spec.origin is not None else ""
