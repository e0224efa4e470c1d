"""Which of my machines should train, and by which algorithm? Tries it in virtual time, and prints the command to type.

    scripts/advise.sh --cluster mixed-links -n mlp --target-accuracy 0.85
    scripts/advise.sh --hosts hosts.csv --job my_job.py --target-accuracy 0.9 --minutes 5 -- --momentum 0.9 -b 32

With --hosts each host is measured first, for some 20 s; a cluster file (scripts/clusters/README.md) says it of machines
that are not at hand. The step size (-l or -ll behind `--`) is where the search begins. Ctrl-C ends the search with what
is known so far. docs/advise.md says how it searches, and how far its answer can be trusted.
Exit codes: 0 done, 2 something to put right first, 130 stopped while hosts were measured.
"""

from __future__ import annotations

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import logging
import math
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import simulate
import summary
from algorithms import ENTRIES, Workers
from config import AUTO, FIELDS, HUB, KVSTORE, LEARNING_RATES, NETWORKS, names_of
from flag_parser import FlagParser
from flag_values import above_zero, finite
from scripts.advice.candidates import FAMILIES, IN_A_ROW
from scripts.launch import job_options
from scripts.run_process import Processes, at_signals
from trainer.runtime.environment import set_unless_given
from trainer.simulation import cluster_file
from trainer.simulation.virtual_job import VirtualJob
from utils import EXIT_FORCED, EXIT_OK, SetupError, setup_logging, write_json

if TYPE_CHECKING:
    from esync.metric import Metric
    from scripts.advice.answer import Row
    from scripts.advice.search import Search
    from scripts.probe import Probed
    from trainer.jobs.job import Job

HELD_OUT, HELD_OUT_SHARE = 5000, 6  # samples for the search: at most that many, and one of so many
FOLDER = Path("logs") / "advise"  # of the cluster files of hosts
# Flags of simulate.py and of the launchers that have no place behind `--`.
OWN = (
    *("-m", "--mode", "--cluster", "--workers", "--worker", "--fastest", "--beside", "--seeds", "--jobs", "--log-base"),
    *("-n", "--network", "--job", "--again", "--model-bytes"),
)
ENDS = (  # fields of Config that say when a run ends or is evaluated: the search sets them
    *("max_rounds", "max_seconds", "target", "target_accuracy", "target_evaluations", "eval_seconds", "eval_duration"),
    *LEARNING_RATES,
)
LONGER = 3.0  # times the seconds that are expected, until the run that is advised ends without the target


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


def words_of(*pairs: tuple[str, object]) -> list[str]:
    """Flags and their values, of those that have one."""
    return [str(word) for pair in pairs if pair[1] for word in pair]


class Advised:
    """The job, on any number of the cluster's machines."""

    def __init__(self, given: argparse.Namespace, cluster: str, flags: Sequence[str]) -> None:
        self._what, self.given_flags = given.what, flags
        self.machines = cluster_file.read(cluster_file.find(cluster))
        self.cluster = cluster
        self.held_out = 0  # training samples on which the job is evaluated

    def job(self, entry: str, words: Sequence[str] = ()) -> VirtualJob:
        """Raises SetupError if the flags are wrong."""
        beside = ",".join(each.entry for each in FAMILIES)
        own = ["-m", entry, "--cluster", self.cluster, "--beside", beside, *words, "--max-seconds", "1e9", *self._what]
        return simulate.parse([*own, *self.given_flags, *words_of(("--validation", self.held_out))])[1][0].job

    @property
    def step(self) -> float:
        """The step size that is given, or the default."""
        local = self.job("esync").config.settings.rate
        return local if local != FIELDS["local_lr"].default else self.job("alone").config.settings.rate


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers; returns the exit code."""
    setup_logging("advise")
    return summary.run_tool(lambda: _do(list(sys.argv[1:] if arguments is None else arguments)))


def _do(arguments: Sequence[str]) -> int:
    given, flags = parse(arguments)
    names: tuple[str, ...] = ()
    cluster = given.cluster
    if given.hosts:
        probed = measure(given, flags)
        if probed is None:
            return EXIT_FORCED
        cluster, names = str(probed.path), probed.names
    # As simulate.py: one operation at a time, on one core; the hosts must not hear of it.
    os.environ["MXNET_ENGINE_TYPE"] = "NaiveEngine"
    set_unless_given("OMP_NUM_THREADS", "1")
    advised = Advised(given, cluster, flags)
    if len(advised.machines.workers) < 2:
        raise SetupError(f"{cluster} has one machine, so there is nothing to choose: train there with -m local")
    tell(given, advised, searched(given, advised), names)
    return EXIT_OK


def measure(given: argparse.Namespace, flags: Sequence[str]) -> Probed | None:
    """Measures the hosts, and says what was found; None where a signal has ended it."""
    from scripts.probe import probe

    place, folder = words_of(("--hosts", given.hosts), ("--ssh", given.ssh)), FOLDER / given.hosts.stem
    processes = Processes(folder / "probe")
    logging.info("measuring the hosts, for some 20 s beside the start")
    with at_signals(processes.stop):
        probed = probe(place, [*given.what, "--", *flags], folder, processes, given.without)
    if probed is None:
        logging.info("stopped while the hosts were measured")
        return None
    for name, worker in zip(probed.names, probed.cluster.workers, strict=True):
        link = f"{worker.bandwidth_mbit_s:.3g} Mbit/s" if worker.bandwidth_mbit_s < math.inf else "no limit"
        logging.info("%s: %.3g s a step, link: %s", name, worker.step_time_s, link)
    return probed


def prepared(given: argparse.Namespace, advised: Advised) -> tuple[Job, Metric, float]:
    """The job with all its samples, its metric and the target. Raises SetupError if the target is none of the job's."""
    from trainer.from_flags import target_of
    from trainer.jobs.job import job_of
    from trainer.jobs.network import build

    config = advised.job("esync").config.but(cpu=1)
    whole = job_of(config)
    if whole.test is None:
        raise SetupError("the job has no test samples, and a target needs them: give some in data(folder)")
    metric = build(config, whole, lambda text: None).metric
    accuracy = given.target_accuracy or 0.0
    target = target_of(config.but(target_accuracy=accuracy, target=given.target), metric)
    assert target is not None
    return whole, metric, target


