"""WBSP, worker-busy synchronous parallel (Yang et al., "Worker-busy synchronous parallel", Parallel Computing 121,
2024, 103092): no worker waits. After every local step a worker uploads its update u, w_shadow <- w_shadow + u / N with
the N workers that are there; when the slowest has uploaded, the server releases w <- w_shadow, and every worker takes w
after its next upload. So all take the same models. From the times in an upload the server finds the slowest worker.
"""

from algorithm_row import RELEASE, Algorithm, LocalSteps, end_of_head
from flag_parser import Flag
from flag_values import zero_or_one


class Settings(LocalSteps):
    """WBSP's flags."""

    wbsp_overlap: int = Flag(0, zero_or_one).means("1 pushes and pulls in a second thread during training (PCC)")


ROW = Algorithm(
    name="wbsp",
    title="WBSP",
    paper="Yang et al., Parallel Computing 121, 2024, 103092",
    settings=Settings,
    trainer="WBSPTrainer",
    server="WBSPServer",
    rule="wbsp",
    page_only=True,
    waits=False,
    events=(RELEASE,),
    stem="WBSP",
)
end_of_head(globals())

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from esync.clock import Task
from esync.measure import GLOBAL_AGGREGATE
from trainer.algorithms.server_policies import Action, Decision, Policy, PolicyRunner, UploadReport
from trainer.context import Context
from trainer.hub.hub_trainer import HubTrainer
from trainer.hub.server_part import (
    ANEW,
    BAD,
    KEPT,
    SAVE,
    SHOWN,
    WANTS_STOP,
    Answer,
    Answers,
    Arrays,
    GlobalModel,
    Message,
    Served,
    in_shapes,
)
from trainer.network import Batch
from trainer.steps import pieces


class ReleasingServer:
    """A server part that releases a new global model where its policy says so, at an upload; that worker gets it with
    the answer, each other one with the answer to its next upload."""

    policy: Policy | str  # of SimpleStateServer/server/policies: at each upload, whether to release

    def __init__(self, job: Served) -> None:
        saved, num_workers = job.saved, job.num_workers
        self.job = job
        self.model = GlobalModel(job)  # the newest release
        self.number = saved.get("release", 0)  # of that release
        self.samples = saved.get("samples", 0)  # in all good uploads
        self._stop = False
        # Number of uploads by rank: all, and those in the newest release.
        counts = saved.get("arrivals", ()), saved.get("released", ())
        self.arrivals, self._released = (
            list(each) if len(each) == num_workers else [0] * num_workers for each in counts
        )
        self._has = [self.number] * num_workers  # by rank, the newest release that it got
        self.there = set(range(num_workers))  # ranks of workers that are not lost
        self.runner = PolicyRunner(self.policy, num_workers, job.now())

    def take_in(self, rank: int, report: UploadReport, update: Arrays, is_bad: bool) -> Decision:
        """Takes an upload, and decides whether to release a model. A bad update must not count."""
        raise NotImplementedError

    def release(self) -> None:
        """Makes the model the next release."""
        raise NotImplementedError

    def act(self, rank: int, message: Message, arrays: Arrays) -> Answers:
        self._stop |= message[WANTS_STOP]
        if "report" not in message:  # it only wishes to stop, and its answer is on the way
            return {}
        decision = self.take_in(rank, UploadReport(*message["report"]), arrays, BAD in message)
        if decision.action is Action.SYNC:  # no worker waits for it here
            self.release()
            self.number += 1
            self._released = list(self.arrivals)
        return {rank: self._answer(rank, action=decision.action.name, reason=decision.reason)}

    def joined(self, rank: int) -> Answer:
        self.there.add(rank)
        self._has[rank] = -1
        return self._answer(rank)

    def lost(self, rank: int) -> Answers:
        self.there.discard(rank)
        self.runner.remove_worker(rank)
        return {}

    def _answer(self, rank: int, **decision: str) -> Answer:
        """With the newest release, unless the worker has it."""
        is_new = self._has[rank] != self.number
        self._has[rank] = self.number
        message = {KEPT: self._counts(), "uploads": self._released, "stop": self._stop, **decision}
        return Answer(message, self.model.arrays if is_new else ())

    def _counts(self) -> dict[str, int]:
        return {"release": self.number, "samples": self.samples}

    def state(self) -> dict[str, Any]:
        by_rank = {"arrivals": self.arrivals, "released": self._released}
        return {SHOWN: self.model.arrays, **by_rank, **self._counts()}


