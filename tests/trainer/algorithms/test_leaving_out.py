"""A job with a server that goes on without workers that are lost: what each algorithm does then, by hand, in
virtual time; and on real clusters."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import memory_cluster
import numpy as np
import pytest
from cluster_processes import DEADLINE_S, begun, children, device_folders, running, wait_for
from contexts import by_flags
from few_images import on_few_images
from memory_cluster import CLOSE, ZERO, Killed, Trained, Worker, batch, gradient, train
from round_records import read_rounds

from algorithms import MEMBERS, TransportKind
from config import CONTINUE, NO, Config
from trainer.command_line import parse
from trainer.context import Context
from trainer.evaluation.evaluating import Candidate, Choice
from trainer.membership import Change, of_all, without
from trainer.run_logs.rounds import iter_files
from trainer.trainer import Trainer
from utils import LEFT, RUN_FILE, STOPPED, read_json

ETA = 0.5


def after_steps(weight: np.ndarray, *ranks: int, factor: float = 1.0) -> np.ndarray:
    return memory_cluster.after_steps(weight, *ranks, eta=factor * ETA)


def run(
    config: Config,
    steps_s: Sequence[float],
    rounds: int,
    build: Callable[[Context], Trainer] | None = None,
    **more: Any,
) -> tuple[Trained, list[float]]:
    """Returns, too, when each worker's last round ended, since training began. `more` says who is killed and back."""
    workers = [Worker([batch(rank)], step_s=step_s) for rank, step_s in enumerate(steps_s)]
    trained = train(TransportKind.HUB, workers, build or by_flags(config.mode), rounds, config=config, **more)
    return trained, [round(trainer.measure.elapsed_s, 3) for trainer in trained.trainers]


def asynchronous(mode: str = "async", **flags: int) -> Config:
    return Config(mode=mode, learning_rate=ETA, batch_size=1, **flags)  # type: ignore[arg-type]


def sync_switch(order: str, *steps: int, **more: Any) -> Config:
    return Config(mode="sync-switch", switch_order=order, train_steps=steps, learning_rate=ETA, **more)


# ------------------------------------------------------------------------------------------------------- by hand


def test_asgd_goes_on_and_the_others_gradients_count_for_the_samples_that_are_left() -> None:
    """Worker 1 is lost at 2.5 s, after one gradient."""
    workers = [Worker([batch(rank)], step_s=1.0 + 1.5 * rank, samples=count) for rank, count in enumerate((3, 1))]
    trained = train(TransportKind.HUB, workers, by_flags("async"), 4, killed={1: 1}, config=asynchronous())
    second = after_steps(ZERO, 0, 0, factor=1.5)  # 2 * 3/4 of the samples
    weight = second - ETA / 2 * gradient(ZERO, batch(1)) - ETA * 1.5 * gradient(second, batch(0))  # that had begun
    np.testing.assert_allclose(trained.weights(0), after_steps(weight, 0), **CLOSE)  # now worker 0 has all samples


@pytest.mark.parametrize("how", ["killed", "leaving"])
def test_ssp_waits_for_the_clock_of_a_worker_that_is_back_from_where_the_others_are(how: str) -> None:
    """It is lost at 4 s, and back after 12 s more of test steps, when the others have done 7 rounds."""
    config = asynchronous("ssp", staleness=0)
    trained, ended_s = run(config, (1.0, 4.0, 2.0), 9, back_s={1: 0.2}, **{how: {1: 1}})
    assert ended_s[0] == ended_s[2] == 16.2 + 4.0 + 4.0
    assert trained.trainers[1].rounds == 9


def killed_at_its_end(context: Context) -> Trainer:
    """The first process of worker 0 is killed between its end and its good-bye."""
    trainer = by_flags(context.config.mode)(context)
    if trainer.membership.rank == 0 and context.peers.job_age_s() is None:
        before = trainer.end

        def end() -> None:
            before()
            raise Killed

        trainer.end = end  # type: ignore[method-assign]
    return trainer


def test_a_worker_that_was_killed_at_its_end_and_is_back_counts_until_its_second_end() -> None:
    """It ends at 2 s, and does one more round from 5.1 s on; the other one's end at 3 and 6 s."""
    for config in (asynchronous("ssp", staleness=2), asynchronous(rescale=1)):
        trained, _ = run(config, (1.0, 3.0), 2, killed_at_its_end, back_s={0: 0.1})
        part = trained.trainers[0].context.hub._hub.part  # type: ignore[attr-defined]
        assert getattr(part, "_of_asgd", part).there == set()
        assert [trainer.rounds for trainer in trained.trainers] == [3, 2]
    # Rescaled ASGD: the mean time of those that are there is 2 s; 3 s; 2 s; 1 s.
    weight = after_steps(ZERO, 0, 0, factor=1 / 2)
    weight = third = weight - ETA * gradient(ZERO, batch(1))  # at 3 s
    weight = after_steps(weight, 1, factor=3 / 2) - ETA * gradient(third, batch(0))  # at 6 and 6.1 s
    np.testing.assert_allclose(trained.weights(0), weight, **CLOSE)


