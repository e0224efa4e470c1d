"""A worker whose algorithm has a server part on the hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from algorithm_row import AlgorithmFlags
from trainer.context import Context
from trainer.hub.server_part import JOB, SAVE, WANTS_STOP, Answer, Arrays, Message, about
from trainer.network import Batch
from trainer.steps import which_decay
from trainer.trainer import Trainer


class Exchange(Protocol):
    """A worker's connection to the hub. One thread at a time may ask."""

    rank: int
    num_workers: int
    push_s: float  # seconds in which the last message went up, without the wait for other workers
    pull_s: float  # seconds in which the arrays of its answer came down

    def begin(self, about: Message, model: Arrays, held: Callable[[], Arrays]) -> Answer:
        """Begins the job, or comes to it; the answer has the newest model. `held` returns the newest model that this
        worker has, in whatever thread asks."""

    def ask(self, message: Message, arrays: Arrays, wants_stop: Callable[[], object], repeats: bool = False) -> Answer:
        """Sends a message, and waits for its answer, whose arrays may be those that were sent, and hold until the next
        message. The hub is told once where this worker `wants_stop` meanwhile. Where the connection is lost, a message
        that `repeats` is sent again; its arrays stay as they are. Else the answer is as that of `begin`."""

    def tell(self, message: Message, arrays: Arrays = ()) -> None:
        """Sends a message without an answer. Any thread may call it."""

    def take_traffic(self) -> dict[str, int]: ...


class HubTrainer(Trainer):
    """Asks the server part. Its answers are what `ask` returns; nothing else comes from there."""

    def __init__(self, context: Context, settings: AlgorithmFlags) -> None:
        super().__init__(context, settings)
        self.exchange = self.hub = context.hub
        self.push_s = self.pull_s = 0.0  # as Exchange has them, over an emulated link

    def begin_at_hub(self) -> Message:
        """Gives this worker the newest model, and tells the state server of the job, for its page; returns the rest of
        the answer."""
        context, decays = self.context, which_decay(self.parameters.weights)
        checkpoints = context.run.checkpoints.for_hub() if context.run.checkpoints is not None else None
        said = about(context.config, decays, self.membership.sample_counts, checkpoints)
        answer = self.hub.begin(said, self.shared_arrays(), self.newest_model)
        self.parameters.replace(answer.arrays)
        self.hub.take_traffic()  # only rounds count
        if (state := self.context.peers.state_server) is not None and self.context.config.algorithm.has_state_server:
            membership = self.membership
            state.join(answer.message[JOB], membership.rank, membership.num_workers, self.progress)
        return answer.message

    def local_step(self, batch: Batch) -> bool:
        """A timed step whose gradients the server part uses."""
        weight = self.membership.weight
        self.compute_gradients(batch, weight)
        if self.gradients_are_good():
            self.clip_gradients(weight)
        self.wait_for_gradients()
        self.step_s = self.emulation.step_age_s
        return True

    def shared_arrays(self) -> Arrays:
        """What the server part has of the model."""
        return self.parameters.model()

    def newest_model(self) -> Arrays:
        """Of the last answer, for a hub that is started again."""
        return self.shared_arrays()

    def ask(self, message: Message, arrays: Arrays = ()) -> Answer:
        """As Exchange.ask. An emulated slow link delays what goes up, and arrays that come down."""
        up_s = self.emulation.link_delay_s()
        self.clock.sleep(up_s)
        answer = self.hub.ask(message, arrays, lambda: not message.get(WANTS_STOP) and self.stop_request())
        self.push_s = up_s + self.hub.push_s
        if answer.arrays:
            down_s = self.emulation.link_delay_s()
            self.clock.sleep(down_s)
            self.pull_s = down_s + self.hub.pull_s
        return answer

    def save_server(self) -> None:
        self.hub.tell({SAVE: self.rounds})
