"""A worker that trains with the real WBSPTrainer and saves all that it uploaded and all that it pulled.

python tests/helpers/wbsp_worker.py STEP_TIME OUTPUT.npz
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from contexts import by_flags, context_of
from few_images import few_images
from page import Page
from ready import endless, ready

import models
from config import Config
from esync.progress import Limits
from trainer.algorithms.wbsp import WBSPTrainer
from trainer.datasets import loading
from trainer.datasets.samples import Samples
from trainer.engine import mx
from trainer.hub import hub_link
from trainer.loop import Loop
from trainer.membership import Membership
from trainer.rendezvous.cluster import ClusterSpec
from trainer.runtime.environment import prepare_environment

BATCH = 16
SECONDS = 3.5


class Recorded(WBSPTrainer):
    """Keeps copies of everything that passes between this worker and the server, and how far its steps went."""

    def broadcast(self):
        super().broadcast()
        self.initial = self.parameters.copied()
        self.moved = [np.zeros_like(array) for array in self.initial]
        self.uploads, self.releases = [], []

    def local_step(self, batch):
        before = [weight.copy() for weight in self.parameters.weights]
        done = super().local_step(batch)
        for total, old, new in zip(self.moved, before, self.parameters.weights, strict=True):
            total += new - old
        return done

    def _send(self, message, update):
        self.uploads.append((message["report"].steps, [array.copy() for array in update]))
        answer = super()._send(message, update)
        if answer.arrays:
            self.releases.append((answer.message, [array.copy() for array in answer.arrays]))
        return answer


def main(step_time: str, output: str) -> None:
    cluster = ClusterSpec.from_environment("hub")
    assert cluster is not None
    config = Config(mode="wbsp", device_name=f"cpu{Path(output).stem}", start_timeout=60)
    with tempfile.TemporaryDirectory() as folder, hub_link.join(cluster, config, {}) as joined:
        train = loading.load("mnist", str(few_images())).train
        rank, num_workers = joined.place.rank, joined.place.num_workers
        context = context_of(
            network=models.build("lenet", (1, 28, 28), 10, mx.cpu(), seed=rank),
            batches=endless(train, np.arange(rank, 2000, num_workers), BATCH, seed=(0, rank)),
            warm_up_batch=ready(Samples(*(part[:BATCH] for part in train))),
            limits=Limits(max_seconds=SECONDS),
            membership=lambda: Membership(rank, num_workers),
            hub=joined.hub,
            config=config,
            state_server=Page(),
            min_step_s=float(step_time),
        )
        trainer = by_flags("wbsp", Recorded, local_lr=0.003, wbsp_overlap=1)(context)
        Loop(trainer).run(lambda: Path(folder))
        save(trainer, output)


def save(trainer: Recorded, path: str) -> None:
    def flat(arrays):
        return np.concatenate([array.reshape(-1) for array in arrays])

    np.savez(
        path,
        initial=flat(trainer.initial),
        moved=flat(trainer.moved),
        rounds=trainer.rounds,
        steps=np.array([steps for steps, _ in trainer.uploads]),
        uploads=np.stack([flat(update) for _, update in trainer.uploads]),
        included=np.array([message["uploads"] for message, _ in trainer.releases]),
        models=np.stack([flat(model) for _, model in trainer.releases]),
    )


if __name__ == "__main__":
    prepare_environment()
    main(*sys.argv[1:])
