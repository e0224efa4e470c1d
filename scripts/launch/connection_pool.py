"""The launcher's connections to its hosts, which last through changes of hosts (scripts/launch/changed_hosts.py).

A host that stays keeps its connection and its fork server. A new host is connected, and gets ready, while the job runs
without it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from config import Config
from scripts.launch.host_connection import HostConnection
from scripts.launch.hosts_file import Host
from scripts.launch.hosts_layout import LaunchPlan
from scripts.launch.job_options import forked
from utils import SetupError

READY_S = 60.0  # for hosts to be connected, and to import MXNet


class ConnectionPool:
    """The connections of now. The processes on a host end with the connection to it."""

    def __init__(self, plan: LaunchPlan) -> None:
        """`plan` gives the ssh command, and the folder for ssh's messages."""
        self._plan = plan
        self._connections: dict[Host, HostConnection] = {}
        self._ending: list[HostConnection] = []
        self._made: Counter[str] = Counter()  # connections so far, by the names of their hosts

    def __enter__(self) -> ConnectionPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.keep(())
        self._reap(self._ending)

    def pump(self) -> None:
        for connection in self._connections.values():
            connection.pump()

    @property
    def there(self) -> list[HostConnection]:
        """The connections that are not gone."""
        return [connection for connection in self._connections.values() if connection.exit_code is None]

    def to(self, hosts: Mapping[str, Host]) -> dict[str, HostConnection]:
        """Connects exactly these hosts, by name; a connection that is there is used again. Raises SetupError if a
        connection cannot be started."""
        self.keep(host for host in hosts.values() if host in self._connections and self._connections[host].is_sound)
        self._reap_ended()
        connections = {}
        for name, host in hosts.items():
            connections[name] = self._connect(host)
            connections[name].forget()
            self.pump()
        return connections

    def get_ready(
        self, plan: LaunchPlan, worker_config: Config, toward: tuple[str, int] | None = None
    ) -> Callable[[], bool]:
        """Connects the hosts of a plan, where they are not, and makes those of workers import what these need. Returns
        what tells, asked again and again, whether all are ready; it raises SetupError where one cannot get ready.
        Workers' hosts must reach the address and port `toward`."""
        to_connect, connections = [*plan.hosts.hosts.values()], list[HostConnection]()
        of_workers = {worker.host for worker in plan.hosts.workers}
        forks = forked(plan.job, worker_config)
        give_up = time.monotonic() + READY_S

        def are_ready() -> bool:
            if to_connect:  # one at a time: a name look-up may take long, and the other hosts need their pings
                connection = self._connect(to_connect.pop(0))
                name = connection.host.name
                connection.warm(str(plan.job.remote_folder / name), forks, name in of_workers, toward)
                connections.append(connection)
            self.pump()
            waiting = [connection for connection in connections if not connection.is_warm()]
            if (to_connect or waiting) and time.monotonic() > give_up:
                host = waiting[0].host if waiting else to_connect[0]
                raise SetupError(f"{host.where}: {host.name} did not get ready within {READY_S:g} s")
            return not to_connect and not waiting

        return are_ready

    def keep(self, hosts: Iterable[Host]) -> None:
        """Ends the connections to all other hosts; does not wait for it."""
        kept = {*hosts}
        for host in [host for host in self._connections if host not in kept]:
            self._end(host)

    def _connect(self, host: Host) -> HostConnection:
        connection = self._connections.get(host)
        if connection is not None and connection.exit_code is None:
            connection.host = host  # its line in the file may have changed
            return connection
        self._end(host)
        self._reap_ended()
        if connection is None or connection.has_said_hello:  # else its log, of a try in vain, may go
            self._made[host.name] += 1
        number = self._made[host.name]
        log = f"{host.name}-ssh.log" if number == 1 else f"{host.name}-ssh-{number}.log"
        try:
            connection = HostConnection(host, self._plan.command(host), self._plan.job.log_folder / log, self.pump)
        except FileNotFoundError as error:
            raise SetupError(
                f"{self._plan.ssh[0]} cannot be started: {error.strerror}; choose another with --ssh"
            ) from None
        except OSError as error:
            raise SetupError(f"{host.where}: {host.name} cannot be connected: {error}") from None
        self._connections[host] = connection
        return connection

    def _end(self, host: Host) -> None:
        if (connection := self._connections.pop(host, None)) is not None:
            connection.hang_up()
            self._ending.append(connection)

    def _reap_ended(self) -> None:
        self._reap([connection for connection in self._ending if connection.exit_code is not None])

    def _reap(self, connections: Sequence[HostConnection]) -> None:
        for connection in [*connections]:
            connection.reap()
            self._ending.remove(connection)
