"""The search for Sync-Switch's switch point: the search itself, its table, and whole searches with stand-in workers."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from log_tree import sync_round

from experiments.switch_point import find_switch_point, trial_table
from experiments.switch_point.switch_search import (
    Goal,
    Plan,
    Trial,
    converged_accuracy,
    next_trial,
    smallest_within,
)
from scripts.launch import job_options
from scripts.launch.process import Kind, Role
from scripts.launch.roles import JobSpec, Layout, build
from trainer import command_line
from utils import DIVERGED, EXIT_FORCED, EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, SetupError

# ------------------------------------------------------------------------------------------------ the search itself

Accuracy = Callable[[Plan], float | None]


def search(accuracy: Accuracy, goal: Goal, done: Sequence[Trial] = ()) -> list[Trial]:
    """All trials of a search in which the accuracy is what a function says; `done` are there before."""
    trials = list(done)
    while (plan := next_trial(trials, goal)) is not None:
        assert plan not in [(trial.bsp_steps, trial.seed) for trial in trials], "a trial is never repeated"
        trials.append(Trial(plan.bsp_steps, goal.total_steps - plan.bsp_steps, plan.seed, accuracy(plan), 1.0))
        assert len(trials) < 10_000, "the search ends"
    return trials


def from_levels(levels: Sequence[float], goal: Goal) -> Accuracy:
    """A step function of the share of BSP."""
    return lambda plan: levels[plan.bsp_steps * (len(levels) - 1) // goal.total_steps]


goals = st.builds(
    Goal,
    total_steps=st.integers(1, 20_000),
    margin=st.sampled_from([0.0, 0.01, 0.1]),
    resolution=st.floats(1e-4, 2),
    seeds=st.integers(1, 3).map(lambda runs: tuple(range(runs))),
)
levels = st.lists(st.integers(0, 100).map(lambda percent: percent / 100), min_size=1, max_size=30)


@given(goals, levels.map(sorted))
def test_the_threshold_of_a_monotone_accuracy_is_found_to_the_resolution(goal, levels):
    accuracy = from_levels(levels, goal)
    found = smallest_within(search(accuracy, goal), goal)
    good = [b for b in range(goal.total_steps + 1) if levels[-1] - accuracy(Plan(b, 0)) <= goal.margin + 1e-9]
    assert found is not None
    assert found.bsp_steps in good
    assert found.bsp_steps == 0 or found.bsp_steps - good[0] < max(1, goal.resolution * goal.total_steps)


@given(goals, levels, st.data())
def test_whatever_the_accuracies_few_shares_are_tried_and_an_interrupted_search_goes_on_to_the_smallest_good_one(
    goal, levels, data
):
    trials = search(from_levels(levels, goal), goal)
    assert len({trial.bsp_steps for trial in trials}) <= 3 + max(0, math.ceil(math.log2(1 / goal.resolution)))
    good = [trial.bsp_steps for trial in trials if levels[-1] - trial.accuracy <= goal.margin + 1e-9]
    assert smallest_within(trials, goal).bsp_steps == min(good)
    done = trials[: data.draw(st.integers(0, len(trials)))]
    assert search(from_levels(levels, goal), goal, done) == trials


@given(goals, levels, st.sets(st.integers(0, 20_000), max_size=20))
def test_trials_of_other_shares_are_used_and_never_worsen_the_answer(goal, levels, others):
    accuracy = from_levels(levels, goal)
    plans = [Plan(steps, seed) for steps in others if steps <= goal.total_steps for seed in goal.seeds]
    done = [Trial(steps, goal.total_steps - steps, seed, accuracy(Plan(steps, seed)), 1.0) for steps, seed in plans]
    good = [trial.bsp_steps for trial in done if levels[-1] - trial.accuracy <= goal.margin + 1e-9]
    answer = smallest_within(search(accuracy, goal, done), goal)
    assert answer.bsp_steps <= min(good, default=goal.total_steps)


def test_the_means_of_all_runs_of_a_share_are_compared():
    goal = Goal(total_steps=100, margin=0.01, resolution=0.5, seeds=(7, 8))
    by_seed = {(100, 7): 0.9, (100, 8): 0.8, (0, 7): 0.5, (0, 8): 0.5, (50, 7): 0.84, (50, 8): 0.86}
    trials = search(lambda plan: by_seed[plan], goal)
    assert [(trial.bsp_steps, trial.seed) for trial in trials] == list(by_seed)
    assert smallest_within(trials, goal).bsp_steps == 50


def test_a_share_of_which_one_run_diverged_is_below_the_margin_whatever_the_others_did():
    goal = Goal(total_steps=100, margin=0.5, resolution=0.5, seeds=(7, 8))
    trials = search(lambda plan: None if plan == (50, 8) else 0.9 if plan.bsp_steps else 0.1, goal)
    assert [(trial.bsp_steps, trial.seed) for trial in trials][-2:] == [(50, 7), (50, 8)]
    assert smallest_within(trials, goal).bsp_steps == 100


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.5, 0.9, 0.9, 0.9, 0.9, 0.9], (0.9, True)),
        ([0.9000, 0.9009, 0.9003, 0.9006, 0.9002], (0.9004, True)),
        ([0.9000, 0.9010, 0.9000, 0.9000, 0.9000], (0.9002, False)),  # 0.1 % is not less than 0.1 %
        ([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.6, 0.7, 0.8, 0.9], (0.62, False)),  # a plateau at the start is not the end
        ([0.9, 0.9, 0.9, 0.9, 0.9, 0.4], (0.8, False)),  # nor one that was left again
        ([0.9, 0.9, 0.9, 0.9], (0.9, False)),  # too few to say
        ([0.7], (0.7, False)),
    ],
)
def test_the_accuracy_of_a_trial_is_what_its_last_five_evaluations_come_to(accuracies, expected):
    accuracy, converged = converged_accuracy(accuracies)
    assert (accuracy, converged) == (pytest.approx(expected[0]), expected[1])


def test_before_bsp_was_tried_there_is_no_answer():
    assert smallest_within([Trial(0, 10, 0, 0.9, 1.0)], Goal(10, 0.01, 0.1, (0,))) is None


# -------------------------------------------------------------------------------------------------------- the table

GOAL = Goal(total_steps=100, margin=0.01, resolution=0.1, seeds=(0,))
TRIALS = [Trial(100, 0, 0, 0.9, 200.0), Trial(0, 100, 0, None, 20.0, False), Trial(50, 50, 0, 0.895, 110.0)]
SETTINGS = {"total_steps": 100, "network": "lenet", "flags": {"train_steps": (1, 2)}}


def test_a_table_gives_back_its_trials(tmp_path):
    path = tmp_path / "new" / "table.json"
    assert trial_table.read(path, SETTINGS) == []
    trial_table.write(path, SETTINGS, TRIALS, GOAL)
    assert trial_table.read(path, SETTINGS) == TRIALS
    assert [row["within_margin"] for row in json.loads(path.read_text())["trials"]] == [True, False, True]


def test_a_table_of_other_settings_is_refused_with_what_differs(tmp_path):
    trial_table.write(tmp_path / "table.json", SETTINGS, TRIALS, GOAL)
    with pytest.raises(SetupError) as error:
        trial_table.read(tmp_path / "table.json", {**SETTINGS, "total_steps": 200, "servers": 2})
    assert "total_steps 100 there, 200 now; servers null there, 2 now. Give the same" in str(error.value)
    assert "--table" in str(error.value)
    assert "network" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"settings": {}, "trials": [{}]}',
        '{"settings": {}, "trials": [{"bsp_steps": "x"}]}',
        json.dumps({"settings": {}, "trials": [vars(Trial(9, 0, 0, None, 1.0))]}),
    ],
)
def test_what_is_no_table_is_refused_and_named(tmp_path, content):
    (tmp_path / "table.json").write_text(content)
    with pytest.raises(SetupError, match=r"table\.json"):
        trial_table.read(tmp_path / "table.json", {})


def test_a_table_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="--table"):
        trial_table.write(tmp_path / "file" / "table.json", SETTINGS, TRIALS, GOAL)


def test_the_text_of_a_table_is_sorted_by_share_and_aligned():
    lines = trial_table.text(TRIALS, GOAL).splitlines()
    assert lines[0].split("  ")[0] == "BSP share"
    assert [line.split()[0] for line in lines[1:]] == ["0.0000", "0.5000", "1.0000"]
    assert [line.split()[-1] for line in lines[1:]] == ["no", "yes", "yes"]
    assert len({len(line) for line in lines}) == 1


def test_the_result_compares_accuracy_and_time_with_those_of_bsp():
    result, trust = trial_table.result_lines(TRIALS, GOAL)
    assert "0.5000 (--switch-order 10 --train-steps 50 50): accuracy 0.8950, BSP's 0.9000" in result
    assert "110.0 s, BSP's 200.0 s: 1.82x as fast" in result
    assert "3 share(s) tried, 1 run(s) each" in trust


def test_a_larger_share_that_failed_is_told():
    noisy = [*TRIALS, Trial(75, 25, 0, 0.7, 150.0)]
    assert trial_table.result_lines(noisy, GOAL)[-1].startswith("warning: the larger share(s) 0.7500 were below")


# ------------------------------------------------------------------------------- whole searches, stand-in workers

WRITE = """
import json, os, signal, sys, time
from pathlib import Path
folder, content, exit_code, boss, said = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
folder.mkdir(parents=True, exist_ok=True)
for number, record in enumerate(json.loads(content), start=1):
    (folder / f"iter-{number}.txt").write_text(json.dumps(record))
