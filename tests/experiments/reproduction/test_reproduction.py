"""The published experiments again: which runs there are, what their lines say, and the tables beside the published."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

import simulate
from experiments import markdown
from experiments.reproduction import published, reproduce, reproduction, reproduction_figures, reproduction_parts
from experiments.reproduction.reproduction import (
    CLUSTER,
    HEADLINES,
    HETEROGENEITY,
    NETWORKS,
    PARTS,
    SWITCH,
    TRAINING,
    WBSP,
    Row,
)
from experiments.reproduction.reproduction_parts import FULL, MEAN_LOSS, QUICK, SCALES, TWO_HOURS
from report import metrics
from scripts import run_lines
from scripts.run_process import Ended, Processes
from trainer.run_logs.rounds import Round
from utils import DIVERGED, EXIT_BUG, EXIT_OK, SetupError

EVERY_JOB = [(scale, job) for scale in SCALES.values() for job in reproduce.jobs_of(scale, scale.parts)]


# -------------------------------------------------------------------------------------------------- what is to be done


def config_of(job):
    """The job that simulate.py makes of a run's command, and its flags."""
    _, (run,) = simulate.parse(job.command[1:])
    return run.job, run.job.config


@pytest.mark.parametrize(
    ("scale", "job"), EVERY_JOB, ids=[f"{scale.name}-{'-'.join(map(str, job.key[:5]))}" for scale, job in EVERY_JOB]
)
def test_simulate_takes_the_command_of_every_run(scale, job):
    its, config = config_of(job)
    network = Path(config.job).stem or config.network
    assert (its.entry, network, config.seed) == (job.entry, job.network, 0)
    assert bool(config.split_by_class) == (job.split == "by-class")
    assert f"{network}/" in f"{job.folder}/" and config.log_dir.endswith(f"{job.folder}/virtual")
    if job.network == "none" and job.part not in (WBSP, HEADLINES):
        assert its.model_bytes > 1e7
    if job.part == TRAINING:
        assert scale.step_size == config.settings.rate
    if scale is TWO_HOURS:
        assert (config.max_seconds, config.target_accuracy) == (7200, 0)
    if (scale, job.part) == (QUICK, SWITCH):  # the steps of all with every share of BSP are the same
        steps = dict(zip(config.settings.switch_order, config.settings.train_steps, strict=True))
        assert sum(steps.values()) == QUICK.switch_steps
        assert steps.get("1", 0) == pytest.approx(QUICK.switch_steps * int(job.case) / 100, abs=0.5)


def test_no_run_is_taken_for_another():
    for scale in SCALES.values():
        keys = [job.key for job in reproduce.jobs_of(scale, PARTS)]
        assert len(keys) == len({*keys})


def test_the_preprint_s_cluster_is_trained_by_both_rules_upload_aware_and_by_all_it_was_compared_with():
    trained = {(job.name, job.split) for job in reproduce.jobs_of(FULL, [TRAINING])}
    names = {*reproduction_parts.ROWS}
    assert trained == {
        *((name, split) for name in names for split in ("iid", "by-class")),
        ("Standalone, one GPU", "iid"),
    }


def test_the_step_size_of_the_mean_loss_is_that_of_the_sum_over_the_batch():
    jobs = reproduce.jobs_of(MEAN_LOSS, MEAN_LOSS.parts)
    assert {job.entry for job in jobs} == {"esync", "sync", "async", "dcasgd", "alone"}
    assert {job.step_size for job in jobs} == {"7.8125e-06"}  # 0.0005 / 64
    assert {config_of(job)[1].batch_size for job in jobs} == {64}
    assert "| step size 7.8125e-06 |" in reproduction.tables([jobs[0]])


def test_only_the_runs_that_are_named_are_done(tmp_path, capsys):
    command = ["--full", "--parts", "networks,training", "--only", "SSGD mobilenet-v1 ", "--folder", str(tmp_path)]
    assert reproduce.main([*command, "--list"]) == EXIT_OK
    assert capsys.readouterr().out.split() == ["networks", "SSGD", "mobilenet-v1", "iid"]


