"""The connections of a launcher to its hosts, which last through changes of hosts (scripts/launch/changed_hosts.py).

Who stays is not asked to log in again, and keeps what its processes are forked from; who is to come is connected, and
gets ready, while the job goes on without it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType

from config import Config
from scripts.launch.hosts_file import Host
from scripts.launch.hosts_layout import Plan
from scripts.launch.link import Link, ssh_command
from scripts.launch.roles import ROOT
from utils import SetupError

READY_S = 60.0  # for hosts to be connected, and to import MXNet


def data_of(told: Config) -> tuple[str, str]:
    """What the processes read from which a worker's are forked: dataset and folder."""
    return told.dataset, told.data_dir


class Connections:
    """Those that there are now. What still runs on a host ends with the connection to it."""

    def __init__(self, plan: Plan) -> None:
        """
        Args:
            plan: how to connect, and where what ssh says is written.
        """
        self._plan = plan
        self._links: dict[Host, Link] = {}
        self._ending: list[Link] = []
        self._made: Counter[str] = Counter()  # so far, by the names of their hosts

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.keep(())
        self._reap(self._ending)

    def pump(self) -> None:
        """Lets the hosts hear from the launcher, and takes in what they say."""
        for link in self._links.values():
            link.pump()

    @property
    def there(self) -> list[Link]:
        """Those that are not gone."""
        return [link for link in self._links.values() if link.exit_code is None]

    def to(self, hosts: Mapping[str, Host]) -> dict[str, Link]:
        """Connections to these hosts, by their names, and no others: those that there are, else new ones.

        Raises:
            SetupError: one cannot be begun.
        """
        self.keep(host for host in hosts.values() if host in self._links and self._links[host].is_sound)
        self._reap([link for link in self._ending if link.exit_code is not None])
        links = {}
        for name, host in hosts.items():
            links[name] = self._link(host)
            links[name].forget()
            self.pump()
        return links

    def get_ready(self, plan: Plan, told: Config) -> Callable[[], bool]:
        """Connects the hosts of a plan, where they are not, and lets those of workers import what these need.

        Args:
            told: a worker's flags.

        Returns:
            To be called again and again: whether all are ready. Raises SetupError where one cannot be.
        """
        to_connect, links = [*plan.hosts.hosts.values()], list[Link]()
        of_workers = {worker.host for worker in plan.hosts.workers}
        give_up = time.monotonic() + READY_S

        def are_ready() -> bool:
            if to_connect:  # one at a time: a name may have to be looked up, and the others must not wait for all
                link = self._link(to_connect.pop(0))
                link.warm(str(plan.job.folder_there / link.host.name), data_of(told), link.host.name in of_workers)
                links.append(link)
            self.pump()
            waiting = [link for link in links if not link.is_warm()]
            if (to_connect or waiting) and time.monotonic() > give_up:
                host = waiting[0].host if waiting else to_connect[0]
                raise SetupError(f"{host.where}: {host.name} did not get ready within {READY_S:g} s")
            return not to_connect and not waiting

        return are_ready

    def keep(self, hosts: Iterable[Host]) -> None:
        """Ends the connections to all hosts but these; does not wait for it."""
        kept = {*hosts}
        for host in [host for host in self._links if host not in kept]:
            self._end(host)

    def _link(self, host: Host) -> Link:
        link = self._links.get(host)
        if link is not None and link.exit_code is None:
            link.host = host  # which may stand in another line of the file now
            return link
        self._end(host)
        self._made[host.name] += 1
        number = self._made[host.name]
        log = f"{host.name}-ssh.log" if number == 1 else f"{host.name}-ssh-{number}.log"
        command = ssh_command(self._plan.ssh, host, host.folder or str(ROOT))
        try:
            link = Link(host, command, self._plan.job.log_folder / log, self.pump)
        except FileNotFoundError as error:
            raise SetupError(
                f"{self._plan.ssh[0]} cannot be started: {error.strerror}; choose another with --ssh"
            ) from None
        except OSError as error:
            raise SetupError(f"{host.where}: {host.name} cannot be connected: {error}") from None
        self._links[host] = link
        return link

    def _end(self, host: Host) -> None:
        if (link := self._links.pop(host, None)) is not None:
            link.hang_up()
            self._ending.append(link)

    def _reap(self, links: Sequence[Link]) -> None:
        for link in [*links]:
            link.reap()
            self._ending.remove(link)
