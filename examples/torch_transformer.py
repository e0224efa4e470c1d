r"""A small GPT-2 of the package transformers (5.24) with random weights learns the next letter of Python's help texts.

.venv/bin/pip install transformers
scripts/local_cluster.sh -m esync --job examples/torch_transformer.py --workers 0.1,0.2,0.6 -- \
    --optimizer adam -ll 0.003 -b 32 --max-seconds 60 --eval-seconds 10
"""

from pydoc_data.topics import topics

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel


class Scores(GPT2LMHeadModel):
    def forward(self, letters):
        return super().forward(letters).logits  # a tensor (N, 32, 128), from the dictionary


def network():
    config = GPT2Config(vocab_size=128, n_positions=32, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    return Scores(config)


def data(folder):
    text = "".join(topics.values()).encode("ascii", "replace")
    parts = np.random.default_rng(0).permutation(np.frombuffer(text, np.uint8, len(text) // 33 * 33).reshape(-1, 33))
    return (parts[1000:, :-1], parts[1000:, 1:]), (parts[:1000, :-1], parts[:1000, 1:])


def loss(scores, letters):  # one number: the mean over all letters
    return torch.nn.functional.cross_entropy(scores.transpose(1, 2), letters)


def accuracy(letters, scores):  # numpy arrays
    return (scores.argmax(axis=2) == letters).mean()


metric = accuracy