@pytest.mark.parametrize(
    "config", [Config(mode="backup", backup=0, learning_rate=ETA), sync_switch("1", 9)], ids=lambda config: config.mode
)
def test_gradients_of_a_worker_that_is_back_are_waited_for_and_count(config: Config) -> None:
    """It is lost at 2.5 s and back at 10.2 s, in the ninth round."""
    trained, ended_s = run(config, (1.0, 2.5), 9, killed={1: 1}, back_s={1: 0.2})

    def together(weight: np.ndarray) -> np.ndarray:
        return weight - ETA * sum(gradient(weight, batch(rank)) for rank in (0, 1)) / 2

    np.testing.assert_allclose(trained.weights(0), together(after_steps(together(ZERO), *[0] * 7)), **CLOSE)
    np.testing.assert_allclose(trained.weights(1), trained.weights(0), **CLOSE)
    assert ended_s[0] == 12.7
    assert trained.trainers[1].rounds == 2


@pytest.mark.parametrize("overlap", [False, True])
def test_what_a_worker_has_done_that_leaves_counts(overlap: bool) -> None:
    """WBSP uploads it with its farewell, and the other one has it with its next release."""
    trained, _ = run(Config(mode="wbsp", local_lr=ETA, wbsp_overlap=int(overlap)), (1.0, 0.4), 2, leaving={1: 1})
    # Half of the one's update, since it was there; the other one's, which comes when it is alone, are whole.
    both = ZERO - ETA * (gradient(ZERO, batch(0)) + gradient(ZERO, batch(1)) / 2)
    assert trained.trainers[1].rounds == 1
    assert not np.allclose(trained.weights(0), after_steps(ZERO, 0, 0))
    if not overlap:
        np.testing.assert_allclose(trained.weights(0), after_steps(both, 0), **CLOSE)


@pytest.mark.parametrize("overlap", [False, True])
def test_wbsp_releases_without_the_slowest(overlap: bool) -> None:
    """It is lost before its first upload: whoever is the slowest now releases, and its updates are whole."""
    config = Config(mode="wbsp", local_lr=ETA, wbsp_overlap=int(overlap))
    trained, ended_s = run(config, (1.0, 2.5), 3, killed={1: 0})
    np.testing.assert_allclose(trained.weights(0), after_steps(ZERO, 0, 0, 0), **CLOSE)
    assert ended_s[0] == 3.0


@pytest.mark.parametrize("policy", ["none", "elastic"])
def test_sync_switch_under_bsp_goes_on_without_the_lost_as_with_fewer_workers(policy: str) -> None:
    config = sync_switch("1", 3, straggler_policy=policy)
    trained, ended_s = run(config, (1.0, 1.2, 2.5), 9, killed={2: 1})
    weight = ZERO
    for ranks in ((0, 1, 2), (0, 1), (0, 1)):
        weight = weight - ETA * sum(gradient(weight, batch(rank)) for rank in ranks) / len(ranks)
    for rank in (0, 1):
        np.testing.assert_allclose(trained.weights(rank), weight, **CLOSE)
    assert ended_s[:2] == [4.9, 4.9]  # 2.5 + 1.2 + 1.2
    assert trained.trainers[0].finished == "all 3 steps of 1 phase(s) done"


def test_the_step_size_of_each_gradient_under_asp_stays_as_it_is() -> None:
    """Three parts: worker 0 at 1 s, worker 1 at 1.2 s, and worker 0 at 2 s, of the weights that it had at 1 s."""
    config = sync_switch("0", 1, phase_lr=(0.2,))
    trained, _ = run(config, (1.0, 1.2, 2.5), 9, killed={2: 0})
    first = ZERO - 0.2 * gradient(ZERO, batch(0))
    weight = first - 0.2 * gradient(ZERO, batch(1)) - 0.2 * gradient(first, batch(0))
    np.testing.assert_allclose(trained.weights(0), weight, **CLOSE)


# ------------------------------------------------------------------------------------------------ who does what


def test_those_that_are_left_share_all_samples_and_keep_their_ranks() -> None:
    labels, config = np.arange(90) % 10, parse(["-m", "ssp"])
    mine = of_all(labels, 3, config)[2]
    then = without(frozenset({0}), mine, labels, config)
    assert (then.rank, then.num_workers, then.sample_counts) == (2, 3, (0, 45, 45))
    assert then.weight == 1.0
    assert then.partition is not None
    other = without(frozenset({0}), of_all(labels, 3, config)[1], labels, config)
    assert other.partition is not None
    assert sorted([*then.partition, *other.partition]) == list(range(90))


