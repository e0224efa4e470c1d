"""A switch that holds every frame back for so long, as a long cable would. Needs root, in a network namespace.

    python experiments/benchmarks/delayed_switch.py 0.025 to-h1 to-h2 to-h3
    python experiments/benchmarks/delayed_switch.py 0.025 to-h1 to-h2 to-h3 --far to-h3  # only its frames

Kernels without netem have no delays; here this process is the cable. Frames pass as they are, with what the cards leave
to each other (checksums, segments), so that 64 KiB cost what a small frame does. Prints "ready" when it forwards.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque

# Of Linux' if_packet.h and if_ether.h; Python has no names for them.
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING, ETH_P_ALL = 263, 15, 23, 3
HEADER = 10  # bytes in front of a frame that say what the cards left to each other
LONGEST = 1 << 17


def plug(name: str) -> socket.socket:
    """All frames of a card."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 25)
    port.bind((name, ETH_P_ALL))
    port.setblocking(False)
    return port


def forward(delay_s: float, ports: list[socket.socket], far: socket.socket | None) -> None:
    """Forwards for ever: to the card behind which an address was seen, else to all.

    Args:
        far: frames between other cards are not held back; None: all are.
    """
    behind: dict[bytes, socket.socket] = {}
    held: deque[tuple[float, socket.socket, bytes]] = deque()  # all are held as long: the first is due first
    while True:
        wait_s = max(0.0, held[0][0] - time.monotonic()) if held else None
        for port in select.select(ports, [], [], wait_s)[0]:
            frame = port.recv(LONGEST)
            target, source = frame[HEADER : HEADER + 6], frame[HEADER + 6 : HEADER + 12]
            behind[source] = port
            outs = [behind[target]] if target in behind else [other for other in ports if other is not port]
            for out in outs:
                if far is None or far in (port, out):
                    held.append((time.monotonic() + delay_s, out, frame))
                else:
                    send(out, frame)
        while held and held[0][0] <= time.monotonic():
            _, out, frame = held.popleft()
            send(out, frame)


def send(out: socket.socket, frame: bytes) -> None:
    """Sends a frame once the card takes it."""
    select.select([], [out], [])
    out.send(frame)


if __name__ == "__main__":
    delay, *names = sys.argv[1:]
    far_name = names.pop() if "--far" in names else ""
    plugged = {name: plug(name) for name in names if name != "--far"}
    print("ready", flush=True)
    forward(float(delay), list(plugged.values()), plugged.get(far_name))