def test_each_run_that_trains_is_done_with_all_seeds():
    jobs = reproduce.jobs_of(QUICK, [CLUSTER, SWITCH], seeds=(3, 4, 3))
    assert {job.seed for job in jobs if job.part == CLUSTER} == {0}  # times alone are the same with any
    assert [job.seed for job in jobs if job.part == SWITCH][:4] == [3, 4, 3, 4]
    assert [config_of(job)[1].seed for job in jobs] == [job.seed for job in jobs]
    assert len({job.key for job in jobs}) == len(jobs)
    assert reproduce.named(jobs[-1]) == "sync-switch Sync-Switch 100 iid seed 4"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--parts speed", "'speed' is unknown; choose from cluster"),
        ("--quick --full", "not allowed with"),
        ("--jobs 0", "0 is out of range"),
        ("--seeds 0,x", "'0,x' is no list of seeds with commas"),
        ("--only LeNet", "--only 'LeNet': no run of cluster, training"),
    ],
)
def test_what_is_no_command_is_refused(words, complaint, refused):
    assert complaint in refused(reproduce.parse, *words.split())


# ------------------------------------------------------------------------------------------------------------ the runs


class Done(Processes):
    """Runs that end at once and leave nothing but what they have printed."""

    def __init__(self, base, text="", code=EXIT_OK):
        super().__init__(base)
        self._base, self._its, self._code, self.commands = base, text, code, []

    def do(self, command, folder):
        base = self._base / str(len(self.commands))
        base.mkdir(parents=True)
        (base / "output.txt").write_text(self._its)
        self.commands.append(command)
        return Ended(base, folder, self._code)


def test_what_failed_is_kept_and_done_again_and_what_diverged_is_not(tmp_path):
    jobs = reproduce.jobs_of(QUICK, [SWITCH])[:2]
    for text, failed, again in ((f"error: {DIVERGED}", 0, 0), ("a | error: no room", 2, 2)):
        folder = tmp_path / str(failed)
        folder.mkdir()
        first = reproduce.Reproduction(folder, Done(tmp_path / f"runs{failed}", text, EXIT_BUG), 1)
        assert first.do(jobs) == failed
        processes = Done(tmp_path / f"again{failed}", text, EXIT_BUG)
        second = reproduce.Reproduction(folder, processes, 1)
        second.do(jobs)
        assert len(processes.commands) == again
        assert {row.failed for row in second.rows.values()} == {"error: no room" if failed else ""}


def test_a_run_of_another_version_or_another_command_is_done_anew(tmp_path, monkeypatch):
    job, other = reproduce.jobs_of(QUICK, [CLUSTER])[:2]
    row = dataclasses.replace(job, program=reproduce.version.files_hash())
    run_lines.append(tmp_path, row)
    assert reproduce.Reproduction(tmp_path, Done(tmp_path), 1).is_done(job)
    assert not reproduce.Reproduction(tmp_path, Done(tmp_path), 1).is_done(other)
    longer = dataclasses.replace(job, command=(*job.command, "--max-rounds", "9"))
    assert not reproduce.Reproduction(tmp_path, Done(tmp_path), 1).is_done(longer)
    monkeypatch.setattr(reproduce.version, "files_hash", lambda: "another")
    assert not reproduce.Reproduction(tmp_path, Done(tmp_path), 1).is_done(job)


def test_a_list_says_what_is_done_and_runs_nothing(tmp_path, capsys):
    job = reproduce.jobs_of(QUICK, [CLUSTER])[0]
    run_lines.append(tmp_path, dataclasses.replace(job, program=reproduce.version.files_hash()))
    assert reproduce.main(["--list", "--parts", "cluster", "--folder", str(tmp_path)]) == EXIT_OK
    first, second, *_ = [line for line in capsys.readouterr().out.splitlines() if "cluster" in line]
    assert first.startswith("done cluster ESync as published") and second.startswith("     cluster")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [('{"part": "speed"}', "missing"), (json.dumps({**dataclasses.asdict(EVERY_JOB[0][1]), "part": "speed"}),
                                        "part is 'speed'; it should be one of cluster")],
)  # fmt: skip
def test_a_line_that_is_no_run_is_named(tmp_path, text, complaint):
    (tmp_path / run_lines.RUNS_FILE).write_text(text + "\n")
    with pytest.raises(SetupError, match=complaint):
        reproduction.read(tmp_path)


