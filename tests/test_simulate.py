"""simulate.py: whole clusters in virtual time, on images of a few classes that are learnt at once."""

from __future__ import annotations

import dataclasses
import json
import logging
import signal
import sys
from pathlib import Path

import pytest
import tiny_data
from cluster_processes import begun, wait_for

import draw
import simulate
import summary
from algorithms import ENTRIES, OWNERS, TABLE, TransportKind
from config import AMONG_WORKERS, modes_of, one_of
from esync.measure import COMPUTING_STAGES
from report import metrics
from scripts.launch.side_by_side import run_side_by_side
from trainer import version
from trainer.simulation import virtual_cluster, virtual_progress
from trainer.simulation.virtual_progress import ProgressLine
from utils import EXIT_OK, RUN_FILE, SetupError, usable_cores

ROOT = Path(__file__).resolve().parents[1]
CLUSTER = (
    "step_time_s,step_spread,bandwidth_mbit_s,latency_s,state_server_round_trip_s\n0.1,0.1,10,0.01,0.02\n0.3,,5,,\n"
)


@pytest.fixture
def place(tmp_path):
    """A folder with a dataset of 96 images, whose class is their brightness, and a cluster of two workers."""
    tiny_data.write_mnist(tmp_path / "data" / "mnist")
    (tmp_path / "two.csv").write_text(CLUSTER)
    return tmp_path


def arguments(place: Path, *more: str, network: str = "mlp") -> list[str]:
    data = ["-dd", str(place / "data"), "--dataset", "mnist"] if network != "none" else []
    known = ["--cluster", str(place / "two.csv"), "-n", network, "-b", "8", "--log-base", str(place / "logs")]
    return [*known, *data, *more]


def run(place: Path, *more: str, network: str = "mlp") -> str:
    """One run in this process; returns the hash of the weights."""
    _, (one,) = simulate.parse(arguments(place, *more, network=network))
    return virtual_cluster.VirtualRun(one.job).run()


