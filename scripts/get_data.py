"""Gets Fashion-MNIST: from Debian's copy on this machine, else from Debian's package, else from the dataset's own site.

Standard library only and no root, so that it runs before any installation. Each file is checked against the SHA-256 of
its content before it is put in place; correct files that exist stay. MNIST, CIFAR-10 and CIFAR-100 are put into the
data folder by hand (docs/install.md).
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import start  # first: what it does is for the other imports too

import gzip
import hashlib
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path

from flag_parser import FlagParser
from trainer.datasets import FASHION_MNIST_SHA256
from utils import SetupError

ROOT = Path(__file__).resolve().parent.parent
DEBIAN_FOLDER = Path("usr/share/datasets/fashion-mnist")
DEBIAN_PACKAGE = "dataset-fashion-mnist"
SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
SITE_TIMEOUT_S = 30
CHECKSUMS = {f"{name}.gz": checksum for name, checksum in FASHION_MNIST_SHA256.items()}

Source = Callable[[Path], Path]  # (scratch folder) -> folder with the files


def is_right(path: Path, checksum: str) -> bool:
    """Whether a .gz file holds the published content."""
    try:
        return hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest() == checksum
    except (OSError, EOFError, zlib.error):
        return False


# ------------------------------------------------------------------------------------------------------ sources


def debian_package(scratch: Path) -> Path:
    """Downloads and unpacks Debian's or Ubuntu's package, but does not install it."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise SetupError("no apt-get here")
    try:
        _run(["apt-get", "download", DEBIAN_PACKAGE], scratch)
    except SetupError:  # no package lists, as in a fresh container: download them into a private folder, without root
        private = _private_apt(scratch / "apt")
        _run(["apt-get", *private, "update"], scratch)
        _run(["apt-get", *private, "download", DEBIAN_PACKAGE], scratch)
    (package,) = scratch.glob("*.deb")
    _run(["dpkg-deb", "-x", str(package), "unpacked"], scratch)
    return scratch / "unpacked" / DEBIAN_FOLDER


def _private_apt(folder: Path) -> list[str]:
    for part in ("state/lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    options = {
        "Dir::State": folder / "state",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",  # apt's own user could not write here
    }
    return [f"-o{name}={value}" for name, value in options.items()]


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise SetupError(f"'{' '.join(command[:1] + command[-2:])}' failed: {reason[-1]}")


def published_site(scratch: Path) -> Path:
    """Downloads the files from the dataset's site."""
    for name in CHECKSUMS:
        target = scratch / name
        try:
            with urllib.request.urlopen(f"{SITE}/{name}", timeout=SITE_TIMEOUT_S) as answer, target.open("wb") as file:
                shutil.copyfileobj(answer, file)
        except OSError as error:
            raise SetupError(f"{SITE}/{name}: {error}") from None
    return scratch


SOURCES: dict[str, Source] = {
    f"/{DEBIAN_FOLDER}": lambda scratch: Path("/") / DEBIAN_FOLDER,  # installed
    f"the Debian package {DEBIAN_PACKAGE}": debian_package,
    SITE: published_site,
}


# ------------------------------------------------------------------------------------------------------- getting


def get(folder: Path, sums: dict[str, str], sources: dict[str, Source], say: Callable[[str], None]) -> None:
    """Completes `folder` with the files of `sums` (name -> SHA-256 of the content) from the first source that has them.
    Raises SetupError if a file there is another one (it stays), or no source has the missing files."""
    there = {folder / name: checksum for name, checksum in sums.items() if (folder / name).exists()}
    for path, checksum in there.items():
        if not is_right(path, checksum):
            raise SetupError(f"{path} is something else (its SHA-256 differs): remove or rename it, and run this again")
    missing = {name: checksum for name, checksum in sums.items() if folder / name not in there}
    if not missing:
        say(f"{folder} has Fashion-MNIST already")
        return
    folder.mkdir(parents=True, exist_ok=True)
    reasons = []
    for source_name, source in sources.items():
        # In the same file system, so that each file appears as a whole.
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as scratch:
            try:
                found = source(Path(scratch))
                _check(found, missing)
            except SetupError as error:
                reasons.append(f"{source_name}: {error}")
                continue
            for name in missing:
                staged = Path(scratch) / f"{name}.checked"
                shutil.copyfile(found / name, staged)
                staged.replace(folder / name)
        say(f"{folder} has Fashion-MNIST now, from {source_name}")
        return
    raise SetupError(
        f"Fashion-MNIST is not available. Put {', '.join(missing)} into {folder} by hand; "
        f"what was tried: {'; '.join(reasons)}"
    )


def _check(folder: Path, sums: dict[str, str]) -> None:
    for name, checksum in sums.items():
        if not (folder / name).exists():
            raise SetupError(f"no {name} there")
        if not is_right(folder / name, checksum):
            raise SetupError(f"{name} there is not the published file (its SHA-256 differs)")


def main() -> None:
    """Parses the command line, and gets the data."""
    parser = FlagParser(prog="scripts/get_data.sh", description=__doc__)
    words = "the data folder, as in main.py's -dd; the files go into fashion-mnist in it (default: %(default)s)"
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "data", help=words)
    folder = parser.parse_args().folder / "fashion-mnist"
    try:
        get(folder, CHECKSUMS, SOURCES, lambda message: print(message, file=sys.stderr))
    except OSError as error:
        raise SetupError(str(error)) from None


if __name__ == "__main__":
    start.run(main)
