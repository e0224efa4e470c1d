"""The state in Prometheus' text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from server.messages import Action, MessageType
from server.router import Router
from server.snapshot import Snapshot
from server.status import WAITING, silence, worker_states

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[Mapping[str, object], float]


def metrics(router: Router) -> str:
    """All metrics of one moment."""
    snapshot, counts = router.snapshot(), router.overview().counts
    incoming = (MessageType.RESET, MessageType.REPORT, MessageType.QUERY)
    parts = [
        _metric(
            "esync_messages_total",
            "counter",
            "Messages handled, refused ones included.",
            [({"type": kind.value}, counts.get(kind.value, 0)) for kind in incoming],
        ),
        _metric(
            "esync_decisions_total",
            "counter",
            "Answers to queries.",
            [({"action": action.value}, counts.get(action.value, 0)) for action in Action],
        ),
    ]
    if snapshot is not None:
        parts += _job(snapshot)
    return "".join(parts)


def _job(snapshot: Snapshot) -> Iterable[str]:
    settings, rows = snapshot.settings, snapshot.rows
    states = worker_states(snapshot)
    yield _metric(
        "esync_job_info", "gauge", "The running job.", [({"job": settings.job, "policy": settings.policy}, 1)]
    )
    yield _metric("esync_workers", "gauge", "Workers of the job.", [({}, settings.num_workers)])
    yield _metric("esync_round", "gauge", "The latest round that any worker has entered.", [({}, snapshot.round)])
    yield _metric("esync_job_seconds", "gauge", "Time since the job began.", [({}, snapshot.now - snapshot.began)])
    yield _metric("esync_straggler_rank", "gauge", "Rank of the slowest worker.", [({}, snapshot.slowest)])
    if snapshot.curve:
        yield _metric(
            "esync_test_accuracy", "gauge", "The latest that was reported.", [({}, snapshot.curve[-1].accuracy)]
        )

    labels = [{"rank": row.rank, "host": row.device.host, "device": row.device.device} for row in rows]

    def per_worker(name: str, kind: str, text: str, values: Iterable[float | None]) -> str:
        known = [(label, value) for label, value in zip(labels, values, strict=True) if value is not None]
        return _metric(f"esync_worker_{name}", kind, text, known)

    yield per_worker("round", "gauge", "Round that the worker is in.", (row.round for row in rows))
    yield per_worker("local_steps", "gauge", "Local steps in this round.", (row.local_iteration for row in rows))
    yield per_worker("local_steps_total", "counter", "Local steps since the job began.", (row.steps for row in rows))
    yield per_worker(
        "samples_total", "counter", "Samples trained on since the job began.", (row.samples for row in rows)
    )
    yield per_worker("step_time_seconds", "gauge", "Smoothed time of a local step.", (row.step_time for row in rows))
    yield per_worker(
        "transmission_time_seconds",
        "gauge",
        "Time to push a model update.",
        (row.transmission_time if row.step_times else None for row in rows),
    )
    yield per_worker(
        "silence_seconds", "gauge", "Time since the worker was heard.", (silence(snapshot, row) for row in rows)
    )
    yield per_worker(
        "waiting", "gauge", "1 while the worker waits for slower ones.", (float(state == WAITING) for state in states)
    )


def _metric(name: str, kind: str, text: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(str(content))}"' for label, content in labels.items())
        lines.append(f"{name}{{{inside}}} {value}" if inside else f"{name} {value}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