def rounds(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def flags_of(mode: str) -> list[str]:
    """Small numbers for the flags without which a mode would train for long."""
    return ["--train-steps", "2", "6"] if OWNERS[mode].name == "sync-switch" else []


@pytest.mark.parametrize("mode", ENTRIES)
def test_every_mode_trains_and_the_same_seed_gives_the_same_weights(place, mode):
    first = run(place, "-m", mode, "--max-seconds", "2", *flags_of(mode))
    folder = place / "logs" / "mlp" / mode / "virtual" / "cpu0"
    logged = rounds(folder)
    assert run(place, "-m", mode, "--max-seconds", "2", *flags_of(mode)) == first
    assert rounds(folder) == logged
    assert run(place, "-m", mode, "--max-seconds", "2", "--seed", "1", *flags_of(mode)) != first
    about = json.loads((folder / RUN_FILE).read_text())
    assert about["ended"] and about["virtual"]["cluster"] == "two"
    assert logged[-1]["total_time"] >= 1.5 and logged[-1]["num_samples"] >= 8


STEPS = ["--momentum", "0.9", "--weight-decay", "0.001", "--lr-schedule", "warmup:100+cosine:5000"]
PHASES = ["--phase-lr", "0.002", "0.0005", "--phase-momentum", "0.9", "0..0.5:50", "--phase-batch-size", "8", "4"]


OUTER = ["--outer-momentum", "0.9", "-gl", "0.7"]
UPDATES = {
    "esync": [[], STEPS, ["--optimizer", "adam", *STEPS[2:]], OUTER, ["-m", "esync-outer"], ["--normalise", "1"]],
    "esync-outer": [[], ["-gl", "0.5"]],
    "sync": [[], STEPS],
    "wbsp-pcc": [[], STEPS],
    "local-sgd": [[], OUTER, [*OUTER, "--outer-nesterov", "1"]],
    "dcasgd": [[], STEPS, ["--dcasgd-lambda", "2"], ["--dcasgd-lambda", "2", "--dcasgd-adaptive", "1"]],
    "sync-switch": [[], [*PHASES, *STEPS[2:], "--phase-lr-schedule", "constant", "step:20x0.1"]],
}


@pytest.mark.parametrize("mode", UPDATES)
def test_flags_of_the_update_make_other_weights_and_the_same_ones_again(place, mode):
    limits = ["-m", mode, "--max-seconds", "2", *flags_of(mode)]
    weights = [run(place, *limits, *flags) for flags in UPDATES[mode]]
    samples = [each["num_samples"] for each in rounds(place / "logs" / "mlp" / mode / "virtual" / "cpu0")]
    assert len({*weights}) == len(weights)
    assert run(place, *limits, *UPDATES[mode][-1]) == weights[-1]
    if mode == "sync-switch":
        assert samples[0] == 8 and samples[-1] == 4


@pytest.mark.parametrize(
    ("rows", "flags", "round_s"),
    [
        # A step of 0.3 s, 100 kB at 8 Mbit/s each way and 0.05 s on top of both.
        ("overhead_s\n0.1,,,\n0.3,8,0.05,0.02\n", [], 0.32 + 2 * (0.1 + 0.05)),
        # Twice a half of 100 kB, both ways at once; no meetings later.
        ("overhead_s\n0.1,,,\n0.3,8,0.05,\n", ["--exchange", "ring"], 0.3 + 2 * (0.05 + 0.05)),
    ],
)
def test_times_are_those_of_the_cluster_file(place, rows, flags, round_s):
    """SSGD by hand."""
    (place / "two.csv").write_text(f"step_time_s,bandwidth_mbit_s,latency_s,{rows}")
    run(place, "-m", "sync", "--max-rounds", "3", "--model-bytes", "1e5", *flags, network="none")
    for device in ("cpu0", "cpu1"):
        moments = [each["total_time"] for each in rounds(place / "logs" / "none" / "sync" / "virtual" / device)]
        assert flags or moments[0] == pytest.approx(round_s, abs=0.1 + 0.001)
        assert moments[2] - moments[1] == pytest.approx(round_s, abs=0.001)


@pytest.mark.parametrize("mode", ENTRIES)
def test_a_step_takes_its_own_time_and_that_of_its_samples_in_every_mode(place, mode):
    """0.1 s and 8 samples of 0.02 s; from 1 s on, by the trace, of 0.05 s more."""
    (place / "late.csv").write_text("start_s,duration_s,extra_s,kind\n1,9,0.05,sample\n")
    header = "step_time_s,sample_time_s,straggler_trace\n"
    (place / "two.csv").write_text(f"{header}0.1,0.02,late.csv\n0.1,0.02,late.csv\n")
    run(place, "-m", mode, "--max-seconds", "2", *flags_of(mode), network="none")
    logged = rounds(place / "logs" / "none" / mode / "virtual" / "cpu0")
    steps = [
        sum(step.get(stage, 0.0) for stage in COMPUTING_STAGES) for each in logged for step in each["time"].values()
    ]
    assert {round(seconds, 9) for seconds in steps if seconds} == {0.26, 0.66}


@pytest.mark.parametrize("exchange", AMONG_WORKERS)
@pytest.mark.parametrize("mode", [row.name for row in TABLE if row.transport is TransportKind.SUM])
def test_what_sums_trains_as_well_without_a_parameter_server(place, mode, exchange):
    first = run(place, "-m", mode, "--exchange", exchange, "--max-seconds", "2")
    logged = rounds(place / "logs" / "mlp" / mode / "virtual" / "cpu0")
    assert run(place, "-m", mode, "--exchange", exchange, "--max-seconds", "2") == first
    assert logged[-1]["total_time"] >= 1.5 and logged[-1]["bytes_pushed"] == logged[-1]["bytes_pulled"] > 1e5
    run(place, "-m", mode, "--exchange", "kvstore", "--max-rounds", str(len(logged)))
    on_server = rounds(place / "logs" / "mlp" / mode / "virtual" / "cpu0")
    if mode == "sync":  # the same steps: only the order of additions differs
        assert [each["loss"] for each in logged] == pytest.approx([each["loss"] for each in on_server], rel=1e-3)


@pytest.mark.parametrize("mode", [name for name, row in OWNERS.items() if row.is_distributed])
def test_the_model_of_a_stub_counts_as_many_bytes_in_every_mode(place, mode):
    limit = flags_of(mode) or ["--max-rounds", "4"]
    run(place, "-m", mode, "--model-bytes", "1e5", *limit, network="none")
    logged = rounds(place / "logs" / "none" / mode / "virtual" / "cpu0")
    assert any(1e5 <= each["bytes_pushed"] < 1.1e5 for each in logged)


def test_a_target_without_evaluations_is_refused(place):
    with pytest.raises(SetupError, match="--target-accuracy needs a worker that evaluates"):
        run(place, "-m", "sync", "--evaluate", "no", "--target-accuracy", "0.8")


@pytest.mark.parametrize(
    ("flags", "every", "every_s"),
    [
        ("--max-seconds 100", 1, 2.0),
        ("--max-rounds 120", 3, 0.0),
        ("--max-rounds 12 --max-seconds 100", 1, 2.0),
        ("--max-rounds 120 -e 1", 1, 0.0),
        ("--max-seconds 100 --eval-seconds=7", 1, 7.0),
        ("--max-rounds 120 --target-accuracy 0.8", 1, 0.0),
        ("--max-rounds 120 --target 0.8", 1, 0.0),
    ],
)
def test_a_run_has_fifty_evaluations_unless_its_flags_say_when_or_a_target_ends_it(place, flags, every, every_s):
    _, (one,) = simulate.parse(arguments(place, *flags.split()))
    assert (one.job.config.eval_duration, one.job.config.eval_seconds) == (every, every_s)
    assert one.job.config.logs_lines


def test_the_last_round_has_an_evaluation_whenever_the_others_were(place):
    run(place, "-m", "sync", "--max-rounds", "103")
    evaluated = [each["num_iters"] for each in rounds(place / "logs/mlp/sync/virtual/cpu0") if "accuracy" in each]
    assert evaluated == [*range(3, 103, 3), 103]


def test_an_evaluation_takes_no_virtual_time_unless_it_is_asked_for(place):
    took = []
    for seconds in ("0", "0.7"):
        run(place, "-m", "sync", "--max-rounds", "3", "--evaluation-time", seconds)
        took.append([each["time"]["0"]["evaluation"] for each in rounds(place / "logs/mlp/sync/virtual/cpu0")])
    assert took == [[0.0] * 3, pytest.approx([0.7, 0.7, 0.0])]  # training ends before the last one
    devices = summary.summarise_mode(place / "logs/mlp/sync", pytest.fail)
    assert not metrics.doubts_of([devices])  # which are about the machine's time


def test_an_evaluation_without_a_network_takes_its_time_and_gives_no_accuracy(place):
    limits = ["-m", "sync", "--max-rounds", "4", "--evaluate", "auto"]
    run(place, *limits, "--evaluation-time", "0.7", "-e", "2", network="none")
    logged = rounds(place / "logs/none/sync/virtual/cpu0")
    assert [each["time"]["0"].get("evaluation", 0.0) for each in logged] == pytest.approx([0.0, 0.7, 0.0, 0.0])
    assert not any("accuracy" in each for each in logged)


def test_local_sgd_logs_each_local_step_and_the_aggregation(place):
    run(place, "-m", "local-sgd", "--max-rounds", "2")
    logged = rounds(place / "logs/mlp/local-sgd/virtual/cpu1")
    assert [(each["num_samples"], len(each["time"])) for each in logged] == [(8 * 8, 8 + 1)] * 2


def test_with_questions_that_are_not_waited_for_no_step_is_lost_and_every_round_is_complete(place):
    run(place, "-m", "esync", "--max-rounds", "6", "--query", "non-blocking")
    abandoned = 0
    for device in ("cpu0", "cpu1"):
        logged = rounds(place / "logs/mlp/esync/virtual" / device)
        assert len(logged) == 6
        for record in logged:
            *steps, last = record["time"].values()
            assert record["num_samples"] == 8 * len(steps)  # what is complete is aggregated, the rest is not counted
            assert all("local update" in step for step in steps)
            assert "global update" in last
            abandoned += "abandoned" in last
    assert abandoned > 0


def test_mode_local_is_one_row_of_the_cluster(place):
    run(place, "-m", "local", "--worker", "1", "--max-rounds", "2")
    assert [each["total_time"] for each in rounds(place / "logs/mlp/local/virtual/cpu0")] == pytest.approx([0.3, 0.6])


@pytest.mark.usefixtures("unpainted")
def test_presets_choose_rows_of_the_cluster_and_are_summed_up_by_their_titles(place, capsys):
    (place / "two.csv").write_text("step_time_s\n0.3\n0.1\n0.2\n0.4\n")
    rows = {"alone": [1], "without-slow": [0, 1, 2], "fastest-local": [1, 2], "fastest-sync": [0, 1, 2]}
    for mode, expected in rows.items():
        run(place, "-m", mode, "--max-rounds", "2", *(["--fastest", "3"] if mode == "fastest-sync" else []))
        folder = place / "logs/mlp" / mode / "virtual"
        about = [json.loads((folder / f"cpu{rank}" / RUN_FILE).read_text()) for rank in range(len(expected))]
        assert [(each["virtual"]["entry"], each["virtual"]["row"]) for each in about] == [
            (mode, row) for row in expected
        ]
        assert not (folder / f"cpu{len(expected)}").exists()
    moments = [rounds(place / "logs/mlp" / mode / "virtual/cpu0")[1]["total_time"] for mode in rows]
    assert moments == pytest.approx([0.2, 0.6, 2 * 8 * 0.2, 0.6])
    assert summary.main(["-b", str(place / "logs"), "-n", "mlp"]) == 0
    assert draw.main(["-b", str(place / "logs"), "-n", "mlp"]) == 0
    (row,) = (line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("Alone "))
    assert row[:4] == ["Alone", "2", "80.0", "0.00"]  # rounds, samples/s, and nothing that travels
    assert (place / "logs/mlp/alone/Alone.json").exists() and (
        place / "logs/mlp/without-slow/WithoutSlow.json"
    ).exists()


@pytest.mark.usefixtures("unpainted")
def test_who_takes_part_is_a_flag_of_every_mode(place, capsys):
    modes = ["-m", "esync,fastest-sync,alone", "--fastest", "2", "--log-base", str(place)]
    _, two = simulate.parse([*modes, "--workers", "3,1,2", "-n", "none", "--max-rounds", "1"])
    assert [run.job.rows for run in two] == [(1, 2), (1, 2), (1,)]
    assert [run.job.entry for run in two] == ["esync-k2", "fastest-sync", "alone"]
    for mode, k, complaint in (("alone,without-slow", 2, "does nothing in mode alone"), ("sync", 3, "2 worker")):
        with pytest.raises(SetupError, match=f"--fastest {k}.*{complaint}"):
            simulate.parse(arguments(place, "-m", mode, "--fastest", str(k)))
    for mode, flags in (("sync", []), ("sync", ["--fastest", "1"]), ("esync-outer", ["--fastest", "1"])):
        run(place, "-m", mode, "--max-rounds", "2", *flags)
    logs = place / "logs"
    assert summary.main(["-b", str(logs), "-n", "mlp"]) == draw.main(["-b", str(logs), "-n", "mlp"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("SSGD", "ESync"))]
    assert [row.partition("  ")[0] for row in rows[:3]] == [
        "ESync, outer Nesterov, on 1 of 2",
        "SSGD",
        "SSGD, on 1 of 2",
    ]
    assert (logs / "mlp/sync-k1/Sync-k1.json").exists()
    assert summary.main(["-b", str(logs), "-n", "mlp", "-m", "sync-k1"]) == 0


def test_with_a_backup_worker_the_others_do_not_wait_for_the_slowest(place):
    """Nine-ways: 25 versions a second by the three fast ones; of the slow one's 10 steps none comes in time."""
    words = f"--cluster nine-ways -m backup -n none --log-base {place} --max-seconds 4"
    _, (one,) = simulate.parse(words.split())
    virtual_cluster.VirtualRun(one.job).run()
    fast, slow = (rounds(place / "none/backup/virtual" / device) for device in ("cpu0", "cpu3"))
    assert (len(fast), fast[-1]["version"]) == pytest.approx((100, 100), abs=1)
    assert len(slow) == pytest.approx(10, abs=1)
    assert [sum(each.get("steps_lost", 0) for each in worker) for worker in (fast, slow)] == [0, len(slow)]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("-g 1", "-g means nothing to simulate.py: its workers are no devices"),
        ("-port 10010", "-port means nothing to simulate.py: the state server is in this process"),
        ("--sample-time 1", "--sample-time means nothing to simulate.py: the cluster file"),
        ("--min-step-time 1", "--min-step-time means nothing to simulate.py: the cluster file"),
        ("--staleness 3", f"--staleness 3 belongs to mode {one_of(modes_of('staleness'))}, not to esync"),
        ("-n none -s 1", "-s means nothing to simulate.py: -n none looks at no data"),
        ("-n none --augment 1", "--augment means nothing to simulate.py: -n none looks at no data"),
        ("-n none --init-from a.params", "--init-from means nothing to simulate.py: -n none computes nothing"),
        ("-n none -e 1", "-e means nothing to simulate.py: -n none has no accuracy"),
        ("-m fast", "unknown mode 'fast'; choose from esync"),
        ("--seeds a", "'a' is no list of seeds; give whole numbers with commas"),
        ("--workers 0.1,x", "'0.1,x' is no list of step times; give seconds with commas"),
        ("--workers 3", "3 is a number of workers, and a virtual worker needs its step time"),
        ("--workers 0.1 --cluster paper", "--cluster: not allowed with argument --workers"),
        ("--misspelt 1", "unknown argument --misspelt"),
        ("-m ssp --exchange ring", "--exchange ring: mode ssp does not sum: it has a server, so leave"),
        ("-n none --job mine.py", "--job means nothing to simulate.py: -n none trains nothing; leave it out"),
        ("-m dcasgd -dcasgd 0", "the other flags make async of -m dcasgd: leave them out, or give -m async"),
        ("-m async -dcasgd 1", "the other flags make dcasgd of -m async: leave them out, or give -m dcasgd"),
    ],
)
def test_what_means_nothing_is_refused(flags, complaint, refused):
    assert complaint in refused(simulate.parse, *flags.split())


