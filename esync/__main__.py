"""`python -m esync serve [HOST:PORT]`: starts the state server, with its page, in place of this process."""

import importlib.util
import os
import sys
from pathlib import Path

NEEDED = ("django", "httptools", "msgspec", "prometheus_client", "uvloop")


def main() -> int:
    """Returns 2 where it cannot be started."""
    words = sys.argv[1:]
    if words[:1] != ["serve"]:
        print("usage: python -m esync serve [HOST:PORT] [options; --help lists them]", file=sys.stderr)
        return 2
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        told = "install esync with its extra [server]: pip install '.[server]' in a clone"
        print(f"error: the state server needs {', '.join(missing)}: {told}", file=sys.stderr)
        return 2
    here = Path(__file__).resolve().parent
    folder = next(each for each in (here / "SimpleStateServer", here.parent / "SimpleStateServer") if each.is_dir())
    return os.execv(sys.executable, [sys.executable, str(folder / "manage.py"), *words])


if __name__ == "__main__":
    sys.exit(main())
