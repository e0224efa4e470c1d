"""Who is started again after a death, when, and from which round: pure decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from config import Config
from scripts.launch.process import Kind
from scripts.launch.restarts import CALM_S, Death, Tries, Whom, decide
from trainer.survival import checkpoint_rounds
from trainer.survival.checkpoint_manager import CheckpointManager
from trainer.survival.checkpoint_rounds import file_name, round_of, unfinished, worker_name
from trainer.survival.checkpoints import Checkpoints, job_of
from utils import DIVERGED, EXIT_BUG, EXIT_PEER_LOST, EXIT_SETUP, SetupError

KILLED = Death(Kind.WORKER, -9)
LOST = Death(Kind.WORKER, EXIT_PEER_LOST)
WRONG = Death(Kind.WORKER, EXIT_SETUP)
STATE_SERVER = Death(Kind.SERVICE, -9)
LIMIT = 5


@pytest.mark.parametrize(
    ("deaths", "whom"),
    [
        ([KILLED], Whom.ALL),
        ([Death(Kind.SERVER, -9)], Whom.ALL),
        ([Death(Kind.SERVER, 0)], Whom.ALL),  # it has left before the workers
        ([KILLED, Death(Kind.SERVER, -9)], Whom.ALL),
        ([LOST], Whom.ALL),  # of one that is frozen
        ([Death(Kind.WORKER, EXIT_BUG)], Whom.ALL),
        ([STATE_SERVER], Whom.ALONE),
        ([STATE_SERVER, KILLED], Whom.ALL),
        ([STATE_SERVER, LOST], Whom.ALL),
        ([Death(Kind.SERVICE, None)], Whom.ALL),  # it is there and does not answer
        ([Death(Kind.SERVICE, 255, is_link=True)], Whom.NOBODY),
        ([WRONG], Whom.NOBODY),
        ([WRONG, LOST], Whom.NOBODY),
        ([WRONG, KILLED], Whom.ALL),  # a set-up is wrong for whom the others are missing
        ([Death(Kind.WORKER, EXIT_BUG, f"error: {DIVERGED}: the loss is nan")], Whom.NOBODY),
    ],
)
def test_who_is_started_again_follows_from_who_has_died_and_how(deaths, whom):
    assert decide(deaths, 10.0, 7, Tries(), LIMIT).whom is whom


@pytest.mark.parametrize(
    ("deaths", "whom"),
    [
        ([KILLED], Whom.ALONE),
        ([KILLED, KILLED, STATE_SERVER], Whom.ALONE),
        ([LOST], Whom.ALONE),
        ([Death(Kind.SERVICE, None)], Whom.ALL),
        ([WRONG], Whom.NOBODY),
    ],
)
def test_where_the_others_go_on_who_has_died_is_started_again_alone(deaths, whom):
    assert decide(deaths, 10.0, None, Tries(), LIMIT, others_go_on=True).whom is whom


TRAINED = Death(Kind.WORKER, -9, has_trained=True)


@pytest.mark.parametrize(
    ("deaths", "anybody_left", "whom"),
    [
        ([TRAINED], True, Whom.LEFT_OUT),
        ([TRAINED, TRAINED], True, Whom.LEFT_OUT),
        ([TRAINED], False, Whom.NOBODY),
        ([TRAINED, KILLED], True, Whom.NOBODY),  # all wait for one that has not come to train
        ([TRAINED, Death(Kind.SERVER, -9)], True, Whom.NOBODY),
        ([STATE_SERVER], True, Whom.ALONE),
        ([Death(Kind.WORKER, EXIT_BUG, f"error: {DIVERGED}: the loss is nan", has_trained=True)], True, Whom.NOBODY),
    ],
)
def test_a_parameter_server_goes_on_with_the_workers_that_are_left(deaths, anybody_left, whom):
    decision = decide(
        deaths, 10.0, None, Tries(), LIMIT, others_go_on=True, anybody_left=anybody_left, takes_back=False
    )
    assert decision.whom is whom


LINK = Death(Kind.SERVICE, 255, is_link=True, has_trained=True)
LINK_TO_STATE_SERVER = Death(Kind.SERVICE, 255, is_link=True, with_service=True, has_trained=True)


@pytest.mark.parametrize("takes_back", [True, False])
@pytest.mark.parametrize(
    ("deaths", "anybody_left", "whom"),
    [
        ([LINK], True, Whom.LEFT_OUT),
        ([LINK, LINK], True, Whom.LEFT_OUT),
        ([LINK], False, Whom.NOBODY),
        ([LINK, LINK_TO_STATE_SERVER], True, Whom.NOBODY),
        ([Death(Kind.SERVICE, 255, is_link=True)], True, Whom.NOBODY),  # before the workers there had come to train
    ],
)
def test_others_go_on_without_a_host_that_has_only_workers(deaths, anybody_left, whom, takes_back):
    decision = decide(
        deaths, 10.0, None, Tries(), LIMIT, others_go_on=True, anybody_left=anybody_left, takes_back=takes_back
    )
    assert decision.whom is whom


@pytest.mark.parametrize(
    ("deaths", "anybody_left", "whom"),
    [
        ([LINK], True, Whom.ALL),
        ([LINK], False, Whom.NOBODY),
        ([LINK_TO_STATE_SERVER], True, Whom.NOBODY),
        ([Death(Kind.SERVICE, 255, is_link=True)], True, Whom.NOBODY),
    ],
)
def test_all_others_are_started_again_without_a_host_that_has_only_workers(deaths, anybody_left, whom):
    assert decide(deaths, 10.0, 20, Tries(), LIMIT, anybody_left=anybody_left).whom is whom


def test_where_nobody_is_left_to_go_on_all_are_started_again_alone_and_the_line_says_so():
    decision = decide([KILLED], 10.0, None, Tries(), LIMIT, others_go_on=True, anybody_left=False)
    assert decision.whom is Whom.ALONE
    assert decision.text.startswith("no worker is left: all are started again, and go on from their checkpoints")


def test_where_the_others_go_on_those_count_that_die_soon_after_the_one_before():
    tries = Tries()
    for lived_s in (1.0, 1.0, CALM_S, 1.0):
        tries = decide([KILLED], lived_s, None, tries, LIMIT, others_go_on=True).tries
    assert (tries.in_vain, tries.in_a_row) == (2, 2)
    given_up = decide([KILLED], 1.0, None, Tries(in_vain=LIMIT), LIMIT, others_go_on=True)
    assert given_up.whom is Whom.NOBODY
    assert given_up.text == "given up after 5 starts in less than 60 s each (--restarts)"


def test_a_worker_that_did_not_find_a_service_that_was_away_is_no_mistake_of_the_users():
    assert decide([WRONG], 1.0, 7, Tries(), LIMIT, service_was_away=True).whom is Whom.ALL


def test_the_first_start_is_at_once_and_later_ones_wait_longer_and_longer():
    tries, waits = Tries(), []
    for _ in range(9):
        decision = decide([KILLED], 1.0, None, tries, limit=99)
        tries = decision.tries
        waits.append(decision.wait_s)
    assert waits == [0, 1, 2, 4, 8, 16, 30, 30, 30]
    assert decide([KILLED], CALM_S, None, tries, limit=99).wait_s == 0


def test_it_is_given_up_after_so_many_starts_without_a_new_checkpoint():
    tries = Tries(checkpoint=20)
    for left in (1, 0):
        decision = decide([KILLED], 1.0, 20, tries, limit=2)
        tries = decision.tries
        assert decision.whom is Whom.ALL and f"{left or 'no'} more tr" in decision.text
    decision = decide([STATE_SERVER], 1.0, 20, tries, limit=2)
    assert (decision.whom, decision.text) == (
        Whom.NOBODY, "given up after 2 starts without a new checkpoint (--restarts)",
    )  # fmt: skip


def test_a_new_checkpoint_gives_all_tries_back():
    decision = decide([KILLED], 1.0, 21, Tries(checkpoint=20, in_vain=LIMIT), LIMIT)
    assert decision.whom is Whom.ALL
    assert decision.tries == Tries(checkpoint=21, in_vain=1, in_a_row=1)


def test_with_no_restarts_the_first_death_ends_the_job():
    assert decide([KILLED], 1.0, 20, Tries(), limit=0).whom is Whom.NOBODY


def test_what_is_lost_and_where_it_goes_on_is_said():
    more = "4 more tries without a new checkpoint"
    assert decide([KILLED], 1.0, 20, Tries(20), LIMIT).text == (
        f"what came after round 20 is lost: all are started again and go on after round 20; {more}"
    )
    assert decide([KILLED], 1.0, None, Tries(in_a_row=1), LIMIT).text == (
        f"there is no checkpoint yet, so all is lost: the job begins anew in 1 s; {more}"
    )
    assert decide([LINK], 1.0, 20, Tries(20), LIMIT).text == (
        f"what came after round 20 is lost: all others are started again and go on after round 20; {more}"
    )
    assert decide([STATE_SERVER], 1.0, 20, Tries(20), LIMIT).text == (
        f"nothing is lost: it is started again, and training goes on; {more}"
    )


# ----------------------------------------------------------------------------------------------- which checkpoint


def files(*taken: tuple[str, int], when: int = 1) -> dict[str, int]:
    return {file_name(whose, round_): when for whose, round_ in taken}


def newest(mode: str, *taken: tuple[str, int], max_rounds: int = 0, before: dict[str, int] | None = None) -> int | None:
    return checkpoint_rounds.newest(files(*taken), before or {}, Config(mode=mode, max_rounds=max_rounds), 2)


def test_workers_that_sum_go_on_from_the_newest_round_that_all_have():
    assert newest("sync", ("worker-0", 4), ("worker-0", 6), ("worker-1", 2), ("worker-1", 4)) == 4
    assert newest("sync", ("worker-0", 6), ("worker-1", 4)) is None
    assert newest("sync", ("worker-0", 6)) is None
    assert newest("sync") is None


def test_of_fewer_workers_than_before_those_count_that_are_there():
    of_three = (("worker-0", 4), ("worker-0", 6), ("worker-1", 4), ("worker-1", 6), ("worker-2", 4))
    assert newest("sync", *of_three) == 6
    assert newest("sync", *of_three[:2], of_three[4]) == 4  # worker 1 was on a host that is gone
    assert newest("ssp", *of_three[:2], of_three[4], ("server", 4), ("server", 6)) == 4
    assert newest("async", *of_three[2:4], ("server", 6)) == 6


def test_with_a_model_on_the_server_its_checkpoint_and_that_of_rank_0_belong_together():
    both = (("worker-0", 4), ("server", 4), ("worker-0", 6))
    assert newest("async", *both, ("worker-1", 9)) == 4
    assert newest("async", *both) == 4  # worker 1 has none yet, and begins with the model of the others
    assert newest("async", ("worker-0", 4), ("worker-1", 4)) is None
    assert newest("ssp", *both, ("server", 6), ("worker-1", 4)) == 4  # they wait for each other


def test_checkpoints_that_an_earlier_job_left_do_not_count_until_they_are_set_aside():
    both = (("worker-0", 4), ("worker-1", 4))
    earlier = files(("worker-1", 4), ("worker-2", 8), when=1)
    assert newest("sync", *both, before=earlier) is None
    assert newest("sync", *both, before=files(*both, when=0)) == 4  # of the same names, but written since then
    assert newest("sync", *both, before=files(("worker-2", 8))) == 4  # nobody's here


def test_a_job_that_dies_at_its_very_end_does_its_last_rounds_again():
    both = (("worker-0", 4), ("worker-1", 4), ("worker-0", 6), ("worker-1", 6))
    assert newest("sync", *both, max_rounds=6) == 4
    assert newest("sync", *both, max_rounds=7) == 6
    assert unfinished([6], 6) == [6]  # there is nothing else
    assert unfinished([6, 2, 4], 0) == [2, 4, 6]


@pytest.mark.parametrize(("given", "good"), [("end", [2, 4, 6]), ("restart", [2, 4])])
def test_a_worker_sees_its_checkpoints_likewise(tmp_path, given, good):
    config = Config(
        mode="local", checkpoint=str(tmp_path), ckpt_frequency=2, resume=1, max_rounds=6, on_worker_death=given
    )
    kept = Checkpoints(tmp_path, worker_name(0), job_of(config))
    for round_ in (2, 4, 6):
        kept.save(round_, {"rounds": round_})
    manager = CheckpointManager(config, 0, 1)
    manager.choose([manager.good_rounds()])
    assert (manager.good_rounds(), manager.resumed) == (good, {"rounds": good[-1]})


def test_a_checkpoint_knows_the_data_as_the_meeting_does(tmp_path):
    config = Config(mode="local", checkpoint=str(tmp_path), ckpt_frequency=2, resume=1)
    began = CheckpointManager(config, 0, 1, data_hash="1a2b")
    began.save(2, {"rounds": 2})
    began.close()
    same = CheckpointManager(config, 0, 1, data_hash="1a2b")
    same.choose([same.good_rounds()])
    assert same.resumed == {"rounds": 2}
    with pytest.raises(SetupError, match="is of a job with the data 1a2b, here it is 3c4d: bring back the data"):
        CheckpointManager(config, 0, 1, data_hash="3c4d").good_rounds()


def test_a_checkpoint_of_a_version_that_noted_no_data_goes_on_with_one_warning(tmp_path, caplog):
    config = Config(mode="local", checkpoint=str(tmp_path), ckpt_frequency=2, resume=1)
    for round_ in (2, 4):
        Checkpoints(tmp_path, worker_name(0), job_of(config)).save(round_, {"rounds": round_})
    manager = CheckpointManager(config, 0, 1, data_hash="3c4d")
    manager.choose([manager.good_rounds()])
    assert manager.resumed == {"rounds": 4}
    (warning,) = [record.message for record in caplog.records if "warning" in record.message]
    assert "are of an earlier version, which did not note what data they are of" in warning


def test_where_all_have_the_same_model_a_worker_under_another_name_goes_on_from_what_there_is(tmp_path):
    """As one whose host has fewer workers than before: cpu, where there were cpu0 and cpu1."""
    config = Config(
        mode="sync", collective="ring", checkpoint=str(tmp_path), ckpt_frequency=2, resume=1, on_worker_death="continue"
    )
    for device, round_ in (("cpu0", 4), ("cpu1", 6)):
        Checkpoints(tmp_path, worker_name(f"h1-{device}"), job_of(config)).save(round_, {"rounds": round_})
    manager = CheckpointManager(config, 0, 1)
    manager.choose([manager.good_rounds()])
    assert (manager.resumed, manager.is_from_another) == ({"rounds": 6}, True)
    manager.close()
    manager.all_have_begun(came_late=False)
    assert len([*tmp_path.glob("*.ckpt")]) == 3  # those that are away may come back
    for came_late, left in ((True, 3), (False, 0)):
        CheckpointManager(replace(config, resume=0), 0, 1).all_have_begun(came_late)
        assert len([*tmp_path.glob("*.ckpt")]) == left


def test_each_worker_goes_on_from_its_own_where_nobody_waits():
    good = [[2, 4], [6, 8]]
    assert [round_of(good, rank, Config(mode="async")) for rank in (0, 1)] == [4, 8]
    assert [round_of(good, rank, Config(mode="sync")) for rank in (0, 1)] == [None, None]


def test_a_worker_that_is_ahead_of_its_server_keeps_the_round_that_both_have(tmp_path):
    """WBSP's workers with overlap train on while the server cannot be reached."""
    config = Config(mode="wbsp", checkpoint=str(tmp_path), ckpt_frequency=5, ckpt_keep=2, on_worker_death="restart")
    manager, server = (
        CheckpointManager(config, 0, 2),
        Checkpoints(tmp_path, checkpoint_rounds.SERVER, job_of(config), 2),
    )
    server.save(5, {})
    for round_ in (5, 10, 15, 20):
        manager.save(round_, {})
    manager.close()
    found = {path.name: 0 for path in tmp_path.iterdir()}
    assert sorted(found) == [file_name("server", 5), *(file_name("worker-0", round_) for round_ in (5, 15, 20))]
    assert checkpoint_rounds.newest(found, {}, config, 1) == 5
    server.save(25, {})
    server.save(30, {})
    manager.save(25, {})
    manager.close()
    assert sorted(path.name for path in tmp_path.glob("worker-*")) == [
        file_name("worker-0", round_) for round_ in (20, 25)
    ]