def test_what_is_done_again_is_moved_and_the_runs_of_one_command_are_one_earlier_run(place):
    limits = ["-m", "sync,esync", "--seeds", "0,1", "--max-rounds", "2", "--run", "mine"]

    def done(again):
        _, runs = simulate.parse(arguments(place, *limits))
        for each in runs:
            for device in ("cpu0", "cpu1"):
                log = place / "logs" / "mine" / each.job.config.log_dir.split("/mine/")[1] / device / "rounds.jsonl"
                assert log.exists() == again
            _, (one,) = simulate.parse(arguments(place, *limits, *each.arguments))  # as a process of its own
            assert one.job.config.log_dir == each.job.config.log_dir
            virtual_cluster.VirtualRun(one.job).run()

    done(again=False)
    done(again=True)
    (earlier,) = (path for path in (place / "logs" / "mine" / "earlier").iterdir() if path.is_dir())
    assert {str(path.relative_to(earlier)) for path in earlier.glob("*/*/*")} == {
        f"seed-{seed}/mlp/{mode}" for seed in (0, 1) for mode in ("sync", "esync")
    }
    assert summary.main(["-b", str(earlier), "-n", "mlp"]) == EXIT_OK


def test_a_virtual_worker_moves_no_logs_as_the_job_did_that_it_is_like(place):
    _, (one,) = simulate.parse(arguments(place, "-m", "sync", "--max-rounds", "2"))
    config = one.job.config.but(earlier="/elsewhere/earlier/2026-11-25-120000")
    virtual_cluster.VirtualRun(dataclasses.replace(one.job, config=config, earlier=None)).run()


