"""usage: every_command_line.py CASE,... PROGRAM... runs each program in its own process, and prints what came of it.

CASE: --help, --no-such-flag, or "value", a wrong value for the first flag that refuses one. Prints JSON: program and
case -> [exit code, stdout, stderr], or null where no flag refuses it. The modules are imported once, before the forks.
"""

import argparse
import contextlib
import importlib
import json
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NO_FLAG = 77


def refuses(action: argparse.Action, text: str) -> bool:
    try:
        value = action.type(text) if callable(action.type) else text
    except (TypeError, ValueError, argparse.ArgumentTypeError):
        return True
    return action.choices is not None and value not in action.choices


def with_wrong_value(parser: argparse.ArgumentParser) -> list[str]:
    for action in parser._actions:
        if action.option_strings and refuses(action, "?"):
            return [action.option_strings[-1], "?"]
    os._exit(NO_FLAG)


def run(program: str, case: str) -> None:
    sys.argv = [program, case]
    if case == "value":
        parse = argparse.ArgumentParser.parse_known_args

        def parse_wrong(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
            return parse(self, with_wrong_value(self), namespace)

        argparse.ArgumentParser.parse_known_args = parse_wrong  # type: ignore[method-assign, assignment]
    code: Any = 0
    try:
        runpy.run_path(str(ROOT / program), run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def outcome(program: str, case: str) -> tuple[int, str, str] | None:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if not (pid := os.fork()):
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            run(program, case)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        err.seek(0)
        return None if code == NO_FLAG else (code, out.read().decode(), err.read().decode())


def main(cases: list[str], programs: list[str]) -> None:
    sys.path.insert(0, str(ROOT))
    sys.argv = ["", *cases]
    import start  # noqa: F401

    for program in programs:
        with contextlib.suppress(SystemExit):
            importlib.import_module(program[:-3].replace("/", "."))
    found = {f"{program} {case}": outcome(program, case) for program in programs for case in cases}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1].split(","), sys.argv[2:])
