"""A worker around the user's own loop: it says after each step whether the workers average now, and averages.

The model, the optimizer, the data and the process group stay the user's; sums go over torch.distributed.

| rule | a round of this worker has |
| --- | --- |
| esync | as many local steps as fit into the straggler's one, or `anchor` ones, as the state server says |
| local-sgd | `sync_every` local steps |
| esync-outer, local-sgd-outer | the same, with Nesterov's outer momentum (averaging.py) |

A worker whose loop is over stays in step with the others, without a part in the mean, until theirs are over too. So
workers may have different numbers of batches, and all leave with the same model.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from esync.averaging import GlobalModel, Outer
from esync.base import PeerLost, SetupError
from esync.checkpoints import Checkpoints
from esync.client import StateClient, draw_job_number, job_id
from esync.clock import RealClock
from esync.http import HttpLink
from esync.logs import RoundLog, folder_of
from esync.measure import CHECK_READY, CHECKPOINT, EVALUATION, FORWARD_BACKWARD, GLOBAL_UPDATE, Smoothed
from esync.metric import Metric
from esync.progress import TRAINING, WAITING, Progress
from esync.protocol import Link, NoLink
from esync.queries import Queries

RULES = ("esync", "esync-outer", "local-sgd", "local-sgd-outer")
OUTER = (0.7, 0.9)  # DiLoCo's
WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
SERVE = "'python -m esync serve HOST:PORT'"

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class Round(NamedTuple):
    """What the workers did in a round."""

    number: int  # from 1
    steps: int  # local steps of this worker
    steps_of_all: int
    samples_of_all: int
    seconds: float  # since the round before
    exchange_s: float  # of these, for the sum, with the wait for the others


class Worker:
    """One of the workers that train a model. `rank` and `num_workers` are those of torch.distributed, `round` is the
    one under way, from 1; `is_done`: the rounds are done, or a worker has called `stop`."""

    def __init__(
        self,
        model: torch.nn.Module,  # its weights are averaged in place; all begin with those of rank 0
        optimizer: torch.optim.Optimizer,  # of the local steps; saved and loaded, else left alone
        rule: str = "esync",
        *,
        server: str | None = None,  # HOST:PORT of the state server; None: ESYNC_SERVER. Its token is ESYNC_TOKEN
        sync_every: int = 0,  # local steps of this worker in a round, by the rules of local SGD
        anchor: int | str = 0,  # of the straggler in a round, by the rules of ESync, or "auto"; 0: one
        weight: float = 1.0,  # of this worker in the mean: n_k, such as its number of training samples
        outer: tuple[float, float] | None = None,  # learning rate and momentum of the outer optimiser; None: OUTER
        rounds: int = 0,  # at most; 0: no limit
        metric: str = "accuracy",  # which `measured` is told
        more_is_better: bool = True,
        on_round: Callable[[dict[str, Any]], object] | None = None,  # called with a Round as a dictionary
        logs: str | os.PathLike[str] | None = None,  # folder of a log tree, for summary.py and draw.py
        name: str = "",  # of the model there; empty: its class's
        checkpoint: str | os.PathLike[str] | None = None,  # folder where each rank saves its state
        every: int = 10,  # rounds
    ) -> None:
        """Raises SetupError where something does not fit together."""
        self._asks, is_outer = rule.startswith("esync"), rule.endswith("-outer")
        problems = (
            (rule not in RULES, f"there is no rule {rule!r}: choose one of {', '.join(RULES)}"),
            (self._asks and sync_every, f"sync_every={sync_every}: by {rule} the state server decides; leave it out"),
            (not self._asks and sync_every < 1, f"{rule} needs sync_every, the local steps of a round, such as 20"),
            (not self._asks and anchor, f"anchor={anchor!r} is of the rules of ESync: leave it out"),
            (isinstance(anchor, str) and anchor != "auto", f"anchor={anchor!r}: a number of local steps, or 'auto'"),
            (isinstance(anchor, int) and anchor < 0, f"anchor={anchor}: at least 1; 0 is one step of the straggler"),
            (outer and not is_outer, f"outer={outer}: choose rule='{rule}-outer', or leave it out"),
            (outer and not (outer[0] > 0 and 0 <= outer[1] < 1), f"outer={outer}: a rate above 0, a momentum below 1"),
            (not 0 < weight < math.inf, f"weight={weight}: a number above 0"),
            (every < 1 or rounds < 0, f"every={every} is at least 1, rounds={rounds} at least 0"),
        )  # fmt: skip
        if problem := next((text for is_there, text in problems if is_there), ""):
            raise SetupError(problem)
        names = {each.__name__ for each in type(model).__mro__}
        if wrapper := next((each for each in WRAPPERS if each in names), ""):
            raise SetupError(
                f"the model is wrapped by {wrapper}, which sums gradients in each step: give the module inside, as "
                "model.module of DistributedDataParallel"
            )
        self._model, self._optimizer, self._rule = model, optimizer, rule
        self._server = os.environ.get("ESYNC_SERVER", "") if server is None else server
        self._sync_every, self._anchor, self._weight = sync_every, anchor, weight
        self._outer = Outer(*(outer or OUTER)) if is_outer else Outer()
        self._most_rounds, self._on_round = rounds, on_round
        self._progress = Progress(Metric(metric, more_is_better))
        self._logs, self._name = logs, name or type(model).__name__.lower()
        self._folder, self._every = checkpoint, every
        self._clock, self._transmission = RealClock(), Smoothed()
        self.rank, self.num_workers = 0, 1
        self.round, self.is_done = 1, False
        self._stops = False
        self._steps, self._samples, self._step_s = 0, 0, 0.0  # of this round; of the last step
        self._since = self._round_began = 0.0  # when the step, and the round, began
        self._done: Round | None = None
        self._loss: torch.Tensor | float | None = None  # of the last step
        self._exchange_s = 0.0  # of the last round

    def __enter__(self) -> Worker:
        """The workers meet, agree, and get the same model. Raises SetupError, on all of them, or PeerLost."""
        if dist.is_available() and dist.is_initialized():
            self.rank, self.num_workers = dist.get_rank(), dist.get_world_size()
        is_gpu = any(each.is_cuda for each in self._model.parameters())
        device = f"{'gpu' if is_gpu else 'cpu'}{os.environ.get('LOCAL_RANK', self.rank)}"
        self._checkpoints = (
            None if self._folder is None else Checkpoints(Path(self._folder), self.rank, self.num_workers)
        )
        members = self._meet(device)
        self._share = self._weight / sum(each["weight"] for each in members)
        elapsed_s = self._go_on(members)
        if self.num_workers > 1:
            self._together(
                "to hand over rank 0's model", lambda: self._global.broadcast(lambda flat: dist.broadcast(flat, 0))
            )
        self._client.join(members[0]["job"], self.rank, self.num_workers, self._progress)
        self._queries = Queries(self._client, self._clock, waits=False)
        folder = None
        if self._logs is not None:
            mode, place = self._rule if self._asks else "local-sgd", (members[self.rank]["host"], device)
            folder = folder_of(Path(self._logs), self._name, mode, place, members[0]["begin"], self.round > 1)
        places = [{"rank": rank, "host": each["host"], "device": each["device"]} for rank, each in enumerate(members)]
        run = {**places[self.rank], "num_workers": self.num_workers, "members": places, "rule": self._rule}
        run["parameter_bytes"] = self._global.num_bytes
        self._log = RoundLog(folder, run, self._progress.metric, self.round - 1, elapsed_s)
        self._measure = self._log.measure
        self._progress.begin(lambda: self._measure.elapsed_s, evaluates=True)
        self._begin_round()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Averages what this worker has, and waits for the others' ends; after an error it just leaves."""
        try:
            while error is None and not self._average(is_over=True):
                pass
        except PeerLost as lost:
            error = lost
            raise
        finally:
            self._log.end("the loop is over" if error is None else f"{type(error).__name__}: {error}")
            self._queries.close()
            self._client.leave(self.round - 1)

    def step(self, samples: int, loss: torch.Tensor | float | None = None) -> Round | None:
        """Call it after each `optimizer.step()`, with the samples of the step, and its loss for the log. Returns what
        the workers did in the round if it has averaged, else None. Raises PeerLost where another worker is gone."""
        if self._global.device.type == "cuda":
            torch.cuda.synchronize(self._global.device)  # else a step seems to take no time
        self._step_s = self._clock.now() - self._since
        self._steps, self._samples = self._steps + 1, self._samples + samples
        self._loss = loss.detach() if isinstance(loss, torch.Tensor) else loss
        self._progress.add_step(samples, self._step_s)
        self._measure.next_step()
        self._measure.enter(CHECK_READY)
        done = None
        if self._is_ready():
            self._average(is_over=False)
            done = self._done
        self._measure.enter(FORWARD_BACKWARD)
        self._since = self._clock.now()
        return done

    def measured(self, value: float) -> None:
        """Tells the metric's value of the model after the last round, for logs and the page. The time since then is
        that of the evaluation, and of no local step."""
        value = self._progress.metric.checked(value)
        if self.round > 1:
            self._log.evaluated(self.round - 1, value)
            self._progress.measured(self.round - 1, value)
        self._measure.is_in(EVALUATION)
        self._measure.enter(FORWARD_BACKWARD)
        self._since = self._clock.now()

    def stop(self) -> None:
        """All workers are done after the next average."""
        self._stops = True

    # -------------------------------------------------------------------------------------------------- to meet

    def _meet(self, device: str) -> list[dict[str, Any]]:
        """What all workers are, by rank."""
        problem = ""  # of one worker, which the others would wait for
        try:
            self._global = GlobalModel(self._model, self._outer)
            self._client = self._client_of(device)
        except SetupError as error:
            problem = str(error)
        same = {
            "rule": [self._rule, self._anchor, *self._outer, self._most_rounds],
            "weights": [list(each.shape) for each in self._model.parameters()],
            "checkpoint": [self._folder is not None, self._every],
        }
        about: dict[str, Any] = {
            **{"host": platform.node(), "device": device, "weight": self._weight, "problem": problem, "same": same},
            "readable": self._checkpoints.rounds() if self._checkpoints is not None else [],
            **{"job": job_id(draw_job_number()), "begin": time.strftime("%Y-%m-%d-%H%M%S")},
        }
        members: list[dict[str, Any]] = [about]
        if self.num_workers > 1:
            members = self._together("to meet", lambda: _gathered(about))
        for rank, each in enumerate(members):
            if each["problem"]:
                raise SetupError(f"rank {rank}: {each['problem']}")
            for what, its in each["same"].items():
                if its != members[0]["same"][what]:
                    of_first = members[0]["same"][what]
                    raise SetupError(f"{what} of rank {rank} is {its!r:.200}, of rank 0 {of_first!r:.200}")
        return members

    def _client_of(self, device: str) -> StateClient:
        """Raises SetupError where the rule needs a state server, and none is there."""
        link: Link = NoLink()
        if self._server:
            host, _, port = self._server.rpartition(":")
            if not host or not port.isdecimal():
                raise SetupError(f"{self._server!r} is no HOST:PORT of a state server, such as 192.168.0.1:10010")
            link = http = HttpLink(host.strip("[]"), port, self._clock)
            if http.is_published(f"with {SERVE}, or give its address as server= or ESYNC_SERVER"):
                raise SetupError(f"{self._server} is a published ESync state server: start this project's with {SERVE}")
        elif self._asks and self.num_workers > 1:
            raise SetupError(
                f"{self._rule} needs a state server: start one with {SERVE}, and give its address as server= or "
                "ESYNC_SERVER"
            )
        return StateClient(
            link, self._clock, "journal" if self._asks else "watched", 0.0, platform.node(), device, title=self._rule,
            limits={"rounds": self._most_rounds} if self._most_rounds else None, anchor=self._anchor,
        )  # fmt: skip

    def _go_on(self, members: list[dict[str, Any]]) -> float:
        """Goes on from the newest checkpoint that all can read; returns the job's seconds until then."""
        if self._checkpoints is None:
            return 0.0
        round_ = max(set.intersection(*(set(each["readable"]) for each in members)), default=0)
        saved = self._checkpoints.go_on(round_)
        if not round_:
            if not self.rank and any(each["readable"] for each in members):
                log.warning("there is no checkpoint that all %d ranks can read: training begins anew", self.num_workers)
            return 0.0
        self._model.load_state_dict(saved["model"])
        self._optimizer.load_state_dict(saved["optimizer"])
        self._global.velocities = [each.to(self._global.device) for each in saved["velocities"]]
        self._global.adopt()
        self.round = round_ + 1
        if not self.rank:
            log.warning("training goes on after round %d, the newest checkpoint: later rounds are lost", round_)
        return float(saved["elapsed_s"])

    def _together(self, what: str, call: Callable[[], Result]) -> Result:
        """Raises PeerLost where torch.distributed gives up."""
        try:
            return call()
        except RuntimeError as error:
            cause = (str(error).splitlines() or [type(error).__name__])[0]
            raise PeerLost(
                f"round {self.round}, {what}: another worker is gone, or does not answer: {cause}"
            ) from error

    # ------------------------------------------------------------------------------------------------- rounds

    def _begin_round(self) -> None:
        self.is_done = self.is_done or 0 < self._most_rounds < self.round
        self._steps = self._samples = 0
        self._progress.activity = TRAINING
        if self._server and self._asks:
            self._queries.report(self.round, self._step_s, self._transmission.value)
        elif self._server:
            self._client.tell(self.round, 0, self._step_s, 0.0)
        self._measure.enter(FORWARD_BACKWARD)
        self._round_began = self._since = self._clock.now()

    def _is_ready(self) -> bool:
        """Whether this round's local steps are done."""
        if self._server and self._asks:
            return self._queries.ask(self.round, self._steps, self._step_s, self._transmission.value)
        if self._server:
            self._client.tell(self.round, self._steps, self._step_s, 0.0)
        least = self._anchor if isinstance(self._anchor, int) else 1  # a single worker is its own straggler
        return self._steps >= max(1, self._sync_every, least)

    def _average(self, is_over: bool) -> bool:
        """Ends the round; returns whether all workers' loops are over. Where none has done a step, it is no round."""
        self._measure.enter(GLOBAL_UPDATE)
        self._progress.activity = WAITING
        share, begin = self._share if self._steps else 0.0, self._clock.now()
        exchanges_s = [self._exchange_s * (rank == self.rank) for rank in range(self.num_workers)]
        numbers = [share, float(self._stops), float(is_over), self._steps, self._samples, *exchanges_s]
        flat = self._global.update(share, numbers)
        if share and not flat[-len(numbers)]:
            log.warning("round %d: this worker's weights are not finite: its steps are left out", self.round)
        if self.num_workers > 1:
            self._together("the sum", lambda: dist.all_reduce(flat))
        share_of_all, stops, over, steps, samples, *exchanges_s = flat[-len(numbers) :].tolist()  # once it is there
        self._exchange_s = self._clock.now() - begin
        self.is_done = self.is_done or stops > 0
        if min(exchanges_s):  # the last worker to come waits for no other one
            self._transmission.add(min(exchanges_s))
        if steps:
            self._global.apply(flat, share_of_all)
            self._end_round(round(steps), round(samples))
        return round(over) == self.num_workers

    def _end_round(self, steps: int, samples: int) -> None:
        """Logs and saves the round, and begins the next one."""
        seconds = self._clock.now() - self._round_began
        self._done = Round(self.round, self._steps, steps, samples, seconds, self._exchange_s)
        if self._checkpoints is not None and self.round % self._every == 0:
            self._measure.enter(CHECKPOINT)
            state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
            state |= {"velocities": self._global.velocities, "elapsed_s": self._measure.elapsed_s}
            self._checkpoints.save(self.round, state)
        loss = self._loss.item() if isinstance(self._loss, torch.Tensor) else self._loss
        loss = loss if self._steps and loss is not None and math.isfinite(loss) else None
        self._progress.end_round(self.round, loss, ())
        self._log.write_round(self._samples, loss, self._global.num_bytes)
        self.round += 1
        self._begin_round()
        if self._on_round is not None:
            self._on_round(self._done._asdict())


def _gathered(about: dict[str, Any]) -> list[dict[str, Any]]:
    """What all ranks tell of themselves, as JSON: torch.distributed's own way needs numpy, and unpickles."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    mine = torch.tensor([*json.dumps(about).encode()], dtype=torch.uint8, device=device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(mine)], device=device))
    most = max(int(size) for size in sizes)
    texts = [torch.zeros(most, dtype=torch.uint8, device=device) for _ in sizes]
    dist.all_gather(texts, torch.cat([mine, mine.new_zeros(most - len(mine))]))
    return [json.loads(bytes(text[: int(size)].tolist())) for text, size in zip(texts, sizes, strict=True)]