def test_flags_of_one_mode_or_preset_may_be_given_for_a_set_that_has_it_and_takes_all_cores():
    own, runs = simulate.parse(["-m", "sync,ssp", "--staleness", "5", "--seeds", "0,1"])
    assert [(each.job.config.mode, each.job.config.seed) for each in runs] == [
        ("sync", 0), ("ssp", 0), ("sync", 1), ("ssp", 1),
    ]  # fmt: skip
    assert {each.job.config.settings.staleness for each in runs if each.job.config.mode == "ssp"} == {5}
    assert [each.job.config.log_dir for each in runs[::2]] == [
        f"logs/seed-{n}/resnet18-v1/sync/virtual" for n in (0, 1)
    ]
    assert own.jobs == len(usable_cores())
    _, runs = simulate.parse(["-m", "async,dcasgd", "--dcasgd-lambda", "0.5"])
    its = [each.job.config.settings for each in runs]
    assert [(each.use_dcasgd, each.dcasgd_lambda) for each in its] == [(0, 0.5), (1, 0.5)]


def test_a_preset_starts_with_numbers_that_may_be_tuned_and_keeps_its_name(place):
    outer = ["--outer-nesterov", "1", "--outer-momentum", "0.9", "-gl", "0.7"]
    run(place, "-m", "esync-outer", "--max-rounds", "3")
    assert simulate.parse(arguments(place, "-m", "esync-outer", "--max-rounds", "3", *outer))[1][0].job.is_done()
    tuned = simulate.parse(arguments(place, "-m", "esync-outer", "-gl", "0.5"))[1][0].job.config
    assert (tuned.entry, tuned.settings.global_lr, tuned.settings.outer_momentum) == ("esync-outer", 0.5, 0.9)


