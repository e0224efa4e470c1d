"""Which of my machines should train, and by which algorithm? Tries it in virtual time, and prints the command to type.

    scripts/advise.sh --cluster mixed-links -n mlp --target-accuracy 0.85
    scripts/advise.sh --hosts hosts.csv --job my_job.py --target-accuracy 0.9 --minutes 5 -- --momentum 0.9 -b 32

With --hosts each host is measured first, for some 20 s; a cluster file (scripts/clusters/README.md) says it of machines
that are not at hand. The step size (-l or -ll behind `--`) is where the search begins. Ctrl-C ends the search with what
is known so far. docs/advise.md says how it searches, and how far its answer can be trusted.
Exit codes: 0 done, 2 something to put right first, 130 stopped while hosts were measured.
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import logging
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import summary
from config import NETWORKS
from flag_parser import FlagParser
from flag_values import above_zero, finite
from scripts.advice.candidates import Advised, words_of
from scripts.launch import job_options
from scripts.run_process import Processes, at_signals
from trainer.runtime.environment import set_unless_given
from utils import EXIT_FORCED, EXIT_OK, SetupError, setup_logging

FOLDER = Path("logs") / "advise"  # of the cluster files of hosts
# Flags of simulate.py and of the launchers that have no place behind `--`.
OWN = (
    *("-m", "--mode", "--cluster", "--workers", "--worker", "--fastest", "--beside", "--seeds", "--jobs", "--log-base"),
    *("-n", "--network", "--job", "--again", "--model-bytes"),
)


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the flags of the job behind `--`; a bad value ends the process with exit code 2."""
    parser = FlagParser("scripts/advise.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--hosts", type=Path, metavar="FILE", help="hosts to measure, as for scripts/cluster.sh")
    where.add_argument("--cluster", metavar="FILE", help="a cluster file, or one of scripts/clusters")
    parser.add_argument("--ssh", default="", help="the ssh command and its options, as for scripts/cluster.sh")
    parser.add_argument("--without", type=job_options.names(None), default=(), help="hosts of the file to leave out")
    parser.add_argument("-n", "--network", choices=NETWORKS, metavar="NETWORK", help=f"one of {', '.join(NETWORKS)}")
    parser.add_argument("--job", metavar="FILE", help="Python file with what to train (docs/own-job.md)")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--target-accuracy", type=above_zero, metavar="X", help="that the training is to reach")
    target.add_argument("--target", type=finite, metavar="X", help="the same of another metric")
    parser.add_argument("--minutes", type=above_zero, default=2.0, help="of one core, for the search (%(default)g)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the answer there, too")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the curves of what was tried, as PNG and PDF")
    words = list(arguments)
    cut = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:cut])
    for flag in OWN:
        if any(word.partition("=")[0] == flag for word in words[cut + 1 :]):
            parser.error(f"{flag} behind `--`: the search sets it, or it stands before `--`; leave it out there")
    for path in filter(None, (given.json, given.figure)):
        if not path.absolute().parent.is_dir():
            parser.error(f"{path}: there is no folder {path.absolute().parent}")
    if given.figure and given.figure.suffix not in ("", ".png", ".pdf"):
        parser.error(f"--figure {given.figure}: give a name that ends with .png or .pdf; both are written")
    for name in ("ssh", "without"):
        if getattr(given, name) and not given.hosts:
            parser.error(f"--{name} is about the hosts of --hosts: leave it out")
    given.what = words_of(("-n", given.network), ("--job", given.job))
    return given, words[cut + 1 :]


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers; returns the exit code."""
    setup_logging("advise")
    return summary.run_tool(lambda: _do(list(sys.argv[1:] if arguments is None else arguments)))


def _do(arguments: Sequence[str]) -> int:
    given, flags = parse(arguments)
    machines = measured(given, flags) if given.hosts else (given.cluster, ())
    if machines is None:
        logging.info("stopped while the hosts were measured")
        return EXIT_FORCED
    # As simulate.py: one operation at a time, on one core; the hosts must not hear of it.
    os.environ["MXNET_ENGINE_TYPE"] = "NaiveEngine"
    set_unless_given("OMP_NUM_THREADS", "1")
    from scripts.advice import answer, search  # with numpy, which reads that when it is imported

    cluster, names = machines
    advised = Advised(given, cluster, flags, names)
    if len(advised.machines.workers) < 2:
        raise SetupError(f"{cluster} has one machine, so there is nothing to choose: train there with -m local")
    its = search.search_for(advised)
    logging.getLogger().setLevel(logging.ERROR)  # of the runs
    with at_signals(its.stop):
        its.run()
    logging.getLogger().setLevel(logging.INFO)
    answer.tell(its)
    return EXIT_OK


def measured(given: argparse.Namespace, flags: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Measures the hosts, and says what was found. Returns the cluster file and the names of its machines; None where a
    signal has ended it."""
    from scripts.probe import probe

    place, folder = words_of(("--hosts", given.hosts), ("--ssh", given.ssh)), FOLDER / given.hosts.stem
    processes = Processes(folder / "probe")
    logging.info("measuring the hosts, for some 20 s beside the start")
    with at_signals(processes.stop):
        probed = probe(place, [*given.what, "--", *flags], folder, processes, given.without)
    if probed is None:
        return None
    for name, worker in zip(probed.names, probed.cluster.workers, strict=True):
        link = f"{worker.bandwidth_mbit_s:.3g} Mbit/s" if worker.bandwidth_mbit_s < math.inf else "no limit"
        logging.info("%s: %.3g s a step, link: %s", name, worker.step_time_s, link)
    return str(probed.path), probed.names


if __name__ == "__main__":
    start.run(main)
