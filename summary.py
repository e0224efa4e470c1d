"""Log tree -> one JSON file a mode.

    python summary.py -b /path/to/logs -n resnet18-v1 -m esync

reads /path/to/logs/{network}/{mode}/{host}/{device}/iter-*.txt (or rounds.jsonl there) and writes
/path/to/logs/{network}/{mode}/ESync.json, which draw.py reads; of several runs below each /path/to/logs/seed-N. Needs
msgspec alone. Durations are in seconds, sizes in bytes.
"""

if __name__ == "__main__":
    import sys

    sys.path.insert(0, __file__.rpartition("/")[0] or ".")  # PYTHONSAFEPATH leaves it out
    import start  # first: what it does is for the other imports too

import argparse
import contextlib
import gc
import itertools
import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

import utils
from algorithms import TransportKind, owner_of
from flag_parser import FlagParser
from report import device_json, job_logs, metrics, tables
from report.job_logs import WorkerLog
from report.metrics import LOCAL, MODES, STANDALONE_FILE, Device, Devices, Mode
from trainer.run_logs import scalars
from trainer.run_logs.rounds import Warn, round_files
from utils import JobError, SetupError

# ---------------------------------------------------------------------------------------------- log tree


def find_network(base: Path, network: str) -> Path:
    """The folder of `network` in the log tree. Raises SetupError if there is none; the message names the networks that
    are there."""
    folder = base / network
    if network == utils.EARLIER or (base.name == utils.EARLIER and not folder.is_dir()):
        earlier = folder if network == utils.EARLIER else base
        runs = ", ".join(path.name for path in folders(earlier)) if earlier.is_dir() else ""
        raise SetupError(
            f"{earlier} holds earlier runs, each of them a log tree ({runs or 'here none'}): give {earlier}/DATE-TIME "
            "with -b, and the network with -n"
        )
    if not base.is_dir():
        raise SetupError(f"{base} is not a folder; give the one that holds NETWORK/MODE/HOST/DEVICE with -b")
    if not folder.is_dir():
        there = ", ".join(path.name for path in folders(base) if path.name != utils.EARLIER) or "nothing"
        raise SetupError(f"{folder} is not a folder; {base} holds {there}: choose with -n, or another folder with -b")
    return folder


def find_runs(base: Path, network: str, warn: Warn) -> list[Path]:
    """The folders of `network` in BASE/seed-N, the log trees of several runs of the same jobs; without them the base's.
    Raises SetupError if there is none."""
    trees = [path for path in folders(base) if utils.SEED_FOLDER.fullmatch(path.name)] if base.is_dir() else []
    seeds = [path / network for path in trees if (path / network).is_dir()]
    if not seeds or (base / network).is_dir():
        if seeds:
            warn(f"{base} holds {network} and {len(seeds)} seed-N with it: the former is taken; move it elsewhere")
        return [find_network(base, network)]
    return seeds


def folders(parent: Path) -> list[Path]:
    """The folders in `parent`, in natural order, without hidden ones, such as those of logs in transfer."""
    found = (path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))
    return sorted(found, key=lambda path: natural_order(path.name))


