"""Log tree -> one JSON file a mode.

    python summary.py -b /path/to/logs -n resnet18-v1 -m esync

reads /path/to/logs/{network}/{mode}/{host}/{device}/iter-*.txt (or rounds.jsonl there) and writes
/path/to/logs/{network}/{mode}/ESync.json, which draw.py reads; of several runs below each /path/to/logs/seed-N. Needs
the standard library alone; with msgspec it is faster. Durations are in seconds, sizes in bytes.
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
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

import utils
from algorithms import TransportKind, owner_of
from flag_parser import FlagParser
from report import device_rounds, export, metrics, tables
from report.job_logs import WorkerFolder, newest
from report.metrics import LOCAL, MODES, STANDALONE_FILE, Device, Devices, Event, Mode, Warn
from report.newest_run import ends_early
from report.sound_devices import without_impossible
from trainer.metric import ACCURACY, logged_value
from trainer.run_logs import measure, round_log
from trainer.run_logs.pace import pace_of
from trainer.run_logs.round_faults import MOST_ROUNDS, are_quantities, is_quantity, tell
from trainer.run_logs.sound_rounds import rounds_missed, sound_rounds
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
    found = newest(itertools.chain.from_iterable(there.values()), warn)
    devices: dict[tuple[str, str], Device] = {}
    for each in found:
        device = _summarise_device(each, warn)
        if device is not None:
            devices[each.place] = device
            gc.freeze()  # else its lists are walked through again and again, and none of them is garbage
    for host in [host for host, its in there.items() if not its]:
        warn(f"{host} holds no device's folder; left out")
    if not devices:
        raise SetupError(
            f"{folder} holds no readable round log (HOST/DEVICE/iter-N.txt or rounds.jsonl); "
            "train first, or copy the log folders of all hosts there"
        )
    whole = {each.place: devices[each.place] for each in found if each.is_whole and each.place in devices}
    if not metrics.have_changed(devices.values()):  # then each has its first rank
        _check_ranks(folder, whole, warn)
        mode = metrics.mode_of(folder.name)
        in_step = mode is not None and owner_of(mode.algorithm.name).transport is TransportKind.SUM
        ends = {place: (len(its.elapsed_time_list), its.elapsed_time_list[-1]) for place, its in whole.items()}
        for place, text in ends_early(ends, {each.place: each.run_file for each in found}, in_step).items():
            warn(f"{folder / '/'.join(place)}: {text}")
    return devices


def _summarise_device(found: WorkerFolder, warn: Warn) -> Device | None:
    folder = found.folder
    try:
        logged = round_log.logged_rounds(folder, warn, device_rounds.form(found.run_file.run))
    except OSError as error:
        warn(f"{folder} cannot be read: {error.strerror}; left out")
        return None
    logged = {number: one for number, one in logged.items() if number <= found.until}
    if not logged:
        warn(f"{folder} holds neither iter-N.txt nor {measure.LINES_FILE}; left out")
        return None
    rounds = list(sound_rounds(folder, logged, warn))
    last = max((number for number in logged if number <= MOST_ROUNDS), default=0)
    lost = last - len(rounds) - rounds_missed(logged)
    if lost > 0:
        warn(f"{folder}: samples, steps, bytes and computing time are counted without {lost} lost round(s)")
    evaluations = [(record["total_time"], *its) for record in rounds if (its := logged_value(record)) is not None]
    if bad := sum(record["bad_steps"] for record in rounds if is_quantity(record.get("bad_steps"))):
        warn(f"{folder}: {bad} step(s) were skipped, since a number in them was not finite")
    pace = pace_of([record["pace"] for record in rounds])
    try:
        return Device(
            accuracy_list=[value for *_, value in evaluations],
            num_samples_list=[record["num_samples"] for record in rounds],
            self_iters_list=[record["entries"] for record in rounds],
            elapsed_time_list=[record["total_time"] for record in rounds],
            aggregate_time_list=[record["aggregation_s"] for record in rounds],
            accuracy_time_list=[elapsed_s for elapsed_s, *_ in evaluations],
            computing_time_list=[record["computing_s"] for record in rounds],
            bytes_pushed_list=_in_every_round(rounds, "bytes_pushed", folder, warn),
            bytes_pulled_list=_in_every_round(rounds, "bytes_pulled", folder, warn),
            steps_list=[record["begun"] for record in rounds],
            lost_steps_list=_lost_steps(rounds, warn),
            event_list=_read_events(folder, rounds, warn) or None,
            metric=evaluations[0][1] if evaluations else ACCURACY,
            **(pace._asdict() if pace else {}),
            **_of_run_file(found.run_file.run),
        )
    except ValueError as error:
        warn(f"{folder} left out: {error}")
        return None


def _in_every_round(rounds: Sequence[Mapping[str, Any]], key: str, folder: Path, warn: Warn) -> list[int] | None:
    """The values of `key`; None if some are missing, since their sum would pass for that of all rounds."""
    values = [record[key] for record in rounds if key in record]
    if not are_quantities(values):
        values = [value for value in values if is_quantity(value)]
    if values and len(values) < len(rounds):
        warn(f"{folder}: {key} is missing in {len(rounds) - len(values)} of {len(rounds)} rounds; left out")
    return values if len(values) == len(rounds) else None


def _lost_steps(rounds: Sequence[Mapping[str, Any]], warn: Warn) -> list[int] | None:
    """Steps abandoned, skipped, dropped or to be done again, by round; None where a number is malformed."""
    lost = []
    for record in rounds:
        counts = {key: record[key] for key in ("steps_lost", "bad_steps") if key in record}
        for key, steps in counts.items():
            if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
                where = record["where"]
                warn(f"{where}: {key} is {steps!r}, but should be a whole number from 0 on; lost steps left out")
                return None
        lost.append(record["abandoned"] + sum(counts.values()))
    return lost


def _read_events(folder: Path, rounds: Sequence[Mapping[str, Any]], warn: Warn) -> list[list[Any]]:
    """The rounds' events as the summary has them, with one warning for all malformed ones."""
    events: list[list[Any]] = []
    faults: list[str] = []
    for record in rounds:
        if "events" in record:
            read = partial(Event.from_log, record["total_time"])
            events += _sound_events(record["events"], read, record["where"], faults.append)
    tell(faults, f"{folder}: events of {len(faults)} rounds left out", warn)
    return events


