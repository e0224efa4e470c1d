"""experiments/fault_drill/storm.py: the schedule of its faults, and the numbers of its tables, by hand."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from experiments.fault_drill import storm
from experiments.fault_drill.replay import replay
from experiments.fault_drill.storm import JOBS, KINDS, schedule
from utils import SetupError

PLAN = JOBS["esync-ring"]
LASTS_S = PLAN.lasts_s


def test_the_storm_follows_from_its_seed_and_strikes_at_most_a_third_of_the_workers_at_once():
    strikes = schedule(PLAN, 3, 60, 1800.0)
    assert strikes == schedule(PLAN, 3, 60, 1800.0) != schedule(PLAN, 4, 60, 1800.0)
    assert {*Counter(strike.kind for strike in strikes).values()} == {6, 7} and len(strikes) == 60
    assert all(len({*strike.workers}) == KINDS[strike.kind] <= PLAN.newcomer / 3 for strike in strikes)
    assert {number for strike in strikes for number in strike.workers} == {*range(PLAN.newcomer)}
    pairs = itertools.pairwise(strikes)
    assert all(later.at_s > sooner.at_s + LASTS_S for sooner, later in pairs)  # each is over before the next
    assert strikes[0].at_s >= 0 and strikes[-1].at_s + LASTS_S < 1800


def test_a_pause_is_that_of_healthy_workers_and_a_struck_one_is_excused_for_its_fault_alone():
    pauses = [1.0, 2.0, 9.0, 30.0, *[1.5] * 4]
    fault = {"kind": "freeze", "workers": [3], "pauses_s": pauses}
    assert storm.pause_s(fault) == 9.0 and storm.excused_s(fault, LASTS_S) == {3: LASTS_S}
    assert storm.excused_s(fault | {"kind": "one direction", "workers": [3, 2]}, LASTS_S) == {3: LASTS_S}
    assert storm.excused_s(fault | {"kind": "two kills", "workers": [1, 2]}, LASTS_S) == {1: 2.0, 2: storm.START_S}
    assert storm.excused_s(fault | {"kind": "full disk"}, LASTS_S) == {3: 0.0}
    assert storm.excused_s(fault | {"kind": "newcomer", "workers": []}, LASTS_S) == {}


def test_a_pause_reaches_into_the_time_of_its_fault():
    watch = storm.Watch.__new__(storm.Watch)
    watch.times = {0: [100.0, 101.0, 109.0, 110.0, 113.0]}
    found = [watch.pause_s(0, *between, 1.5) for between in ((102.0, 108.0), (109.5, 112.0), (113.5, 120.0))]
    assert found == [8.0, 3.0, 7.0]
    assert watch.pause_s(0, 105.0, 112.0, 1.5) == 3.0  # not that of the fault before, nor of the one behind
    assert watch.pause_s(0, 101.5, 111.0, 1.5) == 8.0


def test_the_page_shows_the_tables_of_its_raw_lines():
    folder = storm.ROOT / "results" / "storm"
    assert storm.made_tables(folder) in (folder / "README.md").read_text()


def test_what_a_real_job_has_decided_is_decided_again_and_a_line_that_differs_is_named():
    """Three workers in a ring, of which one was killed and came back."""
    lines = gzip.decompress(Path(__file__).with_name("decisions.jsonl.gz").read_bytes()).decode().splitlines()
    assert replay(lines, "it") == len(lines) == 69
    late = json.dumps(json.loads(lines[60]) | {"generation": 4})
    with pytest.raises(SetupError, match=r"it, line 61: decided now .*\"generation\": 3.*, then .*\"generation\": 4"):
        replay([*lines[:60], late], "it")
