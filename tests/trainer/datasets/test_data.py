"""Datasets are read whole and checked, partitions use every sample once, batches lose none."""

import gzip
import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from cifar_files import CIFAR10, CIFAR100, arrays, write_binary, write_python
from hypothesis import given, strategies as st
from ready import endless, images_of, labels_of
from tiny_data import idx, write_mnist

from trainer.datasets import loading
from trainer.datasets.loading import load
from trainer.datasets.samples import Samples
from trainer.datasets.sources import Arrays, Subset
from trainer.jobs.job import hold_out
from trainer.membership import partition
from utils import SetupError

DATA = Path(__file__).parents[3] / "data"


def test_fashion_mnist_is_the_published_one():
    train, test, classes = load("fashion-mnist", str(DATA))
    assert classes == 10
    assert train.images.shape == (60000, 1, 28, 28)
    assert test.images.shape == (10000, 1, 28, 28)
    assert train.images.dtype == np.uint8
    assert np.bincount(train.labels).tolist() == [6000] * 10
    assert np.bincount(test.labels).tolist() == [1000] * 10


@pytest.mark.parametrize(
    ("in_image", "told"),
    [
        ("", r"fashion-mnist/train-images-idx3-ubyte\.gz.*get_data\.sh"),
        ("1", r"get it on the host with scripts/get_data\.sh.*/esync/data"),
    ],
)
def test_a_missing_folder_is_named_with_what_to_do(tmp_path, monkeypatch, in_image, told):
    monkeypatch.setenv("ESYNC_IMAGE", in_image)
    with pytest.raises(SetupError, match=told):
        load("fashion-mnist", str(tmp_path))


@pytest.mark.parametrize(("image", "text"), [("", "let this user read it"), ("1", "--user")])
def test_data_of_another_user_is_named_with_what_to_do(fashion_copy, monkeypatch, image, text):
    if image:
        monkeypatch.setenv("ESYNC_IMAGE", image)
    fashion_copy.chmod(0)
    user = os.geteuid()
    if user == 0:  # root may read everything
        os.seteuid(65534)
    try:
        with pytest.raises(SetupError, match=f"cannot be read: Permission denied.*{text}"):
            load("fashion-mnist", str(fashion_copy))
    finally:
        os.seteuid(user)
        fashion_copy.chmod(0o700)


@pytest.fixture
def fashion_copy(tmp_path):
    (tmp_path / "fashion-mnist").mkdir()
    for path in (DATA / "fashion-mnist").glob("*.gz"):
        (tmp_path / "fashion-mnist" / path.name).symlink_to(path)
    return tmp_path