def test_a_step_that_takes_no_time_is_refused(place):
    (place / "two.csv").write_text("step_time_s\n0.1\n0\n")
    with pytest.raises(SetupError, match="give every worker a step time above 0"):
        run(place, "-m", "sync", "--max-rounds", "1")


def test_a_set_is_done_side_by_side_and_what_is_done_is_not_done_again(place, capfd):
    command = arguments(place, "-m", "sync,async", "--max-rounds", "2", "--jobs", "2", network="none")
    assert simulate.main(command) == EXIT_OK
    first = capfd.readouterr().out
    assert "sync seed 0 begins" in first and "async seed 0 begins" in first
    before = (place / "logs/none/sync/virtual/cpu0" / RUN_FILE).stat().st_mtime_ns
    (place / "logs/none/async/virtual/cpu1" / RUN_FILE).unlink()
    assert simulate.main(command) == EXIT_OK
    again = capfd.readouterr().out
    assert "sync seed 0 is done already" in again and "async seed 0 begins" in again
    assert (place / "logs/none/sync/virtual/cpu0" / RUN_FILE).stat().st_mtime_ns == before


def test_another_flag_or_another_version_of_the_program_makes_it_another_run(place, monkeypatch):
    def is_done(rounds: str) -> bool:
        _, (one,) = simulate.parse(arguments(place, "-m", "sync", "--max-rounds", rounds, network="none"))
        return one.job.is_done()

    run(place, "-m", "sync", "--max-rounds", "1", network="none")
    assert (is_done("1"), is_done("2")) == (True, False)
    monkeypatch.setattr(version, "files_hash", lambda: "of another one")
    assert not is_done("1")


