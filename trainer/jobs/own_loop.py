"""A job file's own training loop, `train(worker)`, beside the loop of this program.

The two take turns: the own loop runs in a greenlet until it calls `worker.step`, with its gradients computed; then this
program's loop does what the algorithm makes of them, and the own loop continues when the next gradients are wanted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet

from trainer.datasets.sources import described
from trainer.draws import FORWARD, seed_all
from trainer.network import Batch, JobNetwork, Passes, numpy_of, single
from trainer.trainer import Trainer
from utils import EXIT_SETUP, SetupError, fail

ENDED = "train(worker) has returned"
MOST_BATCHES = 1000  # of a step: a loop that draws more has forgotten worker.step(), or to look at `is_done`


class Worker:
    """What `train(worker)` gets."""

    def __init__(self, loop: OwnLoop) -> None:
        self._loop = loop
        config = loop.trainer.context.config
        self.batch_size = config.batch_size  # of `batches`, from -b
        self.seed = config.seed  # from --seed; the same on all workers
        self.network = loop.network.layers  # whose parameters' gradients a step uses
        self.device = loop.network.device  # of the network: MXNet's context, or torch's device
        self.is_done = False  # whether the job ends; no further step counts

    @property
    def rank(self) -> int:
        """This worker's, from 0 on."""
        return self._loop.trainer.membership.rank

    @property
    def num_workers(self) -> int:
        return self._loop.trainer.membership.num_workers

    @property
    def batches(self) -> Iterator[tuple[Any, Any]]:
        """Yields inputs and targets of the job's training samples, prepared, each one array (N, ...) or a tuple of
        several; ends with the job."""
        if self.is_done:
            self._loop.ask_again()
        while not self.is_done:
            batch = self._loop.take()
            yield single(batch.inputs), single(batch.targets)

    def step(self, samples: int, loss: Any = None) -> bool:
        """Ends a step: the gradients of the loss summed over `samples` samples are in the network's parameters. `loss`:
        of each sample (n,), or their mean; for the log alone. Returns whether the step counted. The first three are
        tests of the speed, where all workers begin together; an algorithm may give a step up, and one whose gradients
        are not finite is skipped. `batches` then has the same samples again."""
        return self._loop.step(samples, loss)


class OwnLoop(Passes):
    """The passes of a job with a loop of its own, which has done the backward pass too."""

    def __init__(self, train: Callable[[Worker], None], network: JobNetwork, trainer: Trainer) -> None:
        self.trainer = trainer
        self.network = network
        self._worker = Worker(self)
        self._train = train
        self._greenlet = greenlet(self._run)
        self._pending: Batch | None = None  # drawn by this program's loop
        self._more: list[Batch] = []  # drawn by the own loop
        self._counted = -1  # steps of this worker that counted, at the last step
        self._loss: Any = None
        self._has_stepped = False
        self._asked = 0  # for batches, after the end
        self._fault = network.own_loop()

    def _run(self, counted: bool) -> None:  # None is no number of samples: `train` has returned
        self._train(self._worker)

    # ----------------------------------------------------------------------------------- called by the trainer

    def forward(self, batch: Batch) -> None:
        """Has the own loop compute the gradients on this batch, or on one of its own loader's."""
        batches, trainer = self.trainer.context.task.batches, self.trainer
        counted = self._has_counted
        self._counted = trainer.progress.total.steps
        if not counted:
            for unused in reversed(self._more):
                batches.put_back(unused)
        self._more = []
        self._pending = batch._replace(size=trainer.step_samples)
        samples = None
        if not self._greenlet.dead:
            self._greenlet.parent = getcurrent()
            self.network.begin()
            seed_all(self.network.seed, self._worker.seed, trainer.membership.rank, FORWARD, trainer.seen.own)
            samples = self._greenlet.switch(counted)
        if samples is None:  # `train` has returned
            if not self._has_stepped:
                raise SetupError("train(worker) has returned without a call of worker.step()")
            for gradient in trainer.parameters.gradients:
                gradient[:] = 0
            samples, trainer.wants_end = 0, ENDED
        if samples != trainer.step_samples:
            trainer.begin_step(samples)

    def wait_for_loss(self) -> None:
        self.trainer.wait_for_gradients()

    def loss(self) -> float | None:
        if self._loss is None:
            return None
        try:
            return float(np.mean(numpy_of(self._loss)))
        except (TypeError, ValueError):
            raise SetupError(
                f"worker.step(samples, loss): loss is {described(self._loss)}: give the losses, or their mean"
            ) from None

    def end(self) -> None:
        """Lets the own loop see that the job is over, and end."""
        self._worker.is_done = True
        self.network.begin()
        if self._greenlet:
            self._greenlet.switch(self._has_counted)

    @property
    def _has_counted(self) -> bool:
        """Whether the last step of the own loop counted."""
        return self.trainer.progress.total.steps > self._counted

    # ---------------------------------------------------------------------------------- called by the own loop

    def take(self) -> Batch:
        """The batch of this step, or one more for it."""
        self._check_thread("worker.batches")
        batch, self._pending = self._pending, None
        if batch is None:
            if len(self._more) >= MOST_BATCHES:
                raise SetupError(
                    f"train(worker) has drawn {MOST_BATCHES} batches without worker.step(): call it at the end of each "
                    "step, and give a larger -b for larger ones"
                )
            batch = next(self.trainer.context.task.batches)
            self._more.append(batch)
        return batch

    def ask_again(self) -> None:
        """Ends a loop that asks for batches time and again when the job is over, such as `while True` around them."""
        self._asked += 1
        if self._asked > MOST_BATCHES:
            raise GreenletExit

    def step(self, samples: int, loss: Any) -> bool:
        self._check_thread("worker.step()")
        if self._worker.is_done:
            raise GreenletExit  # a loop that does not look at `is_done`
        if isinstance(samples, bool) or not isinstance(samples, (int, np.integer)) or samples < 0:
            raise SetupError(f"worker.step({samples!r}): give the number of samples of the step")
        if self._pending is not None:
            self._check_own_loader()
        if fault := self._fault(bool(samples) and not self._has_stepped):
            raise SetupError(fault)
        self._loss, self._has_stepped = loss, True
        return bool(getcurrent().parent.switch(int(samples)))

    def _check_thread(self, what: str) -> None:
        if getcurrent() is not self._greenlet:
            fail(f"{what} is used in another thread than that of train(worker): use it there")
            os._exit(EXIT_SETUP)  # an exception would end that thread alone, for which train(worker) may wait

    def _check_own_loader(self) -> None:
        """A step without a batch from `batches`: the own loop has a loader of its own."""
        config = self.trainer.context.config
        own = "train(worker) has a loader of its own, for which"
        if config.algorithm.shares_batch:
            raise SetupError(f"{own} mode {config.mode} cannot choose the batch size: train on worker.batches")
        if config.resume:
            raise SetupError(f"{own} --resume cannot continue where the checkpoint was taken: train on worker.batches")
