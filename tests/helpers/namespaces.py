"""Hosts for tests: network namespaces on a switch of their own, a real sshd in each. Not a test itself.

    with namespaces.network(tmp_path, 4) as net:
        subprocess.run(net.desk.command("ssh", "-F", net.ssh_config, "h1", "hostname", "-I"), ...)
        net.hosts[1].lose(percent=1)

Host N is called hN and has the address 10.77.0.N on its card eth0; the desk, 10.77.0.254, is where a user sits: it has
no sshd. The bridge is in a namespace too, so nothing of this machine's own network is touched, and several of these
networks live side by side with the same addresses. All hosts share this machine's files, users and clock.

The kernel here has no netem. What nftables can do with packets it can do on one host's link.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

SSHD = "/usr/sbin/sshd"
PREFIX = "esync-test-"  # of the namespaces' names; then come this process's id and the host's name
START_S = 20.0

_packages = {SSHD: "openssh-server", "ssh": "openssh-client", "ip": "iproute2", "nsenter": "util-linux"}


def _run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def missing() -> str:
    """Why there can be no such network here; empty where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root: run as root"
    for program, package in _packages.items():
        if not shutil.which(program):
            return f"no {program}: apt-get install {package}"
    name = f"{PREFIX}{os.getpid()}-probe"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"no network namespaces here: {done.stderr.strip()}"
    _run("ip", "netns", "delete", name)
    return ""


