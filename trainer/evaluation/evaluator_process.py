"""A process beside the worker that evaluates in its place, so that training does not wait: `--evaluator 1`.

The worker starts it before any code of a job file runs, so that the two share no open file, and tells the worker that
evaluates to begin. The worker saves the model in its log folder and sends its round; the process loads the model,
evaluates it on the CPU, with lower priority than those that train, and answers. One request is open at a time, and the
next one waits until the process is ready, so each evaluates the newest model. Requests and answers travel over a
connection of their own, where no output of a job file gets. The process ends with the worker in any case.
"""

import contextlib
import io
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from config import Config
from esync.metric import Metric
from trainer.datasets.sources import Stream
from trainer.evaluation import initial_parameters
from trainer.jobs.job import job_of
from trainer.jobs.network import SOME, build, evaluator_of, evaluator_of_some
from trainer.runtime.own_process import die_with, name_process, show_command
from trainer.runtime.stop_signals import STOP_SIGNALS
from utils import JobError, SetupError, fail

NICE = 10  # steps down in priority
READY_S = 60.0  # the longest that training waits for the process to load the data
POLL_S = 0.1
READY = 0  # the number of the round in the first answer


class Evaluation(NamedTuple):
    """An evaluation of the model after a round."""

    round: int
    value: float | None  # of the metric, on the test set or on the held-out samples; None: there is none
    fault: str = ""  # why there is none
    busy_s: float = 0.0  # core time that it took


def evaluated(round_: int, evaluate: Callable[[], Any], metric: Metric) -> Evaluation:
    """Evaluates the model after this round. A metric or test samples that fail are no reason to end a job that trains
    well, so an error of theirs is in the answer."""
    begin_s, value, fault = time.process_time(), None, ""
    try:
        found = evaluate()
        value = None if found is None else metric.checked(found)
    except SetupError as error:
        fault = str(error)
    return Evaluation(round_, value, fault, time.process_time() - begin_s)


class EvaluatorProcess:
    """The worker's side."""

    def __init__(self) -> None:
        """Starts the process by a fork, which takes no time; it waits for `begin`. A forked MXNet computes in one
        thread, so it also leaves the other cores to training."""
        self._connection, its = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=_serve, args=(its, os.getpid()))
        self._process.start()
        its.close()
        self.cost_s = 0.5  # core time of an evaluation, as far as it is known
        self.is_free = False  # the process is ready for a request
        self.has_ended = False

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def begin(self, config: Config, model: Path) -> None:
        """Has the process load the job's data. `model` is the description of the saved model, which is read again for
        each evaluation."""
        self._send((config, model))

    def wait_until_ready(self, gives_up: Callable[[], bool]) -> None:
        """Waits while the process loads the data, at most READY_S, or until the worker gives up."""
        until = time.monotonic() + READY_S
        while not (self.is_free or self.has_ended or gives_up() or time.monotonic() > until):
            self._connection.poll(POLL_S)
            self.take()

    def ask(self, round_: int) -> None:
        """Requests an evaluation of the model, which was saved after this round."""
        self.is_free = False
        self._send(round_)

    def _send(self, request: Any) -> None:
        with contextlib.suppress(OSError):  # the process has ended; `take` finds that
            self._connection.send(request)

    def take(self) -> Evaluation | None:
        """Returns the answer; None if there is none yet."""
        if self.has_ended:
            return None
        runs = self._process.is_alive()  # asked first: an answer may be its last act
        try:
            answer: Evaluation | None = self._connection.recv() if self._connection.poll() else None
        except (EOFError, OSError):
            answer, runs = None, False
        if answer is not None:
            self.is_free, self.cost_s = True, answer.busy_s
            return answer if answer.round != READY else None
        if not runs:
            self.close()
            logging.warning("warning: the evaluator has ended; this worker evaluates itself, and training waits for it")
        return None

    def close(self) -> None:
        """Ends the process, also in the middle of an evaluation."""
        if not self.has_ended:
            self.is_free, self.has_ended = False, True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # with the processes that the job file has started
            self._process.kill()
            self._process.join()
            self._connection.close()


def _serve(connection: Connection, worker: int) -> None:
    """The process: loads the data once it is told to, and evaluates the saved model for each request."""
    die_with(worker)
    os.setsid()  # with a priority of its own
    for number in STOP_SIGNALS:  # the worker handles them
        signal.signal(number, signal.SIG_IGN)
    name_process("evaluator")
    show_command([sys.executable, "evaluator of the worker", str(worker)])
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # `close` drops what is in a buffer
    try:
        _answer(connection)
    except JobError as error:
        fail(f"evaluator: {error}")
        sys.exit(error.exit_code)


def _answer(connection: Connection) -> None:
    config, model = connection.recv()
    config = config.but(cpu=1)
    job = job_of(config)
    built = build(config, job, lambda text: None)
    evaluate = evaluator_of(config, job, built)
    on_some = evaluator_of_some(job, built, config.seed)
    times = 1.0 if isinstance(job.test, Stream) or job.test is None else max(1.0, len(job.test) / SOME)
    estimate = times * evaluated(READY, on_some, built.metric).busy_s
    # Those that train go first. Where Linux groups processes by session, a process's niceness counts within its session
    # alone, and the session's own niceness against the others.
    os.nice(NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE))
    connection.send(Evaluation(READY, None, busy_s=estimate))
    while True:
        round_ = connection.recv()
        initial_parameters.load(built.network, model)
        connection.send(evaluated(round_, evaluate, built.metric))