def test_another_content_of_the_job_file_makes_it_another_run(place):
    file = place / "mine.py"
    file.write_text("import helper")

    def job(*flags):
        return simulate.parse(arguments(place, "-m", "sync", "--job", str(file), *flags))[1][0].job

    with_helper = []
    for text in ("x = 1", "x = 2"):
        (place / "helper.py").write_text(text)
        with_helper.append(job().about(0)["job"])
    assert with_helper[0] != with_helper[1]
    assert job().config.log_dir == str(place / "logs" / "mine" / "sync" / "virtual")
    (place / "helper.py").unlink()
    file.write_text("x = = 2")
    with pytest.raises(SetupError, match=r"mine\.py, line 1: invalid syntax: x = = 2"):
        job()


def test_another_trace_of_the_same_name_makes_it_another_run(place):
    (place / "two.csv").write_text("step_time_s,straggler_trace\n0.1,late.csv\n0.3,\n")
    command = arguments(place, "-m", "sync", "--max-rounds", "1", network="none")
    is_done = []
    for extra in ("0.5", "0.6"):
        (place / "late.csv").write_text(f"start_s,duration_s,extra_s\n0,1,{extra}\n")
        is_done.append(simulate.parse(command)[1][0].job.is_done())
        virtual_cluster.VirtualRun(simulate.parse(command)[1][0].job).run()
        assert simulate.parse(command)[1][0].job.is_done()
    assert is_done == [False, False]


