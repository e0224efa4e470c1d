"""How warm is a review? Texts of 3 to 16 words; words of mood have marks, and "not" and "very" change the next word's.

The table of README.md beside this file has its commands.
"""

import random

import mxnet as mx
import numpy as np
from mxnet.gluon import nn, rnn

MARKS = {"good": 1, "great": 2, "lovely": 1.5, "funny": 1, "bad": -1, "boring": -1.5, "awful": -2, "slow": -1}
FACTORS = {"not": -0.5, "very": 2}
OTHERS = ["the", "a", "film", "was", "plot", "of", "and", "with", "actors", "music"]
WORDS = [*MARKS, *FACTORS, *OTHERS]
TOKENS = {word: number for number, word in enumerate(WORDS, start=1)}  # 0 fills short texts up, at the front


class Reader(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.words = nn.Embedding(len(TOKENS) + 1, 12)
            self.reading = rnn.LSTM(24, layout="NTC", input_size=12)
            self.mark = nn.Dense(1)

    def hybrid_forward(self, F, tokens):
        states = self.reading(self.words(tokens))
        return self.mark(F.slice_axis(states, axis=1, begin=-1, end=None))


def network():
    return Reader()


def marked(words):
    factor, total = 1.0, 0.0
    for word in words:
        total += factor * MARKS.get(word, 0)
        factor = FACTORS.get(word, 1.0)
    return total


def data(folder):
    draw = random.Random(0)
    texts = [draw.choices(WORDS, k=draw.randint(3, 16)) for _ in range(9000)]
    marks = np.array([marked(words) for words in texts], np.float32)
    return (texts[:7500], marks[:7500]), (texts[7500:], marks[7500:])


def batchify(samples):
    longest = max(len(words) for words, _ in samples)
    tokens = [[0] * (longest - len(words)) + [TOKENS[word] for word in words] for words, _ in samples]
    return np.array(tokens), np.array([mark for _, mark in samples])


loss = mx.gluon.loss.L2Loss()


def r2(targets, outputs):
    """1 of a perfect predictor, 0 of the constant one."""
    return 1 - ((targets - outputs[:, 0]) ** 2).mean() / targets.var()


metric = r2
