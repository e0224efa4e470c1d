"""What becomes of the logs of a run when another one takes its place in the log tree.

    LOG_BASE/NETWORK/MODE/HOST/DEVICE/...  ->  LOG_BASE/earlier/DATE-TIME/NETWORK/MODE/HOST/DEVICE/...

Of all below LOG_BASE/earlier the last KEPT runs stay. Only what a worker writes is moved, and nothing before training
begins. Standard library only: the launchers, which import no MXNet, move what their workers cannot know of.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.run_logs.measure import LINES_FILE
from utils import CHECKPOINT_FOLDER, EARLIER, RUN_AS_OWNER, RUN_FILE, SetupError, read_json, remedy

KEPT = 5
LOCK_FILE = ".lock"
BEST, FINAL = "best", "final"  # saved models
NEWEST = "newest"  # one that is being evaluated by another process
_SAVED = rf"({BEST}|{FINAL}|{NEWEST})(\.json|-symbol\.json|-\d{{4,}}\.params)(\.tmp)?"
_WRITTEN = re.compile(rf"(iter-[1-9]\d*\.txt|{re.escape(LINES_FILE)}|{re.escape(RUN_FILE)})(\.tmp)?|{_SAVED}")
_RUN = re.compile(r"\d{4}-\d\d-\d\d-\d{6}(-\d+)?")
_PROCESS_LOG = re.compile(r"\.(.+\.log)\.before")


# ------------------------------------------------------------------------------------------------ what moves where


def saved_files(folder: Path, kind: str = "") -> list[Path]:
    """The files of saved models in a folder, of one kind (BEST, FINAL, NEWEST) or of all."""
    matches = ((path, re.fullmatch(_SAVED, path.name)) for path in folder.iterdir())
    return [path for path, match in matches if match and kind in ("", match[1])]


def written(folder: Path) -> list[Path]:
    """What a worker has written into its log folder: rounds, run.json, saved models. Empty where there is no folder."""
    return [path for path in folder.iterdir() if _WRITTEN.fullmatch(path.name)] if folder.is_dir() else []


def date_time(now: float) -> str:
    """DATE-TIME, of a run that begins now."""
    return time.strftime("%Y-%m-%d-%H%M%S", time.localtime(now))


def log_base(earlier: Path) -> Path:
    """The log tree of LOG_BASE/earlier, or of LOG_BASE/earlier/DATE-TIME.

    Raises:
        SetupError: it is neither.
    """
    if earlier.name == EARLIER:
        return earlier.parent
    if earlier.parent.name == EARLIER:
        return earlier.parent.parent
    raise SetupError(f"--earlier {earlier} is no folder of earlier runs: give LOG_BASE/{EARLIER}")


def to_remove(names: Iterable[str], newest: str) -> list[str]:
    """Which of the runs below LOG_BASE/earlier make room: all but the last KEPT. Whatever has another name stays.

    Args:
        newest: the run that logs were moved to just now, though the job may have been started before others.
    """
    return sorted(name for name in names if _RUN.fullmatch(name) and name != newest)[: -(KEPT - 1)]


def targets(paths: Iterable[Path], base: Path, run: Path) -> dict[Path, Path]:
    """Where each file of a log tree is moved: the place in the tree stays, but what was put aside until then, logs of
    processes and checkpoints, has its own again."""
    found = {}
    for path in paths:
        before = _PROCESS_LOG.fullmatch(path.name)
        place = path.parent.parent if path.match(f"{CHECKPOINT_FOLDER}/{EARLIER}/*") else path.parent
        found[path] = run / place.relative_to(base) / (before[1] if before else path.name)
    return found


def left_by_others(mode_folder: Path, devices: Collection[tuple[str, str]]) -> list[Path]:
    """The folders of workers in a mode's folder, but for those of these hosts and devices."""
    there = (path for path in mode_folder.glob("*/*") if not path.name.startswith("."))  # .checkpoints is no device
    return sorted(path for path in there if path.is_dir() and (path.parent.name, path.name) not in devices)


