"""Messages as JSON, read and checked. The only check left to the handlers is that a rank belongs to its job."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from server.fields import REQUIRED, Fields, json_object
from server.messages import (
    ACTIONS,
    DOINGS,
    INCOMING,
    MAX_ACCURACIES,
    MAX_CAUSE,
    MAX_COUNT,
    MAX_ELAPSED_S,
    MAX_GENERATION,
    MAX_MEMBERS,
    MAX_REASON,
    MAX_SECONDS,
    MAX_SUM,
    MAX_WORKERS,
    STATE_SERVER,
    Action,
    Beat,
    Device,
    Doing,
    Join,
    Left,
    Limits,
    Member,
    MessageType,
    Place,
    Query,
    Report,
    Reset,
    Status,
    Total,
)


def reset_settings(fields: Fields, policies: Collection[str], **defaults: Any) -> dict[str, Any]:
    """What a RESET says about the job: `num_workers`, `policy` and `epsilon`."""
    return {
        "num_workers": fields.whole("num_workers", 1, MAX_WORKERS, defaults.get("num_workers", REQUIRED)),
        "policy": fields.choice("policy", policies, defaults.get("policy", REQUIRED)),
        "epsilon": fields.number("epsilon", 0, MAX_SECONDS, defaults.get("epsilon", REQUIRED)),
    }


def status(fields: Fields, needs_round: bool = True) -> Status:
    """The status object of a REPORT or QUERY. Its timestamp is checked and not used: clocks of hosts differ."""
    fields.finite("timestamp")
    return Status(
        rank=fields.whole("rank", 0, MAX_WORKERS - 1),
        local_iteration=fields.whole("local_iteration", 0, MAX_COUNT, 0),
        round=fields.whole("round", 1, MAX_COUNT, REQUIRED if needs_round else None),
        computation_time=fields.number("computation_time", 0, MAX_SECONDS, None),
        transmission_time=fields.number("transmission_time", 0, MAX_SECONDS, None),
    )


def check_query(status: Status, fields: Fields) -> None:
    """A worker that has done a step knows how long it took."""
    if status.local_iteration > 0 and status.computation_time is None:
        fields.number("computation_time", 0, MAX_SECONDS)  # raises: it is missing


Message = Reset | Report | Query | Join | Beat | Left


def parse(body: bytes, policies: Collection[str]) -> Message:
    """Reads one message off the wire: UTF-8 JSON, one object. Otherwise as `understand`."""
    return understand(json_object(body), policies)


def understand(message: Mapping[str, Any], policies: Collection[str]) -> Message:
    """Checks one message.

    Args:
        message: the JSON object.
        policies: names that a RESET may choose from.

    Raises:
        BadMessage: it is none of the messages that are sent to the state server, or a field is wrong.
    """
    fields = Fields(message)
    msg_type = fields.choice("msg_type", INCOMING)
    sender = fields.name("sender")
    fields.choice("receiver", (STATE_SERVER,), STATE_SERVER)
    job = fields.name("job")
    if msg_type == MessageType.RESET:
        settings = reset_settings(fields, policies, epsilon=0.5)
        resumed = bool(fields.whole("resumed", 0, 1, 0))
        return Reset(
            sender,
            job,
            **settings,
            resumed=resumed,
            title=fields.text("title", "", 80),
            limits=_limits(fields),
            batch_size=fields.whole("batch_size", 1, MAX_COUNT, None),
            generation=fields.whole("generation", 1, MAX_GENERATION, 1),
        )
    if msg_type == MessageType.JOIN:
        return _join(fields, sender, job)
    if msg_type == MessageType.BEAT:
        return Beat(sender, job, _place(fields))
    if msg_type == MessageType.LEFT:
        return Left(sender, job, fields.ranks("lost"), fields.text("cause", "", MAX_CAUSE))

    progress_fields = fields.object("status")
    progress = status(progress_fields)
    if msg_type == MessageType.QUERY:
        check_query(progress, progress_fields)
    told = {
        "device": _device(fields),
        "samples": fields.whole("samples", 0, MAX_COUNT, None),
        "accuracy": fields.number("accuracy", 0, 1, None),
        "elapsed": fields.number("elapsed", 0, MAX_ELAPSED_S, None),
        "total": _total(fields),
        "way": fields.text("way", None, 16),
        "generation": fields.whole("generation", 1, MAX_GENERATION, 1),
    }
    if msg_type == MessageType.QUERY:
        return Query(sender, job, progress, **told)
    doing = Doing(fields.choice("doing", DOINGS, Doing.TRAINING.value))
    accuracies = fields.rows("accuracies", MAX_ACCURACIES, (0, 0, 0), (MAX_COUNT, MAX_ELAPSED_S, 1))
    return Report(sender, job, progress, **told, doing=doing, decision=_decision(fields), accuracies=accuracies)


def _join(fields: Fields, sender: str, job: str) -> Join:
    member = Member(sender, fields.name("address"), fields.whole("port", 1, 65535), _device(fields) or Device())
    return Join(
        member,
        job,
        fields.whole("num_workers", 1, MAX_MEMBERS),
        fields.whole("min_workers", 1, MAX_MEMBERS, None),
        fields.number("patience", 0, MAX_SECONDS, 0.0),
        _place(fields) if fields.whole("generation", 0, MAX_GENERATION, 0) else None,
        fields.ranks("lost"),
    )


def _place(fields: Fields) -> Place:
    """Of a worker that has taken part, by its own word: a server that was restarted knows it by that alone."""
    members = fields.members("members")
    return Place(
        fields.whole("generation", 1, MAX_GENERATION),
        fields.whole("rank", 0, len(members) - 1),
        tuple(Member(name, address, port, Device(host, device)) for name, address, port, host, device in members),
    )


def _device(fields: Fields) -> Device | None:
    device = fields.object("device", None)
    return device and Device(device.text("host", ""), device.text("device", ""))


def _decision(fields: Fields) -> tuple[Action, str] | None:
    decision = fields.object("decision", None)
    return decision and (Action(decision.choice("action", ACTIONS)), decision.text("reason", "", MAX_REASON))


def _total(fields: Fields) -> Total | None:
    total = fields.object("total", None)
    return total and Total(
        total.whole("steps", 0, MAX_SUM),
        total.whole("samples", 0, MAX_SUM),
        total.number("computing", 0, MAX_ELAPSED_S),
    )


def _limits(fields: Fields) -> Limits:
    limits = fields.object("limits", None)
    if limits is None:
        return Limits()
    return Limits(
        rounds=limits.whole("rounds", 1, MAX_COUNT, None),
        seconds=limits.number("seconds", 0, MAX_ELAPSED_S, None),
        accuracy=limits.number("accuracy", 0, 1, None),
    )
