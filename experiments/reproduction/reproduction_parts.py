"""The runs of simulate.py that make the published experiments again, by scale. Pure functions."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from algorithms import OWNERS
from config import NO_NETWORK, names_of
from experiments.reproduction import published
from experiments.reproduction.published import TARGET
from experiments.reproduction.reproduction import (
    CLUSTER,
    ESYNC,
    HEADLINES,
    HETEROGENEITY,
    NETWORKS,
    PARTS as PART_NAMES,
    SWITCH,
    TRAINING,
    WBSP,
    Row,
)
from experiments.study.comparison import rate_of
from report.definitions import MODEL_BYTES
from scripts.run_lines import BY_CLASS, IID

RESNET18 = "resnet18-v1"
STEP_SIZE, BATCH = 0.0005, 64  # as published; of the summed loss, or of the mean
JOURNAL_STEP_SIZE, JOURNAL_BATCH = 0.001, 32
SWITCH_STEP_SIZE, SWITCH_BATCH = 0.002, 128  # published is 0.00625, with which mlp learns nothing
WBSP_BATCH, WBSP_STEP_SIZE = 128, 0.003  # the latter is not known
# The rule and the questions of the published program; a question took about as long as a GPU's step.
AS_PUBLISHED = ("--policy", "preprint", "--query", "blocking", "--query-delay", "0.029")
BARE_PAPER = "0.03,0.03,0.03,0.03,3.5,3.5"  # the preprint's step times alone
PUBLISHED_ESYNC, UPLOAD_AWARE, SSGD = "ESync as published", "ESync, rule upload-aware", "SSGD"
ROWS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    PUBLISHED_ESYNC: ("esync", AS_PUBLISHED),
    "ESync, rule preprint": ("esync", ("--policy", "preprint")),
    "ESync, rule journal": ("esync", ("--policy", "journal")),
    UPLOAD_AWARE: ("esync", ("--policy", "upload-aware")),
    SSGD: ("sync", ()),
    "ASGD": ("async", ()),
    "DC-ASGD": ("dcasgd", ()),
}
ALL_ROWS: Mapping[str, tuple[str, tuple[str, ...]]] = {ESYNC: ("esync", ()), **ROWS}
OWN_RULES = ("ESync, rule preprint", "ESync, rule journal", UPLOAD_AWARE)  # all of ESync's but as it was published
OTHER_NETWORKS = ("mobilenet-v1", "resnet50-v1", "resnet50-v2")
# Smaller images than the networks were published with, which two cores cannot train; SSGD's seconds, an hour of a core.
SMALL_IMAGES = {"alexnet_63": ("alexnet", 28800), "inception_v3_75": ("inception-v3", 5760)}
LONG_S = {10: 5000, 30: 1750, 150: 360, 300: 180}  # in which ESync trains on some million samples, by heterogeneity
STRAGGLERS = {"one, 10 ms": "sync-switch-1x10ms", "two, 30 ms": "sync-switch-2x30ms"}
POLICIES = ("none", "greedy", "elastic")
HETEROGENEITIES = {10: "journal-10", 30: "journal-30", 150: "journal", 300: "journal-300"}
# Sync-Switch's second and third: the percentage of the steps under BSP before the switch, flags.
SETUPS = {2: (12.5, ("-l", f"{SWITCH_STEP_SIZE:g}")), 3: (50, ("-l", "0.001", "--momentum", "0.9"))}
SLEEPS = {"H1": "wbsp-h1", "H2": "wbsp-h2", "H3": "wbsp-h3"}
COMPARED_WITH_WBSP = {"WBSP with overlap": "wbsp-pcc", "WBSP": "wbsp", SSGD: "sync", "SSP": "ssp", "ASGD": "async"}


@dataclass(frozen=True)
class Limit:
    """When a run ends, and how often it is evaluated: virtual seconds."""

    seconds: float
    between: float
    to_target: bool = True  # also when it has reached TARGET

    @property
    def words(self) -> list[str]:
        """Flags of simulate.py."""
        stop = ["--target-accuracy", f"{TARGET:g}"] if self.to_target else []
        return ["--max-seconds", f"{self.seconds:g}", "--eval-seconds", f"{self.between:g}", *stop]


@dataclass(frozen=True)
class Scale:
    """How much of the experiments is done.

    Attributes:
        parts: the experiments that are done by default.
        network: trained with ResNet-18's bytes.
        step_size: of the summed loss, on the preprint's cluster.
        cluster_s: virtual seconds of runs without gradients.
        limits: of runs that train, by algorithm; "" for all others.
        by_class: the same, where each worker has few classes.
        without: rows of ROWS that are not trained.
        networks: limits of the other networks by cluster, as `limits`; empty: they are not trained.
        switch_steps: of Sync-Switch, in all.
        wbsp_network: or NO_NETWORK.
    """

    name: str
    network: str
    cluster_s: float
    limits: Mapping[str, Limit]
    by_class: Mapping[str, Limit]
    without: tuple[str, ...]
    networks: Mapping[str, Mapping[str, Limit]]
    switch_steps: int
    wbsp_network: str
    step_size: float = STEP_SIZE
    parts: tuple[str, ...] = PART_NAMES


QUICK = Scale(
    name="quick",
    network="mlp",
    cluster_s=60,
    limits={"esync": Limit(300, 8), "alone": Limit(60, 3, to_target=False), "": Limit(7200, 120)},
    by_class={"": Limit(1800, 120)},
    without=("ESync, rule preprint", UPLOAD_AWARE),  # the latter is the journal's to the bit where links are equal
    networks={},
    switch_steps=150,
    wbsp_network=NO_NETWORK,
)
FULL = Scale(
    name="full",
    network=RESNET18,
    cluster_s=300,
    limits={"esync": Limit(600, 30, to_target=False), "alone": Limit(300, 15, to_target=False), "": Limit(7200, 240)},
    by_class={"esync": Limit(600, 30), "": Limit(7200, 240)},
    without=(),
    networks={"paper": {"esync": Limit(600, 8), "": Limit(7200, 60)}, "paper-12": {"": Limit(1200, 8)}},
    switch_steps=1000,
    wbsp_network="cnn",
)
# Published is "0.0005", without the loss: of the mean of a batch's losses it is this much of their sum.
MEAN_LOSS = replace(
    FULL,
    name="mean-loss",
    step_size=STEP_SIZE / BATCH,
    limits={
        "esync": Limit(3600, 60),
        "sync": Limit(7200, 150, to_target=False),  # cheap enough for the published two hours
        "alone": Limit(1200, 15),
        "": Limit(7200, 60),
    },
    by_class={"esync": Limit(300, 30), "": Limit(7200, 300, to_target=False)},  # published: accuracies after two hours
    without=OWN_RULES,
    parts=(TRAINING,),
)
# The published length, for the published final accuracies, with a network that two cores can train.
TWO_HOURS = replace(
    QUICK,
    name="two-hours",
    limits={"": Limit(7200, 60, to_target=False)},
    by_class={"": Limit(7200, 60, to_target=False)},
    without=OWN_RULES,
    parts=(TRAINING,),
)
SCALES = {scale.name: scale for scale in (QUICK, FULL, MEAN_LOSS, TWO_HOURS)}


def with_seed(run: Row, seed: int) -> Row:
    """The same run with another seed."""
    place = run.command.index("--seed") + 1
    return replace(run, seed=seed, command=(*run.command[:place], str(seed), *run.command[place + 1 :]))


def _run(part: str, name: str, entry: str, network: str, cluster: str, *words: str, case: str = "") -> Row:
    which = "--workers" if cluster == BARE_PAPER else "--cluster"
    trained = ["--job", f"experiments/reproduction/small/{network}.py"] if network in SMALL_IMAGES else ["-n", network]
    command = ["simulate.py", "-m", entry, which, cluster, *trained, "--seed", "0", *words]
    if network == NO_NETWORK and "--model-bytes" not in words:
        command += ["--model-bytes", str(MODEL_BYTES[RESNET18])]
    whole, split = (*command, "--log-form", "lines"), BY_CLASS if "-s" in words else IID
    return Row(part=part, name=name, entry=entry, network=network, command=whole, case=case, split=split)


def _step_size(entry: str, value: float) -> list[str]:
    return [names_of(rate_of(entry))[0], f"{value:g}"]


def _bytes(network: str) -> list[str]:
    """ResNet-18's, where another network stands for it."""
    return [] if network == RESNET18 else ["--model-bytes", str(MODEL_BYTES[RESNET18])]


