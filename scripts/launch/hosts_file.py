"""Hosts files for scripts/launch/cluster.py: a CSV with one row a host.

    address,workers,devices,flags
    10.1.1.34,2,gpu0 gpu1,
    10.1.1.35,1,cpu,--min-step-time 0.1    # this host's workers get this flag too

COLUMNS has the other columns; an empty cell has a default. Lines that begin with # are comments. A host may have
several rows, for workers with different flags.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flag_values import at_least, device_name, port
from trainer import spreadsheet, straggler_trace  # they import no MXNet, nor does the package
from utils import SetupError

ROLES = ("scheduler", "server", "state-server")
COLUMNS = {
    "address": "of the host, or its name in your ssh config",
    "workers": "their number; as many as devices, and 0 is allowed",
    "devices": "cpu, gpu0, gpu1, ... with spaces between them, one for each worker or one for all",
    "flags": "of main.py for these workers, after those behind `--`; only such in which the workers may differ",
    "name": "of its log folder; the address",
    "user": "to log in as",
    "port": "of its sshd",
    "folder": "of the project there; as on this machine",
    "interface": "its network interface to the other hosts; the one with the route to the scheduler, or to the hub",
    "roles": f"what else runs there: {', '.join(ROLES)}, with spaces; what no row has runs on the first host",
    "step_time_s": "shortest time of a step: emulates a slower device",
    "sample_time_s": "seconds that each sample of its batch adds to that",
    "straggler_trace": "file beside this one that emulates a transient straggler",
}
_ONE_A_HOST = ("name", "user", "port", "folder", "interface")

_count, _seconds = at_least(0), at_least(0, float)


@dataclass(frozen=True)
class Host:
    """A host, and how to log in to it. An empty field is left to ssh, or is as on this machine."""

    name: str
    address: str
    user: str = ""
    port: str = ""
    folder: str = ""
    interface: str = ""
    where: str = field(default="", compare=False)  # file and line, for messages


@dataclass(frozen=True)
class HostWorker:
    """A worker of a host."""

    name: str
    host: str  # its name
    device: str  # cpu, gpu0, ...
    folder: str  # name of its log folder, unique on the host
    flags: tuple[str, ...]
    step_time_s: float
    sample_time_s: float
    straggler_trace: Path | None  # absolute; a file that trainer/straggler_trace.py reads

    @property
    def trace_file(self) -> str:
        """The name of its straggler trace in the host's log folder."""
        return f".straggler-trace-{self.folder}.csv"


@dataclass(frozen=True)
class Hosts:
    """The content of a hosts file."""

    hosts: dict[str, Host]  # by name, in the file's order
    workers: tuple[HostWorker, ...]
    places: Mapping[str, tuple[str, ...]]  # names of one or more hosts, by role

    def only(self, names: Collection[str]) -> Hosts:
        """The hosts of these names. The first one takes a role that none of them has, for this job an unused one."""
        hosts = {name: host for name, host in self.hosts.items() if name in names}
        return Hosts(
            hosts,
            tuple(worker for worker in self.workers if worker.host in names),
            {
                role: tuple(name for name in there if name in names) or (next(iter(hosts)),)
                for role, there in self.places.items()
            },
        )

    def without(self, names: Collection[str]) -> Hosts:
        """The other hosts. Raises SetupError if one of the names is unknown, or no worker is left."""
        if unknown := [name for name in names if name not in self.hosts]:
            raise SetupError(f"--without {unknown[0]}: there is no such host; choose from {', '.join(self.hosts)}")
        if all(worker.host in names for worker in self.workers):
            raise SetupError(f"--without {','.join(names)}: no worker is left")
        return self.only([name for name in self.hosts if name not in names])


@dataclass(frozen=True)
class Row:
    """A row of a hosts file, or what says as much."""

    where: str  # file and line, for messages
    cells: Mapping[str, str]  # by column; empty where the file has none

    def error(self, text: str) -> SetupError:
        return SetupError(f"{self.where}: {text}")

    def parsed(self, column: str, parse: Callable[[str], Any], default: str = "") -> Any:
        try:
            return parse(self.cells[column] or default)
        except argparse.ArgumentTypeError as error:
            raise SetupError(f"{self.where}, column {column}: {error}") from None
        except ValueError:
            raise SetupError(f"{self.where}, column {column}: {self.cells[column]!r} is no number") from None


