"""The cost of bad peers to a good client.

One client leases, puts and draws, in turn and for several rounds: alone, with peers that request
groups and were stopped, with connections that come and go without a word, with as many connections
to another process (the cost of the machine itself), and with messages that are not requests. The
table shows p50 and p99 of its calls and their ratio to p99 alone.

The peers keep a pace, so that the service is measured and not the scheduler.
"""

import itertools
import multiprocessing
import os
import random
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import zmq

from benchmarks.buffer.service import Service, attempt, quantile
from buffer import BufferClient, Lease
from buffer.wire import messages, operations
from r3l.records import GroupPlan, Task

PLAN = GroupPlan(8)
TOKENS = 1024
GREETING = b"\xff" + b"\0" * 7 + b"\1\x7f\3\0NULL" + b"\0" * 48
Peer = Callable[[str, list[str], float, Any], None]


def stopped(endpoint: str, groups: list[str], pace: float, acts: Any) -> None:
    """Requests more replies than it may, and reads none."""
    dealer = zmq.Context().socket(zmq.DEALER)
    dealer.set(zmq.RCVHWM, 1)
    dealer.connect(endpoint)
    request = operations.GetGroups(tuple(groups))
    for number in range(200):
        dealer.send_multipart(messages.request_frames("get", f"r{number}", request))
        acts.value += 1
    while True:
        time.sleep(60)


def connections(endpoint: str, groups: list[str], pace: float, acts: Any) -> None:
    """Connects, sends half a greeting or nothing, and disconnects."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    for number in _paced(pace):
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=10) as peer:
            peer.sendall(GREETING[: random.Random(number).choice((0, 1, 12, 64))])
        acts.value += 1


def elsewhere(endpoint: str, groups: list[str], pace: float, acts: Any) -> None:
    """The same, to a socket that is not the service's."""
    other = socket.create_server(("127.0.0.1", 0), backlog=1024)
    threading.Thread(target=_hang_up, args=(other,), daemon=True).start()
    host, port = other.getsockname()
    connections(f"tcp://{host}:{port}", groups, pace, acts)


def _hang_up(listener: socket.socket) -> None:
    while True:
        listener.accept()[0].close()


def nonsense(endpoint: str, groups: list[str], pace: float, acts: Any) -> None:
    """Sends messages that are not requests."""
    dealer = zmq.Context().socket(zmq.DEALER)
    dealer.connect(endpoint)
    chance = random.Random(0)
    for _ in _paced(pace):
        dealer.send_multipart([chance.randbytes(chance.choice((0, 9, 200, 4000)))] * 2)
        while dealer.poll(0):
            dealer.recv_multipart()
        acts.value += 1


def _paced(pace: float) -> Iterator[int]:
    """0, 1, 2, … at most `pace` a second, in bursts of a hundredth of one."""
    began = time.monotonic()
    for number in itertools.count():
        while number > pace * (time.monotonic() - began):
            time.sleep(0.01)
        yield number


PEERS: dict[str, Peer | None] = {
    "alone": None,
    "stopped peers": stopped,
    "connections": connections,
    "as many elsewhere": elsewhere,
    "nonsense": nonsense,
}


@click.command()
@click.option("--rounds", default=3, show_default=True, help="times every kind of peer has a turn")
@click.option("--calls", default=400, show_default=True, help="groups put in a turn")
@click.option("--pace", default=2000.0, show_default=True, help="acts of a bad peer a second")
@click.option("--peer", multiple=True, type=click.Choice([*PEERS]), help="only these, and alone")
def peers(rounds: int, calls: int, pace: float, peer: tuple[str, ...]) -> None:
    """A good client next to stopped, silent and hostile ones."""
    chosen = {name: PEERS[name] for name in PEERS if name in ("alone", *(peer or PEERS))}
    times: dict[str, dict[str, list[float]]] = {name: {"put": [], "draw": []} for name in chosen}
    acts = {name: multiprocessing.Value("q", 0) for name in chosen}
    options = ("learner.groups_per_step=24", "buffer.max_staleness=1000000", "buffer.lease_s=86400")
    with (
        tempfile.TemporaryDirectory(prefix="buffer-peers-") as folder,
        Service(Path(folder) / "store", *options) as service,
    ):
        client = service.client
        client.add_tasks([Task(f"t{i}", "workshop", i) for i in range(1000)])
        groups = [_put(client, []) for _ in range(12)]
        for _ in range(rounds):
            for name, bad in chosen.items():
                with _with_peers(bad, service.endpoint, groups, pace, acts[name]):
                    _work(client, calls, times[name])
        memory, stats = service.process.memory_info(), client.stats()
    _report(times, {name: number.value for name, number in acts.items()})
    click.echo(f"service at the end: {(memory.rss - memory.shared) / 1e6:.0f} MB of its own,")
    click.echo(f"refused {stats.refused}, undelivered {stats.undelivered}")


@contextmanager
def _with_peers(
    peer: Peer | None, endpoint: str, groups: list[str], pace: float, acts: Any
) -> Iterator[None]:
    """Two such peers from here to the end of the block."""
    if peer is None:
        yield
        return
    arguments = (endpoint, groups, pace / 2, acts)
    others = [multiprocessing.Process(target=peer, args=arguments, daemon=True) for _ in range(2)]
    for other in others:
        other.start()
    time.sleep(1.0)  # at work by now
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def _work(client: BufferClient, calls: int, times: dict[str, list[float]]) -> None:
    for number in range(calls):
        _put(client, times["put"])
        if number % 12 == 11:
            began = time.perf_counter()
            draw = client.draw(12, 0)
            times["draw"].append((time.perf_counter() - began) * 1e3)
            assert draw is not None
            client.discard(draw.draw_id, "benchmark")


def _put(client: BufferClient, times: list[float]) -> str:
    lease = client.lease(f"good-{os.getpid()}", 0, PLAN)
    assert isinstance(lease, Lease), lease
    results = [attempt(slot, 0, TOKENS) for slot in range(PLAN.slots)]
    began = time.perf_counter()
    client.put(lease.group_id, f"good-{os.getpid()}", results)
    times.append((time.perf_counter() - began) * 1e3)
    return lease.group_id


def _report(times: dict[str, dict[str, list[float]]], acts: dict[str, int]) -> None:
    click.echo(f"{'peers':18}{'acts':>10}" + "".join(
        f"{f'{name} p50':>12}{f'{name} p99, ms':>16}" for name in ("put", "draw")
    ))  # fmt: skip
    alone = times["alone"]
    for name, own in times.items():
        line = f"{name:18}{acts[name]:>10,}"
        for operation, values in own.items():
            p50, p99 = quantile(values, 0.5), quantile(values, 0.99)
            line += f"{p50:>12.2f}{p99:>8.2f} {p99 / quantile(alone[operation], 0.99):>5.2f} x"
        click.echo(line)