def _cluster(scale: Scale) -> Iterator[Row]:
    for name, (entry, flags) in ROWS.items():
        yield _run(CLUSTER, name, entry, NO_NETWORK, "paper", *flags, "--max-seconds", f"{scale.cluster_s:g}")
    words = ["--policy", "journal", "--max-seconds", f"{scale.cluster_s:g}"]
    yield _run(CLUSTER, "ESync, rule journal, transmissions take no time", "esync", NO_NETWORK, BARE_PAPER, *words)


def _training(scale: Scale) -> Iterator[Row]:
    every = {**ROWS, "Standalone, one GPU": ("alone", ())}
    for split, limits in ((IID, scale.limits), (BY_CLASS, scale.by_class)):
        for name, (entry, flags) in every.items():
            if name in scale.without or (split == BY_CLASS and not OWNERS[entry].is_distributed):
                continue  # one worker alone has all classes
            words = [*flags, *_step_size(entry, scale.step_size), *limits.get(entry, limits[""]).words]
            words += ["-s", "1"] if split == BY_CLASS else []
            yield _run(TRAINING, name, entry, scale.network, "paper", *words, *_bytes(scale.network))


def _networks(scale: Scale) -> Iterator[Row]:
    for network in published.NETWORKS if not scale.networks else ():  # times and bytes alone
        for name in (ESYNC, PUBLISHED_ESYNC, SSGD):
            entry, flags = ALL_ROWS[name]
            words = [*flags, "--model-bytes", str(MODEL_BYTES[network]), "--max-seconds", f"{scale.cluster_s:g}"]
            yield _run(NETWORKS, name, entry, NO_NETWORK, "paper", *words, case=network)
    for network in OTHER_NETWORKS if scale.networks else ():
        for cluster, limits in scale.networks.items():
            case = network if cluster == "paper" else f"{network}, {cluster}"
            for name in (ESYNC, PUBLISHED_ESYNC, SSGD):
                entry, flags = ALL_ROWS[name]
                words = [*flags, *_step_size(entry, scale.step_size), *limits.get(entry, limits[""]).words]
                yield _run(NETWORKS, name, entry, network, cluster, *words, case=case)


