"""Which places acknowledge nothing, by the kernel's table of connections."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from trainer.rendezvous import acknowledged
from trainer.rendezvous.acknowledged import Unacknowledged, own_sockets, sent_again

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def line(remote: str, state: str = "01", timer: str = "01", times: int = 3, inode: str = "42") -> str:
    begin = f"   0: 0100007F:2382 {remote} {state} 00000010:00000000 {timer}:00000100"
    return f"{begin} {times:08X}     0        0 {inode} 2 0000000000000000 20 4 1 10 -1\n"


def test_connections_whose_last_bytes_were_sent_again_are_found() -> None:
    table = HEAD + line("03004D0A:1B5A") + line("04004D0A:1B5A", times=0) + line("05004D0A:1B5A", timer="02")
    assert sent_again(table + line("06004D0A:1B5A", state="06")) == {"10.77.0.3:7002": "42"}


def test_a_place_counts_after_so_long_and_until_it_acknowledges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "tcp"
    monkeypatch.setattr(acknowledged, "TABLE", table)
    with socket.socket() as own:
        (inode,) = own_sockets() & {str(Path(f"/proc/self/fd/{own.fileno()}").readlink())[8:-1]}
        mine, anothers = line("03004D0A:1B5A", inode=inode), line("04004D0A:1B5A", inode="7")
        watch = Unacknowledged(["10.77.0.3:7002", "10.77.0.4:7002"])
        found = []
        for now, content in enumerate([mine, mine + anothers, mine, "", mine]):
            table.write_text(HEAD + content)
            found.append(watch.look(float(now), 2.0))
    assert found == [[], [], ["10.77.0.3:7002"], [], []]
