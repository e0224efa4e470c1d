"""A classifier of images on machines of different speed. The lines with `worker` are what ESync adds to a plain loop.

python -m esync serve 127.0.0.1:10010 &
ESYNC_SERVER=127.0.0.1:10010 torchrun --nproc-per-node 3 examples/client/images.py --step-s 0.02,0.05,0.2
python summary.py -b logs -n images && python draw.py -b logs -n images
"""

import argparse
import gzip
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import esync

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, default=Path("data/fashion-mnist"))
parser.add_argument("--images", type=int, default=60000)
parser.add_argument("--rounds", type=int, default=40)
parser.add_argument("--step-s", default="", help="emulates a slow machine: seconds that a step of each rank takes")
parser.add_argument("--rule", default="esync-outer")
parser.add_argument("--out", default="logs", help="the log tree")
given = parser.parse_args()

dist.init_process_group("gloo")
rank, num_workers = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
torch.set_num_threads(1)
step_s = float(given.step_s.split(",")[rank]) if given.step_s else 0.0


def read(name):
    path = given.data / name
    return path.read_bytes() if path.exists() else gzip.decompress(path.with_name(f"{name}.gz").read_bytes())


def part(name, count):
    images, labels = bytearray(read(f"{name}-images-idx3-ubyte")[16:]), bytearray(read(f"{name}-labels-idx1-ubyte")[8:])
    x = torch.frombuffer(images, dtype=torch.uint8).view(-1, 1, 28, 28)[:count].float() / 255
    return TensorDataset(x, torch.frombuffer(labels, dtype=torch.uint8)[:count].long())


train, test = part("train", given.images), part("t10k", 1000)
sampler = DistributedSampler(train)
batches = DataLoader(train, batch_size=64, sampler=sampler)
model = nn.Sequential(
    *(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

with esync.Worker(model, optimizer, given.rule, rounds=given.rounds, logs=given.out, name="images") as worker:
    epoch = 0
    while not worker.is_done:
        sampler.set_epoch(epoch := epoch + 1)
        for x, y in batches:
            begin = time.monotonic()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            time.sleep(max(0.0, begin + step_s - time.monotonic()))
            done = worker.step(len(y), loss)
            if done and rank == 0 and done.number % 10 == 0:
                with torch.no_grad():
                    right = model(test.tensors[0]).argmax(1) == test.tensors[1]
                worker.measured(right.float().mean().item())
                print(f"round {done.number}: test accuracy {right.float().mean():.3f}", flush=True)
            if worker.is_done:
                break
dist.destroy_process_group()
