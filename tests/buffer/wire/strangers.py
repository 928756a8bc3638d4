"""Peers that speak just enough ZMTP to do harm, and a watch over what they cost."""

import socket
import time

import psutil

from tests.buffer.fakes import until

MIB = 1 << 20
READY = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big")


def greeting(mechanism: bytes) -> bytes:
    return b"\xff" + b"\0" * 7 + b"\1\x7f\3\0" + mechanism.ljust(20, b"\0") + b"\0" * 32


def ready(kind: bytes) -> bytes:
    return b"\x04" + bytes([len(READY + kind)]) + READY + kind


def connect(endpoint: str, mechanism: bytes = b"NULL") -> socket.socket:
    """A connection that has greeted; without keys it is let in."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    stranger = socket.create_connection((host, int(port)), timeout=30)
    stranger.sendall(greeting(mechanism))
    if mechanism == b"NULL":
        _let_in(stranger, b"DEALER")
    return stranger


def accept(listening: socket.socket) -> socket.socket:
    """The first connection to a false service, which has let it in."""
    peer, _ = listening.accept()
    peer.settimeout(30)
    peer.sendall(greeting(b"NULL"))
    _let_in(peer, b"ROUTER")
    return peer


def _let_in(stranger: socket.socket, kind: bytes) -> None:
    stranger.sendall(ready(kind))
    heard = b""
    while b"READY" not in heard:
        heard += stranger.recv(1 << 16)


def frame(body: bytes, *, more: bool = True) -> bytes:
    """A frame of a message on the wire."""
    if len(body) < 256:
        return bytes([more, len(body)]) + body
    return bytes([2 + more]) + len(body).to_bytes(8, "big") + body


def flood(strangers: list[socket.socket], data: bytes, size: int) -> int:
    """Send `data` again and again over each connection, in turn, `size` bytes at most; returns how
    many of them were closed before."""
    open_ones = dict.fromkeys(strangers, size)
    for stranger in strangers:
        stranger.settimeout(0.01)
    end, closed = time.monotonic() + 60, 0
    while open_ones and time.monotonic() < end:
        for stranger, left in list(open_ones.items()):
            try:
                at = (size - left) % len(data)
                left -= stranger.send(data[at : at + min(left, MIB)])
            except TimeoutError:
                if _closed(stranger):
                    left, closed = 0, closed + 1
            except OSError:
                left, closed = 0, closed + 1
            open_ones[stranger] = left
            if left == 0:
                del open_ones[stranger]
    return closed


def _closed(stranger: socket.socket) -> bool:
    """Whether the other side has closed: what it sent before ends."""
    try:
        while stranger.recv(1 << 16):
            pass
        return True
    except TimeoutError:
        return False
    except OSError:
        return True


class Memory:
    """The memory of a process, which is killed rather than let it take all of this machine."""

    def __init__(self, pid: int, most_mib: int = 1500) -> None:
        self.process, self.most = psutil.Process(pid), most_mib
        self.before = self.mib()

    def mib(self) -> int:
        used = int(self.process.memory_info().rss >> 20)
        if used > self.most:
            self.process.kill()
        assert used <= self.most, f"{used} MiB"
        return used

    def grown(self) -> int:
        """MiB more than at first."""
        return self.mib() - self.before

    def calms_down(self, mib: int) -> None:
        """Wait until it has grown by less than this."""
        until(lambda: self.grown() < mib)