def _heterogeneity(_: Scale) -> Iterator[Row]:
    for ratio, cluster in HETEROGENEITIES.items():
        for name, entry in {ESYNC: "esync", SSGD: "sync"}.items():
            limit = {"esync": Limit(1800, 12), "sync": Limit(14400, 240)}[entry]
            words = [*_step_size(entry, JOURNAL_STEP_SIZE), "-b", str(JOURNAL_BATCH), *limit.words]
            yield _run(HETEROGENEITY, name, entry, "mlp", cluster, *words, *_bytes("mlp"), case=str(ratio))


def _phases(steps: int, share: float) -> list[str]:
    """Flags of so many percent of the steps under BSP, the others under ASP."""
    bsp = round(steps * share / 100)
    order, its = {0: ("0", [steps]), steps: ("1", [steps])}.get(bsp, ("10", [bsp, steps - bsp]))
    return ["--switch-order", order, "--train-steps", *map(str, its)]


def _switch(scale: Scale) -> Iterator[Row]:
    for share in published.SYNC_SWITCH:
        words = [*_phases(scale.switch_steps, share), "-l", f"{SWITCH_STEP_SIZE:g}"]
        words += ["-b", str(SWITCH_BATCH), "--eval-seconds", "20"]
        yield _run(SWITCH, "Sync-Switch", "sync-switch", "mlp", "sync-switch-paces", *words, case=str(share))


