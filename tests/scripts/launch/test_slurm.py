"""scripts/slurm.sh and scripts/mpi.sh without Slurm and mpiexec; scripts/check_slurm.sh runs them with both."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.launch import hosts_file, mpi, slurm
from scripts.launch.hosts_layout import example

ROOT = Path(__file__).resolve().parents[3]
HET = ["--nodes", "1", "devices=gpu0,gpu1", "--gres=gpu:2", "--time", "5", "--het", "2 workers=2 --mem=500"]
FLAGS = ["--max-rounds", "5", "--ckpt-frequency=2"]


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
        f"cd {Path.cwd()}",
        f"exec {ROOT}/scripts/slurm.sh --in-job -m esync --nodes 1 devices=gpu0,gpu1 --het '2 workers=2 --mem=500' "
        f"--requeue --log-base {tmp_path} -- --max-rounds 5 --ckpt-frequency=2",
    ]


def test_in_the_job_its_nodes_have_the_workers_of_their_groups_and_ports_by_its_id(tmp_path):
    request = slurm.parse(["--in-job", "-m", "esync", *HET, "--log-base", str(tmp_path), "--", *FLAGS])
    environment = {"SLURM_JOB_ID": "1030", "SLURM_ARRAY_TASK_ID": "7"}
    nodes = [["a1"], ["b1", "b2"]]
    asked = slurm.job_in(request, nodes, environment, tmp_path / "hosts.csv")
    assert asked.hosts == hosts_file.read(tmp_path / "hosts.csv")
    job, layout = example(asked)
    assert [(worker.host, worker.folder) for worker in layout.workers] == [
        ("a1", "gpu0"),
        ("a1", "gpu1"),
        *((name, device) for name in ("b1", "b2") for device in ("cpu0", "cpu1")),
    ]
    assert job.root_port == 10_000 + 16 * (1030 - 1024)
    assert layout.workers[0].node.folder == tmp_path / "seed-7" / "lenet" / "esync" / "a1"
    assert job.worker_arguments[-2:] == ("--seed", "7")
    assert job.worker_arguments[:2] == ("--checkpoint", str(tmp_path / "seed-7" / "lenet" / "esync" / ".checkpoints"))
    step = job.connect(job.hosts.hosts["b2"])
    assert step[:2] == ["srun", "--het-group=1"] and "--nodelist=b2" in step and step[-1].startswith("trap '' TERM;")


def test_words_that_bash_slurm_and_a_folder_take_apart_stay_whole(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = script_of(
        capsys, "--dry-run", "--log-base", "it's 5%", "-a", "0-2", "--export", "A=3", "--requeue", "--restarts", "2"
    )
    assert shlex.split(script[2])[1] == f"--output={tmp_path}/it's 5%%/slurm-%A_%a.log"
    assert script[-2] == f"cd {tmp_path}" and "'it'\"'\"'s 5%'" in script[-1]
    assert "-a 0-2 --export A=3" in script[-3]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--nodes 0", "0 is out of range"),
        ("-ll 0.003", "it is a flag of main.py: give it behind `--`"),
        ("--het 'x cpu'", "--het"),
        ("--het ''", "'' is no group: give the number of its nodes"),
        ("--het '2 \"x'", "is no group"),
        ("--het '2 devices=tpu'", "error: the job: 'tpu' is no device"),
        ("workers=two", "'two' is no number"),
        ("workers=0", "error: the job has no worker"),
        ("--exclusive wrokers=2", "wrokers in wrokers=2 is none of workers"),
        ("address=x", "address in address=x is none of workers"),
        ("workers=20", "a node needs 24 ports, and by its id a job has 16"),
        ("--output=x.log", "leave it out"),
        ("--array 0-3 -- --seed=7", "--seed=7: each task"),
        ("-a0-3 flags='--checkpoint x'", "--checkpoint: each task"),
        ("--restarts 2", "does nothing without"),
        ("--in-job", "leave it out"),
        ("-- --hosts x", "unknown argument --hosts"),
    ],
)
def test_a_wrong_word_is_one_line_before_anything_is_submitted(words, said, refused, tmp_path):
    assert said in refused(of(slurm), "--log-base", str(tmp_path), *shlex.split(words))


def of(program, **environment):
    """One in this environment."""
    return lambda words: program.main(words, environment)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Makes a program on the path."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def make(name, *lines):
        (tmp_path / name).write_text("\n".join(["#!/bin/sh", *lines]))
        (tmp_path / name).chmod(0o755)
        return str(tmp_path / name)

    return make


SITE = 'case "$SLURM_CONF" in /site) ;; *) exit 1 ;; esac; case $1 in --version) echo slurm; exit ;; esac'


@pytest.mark.parametrize("answers", [["sleep 0.4", "echo '77;site'"], ["sleep 60"]])
def test_a_signal_ends_a_submission(answers, program, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_CONF", "/site")
    program("sbatch", SITE, "kill -INT $PPID", *answers)
    program("scancel", f'echo "$@" >>{tmp_path}/cancelled')
    assert slurm.main(["--log-base", str(tmp_path), "-m", "sync", "--array=0-1"], {}) == 130
    said = capsys.readouterr()
    if len(answers) == 2:
        assert said.out == f"Slurm job 77; its log: {tmp_path}/slurm-77_*.log\n"
        assert (tmp_path / "cancelled").read_text() == "--state=PENDING 77\n--batch --signal=TERM 77\n"
    else:
        assert "squeue" in said.err and not (tmp_path / "cancelled").exists()


@pytest.mark.parametrize("variable", ["SLURM_JOB_NODELIST", "SLURM_JOB_NODELIST_HET_GROUP_0"])
def test_what_a_site_program_tells_of_its_failure_is_one_line(variable, program, tmp_path, refused):
    program("scontrol", "echo 'scontrol: error: no' >&2; echo -- >&2; echo controller >&2; echo give --one >&2; exit 1")
    error = refused(of(mpi, **{variable: "n[", "SLURM_HET_SIZE": "abc"}), "--log-base", str(tmp_path))
    assert error.endswith("error: scontrol: error: no controller give --one")
    told = refused(of(mpi), "--mpiexec", program("nothing"), "--log-base", str(tmp_path))
    assert "prints nothing: requirements-mpi.txt" in told


def test_mpiexec_refuses_columns_that_it_does_not_take_and_to_survive(tmp_path, refused):
    (tmp_path / "hosts.csv").write_text("address,user\n127.0.0.1,me\n")
    told = refused(of(mpi), "--dry-run", "--hosts", str(tmp_path / "hosts.csv"))
    assert "line 2, column user: mpiexec" in told
    assert "the job, column interface: mpiexec" in refused(of(mpi), "--dry-run", "interface=lo")
    survive = ["--ckpt-frequency", "2", "--on-worker-death", "restart"]
    told = refused(of(mpi), "-m", "sync", "workers=2", "--log-base", str(tmp_path), "--", *survive)
    assert "mpiexec ends all" in told


def contexts_of(capsys, folder, *words):
    """What mpiexec would start, in its order."""
    assert mpi.main(["--dry-run", *words, "--log-base", str(folder), "--", *FLAGS], {}) == 0
    return " ".join(shlex.split(capsys.readouterr().out)).split(" : ")


def test_each_process_of_a_job_is_a_context_of_mpiexec(capsys, tmp_path):
    contexts = contexts_of(capsys, tmp_path, "--allow-run-as-root", "-m", "sync", "workers=3")
    assert ["DMLC_ROLE=scheduler" in contexts[0], "DMLC_ROLE=server" in contexts[1]] == [True, True]
    assert ["--device-name cpu" in context for context in contexts] == [False, False, True, True, True]
    assert "--allow-run-as-root -n 1 -x ESYNC_TOKEN --wdir" in contexts[0]
    assert not any("--host" in context for context in contexts)
    assert f"DMLC_PS_ROOT_PORT={10_000 + 16 * (os.getpid() % 1024)} " in contexts[0]  # in no job of a site


def test_a_hub_is_a_context_of_mpiexec_and_there_is_no_scheduler(capsys, tmp_path):
    contexts = contexts_of(capsys, tmp_path, "-m", "wbsp", "workers=2")
    assert ["DMLC_ROLE=server" in context for context in contexts] == [True, False, False]
    assert contexts[0].endswith("/main.py -m wbsp")


def test_mpiexec_gets_the_nodes_of_pbs_once_each(tmp_path):
    (tmp_path / "nodes").write_text("127.0.0.1\n127.0.0.1\nlocalhost\n")
    environment = {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "12[].server"}
    job, _ = mpi.parse(["-m", "sync", "--log-base", str(tmp_path)], environment)
    assert [*job.hosts.hosts] == ["127.0.0.1", "localhost"]
    assert job.base_port == 10_000 + 16 * 12


WATCH = """
import os, signal, time
from trainer.runtime.stop_signals import SignalWatch
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