def config_in(folder: Path) -> Mapping[str, Any]:
    """The flags of the run that has left its logs in a worker's folder; none where they cannot be read."""
    try:
        found = read_json(folder / RUN_FILE)["config"]
    except (SetupError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def is_same_run(earlier: Any, before: Any) -> bool:
    """Whether two workers were started for the same run, by their --earlier."""
    names = Path(str(earlier)).name, Path(str(before)).name
    return names[0] == names[1] and bool(_RUN.fullmatch(names[0]))


# ---------------------------------------------------------------------------------------------------------- moving


def check(folders: Iterable[Path], earlier: Path) -> None:
    """Makes sure that what is in these folders can be moved, before anything is trained.

    Raises:
        SetupError: it cannot.
    """
    place = next(path for path in (earlier, *earlier.parents) if os.path.lexists(path))
    for folder in folders:
        why = ""
        if not place.is_dir():
            why = f"{place} is no folder"
        elif not os.access(place, os.W_OK | os.X_OK) or not os.access(folder, os.W_OK | os.X_OK):
            why = f"{place if not os.access(place, os.W_OK | os.X_OK) else folder} cannot be written to"
        elif place.stat().st_dev != folder.stat().st_dev:
            why = f"{place} is on another file system"
        if why:
            raise _cannot(folder, earlier, why)


def _cannot(folder: Path, earlier: Path, why: str) -> SetupError:
    return SetupError(
        f"what an earlier run left in {folder} cannot be moved to {earlier}: {why}; move it yourself, or choose "
        "another log folder (--log-base or --run, of main.py -ld)"
    )


def set_aside(paths: Sequence[Path], earlier: Path, since: float = 0.0) -> None:
    """Moves files of a log tree to where earlier runs are.

    Args:
        earlier: LOG_BASE/earlier/DATE-TIME; or LOG_BASE/earlier: then the newest run there that was begun since, which
            another worker of the same job has done, or a new one.

    Raises:
        SetupError: they cannot be moved.
    """
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
            for name in to_remove(_names(base / EARLIER), run.name):
                shutil.rmtree(base / EARLIER / name)
    except OSError as error:
        raise _cannot(paths[0].parent, earlier, error.strerror or str(error)) from None


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """One process at a time, where the file system can lock."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("w") as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _newest(earlier: Path, since: float) -> Path:
    begun = [path for path in earlier.iterdir() if _RUN.fullmatch(path.name) and path.stat().st_mtime >= since]
    return max(begun, default=earlier / date_time(time.time()))


def _free(run: Path, paths: Sequence[Path], base: Path) -> Path:
    """This run, or, where it has these files already, another one of that second."""
    number = 1
    while True:
        found = run if number == 1 else run.with_name(f"{run.name}-{number}")
        if not any(map(os.path.lexists, targets(paths, base, found).values())):
            return found
        number += 1


def _names(earlier: Path) -> list[str]:
    return [path.name for path in earlier.glob("*") if path.is_dir() and not path.is_symlink()]


class Notice:
    """The line on where logs were moved. It is made before they may be moved, by this process or another one."""

    def __init__(self, folder: Path, earlier: Path) -> None:
        """
        Args:
            folder: in the log tree, which may have logs.
            earlier: as `set_aside` takes it.
        """
        base = log_base(earlier)
        self._earlier, self._folder = base / EARLIER, folder.relative_to(base)
        self._before, self._had = _names(self._earlier), self._have()

    def _have(self) -> list[str]:
        return sorted(name for name in _names(self._earlier) if (self._earlier / name / self._folder).is_dir())

    def line(self) -> str:
        """Empty where nothing was moved."""
        there, new = _names(self._earlier), [name for name in self._have() if name not in self._had]
        if not new:
            return ""
        removed = sorted({*self._before} - {*there})
        gone = f"; removed to make room: {', '.join(removed)}" if removed else ""
        place = self._earlier / new[-1]
        return f"the logs of the run before are in {place} now; the last {KEPT} runs stay there{gone}"


# --------------------------------------------------------------------------------------------- what a launcher moves


def keep_process_logs(mode_folder: Path, goes_on: bool) -> None:
    """The processes write logs from the beginning on: those of the run before are hidden until training begins.

    Args:
        goes_on: this run goes on with that one, whose logs are its own.

    Raises:
        SetupError: the folder cannot be written to.
    """
    if goes_on:
        names = {path: path.with_name(path.name[1 : -len(".before")]) for path in _process_logs(mode_folder)}
    else:
        names = {path: path.with_name(f".{path.name}.before") for path in mode_folder.glob("*.log")}
        # A log that has one already is of a run that ended before training began.
        names = {path: before for path, before in names.items() if not before.exists()}
    try:
        for path, name in names.items():
            path.replace(name)
    except OSError as error:
        raise SetupError(
            f"log folder {mode_folder}: {error.strerror}; {remedy('choose another with --log-base', RUN_AS_OWNER)}"
        ) from None


def _process_logs(mode_folder: Path) -> list[Path]:
    return [path for path in mode_folder.iterdir() if _PROCESS_LOG.fullmatch(path.name)]


def clear_mode(mode_folder: Path, devices: Collection[tuple[str, str]], earlier: Path, keeps_checkpoints: bool) -> None:
    """Sets aside what the run before left in a mode's folder, but for what this run's workers set aside themselves.

    Args:
        devices: host and device of these workers.
        keeps_checkpoints: they do, in the log tree: then they have put those of the run before out of the way.

    Raises:
        SetupError: it cannot be moved.
    """
    folders = [folder for folder in left_by_others(mode_folder, devices) if not _is_written_to(folder)]
    put_away = f"{EARLIER}/" if keeps_checkpoints else ""
    checkpoints = mode_folder.glob(f"*/{CHECKPOINT_FOLDER}/{put_away}*.ckpt")
    logs = [path for folder in folders for path in written(folder)]
    set_aside([*_process_logs(mode_folder), *logs, *checkpoints], earlier)
    for folder in folders:
        with contextlib.suppress(OSError):  # there are files of others
            if {path.name for path in folder.iterdir()} <= {LOCK_FILE}:
                (folder / LOCK_FILE).unlink(missing_ok=True)
                folder.rmdir()
                folder.parent.rmdir()


def _is_written_to(folder: Path) -> bool:
    """Whether a worker that still runs has claimed the folder."""
    try:
        with (folder / LOCK_FILE).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
