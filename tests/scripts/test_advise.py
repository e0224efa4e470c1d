"""scripts/advise.sh: what it chooses from, runs that pause, and an answer for a job that is learnt at once."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace

import pytest
import tiny_data

import simulate
from scripts import advise
from scripts.advice import answer, candidates, search
from scripts.advice.candidates import FAMILIES, Candidate, nearest, sizes, starts, useful
from trainer.jobs.job import job_of
from trainer.simulation import virtual_cluster
from trainer.simulation.paused_run import PausedRun
from utils import EXIT_OK

FAMILY = {each.entry: each for each in FAMILIES}


@pytest.fixture
def place(tmp_path):
    """A folder with a dataset that is learnt at once, and a cluster of three workers."""
    tiny_data.write_mnist(tmp_path / "data" / "mnist")
    (tmp_path / "three.csv").write_text("step_time_s\n0.02\n0.05\n0.4\n")
    return tmp_path


def flags_in(place):
    return ["--dataset", "mnist", "-dd", str(place / "data"), "-b", "8"]


def esync(k, samples_per_s, steps=1.0):
    return Candidate(FAMILY["esync"], k, samples_per_s, steps)


def found(candidates, steps):
    """A search that has found these step sizes so far."""
    its = search.Search.__new__(search.Search)
    its.target, its.every, its.candidates, its.steps = 0.9, 50, candidates, steps
    its.tried, its.races, its.reached, its.curves = [], {}, set(), {}
    return its


def test_all_numbers_of_few_machines_are_looked_at_and_some_of_many():
    assert sizes(4) == [1, 2, 3, 4]
    many = sizes(1000)
    assert len(many) <= candidates.MOST_SIZES and many[0] == 1 and many[-1] == 1000 and many == sorted(many)


def test_machines_that_add_no_samples_are_left_out():
    given = [esync(1, 100), esync(2, 190), esync(3, 191), esync(4, 150), esync(5, 250)]
    assert [each.k for each in useful(given)] == [1, 2, 5]
    assert useful([*given, Candidate(FAMILY["sync"], 1, 90, 1.0)])[0].family.entry == "esync"


def test_the_law_prefers_few_machines_unless_they_are_much_slower():
    """seconds = a (1 + K / 3 + h / 10) / rate: 1.43 / 100, 1.77 / 190 and 2.1 / 200 of a."""
    best, _ = starts([esync(1, 100), esync(2, 190), esync(3, 200)])
    assert best.k == 2
    assert best.seconds(1000) == pytest.approx(1000 * (1 + 2 / 3 + 0.1) / 190)


def test_only_runs_that_reached_the_target_tell_its_time(monkeypatch):
    """A race's losers are ended; what one would have taken that always is, is not known."""
    one, other = esync(2, 190), Candidate(FAMILY["sync"], 2, 150, 1.0)
    its = found([one, other], {one: 0.1, other: 0.2})
    its.races = {search.Entrant(one, 0.1): [1.0, 2.0], search.Entrant(other, 0.2): [1.4, 2.4]}
    its.reached = {search.Entrant(one, 0.1)}
    (row,) = answer.rows_of(its)
    assert (row.candidate, row.runs, row.seconds) == (one, 2, pytest.approx(math.exp(1.5)))
    assert row.low_s < row.seconds < row.high_s
    assert its.expected_s(other) == math.inf


def test_a_candidate_that_left_a_race_is_not_taken_for_fast_by_its_easy_seeds():
    """The others of its seed were fast, too; later ones were slow."""
    one, other = esync(2, 190), Candidate(FAMILY["sync"], 2, 150, 1.0)
    its = found([one, other], {one: 0.1, other: 0.2})
    its.races = {search.Entrant(one, 0.1): [1.0, 1.5, 2.0], search.Entrant(other, 0.2): [1.2]}
    its.reached = {*its.races}
    assert its.times_s() == {one: pytest.approx(math.exp(1.5)), other: pytest.approx(math.exp(1.7))}


