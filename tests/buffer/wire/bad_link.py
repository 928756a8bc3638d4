"""A TCP proxy that damages, drops, repeats and reorders the bytes in both directions."""

import contextlib
import random
import socket
import threading
import time
from typing import Self


class BadLink:
    """Listens at `endpoint` and connects each client to the endpoint `of` a service. While `bad`,
    one in `every` pieces is harmed."""

    def __init__(self, of: str, every: int = 8, seed: int = 0) -> None:
        host, _, port = of.removeprefix("tcp://").partition(":")
        self._to, self._every, self._chance = (host, int(port)), every, random.Random(seed)
        self.bad, self.harmed, self._ended = True, 0, threading.Event()
        self._clients = list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._listener.close()

    def spoil(self) -> None:
        """Sends each client bytes that no protocol has."""
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.sendall(b"\xff" * 9)

    def _accept(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError):
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                self._clients.append(near)
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError), source, sink:
            source.settimeout(0.2)
            held = b""
            while not self._ended.is_set():
                with contextlib.suppress(TimeoutError):
                    data = source.recv(4096)
                    if not data:
                        break
                    piece, held = self._harm(data, held)
                    sink.sendall(piece)
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)

    def _harm(self, data: bytes, held: bytes) -> tuple[bytes, bytes]:
        """What is sent on of `data`, and what is held back until after the next piece."""
        if not self.bad or self._chance.randrange(self._every):
            return data + held, b""
        self.harmed += 1
        changed = bytearray(data)
        changed[self._chance.randrange(len(data))] ^= 1 << self._chance.randrange(8)
        how = self._chance.randrange(5)
        time.sleep(0.1 * (how == 4))
        return [(bytes(changed), b""), (b"", b""), (data * 2, b""), (b"", data), (data, b"")][how]
