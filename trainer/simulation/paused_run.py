"""A run in virtual time that stops and goes on, so that a search can give each of many runs a little more time.

The run has a greenlet of its own as its clock's hub: `advance` switches there, and `continues` switches back.
"""

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from greenlet import GreenletExit, getcurrent, greenlet

from trainer.context import LearningTask
from trainer.evaluation.evaluator import Evaluator
from trainer.jobs.job import Job
from trainer.jobs.network import BATCH
from trainer.simulation.virtual_cluster import VirtualRun
from trainer.simulation.virtual_job import HOST, VirtualJob
from trainer.simulation.virtual_progress import Watcher
from utils import JobError


class PausedRun(Watcher):
    """One run, which has not begun."""

    def __init__(self, job: VirtualJob, learnt: Job | None = None, other: Job | None = None) -> None:
        """`learnt`: what the job's flags name, read once for many runs. `other` has another test part, for `pairs`."""
        self.curve: list[tuple[float, float]] = []  # (virtual seconds of training, metric) of the evaluations so far
        self.pairs: list[tuple[float, float]] = []  # the metric, and that on the other test part, while it `compares`
        self.compares = False
        self.cpu_s = self.evaluation_cpu_s = 0.0  # of this process: all, and those of evaluations
        self.seconds = 0.0  # virtual ones of training so far
        self.error: JobError | None = None  # that has ended it
        self._folder = tempfile.TemporaryDirectory(prefix="paused-run-")
        self.logs = Path(self._folder.name) / HOST  # with a folder for each worker
        self._job = replace(job, config=job.config.but(log_dir=str(self.logs)), earlier=None)
        self._learnt, self._other = learnt, other
        self._until_s = self._cpu_until_s = 0.0
        self._began_s = math.inf  # when the first worker began to train
        self._greenlet = greenlet(self._run)

    @property
    def is_over(self) -> bool:
        return bool(self._greenlet.dead)

    def advance(self, until_s: float, cpu_s: float = math.inf) -> None:
        """Trains to `until_s` virtual seconds, for `cpu_s` seconds of this process, or to the end of the run."""
        if self.is_over or self.seconds >= until_s:
            return
        begin = time.process_time()
        self._until_s, self._cpu_until_s = until_s, begin + cpu_s
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()
        self.cpu_s += time.process_time() - begin

    def close(self) -> None:
        """Ends the run where it is, and removes its logs."""
        if not self.is_over:
            self._greenlet.parent = getcurrent()
            self._greenlet.throw(GreenletExit)
        self._folder.cleanup()

    def _run(self) -> None:
        try:
            VirtualRun(self._job, watcher=self, learnt=self._learnt).run()
        except JobError as error:
            self.error = error

    def begins(self, now: float) -> None:
        self._began_s = min(self._began_s, now)

    def continues(self, now: float) -> None:
        """The run is paused here."""
        self.seconds = max(0.0, now - self._began_s)
        if self.seconds >= self._until_s or time.process_time() >= self._cpu_until_s:
            self._greenlet.parent.switch()

    def evaluation(self, task: LearningTask, evaluate: Callable[[], float | None]) -> Callable[[], float | None]:
        """Notes what `evaluate` returns."""
        beside: Callable[[], float] | None = None
        if self._other is not None and isinstance(task.evaluate, Evaluator):
            feed = task.network.feed(self._other.prepare)
            beside = task.evaluate.on(partial(self._other.test_batches, feed, BATCH, self._job.config.seed))

        def evaluated() -> float | None:
            begin = time.process_time()
            value = evaluate()
            if value is not None:
                self.curve.append((self.seconds, value))
                if self.compares and beside is not None:
                    self.pairs.append((value, beside()))
            self.evaluation_cpu_s += time.process_time() - begin
            return value

        return evaluated