def test_the_numbers_of_a_row_are_those_of_its_workers():
    both = {"samples": 64, "entries": 2, "aggregation_s": 1.0}
    fast = metrics.Device(
        [
            Round(number=1, elapsed_s=2.0, computing_s=1.0, bytes_pushed=500_000, **both),
            Round(number=2, elapsed_s=4.0, computing_s=2.0, bytes_pushed=500_000, **both),
        ],
        [0.5, 0.8],
        [2.0, 4.0],
    )
    slow = metrics.Device([Round(number=1, elapsed_s=5.0, computing_s=4.0, bytes_pushed=1_000_000, **both)])
    devices = {("virtual", "cpu0"): fast, ("virtual", "cpu1"): slow}
    its = reproduction.measured(EVERY_JOB[0][1], {}, devices)
    assert its == {
        "seconds": 5.0,
        "samples_per_s": 38.4,
        "traffic": 0.4,
        "rounds": 1,
        "computing": [0.75, 0.8],
        "curve": [(2.0, 0.5), (4.0, 0.8)],
    }


# ---------------------------------------------------------------------------------------------------------- the tables


def row(part, name, entry, **more):
    return Row(part=part, name=name, entry=entry, network="mlp", program="0123456789abcdef", **more)


def cells(table, *begin):
    (line,) = (line for line in table.splitlines() if line.startswith(f"| {' | '.join(begin)} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][len(begin) :]


def test_the_cluster_s_numbers_stand_beside_the_published_ones():
    its = {"samples_per_s": 3110.0, "traffic": 10.5, "computing": (0.36, 0.38, 0.37, 0.37, 0.4, 0.4)}
    table = reproduction.tables([row(CLUSTER, "ESync", "esync", **its)])
    assert cells(table, "ESync") == ["1555", "3110", "2.00", "21", "10", "0.50", "0.37", "0.36..0.38", "0.40", "0.40"]


def test_minutes_and_speed_ups_stand_beside_the_published_ones():
    rows = [
        row(TRAINING, "ESync", "esync", curve=((60.0, 0.7), (270.0, 0.81), (300.0, 0.79))),
        row(TRAINING, "SSGD", "sync", curve=((3300.0, 0.8),)),
        row(TRAINING, "ESync", "esync", split="by-class", curve=((60.0, 0.7),)),
    ]
    table = reproduction.tables(rows)
    esync = ["9", "4.5", "0.50", "6.1", "12.2", "2.00", "", "", "0.810", "5.0"]
    assert cells(table, "ESync, mlp", "i.i.d.") == esync
    assert cells(table, "SSGD, mlp", "i.i.d.")[:6] == ["55", "55.0", "1.00", "1", "1.0", "1.00"]
    assert cells(table, "ESync, mlp", "by class") == ["", "-", "", "", "-", "", "", "", "0.700", "1.0"]


def test_of_several_seeds_the_median_stands_with_the_least_and_the_greatest():
    runs = [("SSGD", "sync", 0, 600.0), ("SSGD", "sync", 1, 1200.0), ("SSGD", "sync", 2, 1800.0)]
    runs += [("ESync", "esync", 2, 200.0), ("ESync", "esync", 0, 100.0), ("ESync", "esync", 1, 300.0)]
    runs += [("ASGD", "async", 0, 300.0)]
    rows = [row(TRAINING, name, entry, seed=seed, curve=((at, 0.81),)) for name, entry, seed, at in runs]
    table = reproduction.tables(rows)
    esync = cells(table, "ESync, mlp, seed 0..2", "i.i.d.")
    assert esync[1:3] == ["3.3 (1.7 to 5.0)", "0.37"]  # published: 9 minutes
    assert esync[4] == "6.0 (4.0 to 9.0)"  # each seed beside SSGD's run of that seed
    assert cells(table, "ASGD, mlp, seed 0", "i.i.d.")[4] == "2.0"
    assert "seed 0..2. Of several seeds" in table


@pytest.mark.parametrize(
    ("values", "text"),
    [([1.0], "1.0"), ([None], "-"), ([3.0, 1.0], "2.0 (1.0 to 3.0)"), ([1.0, None, None], "- (1.0 to -)"),
     ([2.0, None, 1.0], "2.0 (1.0 to -)"), ([], "-")],
)  # fmt: skip
def test_a_target_that_was_not_reached_is_infinitely_far(values, text):
    assert reproduction.of_runs(values, ".1f") == text


def test_a_run_without_an_accuracy_is_the_worst_one():
    assert reproduction.of_runs([0.8, None, 0.9], ".2f", -math.inf) == "0.80 (- to 0.90)"


def test_a_network_and_a_heterogeneity_need_esync_and_ssgd():
    both = {"case": "150", "samples_per_s": 10.0}
    rows = [
        row(HETEROGENEITY, "ESync", "esync", curve=((10.0, 0.8),), **both),
        row(HETEROGENEITY, "SSGD", "sync", curve=((67.0, 0.8),), **both),
        row(NETWORKS, "ESync", "esync", case="mobilenet-v1"),
    ]
    table = reproduction.tables(rows)
    assert cells(table, "150") == ["6.7", "6.7", "1.00", "10", "67", "1.0"]
    assert "mobilenet" not in table and "Other networks" not in table


def test_each_kind_of_esync_stands_beside_ssgd_on_the_same_cluster():
    def trained(name, entry, seconds, case="mobilenet-v1, paper-12"):
        return row(NETWORKS, name, entry, case=case, samples_per_s=10.0, curve=((seconds, 0.8),))

    rows = [
        trained("ESync", "esync", 10.0),
        trained("ESync as published", "esync", 40.0),
        trained("SSGD", "sync", 80.0),
        dataclasses.replace(trained("SSGD", "sync", 20.0), seed=1),  # ESync was not run with it
        trained("SSGD", "sync", 990.0, case="mobilenet-v1"),
        dataclasses.replace(trained("ESync", "esync", 10.0, case="mobilenet-v1"), seed=1),
    ]
    table = reproduction.tables(rows)
    assert cells(table, "mobilenet-v1, paper-12") == ["2", "8.0", "4.00", "10", "80", "1.0"]
    assert cells(table, "mobilenet-v1, paper-12, ESync as published") == ["2", "2.0", "1.00", "40", "80", "1.0"]
    assert "| mobilenet-v1 |" not in table


def test_times_of_sync_switch_are_shares_of_bsp_s():
    rows = [row(SWITCH, "Sync-Switch", "sync-switch", case=case, seconds=seconds, curve=((1.0, 0.9),)) for case, seconds
            in (("100", 200.0), ("0", 50.0))]  # fmt: skip
    table = reproduction.tables(rows)
    assert cells(table, "0") == ["0.152", "0.250", "1.64", "0.892 (0.010)", "0.900"]
    assert cells(table, "100")[:3] == ["1", "1.000", "1.00"]
    assert cells(reproduction.tables(rows[1:]), "0")[:3] == ["0.152", "-", ""]  # as long as BSP alone is not done


def test_wbsp_s_fast_half_stands_beside_the_published_ratio():
    table = reproduction.tables([row(WBSP, "WBSP", "wbsp-pcc", case="H1", computing=(0.9, 0.92, 0.99, 0.99))])
    assert cells(table, "H1", "WBSP") == ["0.91", "0.90..0.92", "0", ""]


def test_runs_that_failed_are_named_and_not_in_the_table():
    table = reproduction.tables([row(SWITCH, "Sync-Switch", "sync-switch", case="5", failed="no room")])
    assert table.endswith("FAILED: sync-switch, Sync-Switch 5: no room.")
    assert "Sync-Switch: first BSP" not in table
    assert "| 5 |" not in table


def test_every_row_of_the_cluster_has_published_numbers():
    for job in reproduce.jobs_of(FULL, [CLUSTER]):
        assert job.entry in published.RESNET18
    assert {int(job.case) for job in reproduce.jobs_of(FULL, [SWITCH])} == {*published.SYNC_SWITCH}


# ------------------------------------------------------------------------------------------------ figures and the page


@pytest.fixture
def folder(tmp_path):
    """A few runs, and their page with a place for the tables."""
    (tmp_path / "small").mkdir()
    for split in ("iid", "by-class"):
        for name, entry in (("ESync", "esync"), ("SSGD", "sync")):
            curve = ((60.0, 0.7), (120.0, 0.81))
            run_lines.append(tmp_path / "small", row(TRAINING, name, entry, split=split, curve=curve))
    run_lines.append(tmp_path / "small", row(TRAINING, "Standalone", "alone", curve=((60.0, 0.85),)))
    its = {"samples_per_s": 10.0, "traffic": 1.0, "computing": (0.4,) * 6}
    run_lines.append(tmp_path / "small", row(CLUSTER, "ESync", "esync", **its))
    (tmp_path / "small" / "README.md").write_text(
        "# Small\n\n" + "\n".join(markdown.marks("tables")) + "\n\nand more\n"
    )
    return tmp_path / "small"


def test_the_tables_and_five_figures_are_written_and_again_the_same(folder):
    assert reproduce.main(["--tables", "--folder", str(folder)]) == EXIT_OK
    text = (folder / "README.md").read_text()
    assert [name for name in reproduction_figures.DRAWN if (folder / f"{name}.png").exists()] == [
        *reproduction_figures.DRAWN
    ]
    assert all(f"]({name}.png)" in text for name in reproduction_figures.DRAWN)
    assert text.endswith("<!-- end of tables -->\n\nand more\n")
    part = reproduce.part_of_page(reproduce.in_order(reproduction.read(folder), QUICK))
    assert markdown.updated(text, "tables", part) == text


def test_accuracies_after_two_hours_stand_only_beside_runs_of_two_hours():
    runs = [
        row(TRAINING, "SSGD", "sync", curve=((60.0, 0.7), (minutes * 60.0, 0.81)), case=str(minutes))
        for minutes in (10, 120)
    ]
    short, long = (line.split(" | ")[-4] for line in reproduction.tables(runs).splitlines() if "SSGD, " in line)
    assert (short.strip(), long.strip()) == ("", "0.86")


def test_the_line_of_one_machine_alone_is_drawn_where_it_trained_as_long_as_published():
    short, long = (row(TRAINING, "Standalone", "alone", curve=((60.0, 0.85),), seconds=each) for each in (60.0, 7200.0))
    drawn = row(TRAINING, "ESync", "esync", curve=((60.0, 0.7),))
    for runs, standalone in (((drawn, short), None), ((drawn, long), 0.85)):
        (_, _, draw), *_ = reproduction_figures.figures(runs)
        assert draw.keywords["standalone"] == standalone


@pytest.mark.usefixtures("unpainted")
def test_of_several_seeds_the_figures_have_bands(folder):
    for seed in (1, 2):
        run_lines.append(folder, row(TRAINING, "SSGD", "sync", seed=seed, curve=((60.0, 0.6), (120.0, 0.8))))
    assert reproduce.main(["--tables", "--folder", str(folder)]) == EXIT_OK
    (name, runs, _), *_ = reproduction_figures.figures(reproduce.in_order(reproduction.read(folder), QUICK))
    assert name == "accuracy-iid"
    assert {mode.algorithm.name: len(curves) for mode, curves in runs.items()} == {"esync": 1, "sync": 3}


@pytest.mark.usefixtures("unpainted")
def test_a_page_without_a_place_for_the_tables_is_left_as_it_is(folder, refused):
    page = folder / "README.md"
    page.write_text("no marks")
    assert "add the lines <!-- tables -->" in refused(reproduce.main, "--tables", "--folder", str(folder))
    assert page.read_text() == "no marks"


def test_without_runs_there_are_no_tables(tmp_path, refused):
    told = refused(reproduce.main, "--tables", "--folder", str(tmp_path))
    assert "scripts/reproduce.sh makes one" in told