class Host:
    """A namespace with one network card."""

    card = "eth0"

    def __init__(self, run: str, name: str, number: int, folder: Path) -> None:
        self.name = name
        self.address = f"10.77.0.{number}"
        self.ssh_port = 2200 + number
        self.namespace = f"{run}-{name}"
        self.folder = folder  # its own, for what the test likes
        self._switch, self.plug = f"{run}-switch", f"to-{name}"
        folder.mkdir(parents=True)

    def command(self, *words: str | Path) -> list[str]:
        """A command line that runs on this host; `exec` leads to it, so the process's id is the command's."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", "--", *map(str, words)]

    def run(self, *words: str | Path) -> str:
        """Runs a short command on this host; returns its output, fails with it."""
        return _run(*self.command(*words))

    def pids(self) -> list[int]:
        """Ids of all processes on this host."""
        return list(map(int, _run("ip", "netns", "pids", self.namespace).split()))

    def nft(self, rules: str) -> None:
        """Adds nftables rules: the lines of a file for `nft -f`, with a chain for each hook."""
        rules_file = self.folder / "rules.nft"
        rules_file.write_text(rules)
        self.run("nft", "-f", rules_file)

    def lose(self, percent: int) -> None:
        """Drops that share (1 to 99) of the packets that come in on the link and of those that go out, at random."""
        drop = f"meta oifname != lo numgen random mod 100 < {percent} drop"
        self.nft(
            "table inet loss {\n"
            f"chain in {{ type filter hook input priority 0; {drop.replace('oifname', 'iifname')}; }}\n"
            f"chain out {{ type filter hook output priority 0; {drop}; }}\n}}\n"
        )

    def close_ports(self, ports: str) -> None:
        """Drops connections from other hosts to these TCP ports (`9091`, `10000-20000`, `{ 22, 80 }`): a firewall."""
        self.nft(
            "table inet closed {\nchain in { type filter hook input priority 0;"
            f" iifname != lo tcp dport {ports} ct state new drop; }}\n}}\n"
        )

    def drop_from(self, peer: Host, ports: str = "0-65535") -> None:
        """Drops what comes from another host to or from these TCP ports: one direction of the link between the two."""
        both = " ".join(f"ip saddr {peer.address} tcp {end} {ports} drop;" for end in ("sport", "dport"))
        self.nft(f"table inet cut {{\nchain in {{ type filter hook input priority 0; {both} }}\n}}\n")

    def heal(self) -> None:
        """Takes back all that this host drops."""
        self.run("nft", "flush", "ruleset")

    def ports_of(self, variable: str) -> str:
        """This host's TCP ports of processes that have this in their environment, as `drop_from` has them."""
        found = set()
        for line in self.run("ss", "-Htanp").splitlines():
            if match := re.match(r"\S+ +\d+ +\d+ +\S+:(\d+) .*pid=(\d+)", line):
                with contextlib.suppress(OSError):  # it has just ended
                    if variable.encode() in Path(f"/proc/{match[2]}/environ").read_bytes().split(b"\0"):
                        found.add(match[1])
        return f"{{ {', '.join(found)} }}"

    def unplug(self, port: int = 0) -> None:
        """Takes the cable out; with a port: loses what is sent to this TCP port of any host, until it is healed."""
        if port:
            drop = f"tcp dport {port} drop"
            self.nft(f"table inet cut {{\nchain out {{ type filter hook output priority 0; {drop}; }}\n}}\n")
        else:
            _run("ip", "-n", self._switch, "link", "set", self.plug, "down")

    def plug_in(self) -> None:
        """Puts the cable in."""
        _run("ip", "-n", self._switch, "link", "set", self.plug, "up")

    def make(self) -> None:
        """Makes the namespace and plugs its card into the switch."""
        _run("ip", "netns", "add", self.namespace)
        card = ("type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        _run("ip", "-n", self._switch, "link", "add", self.plug, *card)
        _run("ip", "-n", self._switch, "link", "set", self.plug, "master", "bridge", "up")
        _run("ip", "-n", self.namespace, "address", "add", f"{self.address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _run("ip", "-n", self.namespace, "link", "set", link, "up")

    def start_sshd(self, key: Path) -> None:
        """Starts an sshd with a host key of its own that lets in the owner of `key` as this machine's root."""
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "host_key")
        config, log = self.folder / "sshd_config", self.folder / "sshd.log"
        config.write_text(
            f"ListenAddress {self.address}:{self.ssh_port}\nHostKey {self.folder}/host_key\nPidFile none\n"
            f"AuthorizedKeysFile {key}.pub\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "PermitRootLogin prohibit-password\nUseDNS no\n"
        )
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants this folder, and a container may lack it
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(SSHD, "-D", "-e", "-f", config), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        give_up = time.monotonic() + START_S
        while "Server listening" not in log.read_text():
            assert process.poll() is None and time.monotonic() < give_up, f"no sshd: {log.read_text()}"
            time.sleep(0.02)

    def client_config(self, key: Path) -> str:
        """What a user's ssh config says of this host."""
        public = (self.folder / "host_key.pub").read_text().rsplit(maxsplit=1)[0]
        known = self.folder / "known_hosts"
        known.write_text(f"[{self.address}]:{self.ssh_port} {public}\n")
        return (
            f"Host {self.name} {self.address}\n  HostName {self.address}\n  Port {self.ssh_port}\n  User root\n"
            f"  IdentityFile {key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {known}\n  StrictHostKeyChecking yes\n"
        )


class Network:
    """Hosts that reach each other, and a desk that reaches them all."""

    def __init__(self, folder: Path, count: int) -> None:
        run = f"{PREFIX}{os.getpid()}-{time.monotonic_ns():x}"
        self.switch = f"{run}-switch"
        self.hosts = [Host(run, f"h{number}", number, folder / f"h{number}") for number in range(1, count + 1)]
        self.desk = Host(run, "desk", 254, folder / "desk")
        self.ssh_config = self.desk.folder / "ssh_config"

    def make(self) -> None:
        """Makes the switch, the hosts with their sshd, and the desk with its key and ssh config."""
        _run("ip", "netns", "add", self.switch)
        _run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        key = self.desk.folder / "key"
        self.desk.make()
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        for host in self.hosts:
            host.make()
            host.start_sshd(key)
        self.ssh_config.write_text("".join(host.client_config(key) for host in self.hosts))

    def commands(self) -> list[str]:
        """Hosts and command lines of what runs on the hosts beside their sshd."""
        found = []
        for host in self.hosts:
            for pid in host.pids():
                with contextlib.suppress(OSError):  # it has just ended
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if command and "[listener]" not in command:
                        found.append(f"{host.name}: {command}")
        return found


@contextlib.contextmanager
def network(folder: Path, count: int) -> Iterator[Network]:
    """Hosts h1 to hN and a desk, which are gone with all of their processes when the block is left."""
    for name in _names():
        if not Path("/proc", name.removeprefix(PREFIX).split("-")[0]).exists():
            _remove(name)  # of a test that was killed
    made = Network(folder, count)
    try:
        made.make()
        yield made
    finally:
        run = made.switch.removesuffix("switch")
        for name in _names():
            if name.startswith(run):
                _remove(name)


def _names() -> list[str]:
    names = (line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line)
    return [name for name in names if name.startswith(PREFIX)]


def _remove(namespace: str) -> None:
    give_up = time.monotonic() + START_S
    while pids := _run("ip", "netns", "pids", namespace).split():
        assert time.monotonic() < give_up, f"{namespace} still has the processes {pids}"
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.02)
    _run("ip", "netns", "delete", namespace)
