"""The logs that a job leaves on another host come to the launcher's machine."""

import base64
import gzip
import itertools
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from scripts.launch.host_connection import HostConnection
from trainer.run_logs.earlier_runs import PAGE_FILE, config_in, is_same_run, set_aside, written
from utils import SetupError


def fetch_logs(connection: HostConnection, home: Path, earlier: Path) -> None:
    """Waits for the logs that the job left on a host, and puts them into its folder `home` in the log tree of this
    machine, the state server's page beside it. A worker's logs are replaced as a whole; those of another run are moved
    to `earlier`. Raises SetupError where they did not arrive, and what was there before is unchanged; OSError where
    they cannot be written."""
    arriving = home.with_name(f".{home.name}-arriving")
    shutil.rmtree(arriving, ignore_errors=True)
    arriving.mkdir(parents=True)
    try:
        archive = arriving / "logs.tar.gz"
        connection.send_message(do="fetch")
        with archive.open("wb") as file:
            for part in itertools.takewhile(lambda answer: answer["is"] == "part", connection.answers()):
                file.write(base64.b64decode(part["data"]))
        _unpack(archive, arriving)
        archive.unlink()
        for path in arriving.iterdir():
            home.mkdir(exist_ok=True)
            _replace(path, (home.parent if path.name == PAGE_FILE else home) / path.name, earlier)
    finally:
        shutil.rmtree(arriving, ignore_errors=True)


def _replace(path: Path, place: Path, earlier: Path) -> None:
    """Moves a worker's folder, or a file, to where an earlier one may be; files that no worker writes stay there."""
    if not (path.is_dir() and place.is_dir()):
        path.replace(place)
        return
    new, old = config_in(path), config_in(place)
    if new.get("resume") == 1 or is_same_run(new.get("earlier", ""), old.get("earlier", "")):
        for file in written(place):
            file.unlink()
    else:
        set_aside(written(place), earlier)
    for file in [file for file in path.rglob("*") if file.is_file()]:
        target = place / file.relative_to(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpacks plain files, into the folder only. Raises SetupError if the archive is damaged, or holds anything else,
    OSError if a file cannot be written."""
    try:
        with gzip.open(archive) as unpacked, tarfile.open(fileobj=unpacked, mode="r:") as tar:
            for member in tar:
                name = PurePosixPath(member.name)
                content = tar.extractfile(member) if member.isfile() else None
                if content is None or name.is_absolute() or ".." in name.parts:
                    raise SetupError(f"the archive of logs holds {member.name!r}, which is no log")
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with (folder / name).open("wb") as file:
                    shutil.copyfileobj(content, file)
            while unpacked.read(1 << 20):  # the checksum stands after the last file
                pass
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SetupError(f"the archive of logs cannot be read ({error}): copy them by hand") from None
