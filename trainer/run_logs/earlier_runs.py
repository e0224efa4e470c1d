"""Moves the logs of a run when another one takes its place in the log tree.

    LOG_BASE/NETWORK/MODE/HOST/DEVICE/...  ->  LOG_BASE/earlier/DATE-TIME/NETWORK/MODE/HOST/DEVICE/...

The last KEPT runs below LOG_BASE/earlier stay. Only files that workers write are moved, and none before training
begins. Standard library only: the launchers, which import no MXNet, move files that their workers do not know of.
"""

import contextlib
import datetime
import fcntl
import itertools
import logging
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from esync.measure import LINES_FILE
from utils import CHECKPOINT_FOLDER, EARLIER, RUN_FILE, SetupError, read_json, remedy, setup_errors

KEPT = 5
LOCK_FILE = ".lock"
PAGE_FILE = "page.html"  # the state server's page, as it was when the job ended
BEST, FINAL = "best", "final"  # saved models
NEWEST = "newest"  # a saved model that another process evaluates
_SAVED = rf"({BEST}|{FINAL}|{NEWEST})(\.json|-symbol\.json|-\d{{4,}}\.(?:params|pt))(\.tmp)?"
_WRITTEN = re.compile(rf"(iter-[1-9]\d*\.txt|{re.escape(LINES_FILE)}|{re.escape(RUN_FILE)})(\.tmp)?|{_SAVED}")
PLACE_FILE = ".place"  # in the folder of an earlier run: its number in the order in which they came
_RUN = re.compile(r"\d{4}-\d\d-\d\d-\d{6}(-\d+)*")
_PROCESS_LOG = re.compile(rf"\.(.+\.log|{re.escape(PAGE_FILE)})\.before")


# ------------------------------------------------------------------------------------------------ what moves where


def saved_files(folder: Path, kind: str = "") -> list[Path]:
    """The files of saved models in a folder, if it is there, of one kind (BEST, FINAL, NEWEST) or of all kinds."""
    matches = ((path, re.fullmatch(_SAVED, path.name)) for path in folder.glob("*"))
    return [path for path, match in matches if match and kind in ("", match[1])]


def written(folder: Path) -> list[Path]:
    """Files of a worker in its log folder: rounds, run.json, saved models. Empty where there is no folder."""
    return [path for path in folder.iterdir() if _WRITTEN.fullmatch(path.name)] if folder.is_dir() else []


def date_time(begin_s: float | None = None) -> str:
    """DATE-TIME of a run that begins then or now, in local time; in the hour that autumn repeats with a number."""
    begin = datetime.datetime.fromtimestamp(time.time() if begin_s is None else begin_s)
    return begin.strftime("%Y-%m-%d-%H%M%S") + "-2" * begin.fold


def log_base(earlier: Path) -> Path:
    """The log tree of LOG_BASE/earlier, or of LOG_BASE/earlier/DATE-TIME. Raises SetupError if it is neither."""
    if earlier.name == EARLIER:
        return earlier.parent
    if earlier.parent.name == EARLIER:
        return earlier.parent.parent
    raise SetupError(f"--earlier {earlier} is no folder of earlier runs: give LOG_BASE/{EARLIER}")


def to_remove(runs: Iterable[str], newest: str) -> list[str]:
    """Runs below LOG_BASE/earlier to remove, of all in the order in which they came: all but the last KEPT. Folders
    with other names stay. `newest` is the run that logs were just moved to, though its job may have been started before
    others."""
    return [name for name in runs if _RUN.fullmatch(name) and name != newest][: -(KEPT - 1)]


def targets(paths: Iterable[Path], base: Path, run: Path) -> dict[Path, Path]:
    """Where each file of a log tree is moved: to the same place in the tree. Logs of processes and checkpoints that
    were set aside before get their own place and name back."""
    found = {}
    for path in paths:
        before = _PROCESS_LOG.fullmatch(path.name)
        place = path.parent.parent if path.match(f"{CHECKPOINT_FOLDER}/{EARLIER}/*") else path.parent
        found[path] = run / place.relative_to(base) / (before[1] if before else path.name)
    return found