def _sound_events(values: Any, read: Callable[[Any], Event], where: Path | str, warn: Warn) -> list[list[Any]]:
    if not isinstance(values, list):
        warn(f"{where}: events are {reprlib.repr(values)}, but should be a list; left out")
        return []
    sound, faults = [], []
    for value in values:
        try:
            sound.append(list(read(value)))
        except ValueError as error:
            faults.append(str(error))
    if faults:
        warn(f"{where}: {len(faults)} of {len(values)} event(s) left out: {faults[0]}")
    return sound


def _of_run_file(run: Mapping[str, Any]) -> dict[str, Any]:
    """Rank, number of workers, size of the model, its end, whether in virtual time; published logs have no run.json."""
    flags = run.get("config")
    values = {key: run.get(key) for key in ("rank", "num_workers", "parameter_bytes")}
    values["of_workers"] = (flags.get("of_workers") if isinstance(flags, dict) else None) or None
    found = {key: value for key, value in values.items() if isinstance(value, int) and is_quantity(value)}
    is_so = {"at_target": f" {utils.REACHED} " in str(run.get("ended")), "virtual": "virtual" in run}
    return found | {key: True for key, value in is_so.items() if value}


def _check_ranks(folder: Path, devices: Devices, warn: Warn) -> None:
    """Warns of hosts whose logs were not copied, and of folders of earlier runs."""
    ranks = sorted(device.rank for device in devices.values() if device.rank is not None)
    num_workers = max((device.num_workers or 0 for device in devices.values()), default=0)
    if num_workers and len(ranks) == len(devices) and ranks != list(range(num_workers)):
        warn(
            f"{folder}: the job had {num_workers} worker(s), the logs are of rank(s) {', '.join(map(str, ranks))}; "
            "copy the logs of all hosts there, and remove what other runs left"
        )


# ---------------------------------------------------------------------------------------------- summary files


def write_summary(path: Path, devices: Devices) -> None:
    """Writes {host: {device: lists}}."""
    hosts: dict[str, dict[str, Any]] = {}
    for (host, name), device in devices.items():
        hosts.setdefault(host, {})[name] = device.to_json()
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
            if isinstance(value, dict) and value.get("event_list") is not None:  # without bad events
                events = _sound_events(value["event_list"], Event.from_json, f"{path}: {host}/{name}", warn)
                value = {**value, "event_list": events or None}
            if isinstance(value, dict):
                value, faults = without_impossible(value)
                for text in faults:
                    warn(f"{path}: {host}/{name}: {text}")
            try:
                devices[host, name] = Device.from_json(value)
            except ValueError as error:
                warn(f"{path}: {host}/{name} left out: {error}")
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
        code = _code_of(work)
        out.flush()
        err.flush()
    return code if code or (out.is_read and err.is_read) else utils.EXIT_PIPE


