"""The fork server: imports MXNet, reads the data, computes nothing, and starts processes of a job by fork.

An import takes seconds, a fork a few hundredths of one. scripts/launch/forking.py starts it and sends requests as lines
of JSON on stdin; it answers on stdout.

                                      ->  {"is": "ready"} once all is imported
    {"name": ..., "arguments": ..., "environment": ..., "folder": ..., "log": ..., "pipe": ...}
                                      ->  {"is": "started", "pid": ...} from the new process itself, or "failed"

The new process is main.py with these arguments, as in a fresh start. The launcher adopts it (PR_SET_CHILD_SUBREAPER):
so the launcher sees its exit code, it lives on when this process ends, and it dies with the launcher.
"""

import contextlib
import gc
import json
import os
import pkgutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import main as program
from scripts.launch.forking import NAME
from scripts.launch.roles import ROOT
from trainer import version
from trainer.datasets import loading
from trainer.runtime.own_process import die_with, name_process, show_command
from trainer.runtime.stop_signals import STOP_SIGNALS
from utils import EXIT_OK, EXIT_SETUP, SetupError, know_launcher, launchers_pipe

ADOPTION_S = 10.0


def say(answers: int, message: Mapping[str, Any]) -> None:
    """Sends a message to the launcher by this descriptor, short enough to arrive in one piece."""
    os.write(answers, json.dumps(message).encode() + b"\n")


def warm(dataset: str, data_dir: str, modules: str) -> None:
    """Imports what a worker needs, and reads its data, if any; what is missing is reported by the worker. What is
    forked later runs the program as it is now, and says so, whatever becomes of the files."""
    version.files_hash()
    for name in modules.split(","):
        with contextlib.suppress(Exception, SystemExit):  # of any kind: a library of the job file
            pkgutil.resolve_name(name)
    if dataset:
        with contextlib.suppress(SetupError):
            loading.load_once(dataset, data_dir)
    gc.collect()
    gc.freeze()  # a collection in a child would copy the shared pages


def fork(message: Mapping[str, Any], launcher: int, answers: int) -> list[str] | None:
    """Makes a child of the launcher; returns main.py's arguments in the child, and None here."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return None
    try:
        if os.fork():
            os._exit(EXIT_OK)  # so the launcher adopts the child
        return _become(message, launcher, answers)
    except (OSError, TimeoutError):
        say(answers, {"is": "failed"})  # a fresh start will show why
        os._exit(EXIT_SETUP)


def _become(message: Mapping[str, Any], launcher: int, answers: int) -> list[str]:
    give_up = time.monotonic() + ADOPTION_S
    while os.getppid() != launcher:
        if time.monotonic() > give_up:
            raise TimeoutError
        time.sleep(0.001)
    die_with(launcher)
    os.setsid()  # the launcher can signal its whole group; Ctrl-C is for the launcher alone
    name_process(message["name"])
    show_command([sys.executable, str(ROOT / "main.py"), *message["arguments"]])
    os.environ.clear()
    pipe = os.open(message["pipe"], os.O_WRONLY | os.O_NONBLOCK)
    os.environ.update({**message["environment"], **launchers_pipe(pipe)})
    know_launcher()
    os.chdir(message["folder"])
    log = os.open(message["log"], os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    say(answers, {"is": "started", "pid": os.getpid()})
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for done in (log, nothing, answers):
        os.close(done)
    sys.argv = [str(ROOT / "main.py"), *message["arguments"]]
    return list(message["arguments"])


def serve(launcher: int, answers: int) -> list[str]:
    """Starts processes until the launcher closes stdin. Returns in each new process only, with its arguments."""
    name_process(NAME)
    show_command([sys.executable, *sys.argv[:-1]])
    say(answers, {"is": "ready"})
    for line in sys.stdin:
        arguments = fork(json.loads(line), launcher, answers)
        if arguments is not None:
            return arguments
    sys.exit(EXIT_OK)


def main(arguments: Sequence[str]) -> int:
    """Serves one launcher; in a forked process, returns main.py's exit code."""
    launcher, dataset, data_dir, modules = arguments[:4]
    # In a forked process MXNet has threads from the beginning, and a signal must not reach one of those.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer to the launcher
    warm(dataset, data_dir, modules)
    return program.main(serve(int(launcher), answers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