def left_by_others(mode_folder: Path, devices: Collection[tuple[str, str]]) -> list[Path]:
    """The workers' folders in a mode's folder, but those of these hosts and devices."""
    there = (path for path in mode_folder.glob("*/*") if not path.name.startswith("."))  # .checkpoints is no device
    return sorted(path for path in there if path.is_dir() and (path.parent.name, path.name) not in devices)


def config_in(folder: Path) -> Mapping[str, Any]:
    """The flags of the run whose logs are in a worker's folder; none where they cannot be read."""
    try:
        found = read_json(folder / RUN_FILE)["config"]
    except (SetupError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def is_same_run(earlier: Any, before: Any) -> bool:
    """Whether two workers were started for the same run, by their --earlier."""
    names = Path(str(earlier)).name, Path(str(before)).name
    return names[0] == names[1] and bool(_RUN.fullmatch(names[0]))


# ---------------------------------------------------------------------------------------------------------- locks

_cannot_lock: dict[str, Path] = {}  # the first folder, by reason


def claim(folder: Path, lock: IO[str]) -> bool:
    """Claims a folder by its open lock file; whether no other process has. Warns where the file system cannot lock."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if _cannot_lock.setdefault(str(error.strerror), folder) == folder:
            logging.warning(
                "warning: the file system of %s cannot lock files (%s), so another run that writes there is not "
                "noticed: give each run a log folder of its own",
                folder,
                error.strerror,
            )
    return True


# ---------------------------------------------------------------------------------------------------------- moving


def check(folders: Iterable[Path], earlier: Path) -> None:
    """Makes sure that the content of these folders can be moved, before training begins. Raises SetupError if it
    cannot."""
    place = next(path for path in (earlier, *earlier.parents) if os.path.lexists(path))
    for folder in folders:
        closed = [path for path in (place, folder) if not os.access(path, os.W_OK | os.X_OK)]
        if not place.is_dir():
            raise _cannot(folder, earlier, f"{place} is no folder")
        if closed:
            raise _cannot(folder, earlier, f"{closed[0]} cannot be written to")
        if place.stat().st_dev != folder.stat().st_dev:
            raise _cannot(folder, earlier, f"{place} is on another file system")


def _cannot(folder: Path, earlier: Path, why: str) -> SetupError:
    return SetupError(
        f"what an earlier run left in {folder} cannot be moved to {earlier}: {why}; move it yourself, or choose "
        "another log folder (--log-base or --run, of main.py -ld)"
    )


def set_aside(paths: Sequence[Path], earlier: Path, since: float = 0.0) -> None:
    """Moves files of a log tree to `earlier`: LOG_BASE/earlier/DATE-TIME; or LOG_BASE/earlier, which stands for the
    newest run there that another worker of the same job has made, or a new one. `since` is when this job began, in
    seconds of the machine's clock; its workers have made runs since. Raises SetupError if they cannot be moved."""
    if not paths:
        return
    base = log_base(earlier)
    try:
        with _claimed(base / EARLIER):
            run = _free(earlier if earlier.name != EARLIER else _newest(earlier, since), paths, base)
            for path, target in targets(paths, base, run).items():
                target.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # another worker of the job has done it
                    path.replace(target)
            names = _names(base / EARLIER)
            if _place(run)[0] == 0:
                (run / PLACE_FILE).write_text(str(1 + max(_place(base / EARLIER / name)[0] for name in names)))
            for name in to_remove(names, run.name):
                shutil.rmtree(base / EARLIER / name)
    except OSError as error:
        raise _cannot(paths[0].parent, earlier, error.strerror or str(error)) from None


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Admits one process at a time, where the file system can lock."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("w") as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _newest(earlier: Path, since: float) -> Path:
    begun = [name for name in _names(earlier) if _RUN.fullmatch(name) and (earlier / name).stat().st_mtime >= since]
    return earlier / (begun[-1] if begun else date_time())


def _free(run: Path, paths: Sequence[Path], base: Path) -> Path:
    """This run's folder, or another name of that second where the folder has these files already."""
    others = (run.with_name(f"{run.name}-{number}") for number in itertools.count(2))
    names = itertools.chain([run], others)
    return next(name for name in names if not any(map(os.path.lexists, targets(paths, base, name).values())))


def _names(earlier: Path) -> list[str]:
    """The folders there, in the order in which they came."""
    there = [path for path in earlier.glob("*") if path.is_dir() and not path.is_symlink()]
    return [path.name for path in sorted(there, key=_place)]


def _place(run: Path) -> tuple[int, float]:
    """The place of a run's folder in the order in which they came. A name does not tell it: local time may run back.
    Those of earlier versions come first, as they were changed last."""
    with contextlib.suppress(OSError, ValueError):
        return int((run / PLACE_FILE).read_text()), 0.0
    with contextlib.suppress(OSError):  # it is gone
        return 0, run.stat().st_mtime
    return 0, 0.0


class Notice:
    """The message on where logs were moved. Construct it before this process or another one can move them."""

    def __init__(self, folder: Path, earlier: Path) -> None:
        """`folder` is a worker's, in the log tree; `earlier` is as in `set_aside`."""
        base = log_base(earlier)
        self._earlier, self._folder = base / EARLIER, folder.relative_to(base)
        self._before, self._had = _names(self._earlier), self._have()

    def _have(self) -> list[str]:
        return [name for name in _names(self._earlier) if (self._earlier / name / self._folder).is_dir()]

    def line(self) -> str:
        """The message; empty where nothing was moved."""
        there, new = _names(self._earlier), [name for name in self._have() if name not in self._had]
        if not new:
            return ""
        removed = [name for name in self._before if name not in there]
        gone = f"; removed to make room: {', '.join(removed)}" if removed else ""
        place = self._earlier / new[-1]
        return f"the logs of the run before are in {place} now; the last {KEPT} runs stay there{gone}"


# --------------------------------------------------------------------------------------------- what a launcher moves


def keep_process_logs(mode_folder: Path, goes_on: bool) -> None:
    """Hides the process logs and the page of the run before until training begins: the new ones are of this run.
    `goes_on`: this run resumes that one, so the logs are its own. Raises SetupError if the folder cannot be written
    to."""
    if goes_on:
        names = {path: path.with_name(path.name[1 : -len(".before")]) for path in _process_logs(mode_folder)}
    else:
        there = [*mode_folder.glob("*.log"), *mode_folder.glob(PAGE_FILE)]
        names = {path: path.with_name(f".{path.name}.before") for path in there}
        # Where a hidden log exists, the visible one is of a run that ended before training began.
        names = {path: before for path, before in names.items() if not before.exists()}
    with setup_errors(f"log folder {mode_folder}", remedy("choose another with --log-base")):
        for path, name in names.items():
            path.replace(name)
        if not goes_on:
            (mode_folder / PAGE_FILE).unlink(missing_ok=True)  # likewise of a run that ended before training began


def _process_logs(mode_folder: Path) -> list[Path]:
    return [path for path in mode_folder.glob("*") if _PROCESS_LOG.fullmatch(path.name)]


def clear_mode(mode_folder: Path, devices: Collection[tuple[str, str]], earlier: Path, keeps_checkpoints: bool) -> None:
    """Sets aside the files of the run before in a mode's folder, but those that this run's workers, on these hosts and
    devices, set aside. `keeps_checkpoints`: they write checkpoints in the log tree, and have moved those of the run
    before. Raises SetupError if it cannot be moved."""
    folders = [folder for folder in left_by_others(mode_folder, devices) if not _is_written_to(folder)]
    put_away = f"{EARLIER}/" if keeps_checkpoints else ""
    checkpoints = mode_folder.glob(f"*/{CHECKPOINT_FOLDER}/{put_away}*.ckpt")
    logs = [path for folder in folders for path in written(folder)]
    set_aside([*_process_logs(mode_folder), *logs, *checkpoints], earlier)
    for folder in folders:
        with contextlib.suppress(OSError):  # other files are there
            if {path.name for path in folder.iterdir()} <= {LOCK_FILE}:
                (folder / LOCK_FILE).unlink(missing_ok=True)
                folder.rmdir()
                folder.parent.rmdir()


def _is_written_to(folder: Path) -> bool:
    """Whether a running worker has claimed the folder."""
    try:
        with (folder / LOCK_FILE).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
