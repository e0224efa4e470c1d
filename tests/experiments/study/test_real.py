"""Studies on real processes: the command of the launcher, and processes that have a quota."""

from __future__ import annotations

import subprocess

import pytest
from cluster_processes import wait_for

from experiments import quotas
from experiments.study.real_comparison import real_command
from scripts.launch import local_cluster
from utils import SetupError

VIRTUAL = "simulate.py -m fastest-local --cluster half --seed 3 -n mlp -ll 0.002 --fastest 2 --max-seconds 9"


@pytest.mark.parametrize("end", ["--sync-every 4", "-- --sync-every 4"])
def test_a_virtual_run_becomes_one_of_the_launcher_wherever_its_options_stand(end):
    program, *words = real_command(f"{VIRTUAL} {end}".split())
    own, its = "-m fastest-local --cluster half -n mlp --fastest 2", "--seed 3 -ll 0.002 --max-seconds 9 --sync-every 4"
    assert (program, " ".join(words)) == ("scripts/local_cluster.sh", f"{own} -- {its} --evaluator 1")
    job = local_cluster.parse(words)
    assert [worker.step_time_s for worker in job.hosts.workers] == [0.04, 0.04]


def test_a_slow_worker_s_process_has_a_quota_until_it_is_let_go(tmp_path):
    try:
        quotas.remove(quotas.group("test", 0.4))
    except SetupError as error:
        pytest.skip(str(error))
    (named := tmp_path / "worker 2").symlink_to("/bin/sh")
    with subprocess.Popen([named, "-c", "while :; do :; done"]) as process, quotas.limited({2: 0.4}) as groups:
        try:
            wait_for(lambda: 2 in groups, "the process is found")
            group = groups[2]
            assert (group / "cgroup.procs").read_text().split() == [str(process.pid)]
            limits = [(group / name).read_text() for name in ("cpu.max",) if (group / name).exists()]
            limits += [file.read_text() for file in group.glob("cpu.cfs_[pq]*_us")]
            assert sorted(" ".join(limits).split()) == ["100000", "40000"]
        finally:
            process.kill()
            process.wait()
    assert not group.exists()
