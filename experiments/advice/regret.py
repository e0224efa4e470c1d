"""How far the answer of scripts/advise.sh is behind the best of all candidates, on clusters drawn by a seed.

    python -m experiments.advice.regret --clusters 0 1 --folder results/advice --jobs mlp table
    python -m experiments.advice.regret --folder results/advice --table

For each cluster and job: the answer (two minutes of one core); then every candidate with both of its step sizes on one
seed, with the better one on two more, and those within 25 % of the best on six others; a run ends at 1.5 times the best
of its seed so far, and counts as that. Targets are of the test part here, all training samples are trained on, and
a time counts at the end of the mean of three evaluations, as in training. The best is chosen on one half of the seeds
and timed, as the answer is, on the other, and the other way round. A case is a line of FOLDER/cases.jsonl.
"""

from __future__ import annotations

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import json
import logging
import math
import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.advice import drawn_clusters
from flag_parser import FlagParser
from scripts.launch.roles import ROOT
from utils import append_line

FIRST_SEEDS, FURTHER_SEEDS = (1001, 1002, 1003), (1004, 1005, 1006, 1007, 1008, 1009)
LATE, NEAR = 1.5, 1.25
PLAIN = "plain ESync"  # on all machines
EXAMPLES = ROOT / "examples"


class Job(NamedTuple):
    """What is trained, to which target."""

    words: tuple[str, ...]  # before `--`
    flags: tuple[str, ...]
    minutes: float


JOBS = {
    "mlp": Job(("-n", "mlp", "--target-accuracy", "0.85"), ("--momentum", "0.9"), 2),
    "table": Job(("--job", str(EXAMPLES / "table.py"), "--target", "0.88"), ("--optimizer", "adam", "-ll", "0.005"), 2),
    "lenet": Job(("-n", "lenet", "--target-accuracy", "0.8"), ("--momentum", "0.9"), 5),
    "torch-table": Job(
        ("--job", str(EXAMPLES / "torch_table.py"), "--target", "0.88"), ("--optimizer", "adam", "-ll", "0.005"), 2
    ),
}


def answered(job: Job, cluster: Path, folder: Path, slower: float) -> dict[str, Any]:
    """What advise.sh answers. Raises CalledProcessError if it fails."""
    out = folder / "answer.json"
    words = ["--cluster", str(cluster), *job.words, "--minutes", f"{slower * job.minutes:g}", "--json", str(out)]
    environment = {name: os.environ[name] for name in ("HOME", "PATH")}
    script = str(ROOT / "scripts" / "advise.sh")
    subprocess.run([script, *words, "--", *job.flags], check=True, env=environment, cwd=ROOT)
    answer: dict[str, Any] = json.loads(out.read_text())
    return answer


