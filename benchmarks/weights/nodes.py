"""One publisher and engines on several nodes: `python -m benchmarks.weights.nodes` (root, Linux).

    publisher ── link ── switch ── link ── node 0: engine, engine, …
                                └─ link ── node 1: engine, engine, …

Nodes are network namespaces, links are shaped. Engines fetch, check and stage, as actors do, but
load nothing. Prints, for each transport, what every link carried, when the last engine had the set,
the memory of staged sets on a node, and the publisher's CPU seconds and memory, in which
the benchmark's own copy of the set is.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import psutil

from benchmarks.weights.publisher import LEARNER_ENV

PORT = 5556
ADDRESS = "10.77.0.{}"
CHANGED = 0.02
WAYS = "zmq-encrypted,zmq-keyed,relay-encrypted,relay-keyed"


def run(command: str) -> None:
    subprocess.run(command.split(), check=True)


def build_network(names: list[str], mbit: float) -> None:
    """Joins a namespace for each name to a switch. Every link carries `mbit` each way."""
    run("ip link add switch type bridge")
    run("ip link set switch up")
    for number, name in enumerate(names, 1):
        run(f"ip netns add {name}")
        run(f"ip link add to-{name} type veth peer name eth netns {name}")
        run(f"ip link set to-{name} master switch up")
        run(f"ip -n {name} addr add {ADDRESS.format(number)}/24 dev eth")
        run(f"ip -n {name} link set eth up")
        run(f"ip -n {name} link set lo up")
        shape = f"root tbf rate {mbit}mbit burst 256kb latency 200ms"
        run(f"tc qdisc add dev to-{name} {shape}")
        run(f"ip netns exec {name} tc qdisc add dev eth {shape}")


def carried(name: str) -> int:
    """Bytes that the link of a namespace has carried, both ways."""
    shown = subprocess.run(
        ["ip", "-s", "-j", "link", "show", f"to-{name}"], check=True, capture_output=True
    )
    counts = json.loads(shown.stdout)[0]["stats64"]
    return int(counts["rx"]["bytes"]) + int(counts["tx"]["bytes"])


class Process:
    """A process in a namespace, which answers each line with a line."""

    def __init__(self, name: str, folder: Path, *options: object) -> None:
        own = folder / name  # where the relay of the node is found
        own.mkdir(exist_ok=True)
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "benchmarks.weights.nodes"]
        self.process = subprocess.Popen(
            [*command, *map(str, options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=LEARNER_ENV | {"TMPDIR": str(own)},
        )

    def ask(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def publish(gb: float, keys: Path, bulk: str) -> None:
    """The publisher's process: publishes the next version for each line."""
    import torch

    from learner.publishing.publisher import WeightPublisher

    torch.manual_seed(0)
    weights = torch.randn(int(gb * 5e8)).bfloat16()
    publisher = WeightPublisher(
        f"tcp://0.0.0.0:{PORT}", anchor_every=1 << 30, keys=keys, keyed_bulk=bulk == "keyed"
    )
    print(json.dumps("ready"), flush=True)
    for version, line in enumerate(sys.stdin):
        if line.strip() == "publish":
            if version:
                bits = weights.view(torch.int16)
                bits += (torch.rand(len(bits)) < CHANGED).to(torch.int16)
            publisher.publish(version, [("w", weights)])
        print(json.dumps([time.process_time(), psutil.Process().memory_info().rss]), flush=True)


