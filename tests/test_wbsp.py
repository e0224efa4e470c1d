"""WBSP on real clusters: what is released, that nothing is lost, and who waits."""

from types import SimpleNamespace

import numpy as np
import pytest
from cluster_processes import ROOT, cluster
from recording_state_server import passing_on
from state_server_process import running_state_server

from trainer.clock import RealClock
from trainer.membership import Membership
from trainer.wbsp import WBSPTrainer

BATCH = 16  # of the program below
PROGRAM = str(ROOT / "tests" / "wbsp_worker.py")
STEP_TIMES = ("0.01", "0.06")


@pytest.fixture(scope="module", params=["0", "1"], ids=["without overlap", "with overlap"])
def records(request, tmp_path_factory):
    """By rank, all that a worker uploaded and pulled."""
    folder = tmp_path_factory.mktemp("wbsp")
    job = cluster(folder, num_workers=len(STEP_TIMES))
    with running_state_server() as server, passing_on(server.port) as recorder, job as processes:
        for rank, step_time in enumerate(STEP_TIMES):
            output = str(folder / f"{rank}.npz")
            processes.start_worker(rank, PROGRAM, str(recorder.port), request.param, step_time, output)
        assert set(processes.exit_codes().values()) == {0}, processes.log("worker0")
    told = [recorder.of(rank, "REPORT", "QUERY") for rank in range(len(STEP_TIMES))]
    return [dict(np.load(folder / f"{rank}.npz")) | {"told": told[rank]} for rank in range(len(STEP_TIMES))]


def test_each_release_is_the_initial_model_plus_all_uploads_over_n(records):
    checked = 0
    for record in records:
        for included, model in zip(record["included"], record["models"], strict=True):
            expected = record["initial"].astype(np.float64)
            for count, other in zip(included, records, strict=True):
                expected += other["uploads"][:count].astype(np.float64).sum(axis=0) / len(records)
            np.testing.assert_allclose(model, expected, atol=2e-6)
            checked += 1
    assert checked > 10


def test_all_pulls_of_a_release_are_bit_identical(records):
    pulled = {}
    for record in records:
        for number, model in zip(record["releases"], record["models"], strict=True):
            pulled.setdefault(int(number), []).append(model)
    shared = {number: models for number, models in pulled.items() if len(models) > 1}
    assert len(shared) > 5
    for models in shared.values():
        assert all(np.array_equal(models[0], model) for model in models[1:])
    assert any(not np.array_equal(shared[a][0], shared[b][0]) for a, b in zip(shared, list(shared)[1:], strict=False))


def test_no_step_is_lost_whether_it_came_before_during_or_after_a_pull(records):
    for record in records:
        assert record["steps"].sum() == record["rounds"]
        np.testing.assert_allclose(record["uploads"].sum(axis=0), record["moved"], atol=2e-5)


def test_a_release_comes_with_each_upload_of_the_slowest_worker_and_nobody_waits_for_it(records):
    fast, slow = records
    assert slow["rounds"] / 2 < slow["releases"].max() <= 1.5 * slow["rounds"] + 1
    assert fast["rounds"] > 2 * slow["rounds"]


def test_the_state_server_is_told_all_of_a_worker_to_its_end(records):
    for record in records:
        told = record["told"]
        assert told[-1]["doing"] == "ended"
        assert told[-1]["total"]["steps"] == record["rounds"]
        assert told[-1]["total"]["samples"] == BATCH * record["rounds"]
        totals = [message["total"]["steps"] for message in told]
        assert totals == sorted(totals)


class Link:
    """A worker's way to a parameter server whose release is the one that it is set to."""

    def __init__(self):
        self.release = 0

    def begin_to_send(self, arrays):
        return arrays

    def wait_until_sent(self, sending):
        pass

    def command(self, *_):
        return self.read_board()

    def read_board(self):
        return np.array([self.release, 0, 0, 0])

    def pull(self, arrays):
        pass

    def take_traffic(self):
        return {}


class State:
    """A state server's client that writes down the reports, and tells nobody to release."""

    def __init__(self):
        self.reports = []

    def query(self, *_):
        return False

    def report(self, round_, step_s, transmission_s, accuracy):
        self.reports.append((round_, accuracy))


def test_a_worker_for_which_several_releases_come_at_once_reports_the_latest():
    link, state = Link(), State()
    context = SimpleNamespace(
        network=SimpleNamespace(collect_params=dict),
        membership=lambda: Membership(0, 2),
        clock=RealClock(),
        state=state,
        shared=SimpleNamespace(rank=0, arrays=lambda first_key=0: None),
    )
    trainer = WBSPTrainer(context, 0.001, overlap=True)
    trainer._link = link
    for release in (1, 4, 4, 5):
        link.release = release
        trainer._upload([], 1, 0.1, False, 0.25 if release == 4 else None)
    assert state.reports == [(2, None), (5, 0.25), (6, 0.25)]