def test_the_law_is_fitted_to_what_was_seen_nearby():
    """With few machines and with many its constant differs."""
    few, many, between = esync(2, 190, 4.0), esync(12, 600, 4.0), esync(8, 500, 4.0)
    its = found([few, between, many], {few: 0.1})
    assert its.expected_s(between) == math.inf
    its.races = {search.Entrant(few, 0.1): [math.log(few.seconds(7e4))]}
    its.reached = {search.Entrant(few, 0.1)}
    its.races[search.Entrant(between, 0.1)] = []  # it is to race
    assert its.expected_s(between) == pytest.approx(between.seconds(7e4))
    its.steps[many] = 0.2
    assert its.expected_s(between) == its.expected_s(many) == math.inf  # tried, and given up
    its.races[search.Entrant(many, 0.2)] = [math.log(many.seconds(3e4))]
    its.reached.add(search.Entrant(many, 0.2))
    assert its.expected_s(between) == pytest.approx(between.seconds(3e4))
    assert its.step_of(between) == 0.2
    assert nearest(Candidate(FAMILY["sync"], 3, 150, 1.0), [few, many]) is None


def test_a_family_starts_also_with_all_machines_where_the_law_has_few():
    """The law was fitted to few machines."""
    few, many = esync(2, 190), esync(12, 300)
    assert starts([few, esync(3, 200), many]) == [few, many]
    assert starts([few, esync(3, 200)]) == [few, esync(3, 200)]
    assert starts([esync(4, 400), esync(5, 401)]) == [esync(4, 400)]


def test_a_race_goes_on_with_those_that_may_be_the_fastest():
    """The last of several loses at 1.3 standard errors, of two at 2: 0.2 / sqrt(seeds), until four seeds have run."""
    a, b, c = (search.Entrant(esync(k, 190), 0.1) for k in (2, 3, 4))
    assert search.going_on({a: [1.0, 1.0], b: [1.1, 1.0], c: [1.0, 1.4]}) == [a, b]
    assert search.going_on({c: [1.0, 1.4], b: [1.1, 1.0], a: [1.0, 1.0]}) == [a, b]
    assert search.going_on({a: [1.0, 1.0], c: [1.0, 1.4]}) == [a, c]
    assert search.going_on({a: [1.0, 1.0], c: [1.3, 1.4]}) == [a]  # 0.35 is more than 2 * 0.2 / sqrt(2)
    assert search.going_on({a: [1.0, 1.0], b: [1.3, 1.4], c: [1.4, 1.4]}) == [a]


def test_a_race_ends_where_all_are_equal_and_between_step_sizes_of_one_row_after_three_seeds():
    """Further seeds would cost the user time for nothing."""
    a, b = (search.Entrant(esync(k, 190), 0.1) for k in (2, 3))
    seeds = [1.0, 1.2, 1.1, 1.3] * 16
    assert search.going_on({a: seeds, b: [each + 0.03 for each in seeds]}) == [a]
    assert search.going_on({a: seeds[:4], b: [each + 0.03 for each in seeds[:4]]}) == [a, b]
    size = search.Entrant(esync(2, 190), 0.2)
    assert search.going_on({a: [1.0] * 3, size: [1.1] * 3}) == [a, size]
    assert search.going_on({a: [1.0] * 4, size: [1.05] * 4}) == [a]
    assert search.going_on({a: [1.0] * 4, b: [1.05, 1.0, 1.2, 1.0]}) != [a]


