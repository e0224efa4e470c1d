"""Studies on real processes: the command of the launcher, and processes that are slowed down."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cluster_processes import wait_for

from experiments.study import real_slowness
from experiments.study.real_comparison import real_command
from experiments.study.real_slowness import Slowed
from scripts.launch import local_cluster

VIRTUAL = "simulate.py -m fastest-local --cluster half --seed 3 -n mlp -ll 0.002 --fastest 2 --max-seconds 9"


@pytest.mark.parametrize("end", ["--sync-every 4", "-- --sync-every 4"])
def test_a_virtual_run_becomes_one_of_the_launcher_wherever_its_options_stand(end):
    program, *words = real_command(f"{VIRTUAL} {end}".split())
    own, its = "-m fastest-local --cluster half -n mlp --fastest 2", "--seed 3 -ll 0.002 --max-seconds 9 --sync-every 4"
    assert (program, " ".join(words)) == ("scripts/local_cluster.sh", f"{own} -- {its} --evaluator 1")
    job = local_cluster.parse(words)
    assert [worker.step_time_s for worker in job.cluster.workers] == [0.04, 0.04]


@pytest.mark.parametrize("signals", [False, True], ids=["control group", "signals"])
def test_a_slow_worker_s_process_is_held_and_let_go(signals, tmp_path):
    if not signals:
        if (probe := real_slowness.group("test")) is None:
            pytest.skip("no control group can be made here")
        real_slowness.remove(probe)
    command = ["sh", "-c", "while :; do :; done", "main.py", "--device-name", "cpu2", f"{tmp_path}/cpu2"]
    with subprocess.Popen(command) as process, Slowed(tmp_path, ["cpu2"], 0.4, signals) as slowed:
        try:
            wait_for(lambda: "cpu2" in slowed.by, "the process is found")
            about = Path(f"/proc/{process.pid}")
            if signals:
                wait_for(lambda: ") T " in (about / "stat").read_text(), "it is stopped for a while")
                wait_for(lambda: ") R " in (about / "stat").read_text(), "it goes on")
            else:
                (line,) = [each for each in (about / "cgroup").read_text().splitlines() if "esync-" in each]
                group = Path(slowed.by["cpu2"].removeprefix("quota, ")) / line.rpartition("/")[2]
                limits = [(group / name).read_text() for name in ("cpu.max",) if (group / name).exists()]
                limits += [file.read_text() for file in group.glob("cpu.cfs_[pq]*_us")]
                assert sorted(" ".join(limits).split()) == ["100000", "40000"]
        finally:
            process.kill()
            process.wait()
    assert signals or not group.exists()
