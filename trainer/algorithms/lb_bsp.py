"""LB-BSP, load-balanced BSP (Chen et al., "Semi-dynamic load balancing", SoCC 2020; with a dead band as OmniLearn's,
arXiv:2503.17469): all workers step together, on batches in proportion to their speeds, so that nobody waits for long.

    w <- w - eta * b * (sum of the gradients of all samples of the round) / B

b is -b and B the samples of the round, N * b but for a round in which the sizes change. So the step goes along the mean
over all samples of the round, and has the length of an SSGD step whose workers have b samples each: with equal batches
it is SSGD's, to the bit (sync.py: learning rates act on summed losses, and the sum of N workers is divided by N).

Every sample of a round counts the same, whoever computed it, so worker k counts b_k / B. The other algorithms here
count a worker n_k / n, by the samples that it holds. The two cannot both be: a fast worker goes through its n_k samples
sooner than others, so each of them is seen more often. Weighed n_k / n a worker's samples would all count alike in the
long run, but the few of a slow worker for many in each round, which makes the gradient noisier than SSGD's. Where the
parts are drawn at random either way is a mean over the same distribution; under --split-by-class the classes that fast
workers hold count for more here.

The state server decides on the sizes (SimpleStateServer/server/policies/lb_bsp.py). Its answer may come after the next
round has begun, and for one worker earlier than for another; so how many samples a worker has used travels with its
gradients, as one more number, and B is the sum of those: the update is right whoever has used which decision.
"""

from __future__ import annotations

from trainer.algorithms.sync import SyncTrainer
from trainer.context import Context
from trainer.coordinator.job import begin_job
from trainer.coordinator.queries import Queries
from trainer.engine import mx


class LBBSPTrainer(SyncTrainer):
    """SSGD with batches whose sizes follow the speeds of the workers."""

    def __init__(self, context: Context, learning_rate: float, batch_size: int) -> None:
        """
        Args:
            batch_size: b, samples of each worker's batch at first.
        """
        super().__init__(context, learning_rate)
        self._batch_size = batch_size
        self.numbers = [0.0]
        self._state = context.state
        self._questions = Queries(context.state, self.clock, waits=False)

    def broadcast(self) -> None:
        """Begins a job on the state server before the ranks get the initial weights, and tells the time of a test
        step."""
        begin_job(self.context, self.progress, self.resumes)
        super().broadcast()
        self._state.report(self.rounds + 1, self.step_s, 0.0, None, self.step_samples)

    def begin_round(self) -> None:
        """The batch of this round is as large as the last answer said."""
        self.context.task.batches.resize(self._questions.batch_size() or self._batch_size)

    def local_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> bool:
        """The gradient of the summed loss, which already weighs each sample alike."""
        self.compute_gradients(images, labels)
        self.gradients_are_good(self.sums.largest)
        return True

    def computed(self) -> None:
        """Tells how long the step took, and asks for the size of the batches to come, while the gradients travel."""
        self.step_s = self.emulation.step_age_s
        self._questions.ask_batch_size(self.rounds, self.step_s, self.step_samples, self.accuracy.take)

    def statistics_weight(self) -> float:
        """b_k / b: BatchNorm's statistics are averaged as the gradients are."""
        return self.step_samples / self._batch_size

    def synchronize(self, wants_stop: bool) -> bool:
        """As SSGD; the number of samples travels with the gradients. It is exact up to 2**24."""
        self.numbers = [0.0 if self.step_is_bad else float(self.step_samples)]
        return super().synchronize(wants_stop)

    def divisor(self) -> float:
        """B / b, which is N where the sizes are those of one decision."""
        return self.numbers[0] / self._batch_size

    def end(self) -> None:
        """Waits for a question that is still under way, and takes leave."""
        self._questions.close()
        self._state.leave(self.accuracy.take(), self.rounds)


def build(context: Context) -> LBBSPTrainer:
    """From the flags."""
    return LBBSPTrainer(context, context.config.learning_rate, context.config.batch_size)