def measured(job: Job, cluster: Path, answer: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Seconds by candidate and seed; those of runs that were ended are negative."""
    from scripts import advise
    from scripts.advice.candidates import Advised, Candidate
    from scripts.advice.search import Entrant, Search, Tried, prepared

    given, flags = advise.parse(["--cluster", str(cluster), *job.words, "--", *job.flags])
    advised = Advised(given, str(cluster), flags)
    learnt, metric, target = prepared(advised)
    search = Search(advised, learnt, None, metric, target, math.inf)
    search.measure_rates()
    # Of the answer: how often runs are evaluated, and the step size of one machine, about which all others lie
    search.every, base = answer["every_steps"], answer["step_of_one"]
    named = answer["answer"]
    choice = next(
        Entrant(each, named["step_size"])
        for each in search.candidates
        if each.family.entry == named["mode"] and each.k == len(named["machines"])
    )
    pairs = [Entrant(each, base * factor) for each in search.candidates for factor in search.factors(each)]
    pairs += [Entrant(each, base * factor) for each in search.all_machines("esync") for factor in search.factors(each)]
    pairs = sorted({*pairs, choice}, key=lambda each: each.candidate.seconds(each.candidate.family.prior))
    times: dict[Entrant, dict[int, float]] = {each: {} for each in pairs}
    first: dict[int, float] = {}

    def run(entrant: Entrant, seed: int) -> None:
        tried: Tried = search.begin(*entrant, seed)
        until_s, seconds = 0.0, math.inf
        while seconds == math.inf and not tried.run.is_over and until_s < LATE * first.get(seed, math.inf):
            until_s = min(1.2 * until_s or 5 * search.evaluation_s(entrant.candidate), LATE * first.get(seed, math.inf))
            tried.run.advance(until_s)
            seconds = tried.seconds(target, metric)
        tried.run.close()
        first[seed] = min(first.get(seed, math.inf), seconds)
        times[entrant][seed] = seconds if seconds < math.inf else -LATE * first[seed]

    def mean(entrant: Entrant) -> float:
        return statistics.fmean(math.log(abs(s)) + 0.2 * (s < 0) for s in times[entrant].values())

    for entrant in sorted(pairs, key=lambda each: each != choice):  # the choice first: it ends the others soon
        run(entrant, FIRST_SEEDS[0])
    best_step: dict[Candidate, Entrant] = {}
    for entrant in sorted(pairs, key=mean):
        best_step.setdefault(entrant.candidate, entrant)
    kept = list({choice, *best_step.values()})
    for seed in FIRST_SEEDS[1:]:
        for entrant in sorted(kept, key=mean):
            run(entrant, seed)
    best = min(map(mean, kept))
    plain = min((each for each in kept if each.candidate in search.all_machines("esync")), key=mean)
    near = [each for each in kept if mean(each) < best + math.log(NEAR) or each in (choice, plain)]
    for seed in FURTHER_SEEDS:
        for entrant in sorted(near, key=mean):
            run(entrant, seed)
    names = {each: each.name for each in pairs} | {plain: f"{PLAIN}: {plain.name}"}
    return {("choice: " if each == choice else "") + names[each]: times[each] for each in kept}


# --------------------------------------------------------------------------------------------------------- numbers


def regrets(times: dict[str, dict[int, float]]) -> list[float]:
    """log(choice / best) of each seed that was not used to choose the best."""
    choice = next(name for name in times if name.startswith("choice"))
    seeds = sorted(times[choice])
    halves = seeds[0::2], seeds[1::2]
    found = []
    for of, on in (halves, halves[::-1]):
        whole = [name for name in times if set(seeds) <= set(times[name])]
        best = min(whole, key=lambda name: statistics.fmean(math.log(abs(times[name][seed])) for seed in of))
        found += [math.log(abs(times[choice][seed]) / abs(times[best][seed])) for seed in on]
    return found


def interval(logs: Sequence[float]) -> tuple[float, float, float]:
    """The ratio, and about 95 % of it by Student's t."""
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / len(logs) ** 0.5 if len(logs) > 1 else 0.0
    return math.exp(mean), math.exp(mean - 2.31 * error), math.exp(mean + 2.31 * error)


def show(folder: Path) -> None:
    """Prints a line for each case, and what all say."""
    cases = [json.loads(line) for line in (folder / "cases.jsonl").read_text().splitlines()]
    all_regrets, near, above, worse = [], 0, 0, 0
    print("| job | cluster | answer | regret | predicted / median | plain ESync / answer | CPU s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for case in cases:
        times = {name: {int(seed): s for seed, s in its.items()} for name, its in case["times"].items()}
        choice = next(name for name in times if name.startswith("choice"))
        plain = next((name for name in times if PLAIN in name), choice)
        regret, low, high = interval(regrets(times))
        gains = interval([math.log(abs(times[plain][s]) / abs(times[choice][s])) for s in times[choice]])
        median = statistics.median(abs(s) for s in times[choice].values())
        predicted = case["answer"]["answer"]["seconds"] / median
        all_regrets.append(regret - 1)
        near += abs(predicted - 1) <= 0.25
        above += low > 1.2
        worse += gains[2] < 0.9
        print(
            f"| {case['job']} | {case['cluster']} | {choice.removeprefix('choice: ')} | {regret - 1:+.0%} "
            f"({low - 1:+.0%} to {high - 1:+.0%}) | {predicted:.2f} | {gains[0]:.2f} "
            f"({gains[1]:.2f} to {gains[2]:.2f}) | {case['answer']['cpu_s']:.0f} |"
        )
    print(
        f"\nmedian regret {statistics.median(all_regrets):.1%}, mean {statistics.fmean(all_regrets):.1%}; "
        f"{above} of {len(cases)} wholly above 20 %; {worse} wholly below 0.9 against plain ESync; "
        f"predicted within 25 % of the median in {near} of {len(cases)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the missing cases, and prints the table."""
    parser = FlagParser("experiments/advice/regret.py", doc=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=[])
    parser.add_argument("--clusters", nargs="+", type=int, default=[])
    parser.add_argument("--slower", type=float, default=1.0, help="times that this core is slower: minutes are longer")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args(arguments)
    os.environ["MXNET_ENGINE_TYPE"], os.environ["OMP_NUM_THREADS"] = "NaiveEngine", "1"
    logging.getLogger().setLevel(logging.ERROR)
    path = given.folder / "cases.jsonl"
    paths = drawn_clusters.write(given.folder)
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    made = {(case["job"], case["cluster"]) for case in done}
    for number in () if given.table else given.clusters:
        for job in given.jobs:
            cluster = paths[number]
            if (job, cluster.stem) in made:
                continue
            begin = time.monotonic()
            answer = answered(JOBS[job], cluster, given.folder, given.slower)
            times = measured(JOBS[job], cluster, answer)
            case = {"job": job, "cluster": cluster.stem, "answer": answer, "times": times}
            append_line(path, json.dumps(case))
            print(f"{job} on {cluster.stem}: {time.monotonic() - begin:.0f} s", flush=True)
    show(given.folder)
    return 0


if __name__ == "__main__":
    start.run(main)
