"""A language model of letters, on the text of this project's docs."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import esync

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
torch.set_num_threads(1)
text = "".join(p.read_text() for p in sorted(Path(sys.argv[1]).glob("*.md")))
letters = sorted(set(text))
data = torch.tensor([letters.index(c) for c in text])
train, test = data[: int(0.95 * len(data))], data[int(0.95 * len(data)) :]


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(len(letters), 64), nn.Parameter(torch.randn(64, 64) * 0.02)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(64, len(letters))

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.encoder(self.embed(x) + self.place, mask=mask, is_causal=True))


def batch(part):
    begins = torch.randint(0, len(part) - 65, (16,))
    return torch.stack([part[b : b + 64] for b in begins]), torch.stack([part[b + 1 : b + 65] for b in begins])


model = Transformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 100)
slow_s = float(os.environ.get("SLOW_S", "0,0,0").split(",")[rank])
begin = time.time()
with esync.Worker(model, optimizer, rule="esync-outer", logs="logs", name="letters") as worker:
    while time.time() - begin < 60:
        x, y = batch(train)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        time.sleep(slow_s)
        worker.step(len(y), loss)
with torch.no_grad():
    torch.manual_seed(1)
    batches = [batch(test) for _ in range(20)]
    values = [nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).item() for x, y in batches]
    print(rank, "test loss", sum(values) / 20, flush=True)