@pytest.mark.parametrize(
    ("part", "damaged", "told"),
    [
        ("t10k", lambda content: gzip.compress(gzip.decompress(content)[:-1] + b"\xff"), "SHA-256"),
        ("train", lambda content: content[: len(content) // 2], "damaged"),
    ],
)
def test_another_content_is_not_taken_for_fashion_mnist_and_the_file_is_named(fashion_copy, part, damaged, told):
    path = fashion_copy / "fashion-mnist" / f"{part}-labels-idx1-ubyte.gz"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(damaged(content))
    with pytest.raises(SetupError, match=f"{part}-labels.*{told}"):
        load("fashion-mnist", str(fashion_copy))


def test_uncompressed_files_will_do(fashion_copy):
    path = fashion_copy / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz"
    content = gzip.decompress(path.read_bytes())
    path.unlink()
    path.with_suffix("").write_bytes(content)
    assert len(load("fashion-mnist", str(fashion_copy)).test.labels) == 10000


@pytest.mark.parametrize("header", [b"\0\0\x08\x01\0\0\0\x0a", b""], ids=["labels", "zeros"])
def test_of_a_small_file_that_holds_much_only_what_can_be_labels_is_read(fashion_copy, header):
    path = fashion_copy / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz"
    path.unlink()
    path.write_bytes(gzip.compress(header + bytes(64 << 20), 1))
    tracemalloc.start()
    try:
        with pytest.raises(SetupError, match=r"t10k-labels.*SHA-256"):
            loading._idx_array(path.parent, path.stem, "of the published file", "")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def write_small_mnist(folder, images, labels):
    (folder / "mnist").mkdir()
    for part in ("train", "t10k"):
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            path = folder / "mnist" / f"{part}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(idx(np.array(values, np.uint8))))


def test_mnist_is_read_from_the_same_format(tmp_path):
    images = np.arange(2 * 3 * 3).reshape(2, 3, 3)
    write_small_mnist(tmp_path, images, [7, 9])
    train, test, _ = load("mnist", str(tmp_path))
    assert train.images[:, 0].tolist() == images.tolist()
    assert test.labels.tolist() == [7, 9]


@pytest.mark.parametrize(
    ("labels", "trouble"),
    [([1, 2, 3], "are no samples"), ([1, 10], "10 classes"), ([], "are no samples")],
)
def test_labels_that_do_not_fit_the_images_are_an_error(tmp_path, labels, trouble):
    write_small_mnist(tmp_path, np.zeros((2, 3, 3)), labels)
    with pytest.raises(SetupError, match=trouble):
        load("mnist", str(tmp_path))


cifars = pytest.mark.parametrize(("name", "form"), [("cifar10", CIFAR10), ("cifar100", CIFAR100)])


@pytest.mark.parametrize(
    ("name", "form", "folder", "write"),
    [
        ("cifar10", CIFAR10, "cifar-10-batches-bin", write_binary),
        ("cifar10", CIFAR10, "cifar-10-batches-py", write_python),
        ("cifar10", CIFAR10, "cifar10", write_python),
        ("cifar100", CIFAR100, "cifar-100-binary", write_binary),
        ("cifar100", CIFAR100, "cifar-100-python", write_python),
        ("cifar100", CIFAR100, "cifar100", write_binary),
    ],
)
def test_cifar_is_read_from_both_published_forms(tmp_path, name, form, folder, write):
    write(form, tmp_path / folder)
    dataset = load(name, str(tmp_path))
    assert dataset.classes == form.classes
    *train, test = (arrays(form, file) for file in form.files)
    for part, files in ((dataset.train, train), (dataset.test, [test])):
        assert part.images.shape == (4 * len(files), 3, 32, 32)
        assert part.images.reshape(-1, 3072).tolist() == [image for images, _ in files for image in images.tolist()]
        assert part.labels.tolist() == [label for _, labels in files for label in labels[:, -1].tolist()]


def rewritten(content):
    """Does so to the last file of a dataset."""

    def change(form, folder):
        write_python(form, folder)
        (folder / form.files[-1]).write_bytes(content)

    return change


def with_a_byte_too_much(form, folder):
    write_binary(form, folder)
    with (folder / f"{form.files[-1]}.bin").open("ab") as file:
        file.write(b"x")


def without_a_file(form, folder):
    write_binary(form, folder)
    (folder / f"{form.files[-1]}.bin").unlink()


@cifars
@pytest.mark.parametrize(
    ("write", "told"),
    [
        (
            lambda form, folder: None,
            "no CIFAR-{0} batches in .*/cifar{0}, .*: unpack cifar-{0}-binary.tar.gz or cifar-{0}-python.tar.gz there",
        ),
        (rewritten(b"cos\nsystem\n(S'touch /tmp/never'\ntR."), "{last} is not a CIFAR-{0} .*system"),
        (with_a_byte_too_much, "/{last}.bin has .*[1-9] bytes, no multiple of 307"),
        (without_a_file, "/{last}.bin is not there: unpack the CIFAR-{0} archive again"),
        *(
            (
                lambda form, folder, write=write: write(form._replace(classes=200), folder),
                r"cifar{0}/{first}.*: a label is \d+; there are {0} classes, from 0 to {most}$",
            )
            for write in (write_binary, write_python)
        ),
        (
            lambda form, folder: write_python(form._replace(labels=("coarse_labels",)), folder),
            "{first} is not a CIFAR-{0} python batch .*labels",
        ),
    ],
)
def test_cifar_that_is_not_whole_is_named_with_what_to_do(tmp_path, name, form, write, told):
    write(form, tmp_path / name)
    *_, last = form.files
    told = told.format(form.classes, first=form.files[0], last=last, most=form.classes - 1)
    with pytest.raises(SetupError, match=told):
        load(name, str(tmp_path))


@cifars
@pytest.mark.parametrize("protocol", [2, 5])
def test_a_python_file_that_python_3_saved_again_is_read(tmp_path, name, form, protocol):
    write_python(form, tmp_path / name)
    for file in form.files:
        images, labels = arrays(form, file)
        content = {"data": images, form.labels[-1]: labels[:, -1].astype(np.int64)}
        (tmp_path / name / file).write_bytes(pickle.dumps(content, protocol))
    *_, (images, labels) = (arrays(form, file) for file in form.files)
    test = load(name, str(tmp_path)).test
    assert test.images.reshape(-1, 3072).tolist() == images.tolist()
    assert test.labels.tolist() == labels[:, -1].tolist()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda images, labels: [images, labels], "it holds a list in place of a dictionary"),
        (lambda images, labels: {"data": images}, "it has no 'labels', but ['data']"),
        (lambda images, labels: {"data": images / 255, "labels": labels}, "its 'data' are not whole numbers"),
        (lambda images, labels: {"data": images + 300, "labels": labels}, "its pixels are from"),
        (lambda images, labels: {"data": images.reshape(-1, 32, 32, 3), "labels": labels}, "not (N, 3072) and (N,)"),
        (lambda images, labels: {"data": images, "labels": labels[1:]}, "not (N, 3072) and (N,)"),
        (lambda images, labels: {"data": images, "labels": labels + 256}, "a label is 2"),
        (lambda images, labels: {"data": images, "labels": labels - 10}, "a label is -"),
    ],
)
def test_a_python_file_with_other_content_is_named_with_what_it_holds(tmp_path, change, told):
    write_python(CIFAR10, tmp_path / "cifar10")
    images, labels = arrays(CIFAR10, "test_batch")
    path = tmp_path / "cifar10" / "test_batch"
    path.write_bytes(pickle.dumps(change(images.astype(int), labels[:, 0].astype(int))))
    with pytest.raises(SetupError) as error:
        load("cifar10", str(tmp_path))
    assert str(error.value).startswith(str(path))
    assert told in str(error.value)