def _code_of(work: Callable[[], int | None]) -> int:
    try:
        return work() or utils.EXIT_OK
    except JobError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # a folder that cannot be read or written
        print(f"error: {error}", file=sys.stderr)
        return utils.EXIT_SETUP


def warning(message: str) -> None:
    """Writes a warning to stderr; stdout is for the results."""
    print(f"warning: {message}", file=sys.stderr)


def _summarise(base: Path, network: str, mode_name: str) -> None:
    _do_all([partial(_summarise_run, folder, mode_name) for folder in find_runs(base, network, warning)])


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


def _modes_in(network_folder: Path, mode_name: str) -> list[Mode]:
    """The modes that were asked for, of those that are there. Raises SetupError if none is."""
    there = {path.name: path for path in folders(network_folder)}
    if mode_name == "all":
        chosen = metrics.modes_of(there)
        for name, path in there.items():
            if metrics.mode_of(name) is None and any(map(round_log.round_files, path.glob("*/*/"))):
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


def _summarise_run(network_folder: Path, mode_name: str) -> None:
    _do_all([partial(_summarise_one, mode, network_folder) for mode in _modes_in(network_folder, mode_name)])


def _summarise_one(mode: Mode, network_folder: Path) -> None:
    folder = network_folder / mode.name
    devices = summarise_mode(folder, warning)
    write_summary(folder / mode.file_name, devices)
    rounds = [len(device.elapsed_time_list) for device in devices.values()]
    hosts = len({host for host, _ in devices})
    print(f"{folder / mode.file_name}: {len(devices)} device(s) on {hosts} host(s), {tables.span(rounds)} rounds")
    for line in tables.doubt_lines({mode: metrics.doubts_of([devices])}):
        print(line)
    if mode == LOCAL:
        device = metrics.evaluating_device(devices, warning)
        if device is None:
            warning(f"{folder} has no evaluation, so {STANDALONE_FILE} is not written")
            return
        value, metric = device.accuracy_list[-1], device.metric
        text = f"{value}" if metric.is_accuracy else json.dumps(metric.logged(value))
        (network_folder / STANDALONE_FILE).write_text(f"{text}\n")
        print(f"{network_folder / STANDALONE_FILE}: {metric.name} {value}")


def _export(options: argparse.Namespace) -> None:
    """Writes the rounds of all workers to the files that were asked for, a worker at a time."""
    runs = find_runs(options.base, options.network, warning)
    modes = [(run, mode) for run in runs for mode in _modes_in(run, options.mode)]
    with export.to(options.csv, options.tensorboard) as writers:
        for run, mode in modes:
            place = run.parent.name if utils.SEED_FOLDER.fullmatch(run.parent.name) else ""
            hosts = itertools.chain.from_iterable(map(folders, folders(run / mode.name)))
            for each in newest(hosts, warning):
                rounds = [one for one in round_log.read_rounds(each.folder, warning) if one["num_iters"] <= each.until]
                for write in writers:
                    write(export.Worker(place, run.name, mode.name, *each.place, each.run_file.run), rounds)


def known_mode(text: str) -> str:
    """Parses the name of a mode's folder in the log tree."""
    if metrics.mode_of(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no mode; choose from {', '.join(MODES)}; or MODE-kK")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the summaries and returns the exit code: 2 without logs."""
    parser = tree_parser("Gather the round logs of a mode in one JSON file for draw.py.")
    parser.add_argument(
        "-m",
        "--mode",
        type=lambda text: text if text == "all" else known_mode(text),
        default="all",
        help="one mode, or all that are there (%(default)s)",
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a row a round there, in place of summaries")
    parser.add_argument("--tensorboard", type=Path, metavar="FOLDER", help="write the rounds for TensorBoard, likewise")
    options = parser.parse_args(arguments)
    if options.csv or options.tensorboard:
        return run_tool(lambda: _export(options))
    return run_tool(lambda: _summarise(options.base, options.network, options.mode))


if __name__ == "__main__":
    start.run(main)
