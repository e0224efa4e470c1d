"""Why a job was slow: what its logs say of its speed, and what-ifs against runs in virtual time that really are so."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from log_tree import NETWORK, esync_round, sync_round, write_device, write_esync, write_sync

import simulate
from algorithms import ALGORITHMS, ENTRIES, OWNERS
from report import job_logs
from report.measured import Measured, measured
from scripts import why
from trainer.simulation import virtual_cluster
from utils import EXIT_OK, SetupError

HEADER = "step_time_s,step_spread,latency_s,state_server_round_trip_s,straggler_trace"
FAST, SLOW = "0.1,0.05,0.01,0.002,", "0.6,0.05,0.01,0.002,"
NINE_WAYS = (FAST, FAST, FAST, SLOW)  # the cluster of nine-ways, with spread and network
BAR = 0.1  # what-ifs are as near to runs that really are so
EVALUATING = ("--evaluation-time", "0.15", "--eval-seconds", "1")
# A worker that does not wait ends with its own last round, which must be short in so short a job.
FLAGS = {"sync-switch": ("--train-steps", "5", "10000"), "decoupled": ("--sync-every", "1")}


def run(folder: Path, mode: str, rows: tuple[str, ...], *flags: str, seconds: float = 5) -> Measured:
    """A job of simulate.py without gradients: what its logs say."""
    folder.mkdir(exist_ok=True)
    (folder / "cluster.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    words = ["-m", mode, "--cluster", str(folder / "cluster.csv"), "-n", "none", "--max-seconds", str(seconds)]
    words += ["--model-bytes", "1e6", "--log-base", str(folder / "logs"), *FLAGS.get(mode, ()), *flags]
    _, (one,) = simulate.parse(words)
    virtual_cluster.VirtualRun(one.job).run()
    return measured(logs_of(folder, mode), OWNERS[mode].waits)


def logs_of(folder: Path, mode: str) -> list[job_logs.WorkerLog]:
    return job_logs.read((folder / "logs" / "none" / mode / "virtual").glob("cpu*"), pytest.fail)


class Answer:
    """What is simulated of a job."""

    def __init__(self, folder: Path, mode: str) -> None:
        job, self.its = why.job_of(logs_of(folder, mode), folder)
        self.job, simulated = why.calibrated(job, self.its)
        self.simulated = simulated.samples_s

    def expected(self, name: str, *removes: int) -> float:
        """Samples/s that a what-if says."""
        changes = why.changes(self.job, self.its, [removes] if removes else [])
        (change,) = [each for each in changes if each.name.startswith(name)]
        return why.simulate(change.job).samples_s / self.simulated * self.its.samples_s


# --------------------------------------------------------------------------------------- against what really is so


@pytest.mark.parametrize("mode", ["esync", "sync", "async"])
def test_what_ifs_are_near_to_runs_that_really_are_so(tmp_path, mode):
    was = run(tmp_path / "was", mode, NINE_WAYS, *EVALUATING)
    found = Answer(tmp_path / "was", mode)
    assert found.simulated == pytest.approx(was.samples_s, rel=0.03)

    def really(name: str, rows: tuple[str, ...], *flags: str) -> object:
        return pytest.approx(run(tmp_path / name, mode, rows, *flags).samples_s, rel=BAR)

    assert found.expected("without worker", 3) == really("no-3", NINE_WAYS[:3], *EVALUATING)
    assert found.expected("without worker", 0) == really("no-0", NINE_WAYS[1:], *EVALUATING)
    assert found.expected("no worker slower") == really("even", (FAST,) * 4, *EVALUATING)
    assert found.expected("evaluations in no time") == really("not-evaluated", NINE_WAYS)
    ideal = tuple(row.replace(",0.01,0.002,", ",,,") for row in NINE_WAYS)
    assert found.expected("with an ideal network") == really("ideal", ideal, *EVALUATING)


# Every algorithm, and every preset that flags make of one.
OTHERS = [mode for mode, row in OWNERS.items() if row.is_distributed and (mode == row.name or ENTRIES[mode].values)]


@pytest.mark.parametrize("mode", [mode for mode in OTHERS if mode not in ("esync", "sync", "async")])
def test_a_job_of_every_mode_is_simulated_as_it_was_and_without_its_slowest_worker(tmp_path, mode):
    was = run(tmp_path / "was", mode, NINE_WAYS, seconds=7)
    try:
        found = Answer(tmp_path / "was", mode)
    except SetupError as error:
        assert "samples a step, not the 64 of -b" in str(error)  # of an algorithm that chooses them
        return
    assert found.simulated == pytest.approx(was.samples_s, rel=0.05)
    really = run(tmp_path / "no-3", mode, NINE_WAYS[:3], seconds=7)
    takes_part = len(was.speeds) == len(NINE_WAYS)
    without = found.expected("without worker", 3) if takes_part else was.samples_s
    assert without == pytest.approx(really.samples_s, rel=BAR)


def test_a_worker_that_was_slow_for_a_while_is_so_in_the_simulation(tmp_path):
    (tmp_path / "was").mkdir()
    (tmp_path / "was" / "slow.csv").write_text("start_s,duration_s,extra_s\n3,3,0.4\n")
    was = run(tmp_path / "was", "sync", (FAST, FAST, FAST + "slow.csv"), seconds=12)
    (slow,) = [speed.slow for speed in was.speeds if speed.slow]
    assert sum(each.duration_s * each.extra_s for each in slow) == pytest.approx(3 * 0.4, rel=0.2)
    found = Answer(tmp_path / "was", "sync")
    assert found.simulated == pytest.approx(was.samples_s, rel=0.05)
    really = run(tmp_path / "even", "sync", (FAST, FAST, FAST), seconds=12)
    assert found.expected("no worker slower") == pytest.approx(really.samples_s, rel=BAR)


# ------------------------------------------------------------------------------------------------ what logs say


def test_times_of_steps_are_those_that_were_logged_with_their_spread(tmp_path):
    draw = random.Random(0)
    rounds, now = [], 0.0
    for number in range(1, 401):
        step_s = 0.2 * draw.lognormvariate(0.0, 0.3)
        now += step_s + 0.1
        rounds.append(
            sync_round(number, now) | {"time": {"0": {"forward and backward": step_s, "global aggregate": 0.1}}}
        )
    device = write_device(tmp_path / "alpha" / "cpu0", rounds)
    (speed,) = measured(job_logs.read([device], pytest.fail), waits=True).speeds
    assert (speed.steps, speed.samples_per_step, speed.slow) == (400, 64, ())
    assert speed.step_s == pytest.approx(0.2, rel=0.05) and speed.spread == pytest.approx(0.3, rel=0.1)
    assert speed.mean_step_s == pytest.approx(now / 400 - 0.1)


def test_an_exchange_takes_as_long_as_that_of_the_worker_that_comes_last_unless_workers_do_not_wait(tmp_path):
    """In rounds of 4 s the first worker exchanges for 3 and 1 s, the second for 1.5 and 2 s."""
    for device, times in (("cpu0", (3.0, 1.0)), ("cpu1", (1.5, 2.0))):
        rounds = [
            sync_round(number, 4.0 * number)
            | {"time": {"0": {"forward and backward": 1.0, "global aggregate": seconds}}}
            for number, seconds in enumerate(times, start=1)
        ]
        write_device(tmp_path / "alpha" / device, rounds)
    logs = job_logs.read(sorted((tmp_path / "alpha").iterdir()), pytest.fail)
    assert [speed.exchange_s for speed in measured(logs, waits=True).speeds] == [1.25, 1.25]  # median of 1.5 and 1
    assert [speed.exchange_s for speed in measured(logs, waits=False).speeds] == [2.0, 1.75]


def test_uploads_beside_the_steps_follow_each_other(tmp_path):
    rounds = [sync_round(n, 1.0 * n, bytes_pushed=9 if n % 4 == 0 else 0) | {"time": {"0": {}}} for n in range(1, 41)]
    device = write_device(tmp_path / "alpha" / "cpu0", rounds)
    (speed,) = measured(job_logs.read([device], pytest.fail), waits=False).speeds
    assert speed.exchange_s == 4.0


def test_the_algorithms_whose_workers_do_not_wait_are_known():
    on_their_own = {name for name, row in ALGORITHMS.items() if row.is_distributed and not row.waits}
    assert on_their_own == {"async", "wbsp", "async-local", "decoupled"}


# ------------------------------------------------------------------------------------------------ the command


def why_of(folder: Path, *more: str, network: str = "none") -> int:
    return why.main(["-b", str(folder / "logs"), "-n", network, *more])


ROWS = ("as measured", "as simulated", "without worker 0", "without worker 1", "with an ideal network")


@pytest.mark.parametrize(
    ("mode", "rows", "without", "told"),
    [
        ("sync", (FAST, SLOW), "", "Worker 1 held the others up: with steps of 0.6"),
        ("sync", (FAST, FAST, FAST, SLOW, SLOW), "", "Workers 3 and 4 held the others up"),
        (
            *("async", ("0.1,,0.2,,",) * 2, "0"),
            "The network held the job up: an exchange takes 0.4 s, the median worker's step 0.1 s",
        ),
        ("async", ("0.1,,,,",) * 3 + ("0.6,,,,",), "3", "Nothing held the job up, but there are slow workers"),
    ],
)
def test_the_command_prints_a_table_and_what_held_the_job_up(tmp_path, capsys, mode, rows, without, told):
    """Several slow workers are left out together, too; where workers do not wait, a slow one holds nothing up."""
    run(tmp_path, mode, rows, seconds=5)
    assert why_of(tmp_path, *(["--without", without] if without else [])) == EXIT_OK
    out = capsys.readouterr().out
    asked = [row for row in ROWS if not without or "worker" not in row or row.endswith(without)]
    assert told in out and [row for row in ROWS if f"\n{row}  " in out] == asked


def write_one_of_two(base: Path, rank: int, rounds: list[dict], **flags: object) -> None:
    """The logs of a worker of SSGD."""
    config = {"network": NETWORK, "mode": "sync", "batch_size": 64, **flags}
    run = {"rank": rank, "num_workers": 2, "config": config}
    write_device(base / "logs" / NETWORK / "sync" / "alpha" / f"cpu{rank}", rounds, run)


def test_times_to_the_target_follow_where_rounds_stay_what_they_were(tmp_path, capsys):
    """SSGD with evaluations of 1 s: half of the time. Without worker 1 the updates are others."""
    for rank, beside in enumerate(("evaluation", "global aggregate")):
        evaluated = [{"accuracy": 0.1 * n} if rank == 0 else {} for n in range(1, 10)]
        times = {"time": {"0": {"forward and backward": 1.0, beside: 1.0}}}
        rounds = [sync_round(n, 2.0 * n) | times | more for n, more in enumerate(evaluated, start=1)]
        write_one_of_two(tmp_path, rank, rounds, eval_duration=1)
    assert why_of(tmp_path, "--target", "0.6", network=NETWORK) == EXIT_OK
    lines = {line.split("  ")[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["as measured"][-1] == "10.0..12.0"
    assert lines["without worker 1"][-1] == "-"
    low, high = map(float, lines["evaluations in no time"][-1].split(".."))
    assert (low, high) == (pytest.approx(5.0, rel=0.15), pytest.approx(6.0, rel=0.15))


def evaluated_beside(base: Path, exchange_s: float = 0.1, wait_s: float = 4.0) -> None:
    """SSGD with steps of 0.2 and 0.4 s, evaluated beside training: twice, and at the end worker 0 waits for that, as
    in logs of version 0.6."""
    for rank, step_s in enumerate((0.2, 0.4)):
        rounds, round_s = [], 0.4 + exchange_s
        for n in range(1, 21):
            times = {"forward and backward": step_s, "global aggregate": round_s - step_s}
            rounds.append(sync_round(n, n * round_s) | {"time": {"0": times}})
        if rank == 0:
            rounds[4]["time"]["0"]["save model"] = 0.2  # once in ten seconds, not in each
            rounds[-1]["time"]["0"]["evaluation"] = wait_s
            rounds[-1] |= {"total_time": 20 * round_s + wait_s, "accuracy": 0.9}
            rounds[-1]["evaluated"] = [{"round": 5, "accuracy": 0.5}]
        write_one_of_two(base, rank, rounds, eval_seconds=1, evaluator=1)


def test_only_evaluations_that_delayed_training_count(tmp_path, capsys):
    evaluated_beside(tmp_path)
    assert why_of(tmp_path, network=NETWORK) == EXIT_OK
    out = capsys.readouterr().out
    lines = {line.split("  ")[0]: line.split() for line in out.splitlines()}
    assert lines["as measured"][2:] == ["256.0", "2.5..14.0"]  # 2560 samples in 10 s
    assert float(lines["as simulated"][3]) == pytest.approx(1.0, rel=0.05)
    assert float(lines["evaluations in no time"][5]) == pytest.approx(1.0, abs=0.01)
    assert "evaluations" not in out.splitlines()[-1]


def test_a_job_that_its_simulation_does_not_meet_has_no_what_if(tmp_path, capsys):
    """Each fifth exchange takes 2 s longer, which no latency does."""
    evaluated_beside(tmp_path)
    for path in (tmp_path / "logs").rglob("iter-*.txt"):
        record = json.loads(path.read_text())
        late = 2.0 * (record["num_iters"] // 5)
        record["total_time"] += late
        record["time"]["0"]["global aggregate"] += 2.0 * (record["num_iters"] % 5 == 0)
        path.write_text(json.dumps(record))
    assert why_of(tmp_path, network=NETWORK) == EXIT_OK
    out = capsys.readouterr().out
    assert "\nas simulated  " in out and "without worker" not in out and "in no time" not in out
    assert re.search(
        r"No what-if is told: simulated as it was, the job does 1\.[1-9]\d times .* more than 10% off", out
    )


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--logs-only", "--without", "0"], "--without does nothing with --logs-only"),
        (["--without", "a"], "'a' is no list of ranks; give whole numbers with commas"),
        (["--target", "inf"], "inf is out of range"),
    ],
)
def test_what_does_nothing_is_refused(flags, complaint, refused):
    assert complaint in refused(why.parse, *flags)


def config_of(folder: Path, **changed: object) -> None:
    """Writes run.json of both workers of write_esync."""
    config = {"network": NETWORK, "mode": "esync", "batch_size": 64, **changed}
    for rank, place in enumerate(("alpha/gpu0", "beta/cpu")):
        (folder / place / "run.json").write_text(json.dumps({"rank": rank, "num_workers": 2, "config": config}))


@pytest.mark.parametrize(("collective", "exchange"), [("ps", "kvstore"), ("ring", "ring")])
def test_a_job_of_version_0_6_0_has_the_exchange_that_it_called_collective(tmp_path, collective, exchange):
    folder = write_esync(tmp_path / "logs")
    config_of(folder, collective=collective)
    job, _ = why.job_of(job_logs.read(sorted(folder.glob("*/*")), pytest.fail), tmp_path)
    assert job.config.transport == exchange


def test_what_cannot_be_answered_is_said(tmp_path, refused):
    folder = write_esync(tmp_path / "logs")

    def complaint(*more: str) -> str:
        return refused(why.main, "-b", str(tmp_path / "logs"), "-n", NETWORK, *more)

    assert "no run.json says with which flags the job ran" in complaint()
    config_of(folder, batch_size=32)
    assert "alpha/gpu0 took 64.0 samples a step, not the 32 of -b" in complaint()
    config_of(folder)
    assert "--without 2: the job's ranks are 0 to 1" in complaint("--without", "2")
    assert "holds no folder sync, but esync; train first" in complaint("-m", "sync")
    write_sync(tmp_path / "logs")
    assert "holds esync, sync: choose one with -m" in complaint()
    (folder / "beta" / "cpu" / "iter-1.txt").unlink()
    (folder / "beta" / "cpu" / "iter-2.txt").unlink()
    assert "the job had 2 workers, the logs are of 1" in complaint("-m", "esync")


def test_one_worker_alone_has_nothing_to_leave_out(tmp_path, capsys):
    write_device(tmp_path / "logs" / NETWORK / "local" / "alpha" / "cpu", [esync_round(1, 4.0, 3)])
    assert why_of(tmp_path, network=NETWORK) == EXIT_OK
    out = capsys.readouterr().out
    assert "0 alpha/cpu" in out and "as simulated" not in out
