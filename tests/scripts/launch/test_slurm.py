"""scripts/slurm.sh and scripts/mpi.sh without Slurm and mpiexec; scripts/check_slurm.sh runs them with both."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.launch import mpi, node_groups, slurm
from scripts.launch.hosts_layout import example

ROOT = Path(__file__).resolve().parents[3]
HET = ["--nodes", "1", "devices=gpu0,gpu1", "--gres=gpu:2", "--time", "5", "--het", "2 workers=2 --mem=500"]
FLAGS = ["--max-rounds", "5", "--ckpt-frequency", "2"]


def script_of(capsys, *words):
    assert slurm.main([*words]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_heterogeneous_job_has_a_component_for_each_group(capsys, tmp_path):
    script = script_of(capsys, "--dry-run", "-m", "esync", *HET, "--requeue", "--log-base", str(tmp_path), "--", *FLAGS)
    assert script == [
        "#!/bin/bash",
        "#SBATCH --job-name=esync-lenet",
        f"#SBATCH --output={tmp_path}/slurm-%j.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --signal=B:TERM@90",
        "#SBATCH --requeue",
        "#SBATCH --nodes=1 --ntasks-per-node=1 --gres=gpu:2 --time 5",
        "#SBATCH hetjob",
        "#SBATCH --nodes=2 --ntasks-per-node=1 --mem=500",
        f"exec {ROOT}/scripts/slurm.sh --in-job -m esync --nodes 1 devices=gpu0,gpu1 --het '2 workers=2 --mem=500' "
        f"--requeue --log-base {tmp_path} -- --max-rounds 5 --ckpt-frequency 2",
    ]


def test_in_the_job_its_nodes_have_the_workers_of_their_groups_and_ports_by_its_id(tmp_path):
    request = slurm.parse(["--in-job", "-m", "esync", *HET, "--log-base", str(tmp_path), "--", *FLAGS])
    environment = {"SLURM_JOB_ID": "1030", "SLURM_ARRAY_TASK_ID": "7"}
    plan = slurm.plan_of(request, [["a1"], ["b1", "b2"]], tmp_path / "hosts.csv", environment)
    job, layout = example(plan)
    assert [(worker.node.name, worker.device) for worker in layout.workers] == [
        ("a1", "gpu0"),
        ("a1", "gpu1"),
        *((name, device) for name in ("b1", "b2") for device in ("cpu0", "cpu1")),
    ]
    assert job.root_port == 10_000 + 16 * (1030 - 1024)
    assert layout.workers[0].node.folder == tmp_path / "seed-7" / "lenet" / "esync" / "a1"
    assert job.worker_arguments[-2:] == ("--seed", "7")
    assert job.worker_arguments[:2] == ("--checkpoint", str(tmp_path / "seed-7" / "lenet" / "esync" / ".checkpoints"))
    step = plan.command(plan.hosts.hosts["b2"])
    assert step[:2] == ["srun", "--het-group=1"] and "--nodelist=b2" in step and step[-1].startswith("trap '' TERM;")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--nodes 0", "0 is out of range"),
        ("-ll 0.003", "it is a flag of main.py: give it behind `--`"),
        ("--het 'x cpu'", "--het"),
        ("--het '2 devices=tpu'", "'tpu' is no device"),
        ("workers=two", "'two' is no number"),
        ("--in-job", "leave it out"),
        ("-- --hosts x", "unknown argument --hosts"),
    ],
)
def test_a_wrong_word_is_one_line_before_anything_is_submitted(words, said, capsys, tmp_path):
    arguments = ["--log-base", str(tmp_path), *shlex.split(words)]
    try:
        code = slurm.main(arguments, {})
    except SystemExit as end:
        code = end.code
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1) and said in error


def test_each_process_of_a_job_is_a_context_of_mpiexec(capsys, tmp_path):
    words = ["--dry-run", "--allow-run-as-root", "-m", "sync", "workers=3", "--log-base", str(tmp_path), "--", *FLAGS]
    assert mpi.main(words, {}) == 0
    contexts = " ".join(shlex.split(capsys.readouterr().out)).split(" : ")
    assert ["DMLC_ROLE=scheduler" in contexts[0], "DMLC_ROLE=server" in contexts[1]] == [True, True]
    assert ["--device-name cpu" in context for context in contexts] == [False, False, True, True, True]
    assert "--allow-run-as-root -n 1 -x ESYNC_TOKEN --wdir" in contexts[0] and not any(
        "--host" in each for each in contexts
    )


def test_mpiexec_gets_the_nodes_of_pbs_once_each(tmp_path):
    (tmp_path / "nodes").write_text("127.0.0.1\n127.0.0.1\nlocalhost\n")
    environment = {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "12.server"}
    plan, _ = mpi.parse(["-m", "sync", "--log-base", str(tmp_path)], environment)
    assert [*plan.hosts.hosts] == ["127.0.0.1", "localhost"]
    assert plan.base_port == 10_000 + 16 * 12


def test_mpiexec_that_ends_all_is_not_asked_to_survive(capsys, tmp_path):
    survive = ["--ckpt-frequency", "2", "--on-worker-death", "restart"]
    assert mpi.main(["-m", "sync", "workers=2", "--log-base", str(tmp_path), "--", *survive], {}) == 2
    assert "mpiexec ends all" in capsys.readouterr().err


def test_an_id_is_that_of_slurm_or_pbs_or_the_given_one():
    assert node_groups.id_of({"SLURM_JOB_ID": "5"}, 1) == 5
    assert node_groups.id_of({"PBS_JOBID": "7[].server"}, 1) == 7
    assert node_groups.id_of({}, 1) == 1


WATCH = """
import os, signal, time
from trainer.stop import SignalWatch
watch = SignalWatch("first")
watch.be_patient()
for number in (signal.SIGTERM, signal.{}):
    os.kill(os.getpid(), number)
    time.sleep(0.1)
    print(watch.requested)
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGUSR1"])
def test_a_sigterm_that_was_ignored_when_a_worker_began_stays_ignored(number):
    done = subprocess.run(
        [sys.executable, "-c", WATCH.format(number)],
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["False", "True"]