class WBSPServer(ReleasingServer):
    """A release is the initial model plus each upload over the number of workers that were there. An upload of the
    slowest worker releases it."""

    policy = "wbsp"

    def __init__(self, job: Served, settings: Settings) -> None:
        super().__init__(job)
        self._shadow = in_shapes(job.saved.get("shadow", job.model), job.model)

    def act(self, rank: int, message: Message, arrays: Arrays) -> Answers:
        answers = super().act(rank, message, arrays)
        if rank in answers and answers[rank].arrays:  # its next steps are of the next round
            self.runner.enter(rank, self.number + 1, self.job.now())
        return answers

    def take_in(self, rank: int, report: UploadReport, update: Arrays, is_bad: bool) -> Decision:
        now = self.job.now()
        if not is_bad:  # a bad one has no update to add
            for shadow, array in zip(self._shadow, update, strict=True):
                for s, u in pieces(shadow, array):
                    s += u / len(self.there)
            self.samples += report.samples
        self.arrivals[rank] += 1
        self.runner.uploaded(rank, report, now)
        self.runner.exclude_silent(now)  # such as one that evaluates for long
        return self.runner.decide(rank, now)

    def release(self) -> None:
        for shown, shadow in zip(self.model.to_change(), self._shadow, strict=True):
            shown[...] = shadow

    def state(self) -> dict[str, Any]:
        return {**super().state(), "shadow": self._shadow}


