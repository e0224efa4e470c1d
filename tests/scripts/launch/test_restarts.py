"""What follows from lost processes: who is started again, when, and from which round. Pure decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from config import Config
from scripts.launch.losses import Lost
from scripts.launch.process import Kind
from scripts.launch.restarts import STABLE_S, Action, Decision, History, Job, Survival, decide
from trainer.survival import checkpoint_rounds
from trainer.survival.checkpoint_manager import CheckpointManager
from trainer.survival.checkpoint_rounds import beside_server, file_name, round_of, unfinished, worker_name
from trainer.survival.checkpoints import Checkpoints, job_of
from utils import DIVERGED, EXIT_BUG, EXIT_PEER_LOST, EXIT_SETUP, SetupError

KILLED = Lost(Kind.WORKER, -9)
LOST = Lost(Kind.WORKER, EXIT_PEER_LOST)
WRONG = Lost(Kind.WORKER, EXIT_SETUP)
STAYS = Lost(Kind.WORKER, None)  # it does not end
NAN = Lost(Kind.WORKER, EXIT_BUG, error=f"error: {DIVERGED}: the loss is nan")
STATE_SERVER = Lost(Kind.SERVICE, -9)
SERVER, HUB = Lost(Kind.SERVER, -9), Lost(Kind.HUB, -9)
HOST = Lost(Kind.SERVICE, 255, is_host=True)
HOST_WITH_SERVER = replace(HOST, with_services=True)
CONTINUE = (Survival.AMONG_WORKERS, Survival.AT_HUB)
LIMIT, NEW = 5, History()
NOBODY_ELSE = {"num_others": 0, "num_running": 0}


def then(
    lost: Sequence[Lost], survival: Survival = Survival.RESTART, up_s: float = 10.0, history: History = NEW,
    **state: Any,
) -> Decision:  # fmt: skip
    return decide([replace(each, up_s=up_s) for each in lost], Job(survival, **state), history)


ALL_AGAIN, AGAIN, END, LEFT_OUT = Action.RESTART_ALL, Action.RESTART_LOST, Action.END_JOB, Action.LEAVE_OUT
BEGUN = {"has_begun": True}
ANSWERED = replace(STATE_SERVER, has_answered=True)


@pytest.mark.parametrize(
    ("survival", "state", "lost", "action"),
    [
        *(
            (Survival.RESTART, {"checkpoint": 7}, lost, action)
            for lost, action in (
                ([KILLED], ALL_AGAIN),
                ([SERVER], ALL_AGAIN),
                ([HUB], ALL_AGAIN),
                ([replace(SERVER, exit_code=0)], ALL_AGAIN),  # it has left before the workers
                ([KILLED, SERVER], ALL_AGAIN),
                ([LOST], ALL_AGAIN),  # of one that is frozen
                ([STAYS], ALL_AGAIN),
                ([Lost(Kind.WORKER, EXIT_BUG)], ALL_AGAIN),
                ([STATE_SERVER], AGAIN),
                ([STATE_SERVER, KILLED], ALL_AGAIN),
                ([STATE_SERVER, LOST], ALL_AGAIN),
                ([HOST_WITH_SERVER], END),
                ([WRONG], END),
                ([WRONG, LOST], END),
                ([WRONG, KILLED], ALL_AGAIN),  # consequence of the missing worker
                ([NAN], END),
            )
        ),
        # The others go on.
        (Survival.AMONG_WORKERS, {}, [KILLED], AGAIN),
        (Survival.AMONG_WORKERS, {}, [KILLED, KILLED, STATE_SERVER], AGAIN),
        (Survival.AMONG_WORKERS, {}, [LOST], AGAIN),
        (Survival.AMONG_WORKERS, {}, [STAYS], LEFT_OUT),  # the others have done the job
        (Survival.AMONG_WORKERS, {}, [WRONG], END),
        # At a hub as well.
        (Survival.AT_HUB, BEGUN, [KILLED], AGAIN),
        (Survival.AT_HUB, BEGUN, [KILLED, KILLED], AGAIN),
        (Survival.AT_HUB, BEGUN | {"num_running": 0, "num_done": 1}, [KILLED], AGAIN),
        (Survival.AT_HUB, BEGUN | {"num_running": 0}, [KILLED], END),
        (Survival.AT_HUB, {}, [KILLED], END),  # all wait for it
        (Survival.AT_HUB, BEGUN, [HUB], AGAIN),
        (Survival.AT_HUB, BEGUN | {"num_running": 0}, [HUB], END),  # the model is lost
        (Survival.AT_HUB, {}, [HUB], END),
        (Survival.AT_HUB, BEGUN, [STATE_SERVER], AGAIN),
        (Survival.AT_HUB, BEGUN, [NAN], END),
        # Nobody does.
        (Survival.NONE, BEGUN, [KILLED], END),
        (Survival.NONE, BEGUN, [SERVER], END),
        (Survival.NONE, BEGUN, [HOST], END),
        (Survival.NONE, BEGUN, [STATE_SERVER], END),
        (Survival.NONE, BEGUN, [ANSWERED], AGAIN),  # the workers train without it
        (Survival.NONE, BEGUN, [ANSWERED, KILLED], END),
    ],
)
def test_who_is_started_again_follows_from_who_has_died_and_how(survival, state, lost, action):
    assert then(lost, survival, **state).action is action


@pytest.mark.parametrize("survival", Survival)
def test_a_worker_that_dies_while_all_end_is_left_out_where_the_others_go_on(survival):
    stopping = {"is_stopping": True, "has_begun": True}
    assert (then([KILLED], survival, **stopping).action is Action.LEAVE_OUT) == (survival in CONTINUE)
    for lost, state in (([KILLED], NOBODY_ELSE), ([KILLED], {"has_begun": False}), ([STAYS], {}), ([SERVER], {})):
        assert then(lost, survival, **{**stopping, **state}).action is Action.END_JOB


@pytest.mark.parametrize(
    ("lost", "state", "is_survived"),
    [
        ([HOST], {}, True),
        ([HOST, HOST], {}, True),
        ([HOST], NOBODY_ELSE, False),
        ([HOST], {"num_running": 0, "num_done": 1}, True),  # they have done the job
        ([HOST_WITH_SERVER], {}, False),
        ([HOST, HOST_WITH_SERVER], {}, False),
        ([HOST], {"has_begun": False}, False),
    ],
)
@pytest.mark.parametrize(
    ("survival", "action"), [(Survival.RESTART, Action.RESTART_ALL), *((each, Action.LEAVE_OUT) for each in CONTINUE)]
)
def test_a_host_may_be_lost_that_has_only_workers(lost, state, is_survived, survival, action):
    decision = then(lost, survival, **{"checkpoint": 20, "has_begun": True, **state})
    assert decision.action is (action if is_survived else Action.END_JOB)


@pytest.mark.parametrize("survival", [*CONTINUE, Survival.NONE])
def test_where_the_others_go_on_those_count_that_die_soon_after_the_one_before(survival):
    history = History()
    for up_s in (1.0, 1.0, STABLE_S, 1.0):
        history = then([ANSWERED], survival, up_s, history).history
    assert (history.restarts, history.in_a_row) == (2, 2)


SPENT = History(restarts=LIMIT)
GIVEN_UP = "given up after 5 starts in less than 60 s each (--restarts)"


@pytest.mark.parametrize(
    ("lost", "history", "more", "action", "text"),
    [
        (KILLED, SPENT, {"num_others": 2}, Action.LEAVE_OUT, f"{GIVEN_UP}, and the others go on without it"),
        (WRONG, SPENT, {"num_others": 2}, Action.LEAVE_OUT, f"{GIVEN_UP}, and the others go on without it"),
        (WRONG, History(restarts=1, in_a_row=2), {}, Action.RESTART_LOST, "the others go on; the lost worker"),
        (KILLED, History(in_a_row=2), {"num_running": 0}, Action.RESTART_LOST,
         "no worker is left: all are started again in 2 s, and go on from their checkpoints"),
        (KILLED, SPENT, {"num_others": 1, "min_workers": 2}, Action.END_JOB,
         f"{GIVEN_UP}; 1 worker would be left, and --min-workers is 2"),
        (KILLED, SPENT, {"num_others": 2, "has_begun": False}, Action.END_JOB, GIVEN_UP),  # all wait for it
        (STATE_SERVER, SPENT, {"num_others": 2}, Action.END_JOB, GIVEN_UP),
    ],
)  # fmt: skip
def test_where_the_others_go_on_failures_count_for_the_worker_whose_they_are(lost, history, more, action, text):
    decision = then([lost], Survival.AMONG_WORKERS, 1.0, history, **{"has_begun": True, **more})
    assert decision.action is action and decision.text.startswith(text)
    assert decision.wait_s == (2.0 if action is Action.RESTART_LOST else 0.0)


def test_flags_and_files_with_which_the_job_has_trained_are_not_wrong():
    """A worker that does not reach the state server at its next start ends with exit code 2 too."""
    assert then([WRONG], service_was_away=True).action is ALL_AGAIN
    assert then([WRONG, LOST], has_begun=True).action is ALL_AGAIN
    assert then([WRONG], history=SPENT, has_begun=True).action is END
    hub = replace(HUB, exit_code=EXIT_SETUP)
    assert then([hub], Survival.AT_HUB, has_begun=True).action is END  # it reads them at each start


def test_the_first_start_is_at_once_and_later_ones_wait_longer_and_longer():
    history, waits = History(), []
    for _ in range(9):
        decision = then([KILLED], up_s=1.0, history=history, limit=99)
        history = decision.history
        waits.append(decision.wait_s)
    assert waits == [0, 1, 2, 4, 8, 16, 30, 30, 30]
    assert then([KILLED], up_s=STABLE_S, history=history, limit=99).wait_s == 0


def test_it_is_given_up_after_so_many_starts_without_a_new_checkpoint():
    history = History(checkpoint=20)
    for left in (1, 0):
        decision = then([KILLED], history=history, checkpoint=20, limit=2)
        history = decision.history
        assert decision.action is Action.RESTART_ALL and f"{left or 'no'} more tr" in decision.text
    decision = then([STATE_SERVER], history=history, checkpoint=20, limit=2)
    assert (decision.action, decision.text) == (
        Action.END_JOB, "given up after 2 starts without a new checkpoint (--restarts)",
    )  # fmt: skip


def test_a_host_that_is_lost_while_all_are_started_again_counts_as_the_loss_before():
    first = then([LOST], checkpoint=20, has_begun=True, history=History(20, restarts=1, in_a_row=1))
    host = {"checkpoint": 20, "has_begun": True, "history": first.history}
    again, another = then([HOST], is_restarting=True, **host), then([HOST], **host)
    assert (first.history.restarts, again.history.restarts, another.history.restarts) == (2, 2, 3)
    assert (first.wait_s, again.wait_s, another.wait_s) == (1, 1, 2)
    spent = then([HOST], is_restarting=True, **{**host, "history": replace(first.history, restarts=LIMIT)})
    assert spent.action is Action.RESTART_ALL


OFTEN, OTHER = replace(KILLED, name="worker 1"), replace(KILLED, name="worker 2")


@pytest.mark.parametrize(
    ("failures", "more", "left_out"),
    [
        ([[OFTEN], [OFTEN, LOST], [OFTEN]], {}, ["worker 1"]),
        ([[OFTEN], [OFTEN], [LOST, OFTEN, LOST]], {"num_others": 0}, ["worker 1"]),  # the two others have lost it
        ([[OFTEN], [OTHER], [OFTEN]], {}, []),
        ([[OFTEN], [OFTEN], [OFTEN, OTHER]], {}, []),
        ([[LOST], [OFTEN], [OFTEN]], {}, []),  # of one that is frozen, perhaps another one
        ([[OFTEN], [OFTEN], [LOST]], {}, []),
        ([[OFTEN], [replace(OFTEN, kind=Kind.SERVER)], [OFTEN]], {"num_others": 1}, []),
        ([[OFTEN], [OFTEN], [OFTEN]], {"num_others": 1}, []),
        ([[OFTEN], [OFTEN], [OFTEN]], {"min_workers": 3}, []),
    ],
)
def test_all_others_are_started_again_without_the_one_worker_that_has_used_all_tries(failures, more, left_out):
    history = History(20)
    for lost in failures:
        decision = then(lost, history=history, **{"checkpoint": 20, "limit": 2, "num_others": 2, **more})
        history = decision.history
    assert [*decision.left_out] == left_out
    text = "given up after 2 starts without a new checkpoint (--restarts)"
    if left_out:
        text += ", each for this worker: all others are started again without it, and go on after round 20"
        assert (decision.action, history) == (Action.RESTART_WITHOUT, History(20))  # the tries begin anew
    else:
        assert decision.action is Action.END_JOB
    assert decision.text == text


def test_a_new_checkpoint_gives_all_tries_back_and_the_next_start_is_at_once():
    decision = then([KILLED], up_s=1.0, checkpoint=21, history=History(checkpoint=20, restarts=LIMIT, in_a_row=3))
    assert decision.action is ALL_AGAIN and decision.wait_s == 0
    assert decision.history == History(checkpoint=21, restarts=1, in_a_row=1, causes=frozenset({""}))
    assert then([OFTEN], checkpoint=20, limit=0, num_others=9).action is END  # there are no tries


AFTER_20, BEFORE_ANY = {"checkpoint": 20, "has_begun": True, "history": History(20)}, {"history": History(in_a_row=1)}


@pytest.mark.parametrize(
    ("lost", "state", "said"),
    [
        (KILLED, AFTER_20, "what came after round 20 is lost: all are started again and go on after round 20"),
        (KILLED, BEFORE_ANY, "there is no checkpoint yet, so all is lost: the job begins anew in 1 s"),
        (HOST, AFTER_20, "what came after round 20 is lost: all others are started again and go on after round 20"),
        (STATE_SERVER, AFTER_20, "nothing is lost: it is started again, and training goes on"),
    ],
)
def test_what_is_lost_and_where_it_goes_on_is_said(lost, state, said):
    assert then([lost], **state).text == f"{said}; 4 more tries without a new checkpoint"


def test_a_hub_that_dies_again_and_again_ends_the_job():
    beside = {"has_begun": True, "num_others": 3, "limit": 2}
    decision = then([HUB], Survival.AT_HUB, history=History(in_a_row=1), **beside)
    assert (decision.action, decision.wait_s, decision.text) == (
        Action.RESTART_LOST, 1.0,
        "it is started again in 1 s, and gets the newest model that a worker has; 1 more try in less than 60 s each",
    )  # fmt: skip
    decision = then([HUB], Survival.AT_HUB, history=History(restarts=2), **beside)
    assert (decision.action, decision.text) == (
        Action.END_JOB, "given up after 2 starts in less than 60 s each (--restarts)",
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------- which checkpoint


def files(*taken: tuple[str, int], when: int = 1) -> dict[str, int]:
    return {file_name(whose, round_): when for whose, round_ in taken}


def newest(mode: str, *taken: tuple[str, int], before: dict[str, int] | None = None, **flags: Any) -> int | None:
    return checkpoint_rounds.newest(files(*taken), before or {}, Config(mode=mode, **flags), 2)


def test_workers_that_sum_go_on_from_the_newest_round_that_all_have():
    assert newest("sync", ("worker-0", 4), ("worker-0", 6), ("worker-1", 2), ("worker-1", 4)) == 4
    assert newest("sync", ("worker-0", 6), ("worker-1", 4)) == 6  # all have the same model after a round
    assert newest("sync", ("worker-0", 6)) == 6
    assert newest("sync") is None


def test_of_fewer_workers_than_before_those_count_that_are_there():
    of_three = (("worker-0", 4), ("worker-0", 6), ("worker-1", 4), ("worker-1", 6), ("worker-2", 4))
    assert newest("sync", *of_three) == 6
    assert newest("sync", *of_three[:2], of_three[4]) == 4  # worker 1 was on a host that is gone
    assert newest("ssp", *of_three[:2], of_three[4], ("server", 4), ("server", 6)) == 4
    assert newest("async", *of_three[2:4], ("server", 6)) == 6


def test_with_a_model_on_the_server_its_checkpoint_and_that_of_rank_0_belong_together():
    both = (("worker-0", 4), ("server", 4), ("worker-0", 6))
    for hub in ({"exchange": "hub"}, {"max_delay": 4}):
        assert newest("async", *both, ("worker-1", 9), **hub) == 4
    assert newest("async", *both, ("worker-1", 9)) == 6  # MXNet's server has no checkpoints
    assert newest("async", *both, exchange="hub") == 4  # worker 1 has none yet, and begins with the model of the others
    assert newest("async", ("worker-0", 4), ("worker-1", 4), exchange="hub") is None
    assert newest("async", ("worker-0", 4), ("worker-1", 4)) == 4
    assert newest("wbsp", ("worker-0", 4), ("server", 6), ("worker-1", 9)) == 4
    assert beside_server([4, 6, 8], [2, 4, 6]) == {4: 4, 6: 6}
    assert beside_server([2, 4], [6, 8]) == {4: 8}
    assert beside_server([], [6]) == beside_server([6], []) == {}
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


def saving(folder: Path, **flags: Any) -> Config:
    return Config(**{"mode": "local", "checkpoint": str(folder), "ckpt_frequency": 2, "resume": 1, **flags})


def save(config: Config, whose: str, round_: int) -> None:
    Checkpoints(Path(config.checkpoint), whose, job_of(config)).save(round_, {"rounds": round_})


def chosen(config: Config, data_hash: str = "") -> CheckpointManager:
    """That of a worker which goes on from what it has."""
    manager = CheckpointManager(config, 0, 1, data_hash=data_hash)
    manager.choose([manager.good_rounds()])
    return manager


@pytest.mark.parametrize(("given", "good"), [("end", [2, 4, 6]), ("restart", [2, 4])])
def test_a_worker_sees_its_checkpoints_likewise(tmp_path, given, good):
    config = saving(tmp_path, max_rounds=6, on_worker_death=given)
    for round_ in (2, 4, 6):
        save(config, worker_name(0), round_)
    manager = chosen(config)
    assert (manager.good_rounds(), manager.resumed) == (good, {"rounds": good[-1]})


def test_a_checkpoint_knows_the_data_as_the_meeting_does(tmp_path):
    config = saving(tmp_path)
    began = CheckpointManager(config, 0, 1, data_hash="1a2b")
    began.write(2, {"rounds": 2})
    began.wait()
    assert chosen(config, "1a2b").resumed == {"rounds": 2}
    with pytest.raises(SetupError, match="is of a job with the data 1a2b, here it is 3c4d: bring back the data"):
        CheckpointManager(config, 0, 1, data_hash="3c4d").good_rounds()


def test_a_checkpoint_of_a_version_that_noted_no_data_goes_on_with_one_warning(tmp_path, caplog):
    config = saving(tmp_path)
    for round_ in (2, 4):
        save(config, worker_name(0), round_)
    assert chosen(config, "3c4d").resumed == {"rounds": 4}
    (warning,) = [record.message for record in caplog.records if "warning" in record.message]
    assert "are of an earlier version, which did not note what data they are of" in warning


def test_where_all_have_the_same_model_a_worker_under_another_name_goes_on_from_what_there_is(tmp_path):
    """As one whose host has fewer workers than before: cpu, where there were cpu0 and cpu1."""
    config = saving(tmp_path, mode="sync", exchange="ring", on_worker_death="continue")
    for device, round_ in (("cpu0", 4), ("cpu1", 6)):
        save(config, worker_name(f"h1-{device}"), round_)
    manager = chosen(config)
    assert (manager.resumed, manager.is_from_another) == ({"rounds": 6}, True)
    manager.wait()
    manager.all_have_begun(came_late=False)
    assert len([*tmp_path.glob("*.ckpt")]) == 3  # those that are away may come back
    for came_late, left in ((True, 3), (False, 0)):
        CheckpointManager(config.but(resume=0), 0, 1).all_have_begun(came_late)
        assert len([*tmp_path.glob("*.ckpt")]) == left


def test_each_worker_goes_on_from_its_own_where_nobody_waits():
    good = [[2, 4], [6, 8]]
    for flags in ({}, {"exchange": "hub"}):
        assert [round_of(good, rank, Config(mode="async", **flags)) for rank in (0, 1)] == [4, 8]
    assert [round_of(good, rank, Config(mode="sync")) for rank in (0, 1)] == [8, 8]


def test_a_worker_that_is_ahead_of_its_server_keeps_the_round_that_both_have(tmp_path):
    """WBSP's workers with overlap train on while the server cannot be reached."""
    config = Config(mode="wbsp", checkpoint=str(tmp_path), ckpt_frequency=5, ckpt_keep=2, on_worker_death="restart")
    manager, server = (
        CheckpointManager(config, 0, 2),
        Checkpoints(tmp_path, checkpoint_rounds.SERVER, job_of(config), 2),
    )
    server.save(5, {})
    for round_ in (5, 10, 15, 20):
        manager.write(round_, {})
    manager.wait()
    found = {path.name: 0 for path in tmp_path.iterdir()}
    assert sorted(found) == [file_name("server", 5), *(file_name("worker-0", round_) for round_ in (5, 15, 20))]
    assert checkpoint_rounds.newest(found, {}, config, 1) == 5
    server.save(25, {})
    server.save(30, {})
    manager.write(25, {})
    manager.wait()
    assert sorted(path.name for path in tmp_path.glob("worker-*")) == [
        file_name("worker-0", round_) for round_ in (20, 25)
    ]
