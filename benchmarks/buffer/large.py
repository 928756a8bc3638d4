"""A draw of a large batch, and a draw beside a query that looks at every group of a tag.

fill one store with large groups, one with many small ones, in process ─► serve each ─► seconds,
CPU seconds of the service, memory of the service and of this client
"""

import re
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.buffer.costs import LARGE_TOKENS, SETTINGS, TASKS, Bench
from benchmarks.buffer.scale import attempt
from benchmarks.buffer.service import Service
from buffer import BufferClient
from r3l import codec
from r3l.records import Task

TAG = "many"
AT_ONCE = 10  # large groups in one transaction while filling
DRAWS = 5  # each before and during the query
EVERY_S = 0.02


@click.command()
@click.option("--mb", default=2000, show_default=True, help="bytes of the draw, in MB")
@click.option("--groups", default=100_000, show_default=True, help="groups that the query reads")
@click.option("--folder", type=click.Path(path_type=Path), help="where; default a temporary one")
def large(mb: int, groups: int, folder: Path | None) -> None:
    """A draw of 2 GB; a draw beside a query without a match."""
    for measure, size in ((_draw, mb), (_beside_query, groups)):
        place = Path(tempfile.mkdtemp(prefix="buffer-large-", dir=folder))
        try:
            measure(place, size)
        finally:
            shutil.rmtree(place)


def _draw(place: Path, mb: int) -> None:
    bench = Bench(place)
    bench.raws = tuple(msgspec.Raw(codec.encode(attempt(slot, LARGE_TOKENS))) for slot in (0, 1))
    count = max(1, round(mb * 1e6 / sum(map(len, bench.raws))))
    for made in range(AT_ONCE, count + AT_ONCE, AT_ONCE):
        bench.fill(min(made, count), finish=True)
    bench.store.close()
    with _served(place) as (service, client):
        before, own = _own_mb(service), _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins at the present size
        began, cpu, own_cpu = time.monotonic(), service.cpu_s, time.process_time()
        most, draw = _most_while(lambda: _own_mb(service), lambda: _drawn(client, count))
        size = sum(map(len, draw.records))
        click.echo(
            f"a draw of {size / 1e6:.0f} MB in {count} groups: {time.monotonic() - began:.1f} s, "
            f"CPU s service {service.cpu_s - cpu:.1f}, client {time.process_time() - own_cpu:.1f}; "
            f"service {before:.0f} MB before, {most:.0f} MB at most; client "
            f"{_status('VmHWM') - own:.0f} MB at most above what it had"
        )


def _beside_query(place: Path, groups: int) -> None:
    bench = Bench(place)
    bench.tag = TAG
    tasks = [Task(f"t{at}", "w", at) for at in range(TASKS)]
    bench.run(lambda work: [work.txn.add_task("train", TAG, *each) for each in enumerate(tasks)])
    bench.fill(groups, finish=True)
    bench.store.close()
    with _served(place) as (service, client):
        alone = _draws_ms(client)
        took, cpu = [0.0], service.cpu_s

        def ask() -> None:
            with BufferClient(service.endpoint, name="a reader", timeout_s=600) as reader:
                began = time.monotonic()
                assert reader.query(tag=TAG, state="filling", limit=10) == []
                took[0] = time.monotonic() - began

        asking = threading.Thread(target=ask)
        asking.start()
        beside = list[float]()
        while asking.is_alive():
            beside += _draws_ms(client)
        asking.join()
        click.echo(
            f"a query without a match among {groups} groups: {took[0]:.1f} s, CPU s of the service "
            f"with the draws {service.cpu_s - cpu:.1f}; a draw of 8 meanwhile "
            f"{statistics.median(beside):.0f} ms, at most {max(beside):.0f} ms ({len(beside)} "
            f"draws); before {statistics.median(alone):.0f} ms, at most {max(alone):.0f} ms"
        )


@contextmanager
def _served(place: Path) -> Any:
    with (
        Service(place, *SETTINGS) as service,
        BufferClient(service.endpoint, timeout_s=600) as client,
    ):
        yield service, client


def _drawn(client: BufferClient, count: int) -> Any:
    draw = client.draw(count, 0)
    assert draw is not None
    return draw


def _draws_ms(client: BufferClient) -> list[float]:
    times = []
    for _ in range(DRAWS):
        began = time.monotonic()
        _drawn(client, 8)
        times.append((time.monotonic() - began) * 1e3)
        client.release_draws()
    return times


def _most_while(read: Callable[[], float], work: Callable[[], Any]) -> tuple[float, Any]:
    """The largest value that `read` returned while `work` ran, and what `work` returned."""
    seen, ended = [read()], threading.Event()

    def watch() -> None:
        while not ended.wait(EVERY_S):
            seen.append(read())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        done = work()
    finally:
        ended.set()
        watching.join()
    return max(seen), done


def _own_mb(service: Service) -> float:
    """Memory of the service without the pages of its store."""
    memory = service.process.memory_info()
    return (memory.rss - memory.shared) / 1e6


def _status(name: str) -> float:
    """A value of this process's status in MB."""
    found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e6