def searched(given: argparse.Namespace, advised: Advised) -> Search:
    """The search, done. Raises SetupError if the job, or its target, is none that can be searched for."""
    from scripts.advice.search import Search
    from trainer.datasets.sources import Stream
    from trainer.jobs.job import job_of

    whole, metric, target = prepared(given, advised)
    learnt, test = whole, None
    if whole.train is not None and not isinstance(whole.train, Stream):
        asked = advised.job("esync").config.validation
        advised.held_out = asked or min(HELD_OUT, len(whole.train) // HELD_OUT_SHARE)
        test = None if asked else whole
        learnt = job_of(advised.job("esync").config.but(cpu=1))
    logging.getLogger().setLevel(logging.ERROR)  # of the runs
    progress = logging.getLogger("advise.progress")
    progress.setLevel(logging.INFO)

    def say(text: str) -> None:
        progress.info("%3.0f of %.0f s | %s", search.used_s, 60 * given.minutes, text)

    search = Search(advised.machines, advised.job, learnt, test, metric, target, advised.step, 60 * given.minutes, say)
    with at_signals(search.stop):
        search.run()
    logging.getLogger().setLevel(logging.INFO)
    return search


def tell(given: argparse.Namespace, advised: Advised, search: Search, names: Sequence[str]) -> None:
    """Prints what was found. Raises SetupError where no candidate has reached the target."""
    from scripts.advice import answer

    metric = search.metric
    rows = answer.rows_of(search)
    reached = [row for row in rows if row.runs]
    if not reached:
        raise SetupError(search.best_seen())
    named, *equal = answer.equals(search, reached)
    print("\n".join(answer.table(rows)), end="\n\n")
    where = answer.machines(named, len(advised.machines.workers), names)
    print(
        f"{named.candidate.family.entry} ({ENTRIES[named.candidate.family.entry].title}) on {where} should hold "
        f"{metric.name} {search.wanted:g} after {named.seconds:.3g} s ({named.low_s:.3g} to "
        f"{named.high_s:.3g} in four of five runs)"
        + (f"; as soon within noise: {', '.join(row.candidate.name for row in equal)}" if equal else "")
        + "."
    )
    command = command_of(given, advised, named, f"{search.wanted:g}", search.evaluation_s(named.candidate))
    print(command)
    if given.json:
        write_json(given.json, answer.as_json(search, rows, named, command))
    if given.figure:
        answer.save_figure(given.figure, search, rows, logging.info)


def command_of(given: argparse.Namespace, advised: Advised, row: Row, target: str, every_s: float) -> str:
    """The command that trains so."""
    its, replaced = row.candidate, FlagParser(add_help=False)
    for field in ENDS:
        replaced.add_argument(*names_of(field), dest=field)
    flags = {
        names_of(its.family.field)[0]: f"{row.step:.2g}",
        "--target-accuracy" if given.target_accuracy else "--target": target,
        "--target-evaluations": str(IN_A_ROW),
        "--eval-seconds": f"{every_s:.2g}",
        "--max-seconds": str(math.ceil(LONGER * row.seconds)),
    }
    mains = [*replaced.parse_known_args(advised.given_flags)[1], *(word for pair in flags.items() for word in pair)]
    is_default = its.k == len(advised.machines.workers) and ENTRIES[its.family.entry].workers is Workers.ALL
    number = () if is_default else its.family.words(its.k)
    whose = ["-m", its.family.entry, *number, *given.what]
    if given.hosts:
        places = words_of(("--hosts", given.hosts), ("--ssh", given.ssh), ("--without", ",".join(given.without)))
        places += ["--cluster", advised.cluster] if number or its.family.entry == "alone" else []
        config = advised.job(its.family.entry, its.family.words(its.k)).config
        # The hosts were measured with the hub, which takes less of their processors than the kvstore.
        mains += ["--exchange", HUB] if (config.transport, config.exchange) == (KVSTORE, AUTO) else []
        return shlex.join(["scripts/cluster.sh", *places, *whose, "--", *mains])
    return shlex.join([".venv/bin/python", "simulate.py", "--cluster", given.cluster, *whose, *mains])


if __name__ == "__main__":
    start.run(main)