def test_where_the_evaluating_worker_is_lost_the_next_one_evaluates_and_stays_and_no_worker_is_asked() -> None:
    changes: dict[int, Change] = {}
    candidates = [Candidate("auto", 2.0), Candidate("auto", 1.0), Candidate(NO, 0.1)]
    asked: list[Candidate] = []

    def gather(mine: Candidate) -> list[Candidate]:
        asked.append(mine)
        return candidates

    choices = [Choice(parse(["-m", "ssp"]), lambda rank=rank: rank, gather, lambda: changes) for rank in range(3)]
    assert [choice(1.0) for choice in choices] == [False, True, False]
    changes[1] = Change(1, is_lost=True)
    assert (choices[0](1.0), choices[2](1.0)) == (True, False)
    changes[1] = Change(2)  # it is back
    assert [choice(1.0) for choice in choices] == [True, False, False]
    changes[0] = Change(3, is_lost=True)
    assert (choices[1](1.0), choices[2](1.0)) == (True, False)
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("-m wbsp --fault-timeout 3", "--fault-timeout 3.0 belongs to mode .*, not to wbsp"),
        ("-m local --min-workers 3", "--min-workers 3 belongs to mode"),
    ],
)
def test_what_does_not_go_together_is_said(flags: str, why: str, capsys) -> None:
    with pytest.raises(SystemExit):
        parse([*flags.split(), "--on-worker-death", CONTINUE])
    assert re.search(why, " ".join(capsys.readouterr().err.split()))


# ------------------------------------------------------------------------------------------------ real clusters


JOBS = {
    # mode: its flags, and which worker is killed, or leaves: the fastest evaluates, and is rank 0 or not; the slowest
    # holds up the others.
    "ssp": ("-l 0.0006 --staleness 2", 0),
    "wbsp": ("-ll 0.001", 2),
    "decoupled": ("-ll 0.001 --sync-every 2", 0),
    "backup": ("-l 0.001 --backup 0 --max-rounds 50 --leave 1", 2),
}


@pytest.mark.cluster
@pytest.mark.parametrize("mode", JOBS)
def test_a_real_job_goes_on_to_its_end_and_a_killed_worker_comes_back(mode: str, tmp_path: Path) -> None:
    own, victim = JOBS[mode]
    leaves, is_killed_again = "--leave" in own, mode == "decoupled"
    job = ["-m", mode, "-n", "mlp", "--workers", "0.02,0.04,0.08", "--log-base", str(tmp_path)]
    flags = [*own.split(), "-e", "20", "--on-worker-death", CONTINUE, *on_few_images()]
    with begun(sys.executable, "-m", "scripts.launch.local_cluster", *job, "--", *flags) as launcher:
        logs = tmp_path / "mlp" / mode
        wait_for(lambda: [*logs.glob(f"*/cpu{victim}/iter-4.txt")], "round 4")

        def pid() -> int:
            device = f"\0cpu{victim}\0".encode()
            for pid in children(launcher.pid):
                with contextlib.suppress(OSError):  # it has just ended
                    if device in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return pid
            return 0

        os.kill(first := pid(), signal.SIGTERM if leaves else signal.SIGKILL)
        if not leaves:
            wait_for(lambda: " is back" in (logs / f"worker{victim}.log").read_text(), "its return")
            (folder,) = logs.glob(f"*/cpu{victim}")
            before = len(iter_files(folder))
            wait_for(lambda: len(iter_files(folder)) > before + 3, "more rounds")
            if is_killed_again:  # so Ctrl-C comes before it is back
                os.kill(second := pid(), signal.SIGKILL)
                wait_for(lambda: pid() not in (0, first, second), "its third start")
            launcher.send_signal(signal.SIGINT)
        output, _ = launcher.communicate(timeout=DEADLINE_S)
    assert (launcher.returncode, running(tmp_path)) == (0, []), output
    assert (f"worker {victim} (cpu{victim}) was killed by signal 9: the others go on; the lost" in output) != leaves
    folders = device_folders(logs)
    others = [folder for rank, folder in enumerate(folders) if rank != victim]
    ended = [read_json(folder / RUN_FILE).get("ended") for folder in folders]
    told = (STOPPED, "another worker asked for it")  # whichever it hears first
    assert ended.pop(victim) in ((LEFT,) if leaves else (None,) if is_killed_again else told) and all(ended)
    for folder in others:
        records = list(read_rounds(folder, pytest.fail))
        texts = [
            each["text"] for record in records for each in record.get("events", []) if each["kind"] == MEMBERS.name
        ]
        back = [] if leaves else [f"3 worker(s): worker(s) {victim} (cpu{victim} on host {socket.gethostname()}) back"]
        assert texts[0].startswith("2 worker(s): worker(s)") and texts[1:2] == back
    of_victim = list(read_rounds(folders[victim], pytest.fail))
    times = [record["total_time"] for record in of_victim]
    assert times == sorted(times) and leaves == (len(of_victim) < 8)
    missed = sum(record.get("missed", 0) for record in of_victim)
    assert of_victim[-1]["num_iters"] == len(of_victim) + missed and bool(missed) == (mode == "ssp")