class WBSPTrainer(HubTrainer):
    """A round is one local step, and an upload of all steps that were not uploaded yet.

    With overlap (PCC, parallel communication and computation) a second thread uploads while this one trains, and its
    answer is taken after the running step; an upload may contain several steps. The two threads share no array: an
    update is computed into new arrays and handed over, and a release comes back in them.
    """

    rounds_in_step = False

    def __init__(self, context: Context, settings: LocalSteps) -> None:
        super().__init__(context, settings)
        self._overlap = bool(getattr(settings, "wbsp_overlap", 0))  # the quorum merge has no such flag
        self._state = context.state  # for its page only
        self._upload: Task[Answer] | None = None
        # The newest release here; the local model less those steps that no upload has yet.
        self._released: Arrays = []
        self._base: Arrays = []
        self._pending_steps = self._pending_samples = 0
        self._samples = 0  # of the upload under way
        self._sent_steps = self._sent_samples = 0  # in all uploads since the newest release here
        self._wants_stop = False
        self._round_to_save = 0  # of the server's next checkpoint; 0: none is due
        self._release = 0  # number of the newest release here
        self._stop = False  # the answer to the last upload says that all stop
        self._events: list[dict[str, str]] = []

    def broadcast(self) -> None:
        kept = self.begin_at_hub()[KEPT]
        self._released = self._base = self.parameters.copied()
        self._release = kept["release"]
        self.seen.of_all = max(self.seen.of_all, kept["samples"])  # this worker may replace a lost one
        self._state.tell(self._release + 1, 0, self.step_s, 0.0)

    def local_step(self, batch: Batch) -> bool:
        return self.whole_step(batch)

    def synchronize(self, wants_stop: bool) -> bool:
        """Takes an upload's answer and begins the next upload; with overlap it waits for neither."""
        self.measure.enter(GLOBAL_AGGREGATE)
        self._pending_steps += self.steps
        self._pending_samples += self.samples
        self._wants_stop |= wants_stop
        if self._upload is None or self._upload.done():
            self._finish_upload()
            self._save()
            self._begin_upload()
        if not self._overlap:
            self._finish_upload()
        return self._stop

    @contextlib.contextmanager
    def global_model(self) -> Iterator[None]:
        """The newest release in place of the local model."""
        own = self.parameters.copied()
        self.parameters.replace(self._released)
        yield
        self.parameters.replace(own)

    def notes(self) -> dict[str, Any]:
        events, self._events = self._events, []
        return {"release": self._release} | ({"events": events} if events else {})

    def end(self) -> None:
        self._finish_upload()
        if self._pending_steps:
            self._begin_upload()
            self._finish_upload()
        self._save()
        self._state.leave()

    def save_server(self) -> None:
        """Once the server has the upload under way, which is of this round or earlier ones."""
        self._round_to_save = self.rounds
        if not self._overlap:
            self._save()

    def _save(self) -> None:
        if self._round_to_save:
            self.hub.tell({SAVE: self._round_to_save})
            self._round_to_save = 0

    def newest_model(self) -> Arrays:
        upload = self._upload
        came = upload.result().arrays if upload is not None and upload.done() else ()  # with overlap
        return came or self._released

    def update_of(self, model: Arrays, base: Arrays) -> list[np.ndarray]:
        """The update to upload, in new arrays."""
        update = [own - before for own, before in zip(model, base, strict=True)]
        for array in update:
            array *= self.membership.weight
        return update

    def _begin_upload(self) -> None:
        """Begins to upload the difference between the local model and its base."""
        model = self.parameters.copied()
        update = self.update_of(model, self._base)
        if not self.update_is_good(update):  # the worker returns to the newest release
            model, self._pending_samples = list(self._released), 0
            self.parameters.replace(model)
            update = [np.zeros_like(array) for array in model]
        self._base = model
        report = UploadReport(self._pending_steps, self._pending_samples, self.step_s, self.transmission.value)
        self._samples = self._pending_samples
        self._sent_steps += self._pending_steps
        self._sent_samples += self._samples
        self._pending_steps = self._pending_samples = 0
        message = {"report": report, WANTS_STOP: self._wants_stop}
        self._upload = self.clock.start(lambda: self._send(message, update), "communication")

    def _send(self, message: Message, update: Arrays) -> Answer:
        """Run beside the training."""
        answer = self.ask(message, update)
        # The pull counts too: a worker whose pull takes longer than the others' steps is the slowest.
        self.transmission.add(self.push_s + self.pull_s)
        report = UploadReport(*message["report"])
        said = answer.message
        self._state.tell(
            said[KEPT]["release"] + 1,
            0 if answer.arrays else self._sent_steps,
            report.step_s,
            self.transmission.value,
            (said["action"], said["reason"]) if "action" in said else None,
        )
        return answer

    def _finish_upload(self) -> None:
        """Waits for the running upload, if any, and takes its release.

        The difference between model and base, the steps since the hand-over, stays in the model.
        """
        if self._upload is None:
            return
        (message, release), self._upload = self._upload.result(), None
        kept, self._stop = message[KEPT], message["stop"]
        self.seen.update(kept["samples"], self._samples)
        if not release:
            return
        if message.get(ANEW) and kept["release"] == self._release:
            # Uploads since then are lost: the next one has their steps again.
            self._pending_steps += self._sent_steps
            self._pending_samples += self._sent_samples
        else:
            trio = zip(release, self.parameters.model(), self._base, strict=True)
            self.parameters.replace([new + (own - before) for new, own, before in trio])
            self._release = kept["release"]
            self._events.append({"kind": RELEASE.name, "text": f"release {self._release}"})
        self._sent_steps = self._sent_samples = 0
        self._released = self._base = release