async def fetch(engines: int, keys: Path, transport: str) -> None:
    """A node's process: all its engines get the newest version for each line."""
    from actors.weights.subscriber import WeightSubscriber
    from actors.weights.transport import transport_of
    from r3l.run.settings.actor import WeightsConfig

    config = WeightsConfig.model_validate({"transport": transport})
    endpoint = f"tcp://{ADDRESS.format(1)}:{PORT}"
    subscribers = [WeightSubscriber(endpoint, timeout_s=120, keys=keys) for _ in range(engines)]
    ways = [transport_of(config, subscriber, keys) for subscriber in subscribers]

    async def update(at: int) -> None:
        manifest = await subscribers[at].latest()
        assert manifest is not None
        async with ways[at].bring(manifest):
            subscribers[at].loaded = (manifest.origin, manifest.version)

    print(json.dumps("ready"), flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        await asyncio.gather(*map(update, range(engines)))
        failed = sum(sum(each.metrics.weights_failed.values()) for each in subscribers)
        print(json.dumps([time.time(), staged_bytes(), time.process_time(), failed]), flush=True)


def staged_bytes() -> int:
    """Bytes of this process's staged sets, each counted once."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(path).startswith("/memfd:r3l-weights"):
                state = path.stat()
                found[state.st_ino] = state.st_blocks * 512
        except OSError:  # closed meanwhile
            continue
    return sum(found.values())


def measure(folder: Path, gb: float, nodes: int, engines: int, way: str) -> None:
    """Prints what a whole set and a patch took, on one of WAYS."""
    from buffer.wire.curve_keys import generate

    keys, (transport, bulk) = folder / f"keys-{way}-{nodes}-{engines}", way.split("-")
    service, client, _ = generate(keys)
    publisher = Process("pub", folder, "--publish-gb", gb, "--keys", service, "--bulk", bulk)
    members = [
        Process(f"n{at}", folder, "--fetch", engines, "--keys", client, "--transport", transport)
        for at in range(nodes)
    ]
    for process in (publisher, *members):
        process.answer()
    for what in ("whole", f"{CHANGED:.0%} changed"):
        publisher.ask("publish")
        cpu, _ = publisher.answer()
        names = ["pub", *(f"n{at}" for at in range(nodes))]
        before, began = [carried(name) for name in names], time.time()
        for member in members:
            member.ask("fetch")
        ended = [member.answer() for member in members]
        links = [(carried(name) - old) / 1e6 for name, old in zip(names, before, strict=True)]
        publisher.ask("cpu")
        then, memory = publisher.answer()
        print(
            f"{transport:6} {bulk:10} {gb:g} GB, {nodes} x {engines}, {what:11} link of the "
            f"publisher {links[0]:7.1f} MB, of a node {max(links[1:]):6.1f}; last "
            f"{max(at for at, *_ in ended) - began:6.2f} s; staged a node "
            f"{max(size for _, size, *_ in ended) / 1e6:6.0f} MB; publisher CPU s "
            f"{then - cpu:.2f}, {memory / 1e6:.0f} MB; failed {sum(each[-1] for each in ended)}",
            flush=True,
        )
    for process in (publisher, *members):
        process.end()


@click.command()
@click.option("--gb", default=0.1, show_default=True, help="size of the set")
@click.option("--nodes", default="1x1,1x4,4x4", show_default=True, help="nodes x engines, several")
@click.option("--link-mbit", default=1000.0, show_default=True, help="what each link carries")
@click.option("--ways", default=WAYS, show_default=True, help="transports and bulk, several")
@click.option("--publish-gb", default=0.0, hidden=True)
@click.option("--fetch", "engines", default=0, hidden=True)
@click.option("--keys", type=Path, hidden=True)
@click.option("--bulk", hidden=True)
@click.option("--transport", hidden=True)
@click.option("--inside", is_flag=True, hidden=True)
def main(
    gb: float,
    nodes: str,
    link_mbit: float,
    ways: str,
    publish_gb: float,
    engines: int,
    keys: Path,
    bulk: str,
    transport: str,
    inside: bool,
) -> None:
    """Measure weights on their way to several nodes."""
    if publish_gb:
        publish(publish_gb, keys, bulk)
    elif engines:
        asyncio.run(fetch(engines, keys, transport))
    elif not inside:
        again = [sys.executable, "-m", "benchmarks.weights.nodes", *sys.argv[1:], "--inside"]
        os.execvp("unshare", ["unshare", "--net", "--mount", *again])
    else:
        places = [tuple(map(int, place.split("x"))) for place in nodes.split(",")]
        most = max(count for count, _ in places)
        run("mount -t tmpfs tmpfs /run")
        build_network(["pub", *(f"n{at}" for at in range(most))], link_mbit)
        with tempfile.TemporaryDirectory(prefix="r3l") as name:
            for count, each in places:
                for way in ways.split(","):
                    measure(Path(name), gb, count, each, way)


if __name__ == "__main__":
    main()