def natural_order(name: str) -> list[tuple[int, str]]:
    """Sorts cpu2 before cpu10."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"([0-9]+)", name)]


def summarise_mode(folder: Path, warn: Warn) -> Devices:
    """Reads the round logs of all devices of one mode. Raises SetupError if the folder holds no readable round."""
    there = {host: folders(host) for host in folders(folder)}
    devices: dict[tuple[str, str], Device] = {}
    whole: list[WorkerLog] = []  # of those that took part to the end
    for log in job_logs.read_each(itertools.chain.from_iterable(there.values()), warn, keeps_steps=False):
        devices[log.place] = job_logs.device_of(log, warn)
        _tell_what_does_not_count(log, warn)
        if log.is_whole:
            whole.append(log)
        gc.freeze()  # else its rounds are walked through again and again, and none of them is garbage
    for host in [host for host, its in there.items() if not its]:
        warn(f"{host} holds no device's folder; left out")
    if not devices:
        raise SetupError(
            f"{folder} holds no readable round log (HOST/DEVICE/iter-N.txt or rounds.jsonl); "
            "train first, or copy the log folders of all hosts there"
        )
    if not metrics.have_changed(devices.values()):  # then each has its first rank
        ranks = sorted(rank for log in whole if (rank := devices[log.place].rank) is not None)
        num_workers = max((devices[log.place].num_workers or 0 for log in whole), default=0)
        if num_workers and len(ranks) == len(whole) and ranks != [*range(num_workers)]:
            warn(
                f"{folder}: the job had {num_workers} worker(s), the logs are of rank(s) {', '.join(map(str, ranks))}; "
                "copy the logs of all hosts there, and remove what other runs left"
            )
        mode = metrics.mode_of(folder.name)
        in_step = mode is not None and owner_of(mode.algorithm.name).transport is TransportKind.SUM
        job_logs.tell_early_ends(whole, in_step, warn)
    return devices


def _tell_what_does_not_count(log: WorkerLog, warn: Warn) -> None:
    if log.lost > 0:
        warn(f"{log.folder}: samples, steps, bytes and computing time are counted without {log.lost} lost round(s)")
    for name in ("bytes_pushed", "bytes_pulled"):
        lacking = sum(getattr(one, name) is None for one in log.rounds)
        if 0 < lacking < len(log.rounds):
            warn(f"{log.folder}: {name} is missing in {lacking} of {len(log.rounds)} rounds; left out")
    if bad := sum(one.bad_steps or 0 for one in log.rounds):
        warn(f"{log.folder}: {bad} step(s) were skipped, since a number in them was not finite")


# ---------------------------------------------------------------------------------------------- summary files


def write_summary(path: Path, devices: Devices) -> None:
    """Writes {host: {device: lists}}."""
    hosts: dict[str, dict[str, Any]] = {}
    for (host, name), device in devices.items():
        hosts.setdefault(host, {})[name] = device_json.written(device)
    utils.write_json(path, hosts)


def read_summary(path: Path, warn: Warn) -> Devices:
    """Reads a summary, also of the published program; `warn` gets devices with another shape, which are left out.
    Raises SetupError if the file is missing, truncated, or holds no sound device."""
    hosts = utils.read_json(path)
    if not isinstance(hosts, dict) or not all(isinstance(names, dict) for names in hosts.values()):
        raise SetupError(f"{path} is not a summary: it should hold {{host: {{device: lists}}}}")
    devices: dict[tuple[str, str], Device] = {}
    for host, names in hosts.items():
        for name, value in names.items():
            where = f"{path}: {host}/{name}"
            try:
                devices[host, name] = device_json.read(value, where, warn)
            except ValueError as error:
                warn(f"{where} left out: {error}")
    if not devices:
        raise SetupError(f"{path} holds no device with sound lists")
    return devices


# --------------------------------------------------------------------------------------------- command line


def tree_parser(description: str | None, **more: Any) -> argparse.ArgumentParser:
    """A parser with the two flags of a network's folder in the log tree; `more` is for argparse."""
    parser = FlagParser(description=description, **more)
    parser.add_argument("-b", "--base", type=Path, default=Path("logs"), help="folder of all logs (%(default)s)")
    parser.add_argument("-n", "--network", default="resnet18-v1", help="the network, a folder in it (%(default)s)")
    return parser


def run_tool(work: Callable[[], int | None]) -> int:
    """Runs `work` and returns its exit code; an error becomes one line on stderr."""
    out, err = utils.Output(sys.stdout), utils.Output(sys.stderr)
    with contextlib.redirect_stdout(cast(TextIO, out)), contextlib.redirect_stderr(cast(TextIO, err)):
        try:
            code = work() or utils.EXIT_OK
        except (JobError, OSError) as error:  # OSError: a folder that cannot be read or written
            print(f"error: {error}", file=sys.stderr)
            code = error.exit_code if isinstance(error, JobError) else utils.EXIT_SETUP
        out.flush()
        err.flush()
    return code if code or (out.is_read and err.is_read) else utils.EXIT_PIPE


def warning(message: str) -> None:
    """Writes a warning to stderr; stdout is for the results."""
    print(f"warning: {message}", file=sys.stderr)


