r"""Classes of texts of different lengths: is a review for or against, where "not" turns the word behind it?

scripts/local_cluster.sh -m esync --job examples/text.py --workers 0.02,0.04,0.2 -- \
    -ll 0.01 --max-seconds 20 -e 10
"""

import random

import numpy as np
from mxnet.gluon import nn

GOOD, BAD = ("good", "great", "lovely", "funny"), ("bad", "boring", "awful", "slow")
OTHERS = ("the", "a", "film", "was", "plot", "of", "and", "with", "actors", "music", "not")
TOKENS = {word: number for number, word in enumerate(("", *GOOD, *BAD, *OTHERS))}  # 0 fills short texts up


def network():
    layers = nn.HybridSequential()
    layers.add(nn.Embedding(len(TOKENS), 16))  # (N, words) -> (N, words, 16)
    layers.add(nn.HybridLambda(lambda F, x: F.transpose(x, (0, 2, 1))))
    layers.add(nn.Conv1D(32, 3, padding=1, activation="relu"), nn.GlobalMaxPool1D(), nn.Dense(2))
    return layers


def data(folder):
    random.seed(0)  # the same texts on each worker
    texts, classes = [], []
    for _ in range(8000):
        words = random.choices(OTHERS, k=random.randint(3, 20))
        place, is_good = random.randrange(1, len(words)), random.random() < 0.5
        classes.append(int(is_good != (words[place - 1] == "not")))
        texts.append(" ".join([*words[:place], random.choice(GOOD if is_good else BAD), *words[place:]]))
    return (texts[:6000], classes[:6000]), (texts[6000:], classes[6000:])


def batchify(samples):  # a list of (text, class) -> arrays (N, words of the longest text) and (N,)
    tokens = [[TOKENS[word] for word in text.split()] for text, _ in samples]
    longest = max(map(len, tokens))
    return np.array([line + [0] * (longest - len(line)) for line in tokens]), np.array([each for _, each in samples])