def test_a_python_file_that_is_cut_off_is_named_without_the_parsers_words(tmp_path):
    write_python(CIFAR10, tmp_path / "cifar10")
    path = tmp_path / "cifar10" / "test_batch"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SetupError, match=r"test_batch is not a CIFAR-10 python batch \(it is damaged, cut off or no"):
        load("cifar10", str(tmp_path))


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x08\x01\0\0", b"\0\0\x08\x03" + 12 * b"\xff", b"\0\0\x08\xff" + 2000 * b"\1"]
)
def test_a_file_that_is_no_idx_file_is_named(tmp_path, content):
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(content))
    with pytest.raises(SetupError, match=r"t10k-labels-idx1-ubyte\.gz is not an IDX file of bytes"):
        load("mnist", str(tmp_path))


labels_strategy = st.lists(st.integers(0, 9), min_size=1, max_size=200).map(lambda values: np.array(values, np.uint8))


@given(st.integers(2, 60), st.data())
def test_samples_that_are_held_out_are_evaluated_on_and_not_trained_on(total, data):
    count = data.draw(st.integers(1, total - 1))
    whole = Arrays(np.arange(total), np.arange(total) % 10)
    kept, held = hold_out(whole, count)
    assert len(held) == count
    assert sorted([*kept, *held]) == list(range(total))
    for part in (Subset(whole, kept), Subset(whole, held)):
        inputs, targets, size = part.take(slice(0, total))
        assert size == len(part) and (targets == inputs % 10).all()
    assert (hold_out(whole, count)[1] == held).all()  # the same ones every time


@given(labels_strategy, st.integers(1, 14), st.booleans(), st.integers(0, 3))
def test_over_all_workers_every_sample_is_used_once_and_parts_differ_by_one(labels, num_workers, by_class, seed):
    parts = partition(labels, num_workers, by_class, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_the_seed_decides_which_samples_a_worker_has_but_by_class_nothing_does():
    def parts(by_class, seed):
        return [part.tolist() for part in partition(range(60), 3, by_class, seed)]

    assert parts(False, 1) == parts(False, 1) != parts(False, 2)
    assert len({str(parts(False, seed)) for seed in range(10)}) == 10
    assert all(part != sorted(part) for part in parts(False, 0))  # a permutation, and no other cut of the same order
    assert parts(True, 1) == parts(True, 2) == [[*range(20)], [*range(20, 40)], [*range(40, 60)]]


def test_by_class_the_samples_in_order_of_their_classes_are_cut_into_equal_parts():
    labels = np.tile(np.arange(10, dtype=np.uint8), 6)
    parts = [labels[part].tolist() for part in partition(labels, 4, True, 0)]
    assert [len(part) for part in parts] == [15] * 4
    assert [label for part in parts for label in part] == sorted(labels.tolist())
    numbers = np.concatenate(partition(labels, 4, True, 0)).tolist()
    assert numbers == sorted(range(60), key=lambda number: (labels[number], number))  # a class keeps the file's order


@given(st.integers(1, 30), st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(0, 5))
def test_every_epoch_uses_every_sample_once_in_the_same_order_whatever_the_batch_sizes(num_samples, sizes, seed):
    samples = Samples(np.arange(num_samples, dtype=np.uint8), np.arange(num_samples, dtype=np.uint8))
    batches, single = (endless(samples, np.arange(num_samples), size, seed) for size in (4, 1))
    drawn = []
    for size in sizes:
        batches.resize(size)
        drawn.append(next(batches))
    assert [batch.size for batch in drawn] == sizes
    assert all((images_of(batch) == labels_of(batch)).all() for batch in drawn)
    stream = np.concatenate([labels_of(batch) for batch in drawn])
    for begin in range(0, len(stream), num_samples):
        epoch = [labels_of(next(single)).item() for _ in range(num_samples)]
        assert sorted(epoch) == list(range(num_samples))
        assert stream[begin : begin + num_samples].tolist() == epoch[: len(stream) - begin]


def test_an_empty_part_is_an_error():
    samples = Samples(np.zeros(1), np.zeros(1))
    with pytest.raises(SetupError, match="fewer workers"):
        endless(samples, np.array([], dtype=int), 4, 0)