def test_a_quiet_run_tells_no_progress_until_its_end_and_is_the_same_run(place, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(virtual_progress, "LINE_EVERY_S", -1.0)
    told = []
    for words in (["--quiet"], ["--again"]):
        caplog.clear()
        _, (one,) = simulate.parse(arguments(place, "-m", "sync", "--max-rounds", "2", *words, network="none"))
        line = ProgressLine(0.0, lambda: None, quiet=bool(one.job.config.quiet))
        virtual_cluster.VirtualRun(one.job, watcher=line).run()
        line.end()
        told.append(sum(message.startswith("progress") for message in caplog.messages))
        assert one.job.is_done()
    assert told[0] == 1 < told[1]
    assert simulate.parse(arguments(place, "-m", "sync", "--max-rounds", "2", network="none"))[1][0].job.is_done()


def test_lines_of_a_watcher_are_logged_whichever_worker_ran_last(place, caplog):
    caplog.set_level(logging.INFO)
    seen = []

    class Looks(virtual_progress.Watcher):
        def continues(self, now):
            seen.append(now)
            logging.info("looked at %s", now)

    _, (one,) = simulate.parse(arguments(place, "-m", "sync", "--max-rounds", "2", network="none"))
    virtual_cluster.VirtualRun(one.job, watcher=Looks()).run()
    assert len(seen) > 4
    assert sum(record.msg == "looked at %s" for record in caplog.records) == len(seen)


def test_the_first_signal_ends_the_round_with_complete_logs_and_the_run_is_not_done(place):
    command = arguments(place, "-m", "esync", network="none")
    process = begun(sys.executable, "simulate.py", *command)
    folder = place / "logs/none/esync/virtual/cpu1"
    wait_for((folder / "rounds.jsonl").exists, "a round")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == EXIT_OK, output
    assert json.loads((folder / RUN_FILE).read_text())["ended"]
    assert rounds(folder)[-1]["num_iters"] == len(rounds(folder))
    assert "a signal came" in output
    assert not simulate.parse(command)[1][0].job.is_done()


def test_a_command_that_fails_keeps_no_other_from_running(tmp_path):
    mark = tmp_path / "ran"
    commands = {
        "bad": [sys.executable, "-c", "raise SystemExit(3)"],
        "good": [sys.executable, "-c", f"open({str(mark)!r}, 'w')"],
    }
    assert run_side_by_side(commands, 1) == 3
    assert mark.exists()
