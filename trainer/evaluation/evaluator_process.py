"""A process beside the worker that evaluates in its place, so that training does not wait: `--evaluator 1`.

The worker saves the model in its log folder and sends its round; the process loads it, evaluates it on the CPU, with
lower priority than those that train, and answers with the metric's value. One request is open at a time, so each
evaluates the newest model. The process ends with the worker in any case.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from config import Config
from flag_parser import FlagParser
from trainer.runtime.stop_signals import STOP_SIGNALS
from utils import SetupError, fail

ROOT = Path(__file__).resolve().parents[2]
NICE = 10  # steps down in priority
ANSWER_S = 600.0  # longest wait for the evaluation that is under way when training has ended
_PR_SET_PDEATHSIG = 1


class Evaluation(NamedTuple):
    """The process's answer."""

    round: int  # after which the model was saved
    value: float  # of the metric, on the test set or on the held-out samples


class EvaluatorProcess:
    """The worker's side."""

    def __init__(self, config: Config, model: Path) -> None:
        """Starts the process, which loads the data meanwhile. `model` is the description of the saved model, read again
        for each evaluation."""
        flags = [str(model), json.dumps(dataclasses.asdict(config))]
        outside = {name: value for name, value in os.environ.items() if not name.startswith("DMLC_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainer.evaluation.evaluator_process", *flags],
            env=outside | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # with a priority of its own
        )
        self._answers: queue.SimpleQueue[Evaluation | None] = queue.SimpleQueue()  # None: the process has ended
        self._asked = False
        self.has_ended = False
        threading.Thread(target=self._listen, name="evaluator", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_free(self) -> bool:
        """Whether the process runs and has no open request."""
        return not self._asked and not self.has_ended

    def ask(self, round_: int) -> None:
        """Requests an evaluation of the model, which was saved after this round."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{round_}\n")
            self._process.stdin.flush()
        except OSError:
            return  # the process has ended; `take` finds that
        self._asked = True

    def take(self, wait: bool = False) -> Evaluation | None:
        """Returns the answer; None if there is none yet. With `wait` it waits for the evaluation that is under way."""
        try:
            answer = self._answers.get(block=wait and self._asked, timeout=ANSWER_S)
        except queue.Empty:
            return None
        self._asked = False
        if answer is None:
            self.has_ended = True
            logging.warning("warning: the evaluator has ended; this worker evaluates itself, and training waits for it")
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self.has_ended = True
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._answers.put(Evaluation(*json.loads(line)))
        self._answers.put(None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads rounds, a line each; evaluates the model after each line and writes a line of JSON."""
    parser = FlagParser(prog="python -m trainer.evaluation.evaluator_process", description=__doc__)
    parser.add_argument("model", type=Path, help="its description, such as newest.json")
    parser.add_argument("config", type=json.loads, help="the worker's flags")
    given = parser.parse_args(arguments)
    for number in STOP_SIGNALS:  # the worker handles them
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _lower_priority()
    try:
        _answer(given)
    except SetupError as error:
        fail(f"evaluator: {error}")
        sys.exit(error.exit_code)


def _lower_priority() -> None:
    """Lets those that train go first. Where Linux groups processes by session, a process's niceness counts within its
    session alone, and the session's own niceness against the others."""
    os.nice(NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE))


def _answer(given: argparse.Namespace) -> None:
    from trainer.datasets.feed import Feed
    from trainer.engine import mx
    from trainer.evaluation import initial_parameters
    from trainer.jobs.job import job_of
    from trainer.jobs.network import build, evaluator_of

    flags: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.config.items()
    }
    config = Config(**flags)
    job = job_of(config)
    built = build(config, job, mx.cpu(), lambda text: None)
    evaluate = evaluator_of(config, job, built, Feed(mx.cpu(), job.prepare))
    for line in sys.stdin:
        initial_parameters.load(built.network, given.model)
        print(json.dumps(Evaluation(int(line), evaluate())), flush=True)


if __name__ == "__main__":
    main()
