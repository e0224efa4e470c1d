"""Samples in the forms in which a job has them: what a batch of each is, and what workers compare."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

from trainer.datasets import sources
from trainer.datasets.batches import EndlessBatches, StreamedBatches
from trainer.datasets.sources import Arrays, Stream, Subset, hash_of, source_of
from trainer.engine import mx
from trainer.jobs.gluon import GluonFeed
from utils import SetupError

X, Y = np.arange(24, dtype=np.float64).reshape(8, 3), np.arange(8)
CHOSEN = np.array([5, 2])


class Pairs:
    """As a Dataset of another library."""

    def __len__(self):
        return 8

    def __getitem__(self, number):
        return X[number], X[number] + 1, Y[number]


def padded(samples):
    inputs, targets = zip(*samples, strict=True)
    longest = max(map(len, inputs))
    return np.array([[*each, *[0] * (longest - len(each))] for each in inputs]), np.array(targets)


def values(part):
    return [each.tolist() for each in (part if isinstance(part, tuple) else (part,))]


@pytest.mark.parametrize(
    ("data", "batchify", "inputs"),
    [
        ((X, Y), None, [X[CHOSEN].tolist()]),
        ((mx.nd.array(X), mx.nd.array(Y)), None, [X[CHOSEN].tolist()]),
        (((X, X + 1), Y), None, [X[CHOSEN].tolist(), (X[CHOSEN] + 1).tolist()]),
        (([list(range(number)) for number in range(8)], Y), padded, [[[0, 1, 2, 3, 4], [0, 1, 0, 0, 0]]]),
        (mx.gluon.data.ArrayDataset(X, Y), None, [X[CHOSEN].tolist()]),
        (
            mx.gluon.data.ArrayDataset(X.astype(np.float32), Y).transform_first(lambda x: mx.nd.array(x) * 2),
            None,
            [(2 * X[CHOSEN]).tolist()],
        ),
        ([*zip(X, Y, strict=True)], None, [X[CHOSEN].tolist()]),
        (Pairs(), None, [X[CHOSEN].tolist(), (X[CHOSEN] + 1).tolist()]),
    ],
    ids=["arrays", "mxnet", "several", "lists", "dataset", "transforms", "pairs", "items"],
)
def test_a_batch_has_the_samples_of_its_numbers(data, batchify, inputs):
    source = source_of(data, batchify)
    assert len(source) == 8
    raw = source.take(CHOSEN)
    assert values(raw.inputs) == inputs and values(raw.targets) == [[5, 2]] and raw.size == 2
    assert source.take(slice(6, 100)).size == 2
    assert values(Subset(source, np.array([2, 5])).take(np.array([1, 0])).inputs) == inputs
    batch = GluonFeed(mx.cpu())(raw)
    assert {array.dtype for array in batch.inputs} == {np.float32} and batch.size == 2


def test_a_memory_map_is_not_read_whole(tmp_path, monkeypatch):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(4000, dtype=np.int32).reshape(2000, 2))
    mapped = np.load(path, mmap_mode="r")
    source = Arrays(mapped, np.zeros(2000))
    assert isinstance(source.inputs[0], np.memmap)
    hashes = {hash_of([source])}
    monkeypatch.setattr(sources, "WHOLE_BYTES", 1000)
    hashes.add(hash_of([source]))
    looked_at = np.sort(np.random.default_rng(0).choice(2000, sources.HASHED_SAMPLES, replace=False))
    changed = np.load(path)
    changed[looked_at[0]] += 1
    hashes.add(hash_of([Arrays(changed, np.zeros(2000))]))
    assert len(hashes) == 3  # whole, of seeded samples, of others


def test_other_content_or_another_form_has_another_hash():
    parts = [
        (X, Y),
        (X, Y + 1),
        (X.astype(np.float32), Y),
        (X.reshape(8, 1, 3), Y),
        ([[number] for number in range(8)], Y),
        ([[number] for number in range(1, 9)], Y),
        (np.arange(8).astype("datetime64[s]"), Y),
        (np.arange(1, 9).astype("datetime64[s]"), Y),
        mx.gluon.data.ArrayDataset(X, Y),
        mx.gluon.data.ArrayDataset(X + 1, Y),
    ]
    hashes = [hash_of([source_of(part)]) for part in parts]
    assert len({*hashes}) == len(parts) and all(len(each) == 16 for each in hashes)
    assert hashes == [hash_of([source_of(part)]) for part in parts]


def test_samples_that_are_objects_have_the_hash_of_their_content():
    def parts():
        texts = [" ".join(["word"] * number) for number in range(8)]
        yield np.array([np.arange(number) for number in range(8)], dtype=object), Y
        yield np.array(texts, dtype=object), Y
        yield [{"text": text} for text in texts], Y
        yield mx.gluon.data.SimpleDataset([{"text": text} for text in texts])

    kept, again = [*parts()], [*parts()]  # at other places in memory
    assert [hash_of([source_of(part)]) for part in kept] == [hash_of([source_of(part)]) for part in again]


def test_a_dataset_with_random_transforms_has_no_hash():
    random = np.random.default_rng(0)
    assert hash_of([source_of(mx.gluon.data.ArrayDataset(X, Y).transform_first(lambda x: x + random.random()))]) == ""


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (None, "None is no pair"),
        ((X, Y, Y), "a tuple of 3 is no pair"),
        ((X, Y[:7]), "inputs of 8 and targets of 7 samples"),
        (((X, X[:5]), Y), "inputs of 8, 5 and targets of 8 samples"),
        ((X, 3), "a int has no samples"),
        ((X[:0], Y[:0]), "there are no samples"),
        (([], []), "there are no samples"),
        ({"x": X, "y": Y}, "a dict of 2 is no pair"),
        (X, "a ndarray of shape"),
    ],
)
def test_what_is_no_part_of_the_data_is_one_line(data, line):
    with pytest.raises(SetupError, match=line):
        source_of(data)


@pytest.mark.parametrize(
    ("items", "line"),
    [([{"x": 1, "y": 2}] * 2, "tuples (input, target), not a dict of 2"), ([([1], 2), ([1, 2], 2)], "write batchify")],
)
def test_items_that_make_no_batch_are_one_line(items, line):
    with pytest.raises(SetupError, match=re.escape(line)):
        source_of(mx.gluon.data.SimpleDataset(items)).take(slice(0, 2))


def stream(rank, num_workers, seed):
    return ((np.full((2, 1), 10 * rank + number), np.full(2, seed)) for number in itertools.count())


def drawn(batches, number):
    return [int(next(batches).inputs[0][0].asscalar()) for _ in range(number)]


def streamed(begin=stream):
    return StreamedBatches(lambda: Stream(begin).batches(1, 2, 0), GluonFeed(mx.cpu()), (0, 1))


def test_a_stream_is_a_workers_own_and_continues_at_its_position():
    batches = streamed()
    assert drawn(batches, 2) == [10, 11]
    batch = next(batches)
    batches.put_back(batch)
    resumed = streamed()
    resumed.restore(batches.state())
    assert next(batches) is batch
    assert drawn(resumed, 2) == [12, 13]
    assert [int(each.inputs[0][0].asscalar()) for each in batches.look(2)] == [10, 11]
    assert drawn(batches, 1) == [13]


@pytest.mark.parametrize("prepares", [False, True])
def test_a_stream_that_ends_is_one_line_when_the_next_batch_is_needed(prepares):
    batches = streamed(lambda *given: itertools.islice(stream(*given), 3))
    drawn(batches, 3)
    if prepares:
        batches.prepare()
    with pytest.raises(SetupError, match="ended after 3 batches: make it endless"):
        next(batches)


def randomly_changed(inputs, targets, random):
    return inputs + (random.random() if random is not None else 0), targets


STEPS = st.lists(st.sampled_from(["prepare", "next", "give up", "resume", "resize", "draw"]), max_size=20)


@given(steps=STEPS, streams=st.booleans())
def test_batches_that_are_made_before_they_are_asked_for_are_the_same_ones(steps, streams):
    def begin():
        feed = GluonFeed(mx.cpu(), randomly_changed)
        if streams:
            return StreamedBatches(lambda: Stream(stream).batches(1, 2, 0), feed, (0, 1))
        return EndlessBatches(Arrays(X, Y), feed, np.arange(8), 3, 0)

    with_them, without, size = begin(), begin(), 3
    for step in steps:
        if step == "prepare":
            with_them.prepare()
            continue
        if step == "resume":
            states, with_them, without = (with_them.state(), without.state()), begin(), begin()
            with_them.prepare()  # by the test steps before training
            for batches, state in zip((with_them, without), states, strict=True):
                batches.restore(state)
        elif step in ("resize", "draw"):
            size = 5 - size
            for batches in () if streams else (with_them, without):
                batches.resize(size) if step == "resize" else batches.draw_from(np.arange(size, 8))
        else:
            pair = [next(batches) for batches in (with_them, without)]
            np.testing.assert_array_equal(*(batch.inputs[0].asnumpy() for batch in pair))
            if step == "give up":
                with_them.prepare()
                with_them.put_back(pair[0])
                without.put_back(pair[1])
    np.testing.assert_array_equal(*(next(batches).inputs[0].asnumpy() for batches in (with_them, without)))


def test_samples_that_are_only_looked_at_are_not_changed_at_random():
    batches = EndlessBatches(Arrays(X, Y), GluonFeed(mx.cpu(), randomly_changed), np.arange(8), 2, 0)
    assert (next(batches.look(1)).inputs[0].asnumpy() % 1 == 0).all()