def read(path: Path) -> Hosts:
    """Reads a hosts file and checks the traces that it names. Raises SetupError if the file or a trace is missing or
    malformed. The message names file and line."""
    found = spreadsheet.rows(path, "hosts file")
    columns = _columns(found[0]) if found else []
    rows = [Row(each.where, dict.fromkeys(COLUMNS, "") | each.values(columns)) for each in found[1:]]
    return hosts_of(rows, f"hosts file {path}", path.parent)


def hosts_of(given: Sequence[Row], source: str, folder: Path) -> Hosts:
    """The hosts of rows, which `source` has, for messages; the traces are in a folder. Raises SetupError as `read`."""
    hosts: dict[str, Host] = {}
    rows: list[tuple[Row, str]] = []  # with the host's name
    for row in given:
        host = _host(row)
        known = hosts.setdefault(host.name, host)
        for column in ("address", *_ONE_A_HOST):
            here, there = getattr(host, column), getattr(known, column)
            if row.cells[column] and here != there:
                raise row.error(
                    f"host {host.name} has {column} {here!r} here and {there!r} in {known.where}: give it once, or "
                    "another name in the column name"
                )
        rows.append((row, host.name))
    if not hosts:
        raise SetupError(f"{source} has no host; give one line for each, such as 10.1.1.34,1,cpu,")
    devices = [(row, name, device) for row, name in rows for device in _devices(row)]
    of_host = Counter((name, device) for _, name, device in devices)
    numbers: Counter[tuple[str, str]] = Counter()
    workers = []
    for row, name, device in devices:
        number = f"{'' if device == 'cpu' else '-'}{numbers[name, device]}" if of_host[name, device] > 1 else ""
        numbers[name, device] += 1
        workers.append(_worker(folder, row, name, device, device + number))
    if not workers:
        raise SetupError(f"{source} has no worker: give a host a number of workers above 0")
    first = next(iter(hosts))
    places = {role: tuple(name for row, name in rows if role in _roles(row)) for role in ROLES}
    for role in ("scheduler", "state-server"):
        if len(places[role]) > 1:
            raise SetupError(f"{source}: {' and '.join(places[role])} both have the role {role}; give it once")
    return Hosts(hosts, tuple(workers), {role: names or (first,) for role, names in places.items()})


def _columns(header: spreadsheet.Row) -> list[str]:
    columns = header.columns()
    names = [*filter(None, columns)]
    if not {"address"} <= set(names) <= set(COLUMNS) or len(set(names)) < len(names):
        raise SetupError(
            f"{header.where}: {header.text!r} is no list of columns; give address and, each once, "
            f"what you need of {', '.join(list(COLUMNS)[1:])}"
        )
    return columns


def _host(row: Row) -> Host:
    address, user = row.cells["address"], row.cells["user"]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", address):
        raise row.error(f"{address!r} is no address; give an IPv4 address or a name (the user has the column user)")
    name = row.parsed("name", device_name) or address
    ssh_port = row.parsed("port", port) if row.cells["port"] else ""
    if user.startswith("-"):
        raise row.error(f"{user!r} is no user")
    return Host(name, address, user, ssh_port, row.cells["folder"], row.cells["interface"], row.where)


def _devices(row: Row) -> list[str]:
    named = row.cells["devices"].split() or ["cpu"]
    for device in named:
        if not re.fullmatch(r"cpu|gpu(0|[1-9]\d*)", device):
            raise row.error(f"{device!r} is no device; give cpu, or gpu with its number, such as gpu0")
    count = row.parsed("workers", _count, str(len(named)))
    if len(named) not in (1, count):
        raise row.error(
            f"{count} worker(s) and {len(named)} devices ({' '.join(named)}); give one device for each worker, or one "
            "for all"
        )
    return named * count if len(named) == 1 else named


def _roles(row: Row) -> list[str]:
    roles = row.cells["roles"].split()
    for role in roles:
        if role not in ROLES:
            raise row.error(f"{role!r} is no role; choose from {', '.join(ROLES)}; workers have a column")
    return roles


def _worker(traces: Path, row: Row, host: str, device: str, folder: str) -> HostWorker:
    flags, trace = row.cells["flags"], row.cells["straggler_trace"]
    try:
        words = tuple(shlex.split(flags))
    except ValueError as error:
        raise row.error(f"flags {flags!r}: {error}") from None
    step_time_s, sample_time_s = (row.parsed(column, _seconds, "0") for column in ("step_time_s", "sample_time_s"))
    trace_path = straggler_trace.beside(traces, trace, row.where) if trace else None
    return HostWorker(f"{host} {folder}", host, device, folder, words, step_time_s, sample_time_s, trace_path)
