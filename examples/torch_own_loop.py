r"""The job of torch_table.py with a training loop of its own, which every algorithm can train:

scripts/local_cluster.sh -m esync --job examples/torch_own_loop.py --workers 0.02,0.04,0.2 -- \
    --optimizer adam -ll 0.005 --max-seconds 20 -e 10
"""

import torch_table as table

network, data, metric = table.network, table.data, table.metric


def train(worker):
    for inputs, targets in worker.batches:  # or those of a loader of one's own
        loss = table.loss(worker.network(inputs), targets)  # the mean over the samples
        (loss * len(targets)).backward()  # gradients of their sum
        worker.step(len(targets), loss)  # as the algorithm has it: a local step, a sum, a push
        if worker.is_done:
            break
