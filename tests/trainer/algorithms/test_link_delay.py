"""An emulated slow link, in every algorithm that exchanges anything: real trainers of one worker, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from contexts import by_flags, emulate
from memory_cluster import Worker, batch, train
from page import Page

from algorithms import OWNERS, TransportKind
from config import Config
from esync.measure import GLOBAL_AGGREGATE, GLOBAL_UPDATE
from trainer.context import Context
from trainer.emulation import COMPUTE, NETWORK, Slowdown
from trainer.trainer import Trainer

ROUNDS = 3
LINK_S, STEP_S = 0.25, 0.75  # that the link and a step take longer
TRACE = (Slowdown(0, 1000, LINK_S, NETWORK), Slowdown(0, 1000, STEP_S, COMPUTE))


class StateServer(Page):
    """Is told, or asked: it always says: aggregate."""

    is_refused, round_trip_s = False, 0.0

    def note(self, round_, *told, asks=False):
        return {"msg_type": "QUERY" if asks else "REPORT", "status": {"round": round_}}

    def send(self, *told):
        return {"action": "SYNC"}

    def stop_waiting(self):
        pass


TRAINERS: dict[str, Callable[[Context], Trainer]] = {
    "sync": by_flags("sync", learning_rate=0.001),
    "async": by_flags("async"),
    "ssp": by_flags("ssp"),
    "local-sgd": by_flags("local-sgd", local_lr=0.001, global_lr=1.0, sync_every=2),
    "esync": by_flags("esync", local_lr=0.001, global_lr=1.0, query="blocking"),
    "wbsp": by_flags("wbsp", local_lr=0.001, wbsp_overlap=0),
    "decoupled": by_flags("decoupled", local_lr=0.001, sync_every=2),
    "async-local": by_flags("async-local", local_lr=0.001),
    "backup": by_flags("backup"),
    "sync-switch": by_flags("sync-switch"),
}


def trained(mode: str, prepare: Callable[[Trainer], None], *trace: Slowdown) -> StateServer:
    """Trains one worker. `prepare` is called before."""
    state = StateServer()

    def build(context: Context) -> Trainer:
        emulate(context, *trace)
        context.peers.state_server = state  # type: ignore[assignment]
        trainer = TRAINERS[mode](context)
        prepare(trainer)
        return trainer

    row = OWNERS[mode]
    config = Config(mode=row.name, backup=0, train_steps=(2, 1), sync_every=1)
    train(row.transport, [Worker([batch(0)])], build, ROUNDS, config=config)
    return state


@pytest.mark.parametrize("mode", TRAINERS)
def test_nobody_sees_a_push_before_it_has_travelled_and_pushes_and_pulls_count_as_aggregation(mode: str) -> None:
    happened: list[str] = []
    stages: set[str | None] = set()

    def note(trainer: Trainer) -> None:
        name = "begin_sum" if OWNERS[mode].transport is TransportKind.SUM else "ask"
        push, sleep = getattr(trainer.exchange, name), trainer.clock.sleep

        def noted(*arguments: Any) -> Any:
            happened.append("push")
            return push(*arguments)

        def slept(seconds: float) -> None:
            if trainer.rounds and seconds in (LINK_S, STEP_S):  # training has begun
                happened.append("link" if seconds == LINK_S else "step")
                stages.update([trainer.measure._stage] * (seconds == LINK_S))
            sleep(seconds)

        setattr(trainer.exchange, name, noted)
        trainer.clock.sleep = slept  # type: ignore[method-assign]

    trained(mode, note, *TRACE)
    steps = 2 if mode in ("local-sgd", "decoupled") else 1
    assert happened == [*["step"] * steps, "link", "push", "link"] * ROUNDS
    assert stages <= {GLOBAL_AGGREGATE, GLOBAL_UPDATE}


@pytest.mark.parametrize("mode", ["wbsp", "sync-switch"])
def test_the_state_server_is_told_of_the_slow_link(mode: str) -> None:
    assert trained(mode, lambda trainer: None, *TRACE).told[-1][3] == pytest.approx(2 * LINK_S)
