r"""Sentences of different lengths: which language is it? The network reads them letter by letter.

scripts/local_cluster.sh -m esync --job examples/torch_text.py --workers 0.04,0.08,0.4 -- \
    --optimizer adam -ll 0.005 --max-seconds 20 -e 10
"""

import random

import torch
from torch import nn

WORDS = (
    "the house has an old door and six men are on the hill it was so red in winter but not here as she said to me",
    "das haus hat eine alte tür und sechs leute sind auf dem berg es war so rot im winter aber nicht hier wie sie",
    "la maison a une vieille porte et six hommes sont sur la colline si rouge en hiver mais pas ici comme elle me dit",
)


class LargestOfGRU(nn.GRU):
    def forward(self, letters):  # (N, letters, 16) -> (N, 32)
        return super().forward(letters)[0].amax(dim=1)


def network():
    return nn.Sequential(nn.Embedding(256, 16), LargestOfGRU(16, 32, batch_first=True), nn.Linear(32, len(WORDS)))


def data(folder):
    draw = random.Random(0)  # the same sentences on each worker
    classes = [draw.randrange(len(WORDS)) for _ in range(8000)]
    texts = [" ".join(draw.choices(WORDS[each].split(), k=draw.randint(1, 8))) for each in classes]
    return (texts[:6000], classes[:6000]), (texts[6000:], classes[6000:])


def batchify(samples):  # a list of (text, class) -> tensors of integers (N, letters of the longest text) and (N,)
    texts = [torch.tensor([*text.encode()]) for text, _ in samples]
    return nn.utils.rnn.pad_sequence(texts, batch_first=True), torch.tensor([each for _, each in samples])
