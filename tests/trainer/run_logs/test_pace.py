"""Workers that do not keep the speeds that they emulate, and evaluations that take much of their time: the warnings."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import tiny_data
from cluster_processes import ran
from hypothesis import given, strategies as st
from log_tree import NETWORK, device, esync_round, evaluated, write_device
from matplotlib.figure import Figure
from one_worker import HandClock, Steps, a_context, some_batch
from round_records import read_rounds

import draw
import summary
from esync.measure import EVALUATION
from esync.progress import Limits
from report import figure_set, metrics, tables
from report.runs import Run
from scripts import demo
from trainer.emulation import COMPUTE, NETWORK as LINK, SAMPLE, Slowdown
from trainer.loop import Loop
from trainer.run_logs.pace import (
    EVALUATION_ADVICE,
    EVALUATOR_ADVICE,
    PACE_ADVICE,
    SAMPLED,
    Load,
    Pace,
    Pacing,
    WorkerPace,
    add_emulated,
    doubts,
    overloaded,
    too_slow,
)
from trainer.run_logs.rounds import Round, is_quantity, of_log
from utils import EXIT_OK

KEPT = Pace(1.2, 1.0, 0.1)
SLOW = Pace(0.3, 0.1, 0.0)
BUSY = Pace(0.0, 0.0, 0.25)  # pads no step


def pacing(heard: list | None = None) -> Pacing:
    return Pacing("alpha", lambda mine: heard, lambda: 0.0)


# ------------------------------------------------------------------------------------------------- from the rounds


def test_a_worker_is_slow_above_one_fifth_more_and_evaluates_much_above_a_tenth() -> None:
    assert not doubts([("cpu0", KEPT), ("cpu1", None)])
    found = doubts([("cpu0", KEPT), ("cpu1", Pace(1.21, 1.0, 0.11))])
    assert found.pace == "a step took longer than it emulates on cpu1 (1.21 s in place of 1 s)"
    assert found.evaluation == "evaluations took 11% of the time of cpu1"
    assert found.advice == [PACE_ADVICE, EVALUATION_ADVICE]


def test_the_slowest_are_named_first_and_the_others_counted() -> None:
    found = doubts([(f"cpu{number}", Pace(0.2 + 0.1 * number, 0.1, 0.0)) for number in range(5)])
    assert found.pace.endswith("cpu4 (0.6 s in place of 0.1 s), cpu3 (0.5 s in place of 0.1 s), and 3 more worker(s)")
    assert found.evaluation == "" and found.advice == [PACE_ADVICE]


def a_round(step_s: float, emulated_s: float | None, evaluation_s: float, end_s: float) -> Round:
    its = {"computing_s": step_s, "emulated_s": emulated_s, "evaluation_s": evaluation_s}
    return Round(samples=8, complete=1, elapsed_s=end_s, **its)


def test_one_slow_round_among_many_is_no_slow_worker() -> None:
    usual = [a_round(0.1, 0.1, 0.0, 10.0 + number) for number in range(3)]
    assert WorkerPace([a_round(9.0, 0.1, 0.0, 9.0), *usual]).pace == Pace(0.1, 0.1, 0.0)


def test_the_evaluation_after_the_last_round_delays_no_training() -> None:
    assert WorkerPace([a_round(1.0, 1.0, 0.0, 1.0), a_round(1.0, 1.0, 5.0, 7.0)]).pace == Pace(1.0, 1.0, 0.0)
    rounds = [a_round(1.0, 1.0, 1.0, 12.0), a_round(1.0, 1.0, 5.0, 19.0)]
    assert WorkerPace(rounds, begin_s=10.0).pace == Pace(1.0, 1.0, 0.25)  # 1 of 4 s, of a job that was resumed at 10 s


def test_evaluations_that_take_longer_than_the_job_are_no_pace() -> None:
    assert WorkerPace([a_round(1.0, 1.0, 50.0, 2.0), a_round(1.0, 1.0, 0.0, 3.0)]).pace is None


@given(st.lists(st.tuples(*[st.one_of(st.floats(), st.floats(0, 10))] * 4)))
def test_whatever_times_logs_hold_the_pace_is_of_numbers_or_not_known(rounds: list) -> None:
    pace = WorkerPace([a_round(*each) for each in rounds]).pace
    assert pace is None or all(map(is_quantity, pace))


def test_a_round_without_a_complete_step_says_nothing_of_steps() -> None:
    record = {"time": {"0": {"abandoned": 3.0}, "1": {EVALUATION: 1.0}}, "total_time": 4.0, "num_samples": 0}
    told, untold = (of_log(json.dumps(record | more)) for more in ({"emulated_s": 0.0}, {}))
    paces = [WorkerPace([one, a_round(3.0, 1.5, 0.0, 5.0)]).pace for one in (told, untold)]
    assert paces == [Pace(3.0, 1.5, 0.2), Pace(3.0, 1.5, 0.0)] and WorkerPace([untold]).pace is None


@pytest.mark.parametrize(
    ("run", "known"),
    [
        ({"config": {"min_step_time": 0.1, "sample_time": 0.01}}, 0.1 + 0.01 * 8),
        ({"config": {"min_step_time": 0.1}}, 0.1),
        # The log does not say when it was slow.
        ({"config": {"min_step_time": 0.1, "straggler_trace": "trace.csv"}}, None),
        ({"config": {"min_step_time": 0.1}, "virtual": {}}, None),
        ({"config": {"min_step_time": "much"}}, None),
        ({"config": 3}, None),
        ({}, None),
    ],
)
def test_of_logs_of_earlier_versions_run_json_tells_what_was_emulated(run: dict, known: float | None) -> None:
    rounds = [a_round(0.3, None, 0.0, 1.0), a_round(0.3, 0.7, 0.0, 2.0)]
    add_emulated(rounds, run)
    assert [one.emulated_s for one in rounds] == [known, 0.7]


@pytest.mark.parametrize("rounds", [1, 2, SAMPLED, 3 * SAMPLED])
def test_a_worker_warns_at_its_end_as_its_logs_do_however_many_rounds_there_are(rounds: int) -> None:
    """Its memory does not grow with them; the pace changes in the middle, and every second round is a slow one."""
    mine = pacing()
    mine.begin_s = 1.0
    slowness = [(0.5 if each % 2 else 0.15) if 3 * each < 2 * rounds else 0.3 for each in range(rounds)]
    logged = [a_round(step_s, 0.1, 0.2, 2.0 + number) for number, step_s in enumerate(slowness)]
    for record in logged:
        mine.add(record)
    found = doubts([("this worker", WorkerPace(logged, 1.0).pace)])
    assert found.pace and mine.at_the_end() == [*filter(None, found), *found.advice]
    assert len(mine._sample) == min(rounds, SAMPLED)


# ----------------------------------------------------------------------------------------------- in the loop


def run(folder: Path, step_s: float, **more: object) -> tuple[list[str], list[float]]:
    """What a worker says at the end of ten rounds, and what their logs say was emulated."""
    mine = pacing()
    given = {"clock": HandClock(), "limits": Limits(10), "pacing": mine, **more}
    Loop(Steps(a_context(some_batch(), **given), step_s=step_s)).run(lambda: folder)
    return mine.at_the_end(), [record["emulated_s"] for record in read_rounds(folder, pytest.fail)]


def test_a_step_that_fits_into_its_padding_is_kept_and_one_that_does_not_is_told(tmp_path: Path) -> None:
    assert run(tmp_path, 0.9, min_step_s=0.2, sample_s=0.05) == ([], [pytest.approx(1.0)] * 10)
    said, _ = run(tmp_path, 1.3, min_step_s=0.2, sample_s=0.05)
    assert said == ["a step took longer than it emulates on this worker (1.3 s in place of 1 s)", PACE_ADVICE]


def test_what_a_straggler_trace_adds_is_emulated_too(tmp_path: Path) -> None:
    trace = (Slowdown(0, 1e9, 3.0, COMPUTE), Slowdown(0, 1e9, 0.25, SAMPLE), Slowdown(0, 1e9, 9.0, LINK))
    assert run(tmp_path, 0.9, min_step_s=1.0, trace=trace) == ([], [8.0] * 10)
    said, _ = run(tmp_path, 3.0, min_step_s=1.0, trace=trace)  # it computes for 3 s and waits for 7
    assert said[0] == "a step took longer than it emulates on this worker (10 s in place of 8 s)"


def test_a_worker_as_fast_as_its_machine_has_no_pace_to_keep(tmp_path: Path) -> None:
    assert run(tmp_path, 5.0) == ([], [0.0] * 10)


def test_much_evaluation_is_told(tmp_path: Path) -> None:
    clock = HandClock()

    def evaluate() -> float:
        clock.sleep(0.5)
        return 0.5

    said, _ = run(tmp_path, 1.0, evaluate=evaluate, clock=clock)
    assert said == ["evaluations took 31% of the time of this worker", EVALUATION_ADVICE]  # 4.5 of 14.5 s
    assert run(tmp_path, 1.0, evaluate=evaluate, clock=clock, eval_every=10)[0] == []


def test_in_virtual_time_logs_say_nothing(tmp_path: Path) -> None:
    """Not even where a step there takes longer than its padding, or evaluations as long as training."""
    Loop(Steps(a_context(some_batch(), clock=HandClock(), limits=Limits(2), min_step_s=0.1))).run(lambda: tmp_path)
    assert all("emulated_s" not in record for record in read_rounds(tmp_path, pytest.fail))


# --------------------------------------------------------------------------------------------- before training


def load(busy_s: float = 0.0, emulated_s: float = 0.0, host: str = "alpha", cores: tuple = (0, 1), took_s: float = 9.0):
    return Load(host, cores, took_s, busy_s, emulated_s)


def test_steps_need_no_more_cores_than_their_workers_may_use() -> None:
    assert overloaded([load(0.1, 0.1), load(0.1, 0.2), load(0.1, 0.2)]) == {}
    found = overloaded([load(0.1, 0.1), load(0.1, 0.2), load(0.1, 0.15)])
    assert list(found) == ["alpha"]
    assert found["alpha"].startswith("steps of the 3 worker(s) on alpha need 2.2 cores at the emulated speeds, and")
    assert "have 2: " in found["alpha"] and found["alpha"].endswith(PACE_ADVICE)


def test_each_host_has_its_own_cores_and_workers_may_have_theirs() -> None:
    assert overloaded([load(0.1, 0.1, host) for host in ("alpha", "beta") for _ in range(2)]) == {}
    assert overloaded([load(0.1, 0.1, cores=(core,)) for core in range(4)]) == {}
    assert list(overloaded([load(0.1, 0.1, cores=(0,))] + [load(0.1, 0.1, "beta", (0,))] * 2)) == ["beta"]


def test_workers_that_pad_nothing_take_what_is_left() -> None:
    assert overloaded([load(0.1)] * 8 + [load(0.1, 0.2)] * 4) == {}


def test_a_step_of_several_threads_and_one_among_other_processes_are_not_too_slow() -> None:
    assert not too_slow(load(busy_s=0.4, took_s=0.12, emulated_s=0.1))
    assert not too_slow(load(busy_s=0.12, took_s=0.4, emulated_s=0.1))
    assert "a test step took 0.13 s, and this worker emulates 0.1 s" in too_slow(load(0.4, 0.1, took_s=0.13))
    assert not too_slow(load(busy_s=0.0, took_s=0.4, emulated_s=0.1))  # a GPU: its computing time is not known


def test_one_worker_of_an_overloaded_host_says_so_for_all() -> None:
    """Its process may use whatever cores this one may: 400 s of them a step are too many anywhere."""
    times = {"beta": (1.0, 0.1, 1.0), "alpha": (1.0, 400.0, 0.5), "alpha too": (1.0, 400.0, 0.6)}
    told: dict[str, Load] = {}

    def said(name: str, heard: list | None) -> list[str]:
        def gather(mine: Load) -> list | None:
            told[name] = mine
            return heard

        return Pacing(name.split()[0], gather, lambda: 0.0).before_training(*times[name])

    assert [len(said(name, None)) for name in times] == [0, 1, 1]  # each by itself, where the others cannot be asked
    everyone = [[*mine] for mine in told.values()]  # as JSON brings them
    together = [said(name, everyone) for name in times]
    assert [len(lines) for lines in together] == [0, 1, 0]
    assert "the 2 worker(s) on alpha" in together[1][0]


# ------------------------------------------------------------------------------------- summary, table, figures, demo


def esync(folder: Path, emulated_s: float | None, **run: object) -> None:
    """Steps of 1 s, rounds of 4, and an evaluation of an eighth of a second in each."""
    extra = {} if emulated_s is None else {"emulated_s": emulated_s}
    rounds = [esync_round(number, 4.0 * number, 3, 0.8, **extra) for number in (1, 2, 3)]
    write_device(folder, rounds, {"rank": 0, "num_workers": 1, **run})


@pytest.mark.parametrize("emulated_s", [0.5, None], ids=["this version's logs", "an earlier version's"])
@pytest.mark.usefixtures("unpainted")
def test_summary_table_and_figures_tell_of_a_pace_that_was_not_kept(
    tmp_path: Path, emulated_s: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    esync(tmp_path / NETWORK / "esync" / "alpha" / "cpu0", emulated_s, config={"min_step_time": 0.5})
    note = "ESync: a step took longer than it emulates on cpu0 (1 s in place of 0.5 s)"
    tree = ["-b", str(tmp_path), "-n", NETWORK]
    assert summary.main(tree) == EXIT_OK
    assert capsys.readouterr().out.splitlines()[1:] == [note, PACE_ADVICE]
    assert draw.main(tree) == EXIT_OK
    assert f"{note}\n{PACE_ADVICE}\n" in capsys.readouterr().out
    for figure in ("accuracy-iid", "throughput", "computing-time"):
        assert (tmp_path / NETWORK / "figures" / f"{figure}.png").exists()


@pytest.mark.parametrize(
    ("emulated_s", "about"),
    [
        (1.0, {}),
        (0.0, {}),
        (None, {}),
        (None, {"config": {"min_step_time": 0.5}, "virtual": {}}),
        (None, {"config": {"min_step_time": 0.5, "straggler_trace": "trace.csv"}}),
    ],
)
def test_logs_of_a_kept_pace_and_those_that_do_not_tell_say_nothing(tmp_path: Path, emulated_s, about) -> None:
    esync(tmp_path / "esync" / "alpha" / "cpu0", emulated_s, **about)
    assert not metrics.doubts_of([summary.summarise_mode(tmp_path / "esync", pytest.fail)])


def slow_run() -> dict[metrics.Mode, metrics.Devices]:
    curve = {"accuracy_list": [0.5, 0.9], "accuracy_time_list": [4.0, 8.0], "virtual": True}
    modes = {"sync": {**SLOW._asdict(), **curve}, "alone": {**BUSY._asdict(), **curve}, "esync": curve}
    return {metrics.MODES[name]: {("alpha", "cpu0"): device(**about)} for name, about in modes.items()}


@pytest.mark.parametrize("events", [None, [[1.0, "members", ""]]], ids=["", "marks"])
def test_figures_say_it_in_a_few_words_of_the_modes_that_they_show(events: list | None) -> None:
    runs = {mode: [devices] for mode, devices in slow_run().items()}
    slow = "steps took longer than emulated, by at most these factors: SSGD 3.0"
    busy = "evaluations took much of a worker's time: Alone 25%"
    assert tables.short_doubts_of(runs) == f"{slow}; {busy}"
    evaluated = device(accuracy_list=[0.5], accuracy_time_list=[1.0], event_list=events)
    by_mode = {mode: devices for mode, [devices] in runs.items()} | {metrics.MODES["esync-niid"]: {}}
    run = Run(by_mode, {}, {metrics.MODES[name]: evaluated for name in ("sync", "esync-niid")})
    first, second = figure_set.curve_figures(NETWORK, [run], pytest.fail)
    for (_, data, paint), note in ((first, slow), (second, "")):
        shown = Figure()
        paint(shown, data)
        titles = [legend.get_title().get_text() for legend in shown.legends]
        assert "".join([shown.get_supxlabel(), *titles]).replace("\n", " ") == note


def test_the_demo_names_no_first_algorithm_without_what_makes_the_times_doubtful() -> None:
    runs = slow_run()
    *found, last = demo.last_lines(runs, 0.8)
    assert found == [
        "SSGD: a step took longer than it emulates on cpu0 (0.3 s in place of 0.1 s)",
        "Alone: evaluations took 25% of the time of cpu0",
        PACE_ADVICE,
        EVALUATION_ADVICE,
    ]
    assert " was first: " in last and last.endswith(f"; {demo.ONE_RUN}; the lines above make the times doubtful")
    [first] = demo.last_lines({metrics.MODES["esync"]: runs[metrics.MODES["esync"]]}, 0.8)
    assert first == f"ESync was first: test accuracy 0.80 after 8.0 s; {demo.ONE_RUN}"


STARVED = [(10.2, 0.1), (60.7, 0.9)]  # seconds and accuracy: an evaluation before the end


def test_the_demo_of_a_machine_with_other_work_names_no_first_algorithm() -> None:
    modes = {"sync": [(12.0, 0.5), (30.1, 0.8)], "alone": STARVED, "esync": STARVED, "esync-outer": [(55.0, 0.9)]}
    moved = {"alone": [[12.0, "evaluator", "evaluated in the worker from 12 s on"]]}
    runs: dict[metrics.Mode, metrics.Devices] = {
        metrics.MODES[name]: {("alpha", "cpu0"): evaluated(curve, event_list=moved.get(name))}
        for name, curve in modes.items()
    }
    *found, last = demo.last_lines(runs, 0.8)
    assert found == ["Alone: evaluated in the worker from 12 s on", EVALUATOR_ADVICE]
    assert last.startswith("no algorithm is told to be first at test accuracy 0.80: SSGD and ESync, outer Nesterov are")
    assert "SSGD and ESync are not told apart: 12.0..30.1 s and 10.2..60.7 s; " in last
    assert "Alone alone was in part" in last and " as fast as" not in last


@pytest.mark.parametrize(("runs", "time"), [(1, "10.2..60.7"), (3, "10..61 (10 to 61)")])
def test_figures_say_which_times_are_between_two_evaluations(runs: int, time: str) -> None:
    """In virtual time none is, and where evaluations are near each other."""
    often = [(1.0 * number, 0.02 * number) for number in range(1, 51)]
    kinds = {"esync": evaluated(STARVED), "sync": evaluated(often), "async": evaluated(STARVED, virtual=True)}
    devices = {metrics.MODES[name]: its for name, its in kinds.items()}
    by_mode = {mode: {("a", "cpu0"): its} for mode, its in devices.items()}
    found, _ = figure_set.curve_figures(NETWORK, [Run(by_mode, {}, devices)] * runs, pytest.fail, target=0.8)
    shown = Figure()
    found[2](shown, found[1])
    assert shown.get_supxlabel().replace("\n", " ") == f"at the target between two evaluations: ESync {time} s"


# ---------------------------------------------------------------------------------------------------- a real worker


@pytest.mark.cluster
@pytest.mark.parametrize("step_s", [1e-5, 1.0], ids=["too fast for any machine", "kept"])
def test_a_worker_says_before_and_after_training_that_its_pace_cannot_be_kept(tmp_path: Path, step_s: float) -> None:
    tiny_data.write_mnist(tmp_path / "data" / "mnist")
    flags = ["-m", "local", "-c", "1", "-n", "mlp", "--dataset", "mnist", "-b", "8", "-e", "100", "--max-rounds", "2"]
    flags += ["--min-step-time", str(step_s), "-dd", str(tmp_path / "data"), "-ld", str(tmp_path)]
    # Several threads would wait for each other on a busy machine.
    done = ran(sys.executable, "main.py", *flags, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    warnings = [text for text in re.findall(r"warning: (.*)", done.stdout) if not text.startswith("mnist in")]
    if step_s == 1.0:
        assert warnings == [], done.stdout  # of two rounds the better one counts
        return
    before, after, advice = warnings
    assert "steps of the 1 worker(s) on" in before or "a test step took" in before
    assert done.stdout.index(before) < done.stdout.index("round 1, ")
    assert after.startswith("a step took longer than it emulates on this worker (") and advice == PACE_ADVICE