def test_a_run_that_pauses_trains_as_one_that_does_not(place):
    """Also where another run goes on meanwhile."""
    words = ["-m", "esync", "--cluster", str(place / "three.csv"), "-n", "mlp", *flags_in(place)]
    words += ["-ll", "0.01", "--max-seconds", "2", "--eval-seconds", "0.2", "--log-base", str(place / "logs")]
    job = simulate.parse(words)[1][0].job
    whole = PausedRun(job, learnt := job_of(job.config))
    whole.advance(math.inf)
    one, other = (PausedRun(job, learnt) for _ in range(2))
    for until_s in (0.3, 1.1, 1.2, math.inf):
        one.advance(until_s)
        other.advance(until_s + 0.4)
        assert one.seconds >= min(until_s, 1.9) and one.cpu_s > 0
    assert one.is_over and one.error is None
    assert len(whole.curve) > 4
    assert one.curve == other.curve == whole.curve
    unfinished = PausedRun(job, learnt)
    unfinished.advance(0.4)
    for each in (whole, one, other, unfinished):
        each.close()
        assert not each.logs.exists()
    again = virtual_cluster.VirtualRun(replace(job, earlier=None))
    assert again.run()  # nothing is left that would disturb another run


def test_an_answer_has_rows_and_a_command_that_runs(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(search, "NEEDED_STEPS", 100)
    given = ["--cluster", "three.csv", "-n", "mlp", "--target-accuracy", "0.5", "--minutes", "0.15"]
    given += ["--json", "a.json", "--figure", "a.png"]
    assert advise.main([*given, "--", *flags_in(place), "-ll", "0.01"]) == EXIT_OK
    said = capsys.readouterr().out
    found = json.loads((place / "a.json").read_text())
    assert found["rows"][0]["seconds"] <= found["rows"][-1].get("seconds", math.inf)
    assert found["answer"]["seconds"] > 0 and found["answer"]["how"] != "predicted"
    assert (place / "a.png").stat().st_size > 10_000 and (place / "a.pdf").exists()
    command = next(line for line in said.splitlines() if line.startswith(".venv/bin/python "))
    assert command == found["command"] and command.startswith(".venv/bin/python simulate.py --cluster three.csv -m ")
    (run,) = simulate.parse(shlex.split(command)[2:])[1]
    assert run.job.config.target_accuracy == 0.5 and run.job.config.max_seconds >= 2 * found["answer"]["seconds"]
    assert len(run.job.cluster.workers) == len(found["answer"]["machines"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--cluster one.csv --target-accuracy 0.9", "has one machine, so there is nothing to choose"),
        ("--cluster three.csv --target 3", "--target 3 is no number from 0 to 1"),
        ("--cluster nowhere --target-accuracy 0.9", "nowhere"),
        (
            "--cluster three.csv --target-accuracy 0.9 --without gpu1",
            "--without is about the hosts of --hosts: leave it out",
        ),
        ("--target-accuracy 0.9", "one of the arguments --hosts --cluster is required"),
        ("--cluster three.csv --target-accuracy 0.9 -- --fast 1", "unknown argument --fast"),
        ("--cluster three.csv --target-accuracy 0.9 -- -m sync", "-m behind `--`: the search sets it"),
        ("--cluster three.csv --target-accuracy 0.9 -- --fastest=2", "--fastest behind `--`"),
        ("--cluster three.csv --target-accuracy 0.9 --json none/a.json", "none/a.json: there is no folder"),
        ("--cluster three.csv --target-accuracy 0.9 --figure a.v2", "give a name that ends with .png or .pdf"),
    ],
)
def test_what_cannot_be_advised_is_one_line(place, words, complaint, refused, monkeypatch):
    monkeypatch.chdir(place)
    (place / "one.csv").write_text("step_time_s\n0.02\n")
    before, _, behind = words.partition(" -- ")
    assert complaint in refused(advise.main, *before.split(), "-n", "mlp", "--", *flags_in(place), *behind.split())


def test_a_target_that_nobody_reaches_is_answered_by_the_best_value(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(search, "NEEDED_STEPS", 100)
    given = ["--cluster", "three.csv", "-n", "mlp", "--target-accuracy", "1", "--minutes", "0.12"]
    assert advise.main([*given, "--", *flags_in(place), "-ll", "1e-9"]) == 2
    assert "no candidate reached 1 within the time: the best accuracy on the held-out" in capsys.readouterr().err
