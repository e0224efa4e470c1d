"""Decisions of which the state server is only told: its page shows what it shows of those that it makes itself."""

import json
import time

import pytest
from scripted_job import ScriptedJob

from server.errors import BadMessage
from server.messages import MAX_REASON, Report
from server.row import Action, Decision
from server.wire import parse

TRAIN, SYNC = Action.TRAIN, Action.SYNC
TRAINING, WAITING = "training", "waiting"


def marks(job: ScriptedJob, now: float) -> list[str]:
    return [worker["mark"] for worker in job.status(now)["workers"]]


def wire(**decision: object) -> bytes:
    message = {"msg_type": "REPORT", "sender": "w", "receiver": "state-server", "job": "a", "decision": decision}
    return json.dumps({**message, "status": {"rank": 0, "round": 1}}).encode()


def test_a_decision_is_read_off_the_wire_where_no_field_is_given_twice() -> None:
    body = wire(action="SYNC", reason="10:20: the slowest")  # a colon in a text is no field
    message = parse(body)
    assert isinstance(message, Report) and message.decision == Decision(SYNC, "10:20: the slowest")
    with pytest.raises(BadMessage, match="'rank' is given more than once"):
        parse(body.replace(b'"rank": 0', b'"rank": 0, "rank": 0'))


def test_thousands_of_names_of_which_one_is_double_cost_little() -> None:
    names = [f"n{number}" for number in range(6_000)]
    body = ("{" + ",".join(f'"{name}":1' for name in [*names, names[-1]]) + "}").encode()
    begin = time.monotonic()
    with pytest.raises(BadMessage, match="'n5999' is given more than once"):
        parse(body)
    assert time.monotonic() - begin < 1.5


@pytest.mark.parametrize("bad", [{"action": "STOP"}, {}, {"action": "SYNC", "reason": "x" * (MAX_REASON + 1)}])
def test_what_is_no_decision_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(BadMessage, match=r"action|reason"):
        parse(wire(**bad))


def test_under_wbsp_the_slowest_is_marked_and_what_was_decided_is_shown() -> None:
    """Worker 1 is the slowest and releases with each upload; worker 0 takes every second release or so."""
    job = ScriptedJob(2, "wbsp")
    job.all_report(1, 0.0)
    job.tell(0, 1, 1, 1.0, 1.0, TRAIN, "")
    job.tell(0, 1, 2, 1.0, 2.0, TRAIN, "")
    job.tell(1, 2, 0, 2.5, 2.5, SYNC, "")
    job.tell(0, 2, 0, 1.0, 3.0, TRAIN, "")
    shown = [(worker["mark"], worker["action"], worker["reason"]) for worker in job.status(3.1)["workers"]]
    assert shown == [("", "TRAIN", "because of round 2"), ("slowest", "SYNC", "because of round 2")]
    assert job.states(3.1) == [TRAINING, TRAINING]
    for round in (3, 4, 5):  # three steps in rounds of one make another the slowest
        job.tell(0, round, 0, 9.0, 9.0 * round, SYNC, "")
    assert marks(job, 50.0) == ["slowest", ""]


def test_what_was_decided_on_the_hub_shows_as_what_is_decided_here() -> None:
    """Four workers; the last takes 5 s a step, the others 0.5 s; all have ended their sixth at 36 s."""
    job = ScriptedJob(4, "sync-switch-elastic", transmission_time=0.1)
    job.all_report(1, 0.0)
    for step in range(1, 7):
        for rank, seconds in enumerate((0.5, 0.5, 0.5, 5.0)):
            is_left_out = seconds == 5.0 and step == 6
            job.tell(rank, step, 1, seconds, 6.0 * step, TRAIN if is_left_out else SYNC)
    job.tell(0, 7, 1, 0.5, 36.6, SYNC)
    assert job.states(36.7) == [WAITING, TRAINING, TRAINING, "left out"]
    assert job.whom(0, 36.7) == "workers 1 and 2"
    for rank in (1, 2):
        job.tell(rank, 7, 1, 0.5, 36.6, SYNC)
    assert job.states(36.7) == [TRAINING, TRAINING, TRAINING, "left out"]
    assert marks(job, 36.7) == ["", "", "", "straggler"]
    kind, begin, end, round = job.status(36.7)["timeline"]["lanes"][3]["spans"][-1]
    assert (kind, round, begin - end) == ("left-out", 6, pytest.approx(0.7))


def test_a_change_of_mind_in_a_round_counts() -> None:
    """A step is told when it has ended, before the server has decided on it."""
    job = ScriptedJob(2, "sync-switch-elastic")
    job.all_report(1, 0.0)
    job.tell(1, 1, 1, 0.5, 1.0, SYNC)
    job.tell(1, 1, 1, 0.5, 1.1, TRAIN)
    assert job.states(1.2)[1] == "left out"
    assert len(job.job.rows[1].step_times) == 1  # it was one step
