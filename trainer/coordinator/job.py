"""The beginning of a job on the state server: its name, which the workers agree on, and its limits."""

from __future__ import annotations

from collections.abc import Callable

from algorithms import ENTRIES, RELEASE
from config import Config
from trainer.clock import Clock
from trainer.context import Context
from trainer.coordinator.asker import NOTICE_REST_S, WATCHED_REST_S
from trainer.coordinator.client import StateClient, draw_job_number, job_id
from trainer.coordinator.protocol import Link, NoLink
from trainer.engine import mx
from trainer.progress import Progress

JOB_NUMBER_KEY = 1_000_000  # far from the model's own keys


def client_of(
    config: Config, link: Link | None, clock: Clock, host_name: str, stop_requested: Callable[[], bool]
) -> StateClient | None:
    """A worker's client by the flags; None in a mode without a rule that tells no state server. Other arguments as in
    StateClient."""
    if not (config.tells_state_server or config.algorithm.has_state_server):
        return None
    return StateClient(
        link if link is not None and config.tells_state_server else NoLink(),
        clock,
        config.rule,
        config.epsilon,
        host_name=host_name,
        device=config.device,
        batch_size=config.batch_size,
        title=ENTRIES[config.entry].title,
        limits=limits(config),
        stop_requested=stop_requested,
        shares_batch=config.algorithm.shares_batch,
        anchor=config.anchor,
        notice_rest_s=NOTICE_REST_S if config.algorithm.has_state_server else WATCHED_REST_S,
    )


def begin_job(context: Context, progress: Progress, resumed: bool = False) -> None:
    """Rank 0 begins the job on the state server; when this returns on any rank, the job has begun and is joined.

    Args:
        progress: of this worker.
        resumed: the job continues from a checkpoint.
    """
    _agree(context, progress, lambda: context.state.begin_job(resumed))


def announce_job(context: Context, progress: Progress, resumed: bool = False) -> None:
    """Like `begin_job`, but training does not depend on the state server, which hears of the job with what is told
    next."""
    _agree(context, progress, lambda: None)
    context.state.announce(resumed)


def _agree(context: Context, progress: Progress, begin: Callable[[], None]) -> None:
    state, membership = context.state, context.peers.membership()
    number = mx.nd.array(draw_job_number())
    if membership.rank == 0:
        state.join(job_id(number.asnumpy()), membership.rank, membership.num_workers, progress)
        begin()
    context.shared.arrays(JOB_NUMBER_KEY).broadcast([number])
    state.join(job_id(number.asnumpy()), membership.rank, membership.num_workers, progress)


def limits(config: Config) -> dict[str, float]:
    """The job's limits in the state server's rounds and the logs' seconds; missing ones are left out.

    Where the rounds there are releases, no flag limits them. Sync-Switch's steps are rounds under BSP alone.
    """
    rounds = [] if RELEASE in config.algorithm.events else [config.max_rounds]
    if config.mode == "sync-switch" and "0" not in config.switch_order:
        rounds.append(sum(config.train_steps))
    found = {
        "rounds": min(filter(None, rounds), default=0),
        "seconds": config.max_seconds,
    }
    target = config.target_accuracy or config.target
    return {name: value for name, value in found.items() if value} | ({} if target is None else {"target": target})
