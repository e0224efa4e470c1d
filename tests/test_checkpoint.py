"""Checkpoints: what was saved is what is loaded, the file is always whole, and what does not fit is refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from trainer.checkpoint import CheckpointFile, Saved, kept_and_lost
from trainer.command_line import parse
from utils import SetupError

JOB = {"network": "lenet", "switch_order": "10", "train_steps": [2, 3], "num_workers": 2, "momentum": 0.9}
HALF_DONE = Saved([np.float32([[1, 2], [3, 4]]), np.float32([5])], [np.float32([[6, 7], [8, 9]])], [4, 1], 5, [40, 5])


def file_of(folder, **other):
    return CheckpointFile(folder / "checkpoint.npz", JOB | other)


def assert_equal(one, other):
    assert (one.done, one.batches, one.samples) == (other.done, other.batches, other.samples)
    for ours, theirs in ((one.model, other.model), (one.velocity, other.velocity)):
        assert [array.dtype for array in ours] == [array.dtype for array in theirs]
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b, strict=True)


def refused(file, text):
    """Both ways of reading say the same, in one line."""
    for read in (file.load, file.check):
        with pytest.raises(SetupError, match=re.escape(text)) as caught:
            read()
        assert str(file.path) in str(caught.value)
        assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------- save and load


def test_what_was_saved_is_loaded(tmp_path):
    file_of(tmp_path).save(HALF_DONE)
    assert_equal(file_of(tmp_path).load(), HALF_DONE)


def test_more_than_ten_arrays_keep_their_order(tmp_path):
    many = Saved([np.full(2, number) for number in range(12)], [np.full(1, number) for number in range(11)], [0, 0], 0)
    file_of(tmp_path).save(many)
    assert_equal(file_of(tmp_path).load(), many)


def test_a_check_tells_what_the_file_is_about(tmp_path):
    file_of(tmp_path).save(HALF_DONE)
    about = file_of(tmp_path).check()
    assert (about["job"], about["done"], about["batches"]) == (JOB, [4, 1], 5)


def test_the_file_has_just_the_name_that_was_asked_for(tmp_path):
    CheckpointFile(tmp_path / "checkpoint", JOB).save(HALF_DONE)  # numpy would like to add .npz
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_new_checkpoint_replaces_the_old_one(tmp_path):
    file_of(tmp_path).save(HALF_DONE)
    later = Saved([np.float32([0])], [], [4, 2], 6)
    file_of(tmp_path).save(later)
    assert_equal(file_of(tmp_path).load(), later)


# ------------------------------------------------------------------------------------------- writes that go wrong


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path):
    file = file_of(tmp_path)
    file.save(HALF_DONE)
    (tmp_path / "checkpoint.npz.tmp").symlink_to("/dev/full")
    with pytest.raises(SetupError, match="cannot be written: No space left on device"):
        file.save(Saved([np.zeros(9)], [], [4, 2], 6))
    assert_equal(file.load(), HALF_DONE)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.npz"]


def test_a_temporary_file_that_cannot_be_made_leaves_the_old_checkpoint(tmp_path):
    file = file_of(tmp_path)
    file.save(HALF_DONE)
    (tmp_path / "checkpoint.npz.tmp").mkdir()
    with pytest.raises(SetupError, match=r"checkpoint\.npz\.tmp cannot be written: Is a directory"):
        file.save(Saved([np.zeros(9)], [], [4, 2], 6))
    assert_equal(file.load(), HALF_DONE)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SetupError, match=r"nowhere.*cannot be written: No such file or directory"):
        file_of(tmp_path / "nowhere").save(HALF_DONE)


# ---------------------------------------------------------------------------------------------- files that do not fit


def test_a_missing_file_is_named_with_what_to_do(tmp_path):
    refused(file_of(tmp_path), "there is no checkpoint")
    refused(file_of(tmp_path), "start without --resume")


@pytest.mark.parametrize(
    "content",
    [
        b"these are no arrays",
        b"PK\x03\x04 and nothing more",
        b"\x93NUMPY\x01\x00",
        b"",
    ],
)
def test_something_else_is_no_checkpoint(tmp_path, content):
    file = file_of(tmp_path)
    file.path.write_bytes(content)
    refused(file, "is not a checkpoint")


def test_a_folder_is_no_checkpoint(tmp_path):
    file_of(tmp_path).path.mkdir()
    refused(file_of(tmp_path), "is not a checkpoint")


@pytest.mark.parametrize("missing", [1, 30, 500])
def test_a_truncated_file_is_no_checkpoint(tmp_path, missing):
    file = file_of(tmp_path)
    file.save(HALF_DONE)
    file.path.write_bytes(file.path.read_bytes()[:-missing])
    refused(file, "is not a checkpoint")


def test_a_file_with_a_damaged_description_is_no_checkpoint(tmp_path):
    file = file_of(tmp_path)
    file.save(HALF_DONE)
    content = bytearray(file.path.read_bytes())
    place = content.index("lenet".encode("utf-32-le"))
    content[place] ^= 1
    file.path.write_bytes(content)
    refused(file, "is not a checkpoint")


def test_a_file_with_a_damaged_array_is_no_checkpoint(tmp_path):
    file = file_of(tmp_path)
    file.save(HALF_DONE)
    content = bytearray(file.path.read_bytes())
    content[content.index(HALF_DONE.model[0].tobytes())] ^= 1
    file.path.write_bytes(content)
    with pytest.raises(SetupError, match="is not a checkpoint"):
        file.load()


@pytest.mark.parametrize(
    "about",
    [{}, {"job": JOB}, {"job": JOB, "done": [0, 0]}, [1, 2], None, "text"],
    ids=lambda about: json.dumps(about)[:20],
)
def test_arrays_of_another_program_are_no_checkpoint(tmp_path, about):
    file = file_of(tmp_path)
    with file.path.open("wb") as stream:
        np.savez(stream, about=np.array(json.dumps(about)))
    refused(file, "is not a checkpoint")


def test_arrays_without_a_description_are_no_checkpoint(tmp_path):
    file = file_of(tmp_path)
    with file.path.open("wb") as stream:
        np.savez(stream, weights=np.zeros(3))
    refused(file, "is not a checkpoint: 'about")


@pytest.mark.parametrize(
    ("flag", "here"),
    [
        ("network", "resnet18-v1"),
        ("switch_order", "01"),
        ("train_steps", [2, 4]),
        ("num_workers", 3),
        ("momentum", 0.0),
    ],
)
def test_a_checkpoint_of_another_job_is_refused_with_both_values(tmp_path, flag, here):
    file_of(tmp_path).save(HALF_DONE)
    refused(file_of(tmp_path, **{flag: here}), f"is of a job with {flag} {JOB[flag]}, here it is {here}: give the same")


def test_a_job_with_other_images_is_another_one(tmp_path):
    flags = ["-m", "sync-switch", "-ld", str(tmp_path)]
    before = CheckpointFile.of_job(parse(flags), 2)
    before.save(HALF_DONE)
    refused(CheckpointFile.of_job(parse([*flags, "--augment", "1"]), 2), "with augment 0, here it is 1: give the same")


def test_a_checkpoint_from_before_a_flag_existed_is_refused(tmp_path):
    file_of(tmp_path).save(HALF_DONE)
    refused(file_of(tmp_path, dataset="mnist"), "is of a job with dataset None, here it is mnist")


def test_a_checkpoint_from_before_hyper_parameters_by_phase_is_of_a_job_without_them(tmp_path):
    file_of(tmp_path).save(HALF_DONE)
    plain = {"weight_decay": 0.0, "phase_momentum": ["same"], "phase_batch_size": [0]}
    assert_equal(file_of(tmp_path, **plain).load(), HALF_DONE)
    refused(file_of(tmp_path, **plain | {"weight_decay": 0.1}), "is of a job with weight_decay 0.0, here it is 0.1")


def test_a_job_may_go_on_with_another_step_size_and_with_no_other_momentum_in_a_later_phase(tmp_path):
    def file(*flags):
        flags = ["-m", "sync-switch", "--ckpt-frequency", "5", "--checkpoint", str(tmp_path / "c.npz"), *flags]
        return CheckpointFile.of_job(parse(flags), num_workers=2)

    file("--phase-lr", "0.1", "0.01", "--phase-momentum", "0.9", "0").save(HALF_DONE)
    assert file("--phase-lr", "0.1", "0.02", "--phase-momentum", "0.9", "0").load().done == HALF_DONE.done
    refused(file("--phase-momentum", "0.9", "0.1"), "phase_momentum ['0.9', '0'], here it is ['0.9', '0.1']")


@pytest.mark.parametrize(
    "done",
    [[4, 6], [5, 6]],  # the last BSP round may go beyond, where greedy has cut one short
)
def test_of_a_job_that_is_done_nothing_is_left_to_resume(tmp_path, done):
    file = file_of(tmp_path)
    file.save(Saved(HALF_DONE.model, HALF_DONE.velocity, done, 5))
    refused(file, "is done: nothing is left to train")


@pytest.mark.parametrize("done", [[0, 0], [4, 5], [3, 6], [5, 5]])
def test_of_other_jobs_something_is_left(tmp_path, done):
    file = file_of(tmp_path)
    file.save(Saved(HALF_DONE.model, HALF_DONE.velocity, done, 5))
    assert file.load().done == done


@pytest.mark.parametrize("place", ["nowhere/checkpoint.npz", ""], ids=["a missing folder", "a folder itself"])
def test_a_place_that_cannot_be_written_to_is_refused_before_training(tmp_path, place):
    with pytest.raises(SetupError, match="cannot be written: name a file in a folder that is there"):
        CheckpointFile(tmp_path / place, JOB).check_folder()
    CheckpointFile(tmp_path / "checkpoint.npz", JOB).check_folder()


def test_the_checkpoint_of_an_earlier_job_is_set_aside_and_not_lost(tmp_path):
    file = file_of(tmp_path)
    file.set_aside()  # there is none: nothing to do
    file.save(HALF_DONE)
    content = file.path.read_bytes()
    file.set_aside()
    assert not file.path.exists()
    assert (tmp_path / "checkpoint.npz.old").read_bytes() == content


def logged(*batches, **resumed):
    """Round logs with these batches; `at3=7`: the one at index 3 is the first after a resumption with 7 batches."""
    return [
        {"batches": count} | ({"resumed_after": resumed[f"at{index}"]} if f"at{index}" in resumed else {})
        for index, count in enumerate(batches)
    ]


@pytest.mark.parametrize(
    ("rounds", "resumed_after", "kept", "lost"),
    [
        (logged(2, 4, 6, 8), 4, 2, 2),
        (logged(2, 4, 6, 8), 8, 4, 0),
        (logged(2, 4, 6, 8), 0, 0, 4),
        # 6 and 8 were lost by the first resumption, and done again as 5 and 7; the second loses 9 alone.
        (logged(2, 4, 6, 8, 5, 7, 9, at4=4), 7, 4, 1),
        (logged(2, 4, 6, 8, 5, 7, 9, at4=4), 4, 2, 3),
        ([], 4, 0, 0),
    ],
)
def test_a_resumption_keeps_the_steps_up_to_the_checkpoint_and_counts_what_it_loses(rounds, resumed_after, kept, lost):
    records, number = kept_and_lost(rounds, resumed_after)
    assert (len(records), number) == (kept, lost)
