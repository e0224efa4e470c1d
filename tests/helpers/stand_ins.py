"""Small programs that stand for the roles of a job, and the roles that run them. Not a test itself."""

import json
import os
import sys
import textwrap
from pathlib import Path

from scripts.launch.process import Kind, Role
from utils import LAUNCHER

BEGIN = "import os, signal, sys, time; from pathlib import Path; here = Path(sys.argv[1])\n"
IDLE = "\nwhile True: time.sleep(0.05)"  # what a role does until something happens to it
UP = "\n(here / f'{sys.argv[2]}.pid.tmp').write_text(str(os.getpid()))" + (
    "\nos.replace(here / f'{sys.argv[2]}.pid.tmp', here / f'{sys.argv[2]}.pid')"
)
FOREVER = UP + IDLE
# Ends with its "round" at SIGTERM, as main.py does.
WORKER = "def end(*_): print('round complete', flush=True); sys.exit(0)\nsignal.signal(signal.SIGTERM, end)" + UP + IDLE
STUBBORN_WORKER = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" + UP + IDLE
# Ends by itself after the workers, as a parameter server does; they tell by a file.
SERVER = UP + "\nwhile not (here / 'workers are done').exists(): time.sleep(0.05)"
DONE = "(here / 'workers are done').touch()"


def tells(**told: object) -> str:
    """A statement that tells the launcher, as utils.tell_launcher does."""
    return f"os.write(int(os.environ[{LAUNCHER!r}].split()[0]), {json.dumps(told)!r}.encode() + b'\\n')"


ROUND = f"\n{tells(trained=True)}\n"


def role(folder: Path, kind: Kind, program: str, name: str = "", **options: object) -> Role:
    name = name or kind.value
    return Role(
        name=name,
        kind=kind,
        command=[sys.executable, "-I", "-c", BEGIN + textwrap.dedent(program), str(folder), name.replace(" ", "-")],
        environment=dict(os.environ),
        folder=folder,
        log=folder / f"{name}.log",
        **options,  # type: ignore[arg-type]
    )