if said: os.write(int(os.environ["ESYNC_LAUNCHER"].split()[0]), json.dumps({"error": said}).encode() + b"\\n")
if boss:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.kill(boss, signal.SIGINT)  # Ctrl-C
    while True: time.sleep(0.05)
sys.exit(exit_code)
"""


@dataclass
class Cluster:
    """Stands for the real processes: two workers that write what a trial of this share would. Keeps what was run."""

    threshold: int = 20  # steps of BSP from which the accuracy is BSP's
    interrupted_at: int = -1
    fails_at: int = -1
    diverges_at: int = -1
    evaluations: int = 5
    last_change: float = 0.0  # of the accuracy
    trials: list[tuple[int, int]] = field(default_factory=list)  # steps of BSP, and seed

    def __call__(self, options: JobSpec, layout: Layout) -> list[Role]:
        main = command_line.parse(build(options, layout)[-1].command[2:])
        bsp_steps = main.settings.train_steps[0] if main.settings.switch_order[0] == "1" else 0
        self.trials.append((bsp_steps, main.seed))
        accuracy = 0.9 if bsp_steps >= self.threshold else 0.8
        seconds = 10.0 + bsp_steps
        curve = [*[accuracy] * (self.evaluations - 1), accuracy + self.last_change][: self.evaluations]
        rounds = [sync_round(1, 1.0), *(sync_round(n, seconds - 1, value) for n, value in enumerate(curve, start=2))]
        diverges = bsp_steps == self.diverges_at
        said = f"error: {DIVERGED}: the loss of round 7 is nan" if diverges else ""
        fails = int(diverges or bsp_steps == self.fails_at)
        boss = os.getpid() if bsp_steps == self.interrupted_at else 0
        return [
            self._worker(options, 0, rounds, fails, boss, said),
            self._worker(options, 1, [sync_round(1, seconds)], 0, boss, ""),
        ]

    def _worker(self, options: JobSpec, rank: int, rounds: list[dict], *behaves: object) -> Role:
        folder = f"{options.log_folder}/{options.hosts.workers[rank].host}/cpu{rank}"
        words = [folder, json.dumps(rounds), *map(str, behaves)]
        return Role(
            name=f"worker {rank}",
            kind=Kind.WORKER,
            command=[sys.executable, "-I", "-c", WRITE, *words],
            environment=dict(os.environ),
            folder=options.log_folder,
            log=options.log_folder / f"worker{rank}.log",
        )


def run(folder: Path, cluster: Cluster, *more: str) -> int:
    arguments = ["--total-steps", "100", "--resolution", "0.2", "--workers", "0,0", "--log-base", str(folder)]
    try:
        return find_switch_point.main([*arguments, *more], cluster)
    except SetupError as error:  # as start.run tells it
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def table(folder: Path) -> list[dict]:
    return json.loads((folder / "lenet" / "switch-points.json").read_text())["trials"]


SHARES = [(100, 0), (0, 0), (50, 0), (25, 0), (12, 0)]


def test_a_search_ends_with_the_smallest_share_that_keeps_the_accuracy(tmp_path, capsys):
    cluster = Cluster()
    assert run(tmp_path, cluster) == EXIT_OK
    output = capsys.readouterr().out
    assert cluster.trials == SHARES
    assert "0.2500 (--switch-order 10 --train-steps 25 75): accuracy 0.9000, BSP's 0.9000" in output
    assert "35.0 s, BSP's 110.0 s: 3.14x as fast" in output  # of the slower worker
    assert "not converged" not in output
    assert "share 0.1200 (BSP 12, ASP 88 steps), seed 0: accuracy 0.8000 in 22.0 s, below the margin" in output
    assert [(row["bsp_steps"], row["within_margin"]) for row in table(tmp_path)] == [
        (100, True), (0, False), (50, True), (25, True), (12, False)
    ]  # fmt: skip
    logs = tmp_path / "trials" / "switch-points" / "bsp-25-asp-75-seed-0" / "lenet" / "sync-switch"
    assert len(list(logs.glob("*/cpu[01]/iter-1.txt"))) == 2


def test_a_search_that_was_interrupted_goes_on_with_the_rest(tmp_path, capsys):
    cluster = Cluster(interrupted_at=50)
    assert run(tmp_path, cluster) == EXIT_FORCED
    assert "the same command continues" in capsys.readouterr().out
    assert [row["bsp_steps"] for row in table(tmp_path)] == [100, 0]  # though the third has logs

    again = Cluster()
    assert run(tmp_path, again) == EXIT_OK
    assert cluster.trials + again.trials == [*SHARES[:3], *SHARES[2:]]
    assert "2 trial(s) are in" in capsys.readouterr().out

    finished = Cluster()
    assert run(tmp_path, finished) == EXIT_OK
    assert finished.trials == []


@pytest.mark.parametrize(
    ("behaves", "code", "complaint", "kept"),
    [
        ({"fails_at": 0}, EXIT_PEER_LOST, "worker 0 ended with exit code 1", [100]),
        ({"evaluations": 0}, EXIT_SETUP, "have no accuracy", []),
        ({"diverges_at": 100}, EXIT_SETUP, "BSP alone diverges", []),  # there is nothing to compare with
    ],
)
def test_a_trial_that_cannot_be_judged_ends_the_search_and_loses_nothing(
    tmp_path, capsys, behaves, code, complaint, kept
):
    assert run(tmp_path, Cluster(**behaves)) == code
    assert complaint in "".join(capsys.readouterr())
    assert [row["bsp_steps"] for row in table(tmp_path)] == kept


def test_a_trial_that_diverges_counts_as_below_the_margin_and_the_search_goes_on(tmp_path, capsys):
    cluster = Cluster(diverges_at=0)
    assert run(tmp_path, cluster) == EXIT_OK
    output = capsys.readouterr().out
    assert cluster.trials == SHARES
    assert re.search(r"share 0\.0000 \(BSP 0, ASP 100 steps\), seed 0: diverged in \d+\.\d s, below the margin", output)
    assert re.search(r"0\.0000 +0 +100 +0 +- +diverged +\d+\.\d +no\n", output)
    assert "0.2500 (--switch-order 10 --train-steps 25 75): accuracy 0.9000, BSP's 0.9000" in output
    row = table(tmp_path)[1]
    assert (row["bsp_steps"], row["accuracy"], row["converged"], row["within_margin"]) == (0, None, False, False)

    again = Cluster()  # and is not done again
    assert run(tmp_path, again) == EXIT_OK
    assert again.trials == []


def test_a_trial_is_judged_by_its_last_evaluations_and_the_table_says_whether_it_has_converged(tmp_path, capsys):
    assert run(tmp_path, Cluster(threshold=0, last_change=-0.05)) == EXIT_OK
    output = capsys.readouterr().out
    assert [(row["accuracy"], row["converged"]) for row in table(tmp_path)] == [(pytest.approx(0.89), False)] * 2
    assert "accuracy 0.8900 (not converged) in 110.0 s" in output
    assert "note: 2 of 2 trial(s) had not converged" in output


def test_devices_of_an_earlier_trial_do_not_count(tmp_path, capsys):
    first = Cluster(threshold=0)
    assert run(tmp_path, first) == EXIT_OK
    for host in (tmp_path / "trials").glob("*/*/lenet/sync-switch/*/cpu1"):
        stale = host.parent / "cpu2"
        stale.mkdir()
        (stale / "iter-1.txt").write_text(json.dumps(sync_round(1, 999.0, 0.1)))
    (tmp_path / "lenet" / "switch-points.json").unlink()
    assert run(tmp_path, Cluster(threshold=0)) == EXIT_OK
    assert [row["seconds"] for row in table(tmp_path)] == [110.0, 10.0]


def test_each_share_is_run_with_seeds_from_the_users_on(tmp_path):
    cluster = Cluster(threshold=0)
    assert run(tmp_path, cluster, "--runs", "2", "--", "--seed", "5") == EXIT_OK
    assert cluster.trials == [(100, 5), (100, 6), (0, 5), (0, 6)]
    more = Cluster(threshold=0)
    assert run(tmp_path, more, "--runs", "3", "--", "--seed", "5") == EXIT_OK
    assert more.trials == [(100, 7), (0, 7)]


def test_other_settings_need_another_table(tmp_path, capsys):
    assert run(tmp_path, Cluster(threshold=0), "--", "-e", "9") == EXIT_OK
    assert run(tmp_path, Cluster(threshold=0), "--", "--eval-duration", "9") == EXIT_OK  # the same in other words
    other = Cluster(threshold=0)
    assert run(tmp_path, other, "--", "-e", "8") == EXIT_SETUP
    assert 'flags {"eval_duration": 9} there, {"eval_duration": 8} now' in capsys.readouterr().err
    assert run(tmp_path, other, "--workers", "0,1", "--", "-e", "9") == EXIT_SETUP
    assert "error: the trials in" in capsys.readouterr().err
    assert other.trials == []
    assert run(tmp_path, other, "--table", str(tmp_path / "other.json"), "--", "-e", "8") == EXIT_OK
    assert (tmp_path / "trials" / "other" / "bsp-100-asp-0-seed-0").is_dir()


def test_the_trials_stragglers_are_a_setting(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("start_s,duration_s,extra_s\n1,2,3\n")
    (tmp_path / "cluster.csv").write_text("step_time_s,straggler_trace\n0,\n0,trace.csv\n")
    given = ["--total-steps", "4", "--cluster", str(tmp_path / "cluster.csv"), "--log-base", str(tmp_path)]
    assert find_switch_point.main(given, Cluster(threshold=0)) == EXIT_OK
    trace.write_text("start_s,duration_s,extra_s\n1,2,4\n")
    with pytest.raises(SetupError, match="workers"):
        find_switch_point.main(given, Cluster(threshold=0))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("-- --switch-order 01 --train-steps 1 2", "contradicts the search"),
        ("-- --train-steps 7", "contradicts the search"),
        ("-- --resume 1 --ckpt-frequency 5", "contradicts the search"),
        ("-- --max-rounds 5", "contradicts the search"),
        ("-- --max-seconds 5", "contradicts the search"),
        ("-- --target-accuracy 0.5", "contradicts the search"),
        ("-- --device-name x", "contradicts the search"),
        ("-- --straggler-policy greedy", "--straggler-policy greedy"),  # fits not each of the trials
        ("-- --straggler-policy elastic", "--straggler-policy elastic"),
        ("--total-steps=0", "--total-steps: 0 is out of range"),
        ("--margin=2", "--margin: 2 is out of range"),
        ("--resolution=0", "--resolution: 0 is out of range"),
        ("--runs=0", "--runs: 0 is out of range"),
        ("-m sync", "-m"),
        ("--work=0", "--work"),
    ],
)
def test_what_is_no_search_is_refused_before_the_first_trial(tmp_path, words, complaint, refused):
    cluster = Cluster()
    assert complaint in refused(lambda given: run(tmp_path / "logs", cluster, *given), *words.split())
    assert (cluster.trials, list(tmp_path.iterdir())) == ([], [])


def test_two_searches_do_not_share_their_logs(tmp_path, capsys):
    with job_options.claimed(tmp_path / "trials" / "switch-points"):
        assert run(tmp_path, Cluster()) == EXIT_SETUP
    assert "--log-base" in capsys.readouterr().err