def _do_all(works: Sequence[Callable[[], None]]) -> None:
    """Does all works and warns of those that fail; raises SetupError if all fail."""
    failures = []
    for work in works:
        try:
            work()
        except SetupError as error:
            failures.append(str(error))
    if len(failures) == len(works):
        raise SetupError("; ".join(failures))
    for failure in failures:
        warning(failure)


def modes_in(network_folder: Path, mode_name: str) -> list[Mode]:
    """The modes that were asked for, of those that are there. Raises SetupError if none is."""
    there = {path.name: path for path in folders(network_folder)}
    if mode_name == "all":
        chosen = metrics.modes_of(there)
        for name, path in there.items():
            if metrics.mode_of(name) is None and any(map(round_files, path.glob("*/*/"))):
                warning(f"{path} is no mode of this program; left out")
    else:
        chosen = metrics.modes_of({mode_name} & there.keys())
    if not chosen:
        missing = "no mode's folder" if mode_name == "all" else f"no folder {mode_name}"
        raise SetupError(
            f"{network_folder} holds {missing}, but {', '.join(there) or 'nothing'}; "
            f"train first, or copy the logs to {network_folder}/MODE/HOST/DEVICE"
        )
    return chosen


def _summarise(base: Path, network: str, mode_name: str) -> None:
    def of_run(folder: Path) -> None:
        _do_all([partial(_summarise_one, mode, folder) for mode in modes_in(folder, mode_name)])

    _do_all([partial(of_run, folder) for folder in find_runs(base, network, warning)])


def _summarise_one(mode: Mode, network_folder: Path) -> None:
    folder = network_folder / mode.name
    devices = summarise_mode(folder, warning)
    write_summary(folder / mode.file_name, devices)
    rounds = [len(device.rounds) for device in devices.values()]
    hosts = len({host for host, _ in devices})
    print(f"{folder / mode.file_name}: {len(devices)} device(s) on {hosts} host(s), {tables.span(rounds)} rounds")
    for line in tables.doubt_lines({mode: metrics.doubts_of([devices])}):
        print(line)
    if mode != LOCAL:
        return
    if (device := metrics.evaluating_device(devices, warning)) is None:
        warning(f"{folder} has no evaluation, so {STANDALONE_FILE} is not written")
    else:
        value, metric = device.values[-1], device.metric
        text = f"{value}" if metric.is_accuracy else json.dumps(metric.logged(value))
        (network_folder / STANDALONE_FILE).write_text(f"{text}\n")
        print(f"{network_folder / STANDALONE_FILE}: {metric.name} {value}")


def _export(options: argparse.Namespace) -> None:
    """Writes the rounds of all workers to the files that were asked for, a worker at a time."""
    runs = find_runs(options.base, options.network, warning)
    modes = [(run, mode) for run in runs for mode in modes_in(run, options.mode)]
    with scalars.export_to(options.csv, options.tensorboard) as writers:
        for run, mode in modes:
            seed = run.parent.name if utils.SEED_FOLDER.fullmatch(run.parent.name) else ""
            hosts = itertools.chain.from_iterable(map(folders, folders(run / mode.name)))
            for log in job_logs.read_each(hosts, warning):
                for write in writers:
                    write((seed, run.name, mode.name, *log.place, log.run.get("rank", "")), log.rounds)


def known_mode(text: str, also: str = "") -> str:
    """Parses the name of a mode's folder in the log tree, or another word."""
    if text != also and metrics.mode_of(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no mode; choose from {', '.join(MODES)}; or MODE-kK")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the summaries and returns the exit code: 2 without logs."""
    parser = tree_parser("Gather the round logs of a mode in one JSON file for draw.py.")
    mode, text = partial(known_mode, also="all"), "one mode, or all that are there (%(default)s)"
    parser.add_argument("-m", "--mode", type=mode, default="all", help=text)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a row a round there, in place of summaries")
    parser.add_argument("--tensorboard", type=Path, metavar="FOLDER", help="write the rounds for TensorBoard, likewise")
    options = parser.parse_args(arguments)
    if options.csv or options.tensorboard:
        return run_tool(lambda: _export(options))
    return run_tool(lambda: _summarise(options.base, options.network, options.mode))


if __name__ == "__main__":
    start.run(main)