def _wbsp(scale: Scale) -> Iterator[Row]:
    for case, cluster in SLEEPS.items():
        for name, entry in COMPARED_WITH_WBSP.items():
            words = [*_step_size(entry, WBSP_STEP_SIZE), "-b", str(WBSP_BATCH), "--max-seconds", f"{scale.cluster_s:g}"]
            has_model = scale.wbsp_network != NO_NETWORK
            words += ["--eval-seconds", "3"] if has_model else ["--model-bytes", str(MODEL_BYTES["cnn"])]
            yield _run(WBSP, name, entry, scale.wbsp_network, cluster, *words, case=case)


def _headlines(scale: Scale) -> Iterator[Row]:
    """Single figures of the papers; nothing but in FULL."""
    if scale.name != FULL.name:
        return
    for network, (whole, ssgd_s) in SMALL_IMAGES.items():
        limits = {"esync": Limit(ssgd_s / 24, ssgd_s / 720), "sync": Limit(ssgd_s, ssgd_s / 30)}  # as many samples
        for name in (PUBLISHED_ESYNC, SSGD):
            entry, flags = ALL_ROWS[name]
            words = [*flags, *_step_size(entry, STEP_SIZE), "--model-bytes", str(MODEL_BYTES[whole])]
            yield _run(HEADLINES, name, entry, network, "paper", *words, *limits[entry].words, case=whole)
    for name in (ESYNC, SSGD):
        entry, flags = ALL_ROWS[name]
        journal = [*_step_size(entry, JOURNAL_STEP_SIZE), "-b", str(JOURNAL_BATCH), *flags]
        limit = {"esync": Limit(1800, 30), "sync": Limit(14400, 300)}[entry]
        yield _run(HEADLINES, name, entry, RESNET18, "journal", *journal, *limit.words, case="ResNet-18, ratio 150")
        equal = [*journal, *Limit(14400, 60).words, *_bytes("mlp")]
        yield _run(HEADLINES, name, entry, "mlp", "journal-1", *equal, case="ratio 1")
        for ratio, seconds in LONG_S.items() if entry == "esync" else ():
            long = [*journal, *Limit(seconds, seconds / 50, to_target=False).words, *_bytes("mlp")]
            yield _run(HEADLINES, name, entry, "mlp", HETEROGENEITIES[ratio], *long, case=f"ratio {ratio}, long")
    for setup, (share, more) in SETUPS.items():
        for percent in (100, 0, share):
            its = [*_phases(scale.switch_steps, percent), "-b", str(SWITCH_BATCH), *more, "--eval-seconds", "20"]
            case = f"setup {setup}, {percent} % BSP"
            yield _run(HEADLINES, "Sync-Switch", "sync-switch", "mlp", f"sync-switch-paces-{setup}", *its, case=case)
    for case, cluster in STRAGGLERS.items():
        for policy in POLICIES:  # BSP lasts for some hundred virtual seconds, the stragglers for sixty of them
            words = ["--train-steps", "2000", "2000", "--model-bytes", str(MODEL_BYTES["resnet32"])]
            words += ["--straggler-policy", policy]
            yield _run(HEADLINES, f"Sync-Switch, {policy}", "sync-switch", NO_NETWORK, cluster, *words, case=case)


PARTS: Mapping[str, Callable[[Scale], Iterator[Row]]] = {
    CLUSTER: _cluster,
    TRAINING: _training,
    NETWORKS: _networks,
    HETEROGENEITY: _heterogeneity,
    SWITCH: _switch,
    WBSP: _wbsp,
    HEADLINES: _headlines,
}
