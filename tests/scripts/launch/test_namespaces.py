"""The hosts that other tests use: reachable by ssh, apart from this machine's network, and gone afterwards."""

import shutil
import subprocess
import sys

import pytest
from namespaces import network


def connects(one, other):
    program = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.5)"
    command = one.command(sys.executable, "-c", program, other.address, str(other.ssh_port))
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.usefixtures("namespaces_can_be_made")
def test_hosts_are_reached_by_ssh_lose_packets_when_asked_and_are_gone_afterwards(tmp_path):
    with network(tmp_path, 3) as net:
        first, second, third = net.hosts
        say = ("ssh", "-F", net.ssh_config, "-o", "BatchMode=yes")
        assert first.address in net.desk.run(*say, "h1", "ip -4 -o addr show dev eth0")
        assert second.address in net.desk.run(*say, second.address, "ip -4 -o addr show dev eth0")
        assert connects(second, first) and connects(net.desk, second)
        assert connects(second, third)
        third.unplug()
        assert not connects(second, third)
        assert first.pids()
        if shutil.which("nft"):
            first.close_ports(f"{{ {first.ssh_port} }}")
            second.lose(percent=99)
            assert not connects(net.desk, first) and not connects(net.desk, second)
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert net.switch not in left
