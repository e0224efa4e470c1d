"""LB-BSP, load-balanced BSP (Chen et al., "Semi-dynamic load balancing", SoCC 2020; with a dead band as OmniLearn's,
arXiv:2503.17469): all workers step together, on batches in proportion to their speeds, so that waits are short.

    w <- w - eta * b * (sum of the gradients of all samples of the round) / B

b is the flag -b; B is the number of samples of the round, N * b except in a round in which the sizes change. So the
step follows the mean over all samples of the round and has the length of an SSGD step with b samples per worker. With
equal batches it is SSGD's, to the bit (sync.py: learning rates act on summed losses, and the sum is divided by N).

Every sample of a round counts alike, so worker k counts b_k / B. The other algorithms here weigh a worker by the
samples that it holds, n_k / n. Both at once are impossible: a fast worker sees each of its n_k samples more often.
Weights n_k / n would let all samples count alike in the long run, but the few samples of a slow worker would count for
many in each round, which makes the gradient noisier than SSGD's. With random parts either way is a mean over the same
distribution; under --split-by-class the classes of fast workers count for more here.

The state server decides the sizes (SimpleStateServer/server/policies/lb_bsp.py). Its answer may come after the next
round has begun, earlier for one worker than for another. So each worker's b_k / b travels with its gradients, and B / b
is their sum: the update is right whichever decisions the workers have used.
"""

from algorithm_row import Algorithm, OwnGradientSteps, end_of_head

ROW = Algorithm(
    name="lb-bsp",
    title="LB-BSP",
    paper="Chen et al., SoCC 2020; OmniLearn, arXiv:2503.17469",
    settings=OwnGradientSteps,
    trainer="LBBSPTrainer",
    rule="lb-bsp",
    shares_batch=True,
    stem="LBBSP",
)
end_of_head(globals())

from esync.queries import Queries
from trainer.algorithms.sync import SyncTrainer
from trainer.context import Context


class LBBSPTrainer(SyncTrainer):
    """SSGD with batch sizes in proportion to the workers' speeds."""

    def __init__(self, context: Context, settings: OwnGradientSteps) -> None:
        super().__init__(context, settings)
        self._batch_size = context.config.batch_size  # b, and the size of each first batch
        self._state = context.state
        self._questions = Queries(context.state, self.clock, waits=False)

    def broadcast(self) -> None:
        self.join_job()
        super().broadcast()
        self._state.send(self._state.note(self.rounds + 1, 0, self.step_s, 0.0, self.step_samples))

    def begin_round(self) -> None:
        super().begin_round()
        self.context.task.batches.resize(self._questions.batch_size() or self._batch_size)

    def gradient_weight(self) -> float:
        """The summed loss weighs each sample alike."""
        return 1.0

    def computed(self) -> None:
        """Reports the step time and asks for the next batch size while the gradients travel."""
        super().computed()
        self._questions.ask_batch_size(self.rounds, self.step_s, self.step_samples)

    def weight(self) -> float:
        """b_k / b. The sum is B / b, which is N if all workers have used the same decision."""
        return self.step_samples / self._batch_size

    def end(self) -> None:
        super().end()
        self._questions.close()
        self._state.leave(self.rounds)
