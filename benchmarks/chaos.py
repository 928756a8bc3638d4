"""`make chaos`: a real run in which every 20-40 s something is killed, stopped, filled or cut.

The run has a network, a disk and shared memory of its own (namespaces and tmpfs; needs root on
Linux), so that thinning its link or filling its disk touches nothing else.

    events until the time is up ─► Ctrl-C ─► --resume for two more steps ─► checks and the table
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from buffer import BufferClient
from buffer.storage.store import Store
from buffer.storage.transaction import read_group
from buffer.tools.verify import verify
from r3l.errors import R3LError
from r3l.run.files.run_folder import RunFolder
from r3l.run.process.process_list import every_process

INSIDE = "R3L_CHAOS_INSIDE"
RECOVERY_S = 240.0  # without a step after an event, until chaos gives up
STOPPED_S = (5.0, 20.0)
SYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
static void wait_for_disk(void) {
    const char *slow = getenv("R3L_CHAOS_SLOW");
    if (slow && access(slow, F_OK) == 0) sleep(3);
}
int fsync(int fd) { wait_for_disk(); return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
int fdatasync(int fd) {
    wait_for_disk();
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
"""
NOTEBOOK = """
import sys, time
from buffer import BufferClient
with BufferClient(sys.argv[1], name="notebook", timeout_s=60) as client:
    while True:  # what it is given it keeps, and asks for as many as it may hold
        client.draw(20, client.stats().learner_version, consumer="notebook", wait_s=600)
        time.sleep(600)
"""
SETTINGS = (
    "learner.groups_per_step=4",
    "buffer.max_staleness=4",
    "actor.concurrent_requests=16",
    "eval.every=0",
    "eval.tasks=32",
    "learner.checkpoint_every=5",
    "actor.restarts=1000",
    "learner.restarts=1000",
    "buffer.restarts=1000",
)


@dataclass
class Outcome:
    """What an event did so far: how often it was, and the longest time from its beginning to the
    next optimizer step, seconds."""

    count: int = 0
    silent_s: float = 0.0


class Sampled:
    """Tokens that actors sampled, as of their heartbeats: they count from their start, so a count
    that falls is that of another process."""

    def __init__(self) -> None:
        self._ended, self._latest = 0.0, dict[str, float]()
        self.requests = dict[str, int]()  # under way, by actor

    def add(self, actor: str, tokens: float) -> None:
        """The newest count of an actor."""
        if tokens < self._latest.get(actor, 0.0):
            self._ended += self._latest[actor]
        self._latest[actor] = tokens

    def total(self) -> int:
        """Of all processes so far."""
        return int(self._ended + sum(self._latest.values()))


@dataclass
class Chaos:
    """One run under attack, in `folder`, which is a small disk of its own."""

    folder: Path
    chance: random.Random
    run: Path = field(init=False)
    output: Path = field(init=False)
    launcher: subprocess.Popen[bytes] = field(init=False)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    sampled: Sampled = field(default_factory=Sampled)
    lost_requests: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run = self.folder / "disk" / "run"
        self.output = self.folder / "launcher.log"

    def launch(self, *arguments: str) -> None:
        """Start r3l-launch on the run."""
        command = [sys.executable, "-m", "launch.cli", "--run", str(self.run), "--actors", "2"]
        with self.output.open("ab") as output:
            self.launcher = subprocess.Popen(
                [*command, *SETTINGS, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ
                | {
                    "PYTHONUNBUFFERED": "1",
                    "LD_PRELOAD": str(self.folder / "sync.so"),
                    "R3L_CHAOS_SLOW": str(self.folder / "slow"),
                },
            )

    def lines(self) -> list[dict[str, Any]]:
        """The lines of progress so far; one that is half written is left out."""
        path, found = self.run / "progress.jsonl", []
        for text in path.read_text().splitlines() if path.exists() else ():
            try:
                found.append(json.loads(text))
            except ValueError:
                continue
        return found

    def steps(self) -> int:
        """How many lines of steps were reported."""
        return sum(line["kind"] == "step" for line in self.lines())

    def wait_for_step(self, deadline_s: float) -> float:
        """Wait for one more step; returns the seconds that it took."""
        began, steps = time.monotonic(), self.steps()
        while self.steps() <= steps:
            if self.launcher.poll() is not None:
                raise SystemExit(f"r3l-launch ended with {self.launcher.returncode}: {self.output}")
            if time.monotonic() - began > deadline_s:
                raise SystemExit(f"no step for {deadline_s:g} s after the event: {self.output}")
            time.sleep(0.2)
        return time.monotonic() - began

    def parts(self, module: str) -> list[psutil.Process]:
        """The processes of the run that execute a module, such as actors.cli."""
        found = []
        for process in every_process():
            with suppress(psutil.Error):
                words = process.cmdline()
                if module in words and any(str(self.run) in word for word in words):
                    found.append(process)
        return found

    def endpoint(self) -> str:
        """The buffer's address; "" before it has one."""
        status = RunFolder(self.run).status_of("buffer")
        return status.address if status else ""

    def watch(self) -> None:
        """Ask the buffer every second what its actors have sampled."""
        while True:
            time.sleep(1.0)
            if not (endpoint := self.endpoint()):
                continue
            with suppress(R3LError), BufferClient(endpoint, name="watch", timeout_s=5) as client:
                for actor, metrics in client.stats().actors.items():
                    if "generated_tokens" in metrics:
                        self.sampled.add(actor, metrics["generated_tokens"])
                        self.sampled.requests[actor] = int(metrics.get("requests_running", 0))

    def one(self, module: str) -> psutil.Process | None:
        """One of those processes at random."""
        found = self.parts(module)
        return self.chance.choice(found) if found else None


# ── events ──────────────────────────────────────────────────────────────────────────────────


def kill(module: str) -> Callable[[Chaos], None]:
    """Kill -9 one process."""

    def event(chaos: Chaos) -> None:
        if victim := chaos.one(module):
            if module == "actors.cli":  # which of them it is does not matter much
                chaos.lost_requests.append(max(chaos.sampled.requests.values(), default=0))
            victim.kill()

    return event


def stop(module: str) -> Callable[[Chaos], None]:
    """SIGSTOP one process, later SIGCONT."""

    def event(chaos: Chaos) -> None:
        if victim := chaos.one(module):
            victim.suspend()
            time.sleep(chaos.chance.uniform(*STOPPED_S))
            if victim.is_running():
                victim.resume()

    return event


def kill_launcher(chaos: Chaos) -> None:
    """Kill -9 the launcher, wait until its parts have ended, and resume."""
    chaos.lost_requests += chaos.sampled.requests.values()
    chaos.launcher.kill()
    chaos.launcher.wait()
    wait_gone(chaos, 60.0)
    chaos.launch("--resume")


def stop_launcher(chaos: Chaos) -> None:
    """SIGSTOP the launcher, later SIGCONT."""
    chaos.launcher.send_signal(signal.SIGSTOP)
    time.sleep(chaos.chance.uniform(*STOPPED_S))
    chaos.launcher.send_signal(signal.SIGCONT)


def slow_disk(chaos: Chaos) -> None:
    """For a while every fsync takes 3 s more."""
    slow = chaos.folder / "slow"
    slow.touch()
    time.sleep(chaos.chance.uniform(*STOPPED_S))
    slow.unlink()


def full_disk(chaos: Chaos) -> None:
    """For a while the disk of the run has no byte left."""
    ballast = chaos.run.parent / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 16)):  # until an OSError: the disk is full
            pass
    time.sleep(chaos.chance.uniform(*STOPPED_S))
    ballast.unlink()


def link(*shape: str) -> Callable[[Chaos], None]:
    """For a while the link between all processes has the shape of a tc queue."""

    def event(chaos: Chaos) -> None:
        subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", *shape], check=True)
        time.sleep(chaos.chance.uniform(*STOPPED_S))
        subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=True)

    return event


def notebook(chaos: Chaos) -> None:
    """Another consumer waits for a draw of all it may hold, and is killed."""
    with subprocess.Popen([sys.executable, "-c", NOTEBOOK, chaos.endpoint()]) as process:
        time.sleep(chaos.chance.uniform(*STOPPED_S))
        if process.poll() is not None:
            raise SystemExit(f"the notebook ended with {process.returncode}, see above")
        process.kill()


EVENTS: dict[str, Callable[[Chaos], None]] = {
    "kill actor": kill("actors.cli"),
    "kill buffer": kill("buffer.cli"),
    "kill learner": kill("learner.cli"),
    "kill launcher": kill_launcher,
    "stop actor": stop("actors.cli"),
    "stop buffer": stop("buffer.cli"),
    "stop learner": stop("learner.cli"),
    "stop launcher": stop_launcher,
    "slow disk": slow_disk,
    "full disk": full_disk,
    "thin link": link("tbf", "rate", "1mbit", "burst", "64kb", "latency", "2s"),
    "cut link": link("pfifo", "limit", "0"),
    "waiting notebook": notebook,
}


# ── the run and its checks ──────────────────────────────────────────────────────────────────


def wait_gone(chaos: Chaos, deadline_s: float) -> float:
    """Wait until no process of the run is left; returns the seconds it took."""
    began = time.monotonic()
    while left := [p for name in ROLES for p in chaos.parts(name)]:
        if time.monotonic() - began > deadline_s:
            raise SystemExit(f"left after {deadline_s:g} s: {[p.cmdline() for p in left]}")
        time.sleep(0.2)
    return time.monotonic() - began


UNDISTURBED_STEPS, LEARNED = 30, 0.95
"""What the demo has learned after its 30 steps."""
ROLES = ("actors.cli", "buffer.cli", "learner.cli", "launch.cli")


def attack(chaos: Chaos, minutes: float) -> None:
    """Every 20-40 s one event, each kind once before any comes again."""
    end, names = time.monotonic() + 60 * minutes, list[str]()
    chaos.wait_for_step(600.0)
    while time.monotonic() < end:
        time.sleep(chaos.chance.uniform(20, 40))
        names = names or chaos.chance.sample(list(EVENTS), len(EVENTS))
        name, began = names.pop(), time.monotonic()
        print(f"{time.strftime('%H:%M:%S')} {name}, after {chaos.steps()} steps", flush=True)
        EVENTS[name](chaos)
        chaos.wait_for_step(RECOVERY_S)
        outcome = chaos.outcomes.setdefault(name, Outcome())
        outcome.count += 1
        outcome.silent_s = max(outcome.silent_s, time.monotonic() - began)


def finish(chaos: Chaos) -> int:
    """End the run and resume it for two more steps; returns the steps that were asked."""
    chaos.launcher.send_signal(signal.SIGINT)
    chaos.launcher.wait(60)
    asked = int(max(line["step"] for line in chaos.lines() if line["kind"] == "step")) + 2
    chaos.launch("--resume", "--steps", str(asked))
    if chaos.launcher.wait(600):
        raise SystemExit(f"the last resume ended with {chaos.launcher.returncode}")
    return asked


def faults(chaos: Chaos, asked: int) -> list[str]:
    """What the run must not show, one line each."""
    with closing(Store(chaos.run / "buffer", read_only=True)) as store:
        found = [f"verify: {line}" for line in verify(store)]
        with store.read() as txn:
            ledger = list(txn.steps())
    groups = [group for row in ledger for group in row.groups]
    if [row.step for row in ledger] != list(range(1, asked + 1)):
        found.append(f"the ledger has steps {[row.step for row in ledger]}, not 1 to {asked}")
    if len(groups) != len(set(groups)):
        found.append(f"{len(groups) - len(set(groups))} groups were trained twice")
    if left := [p.cmdline() for name in ROLES for p in chaos.parts(name)]:
        found.append(f"processes are left: {left}")
    tested = [line["success"] for line in chaos.lines() if line["kind"] == "eval"]
    if asked >= UNDISTURBED_STEPS and max(tested[-2:], default=0.0) < LEARNED:
        found.append(f"success {tested}: an undisturbed run has {LEARNED} after "
                     f"{UNDISTURBED_STEPS} steps")  # fmt: skip
    return found


def table(chaos: Chaos) -> Iterator[str]:
    """The table of the run."""
    yield "| event | count | longest time to the next step, s |"
    yield "|---|---|---|"
    for name, outcome in sorted(chaos.outcomes.items()):
        yield f"| {name} | {outcome.count} | {outcome.silent_s:.0f} |"


def losses(chaos: Chaos) -> Iterator[str]:
    """What the attacks cost: tokens and steps that were made in vain, and files left behind."""
    with closing(Store(chaos.run / "buffer", read_only=True)) as store, store.read() as txn:
        groups = [read_group(txn.group_bytes(row), row) for row in txn.rows()]
    kept = sum(group.generated_tokens for group in groups)
    longest = max((t.generated_tokens for g in groups for t in g.trajectories), default=0)
    yield f"tokens: {chaos.sampled.total()} sampled, {kept} stored; longest attempt {longest}"
    yield f"requests under way in actors that were killed: {chaos.lost_requests}"
    steps = [line["step"] for line in chaos.lines() if line["kind"] == "step"]
    yield f"steps made again: {len(steps) - len(set(steps))}"
    left = [entry for entry in os.scandir("/dev/shm") if entry.is_file()]
    size = sum(entry.stat().st_size for entry in left) / (1 << 20)
    yield f"/dev/shm: {len(left)} files left, {size:.1f} MiB"


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[None]:
    """A file system of its own for the run, and the library that makes syncs slow."""
    disk = folder / "disk"
    disk.mkdir(mode=0o700)
    options = f"size={mib}m,mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "r3l-chaos", str(disk)], check=True)
    source = folder / "sync.c"
    source.write_text(SYNC)
    library = str(folder / "sync.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(source), "-ldl"], check=True)
    try:
        yield
    finally:
        subprocess.run(["cp", "-r", str(disk / "run"), str(folder / "kept")], check=False)
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--disk-mib", type=int, default=1536)
    options = parser.parse_args()
    if not os.environ.get(INSIDE):
        os.environ[INSIDE] = "1"
        command = [sys.executable, "-m", "benchmarks.chaos", *sys.argv[1:]]
        os.execvp("unshare", ["unshare", "--net", "--mount", *command])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "r3l-chaos", "/dev/shm"], check=True)
    folder = Path(tempfile.mkdtemp(prefix="r3l-chaos-"))
    chaos = Chaos(folder, random.Random(options.seed))
    print(f"{folder}: seed {options.seed}, {options.minutes:g} minutes", flush=True)
    with small_disk(folder, options.disk_mib):
        try:
            chaos.launch("--steps", "100000")
            threading.Thread(target=chaos.watch, daemon=True).start()
            attack(chaos, options.minutes)
            asked = finish(chaos)
        finally:
            chaos.launcher.kill()
            chaos.launcher.wait()
            print("\n".join(table(chaos)), flush=True)
        print("\n".join(losses(chaos)), flush=True)
        wrong = faults(chaos, asked)
        evaluations = [line["success"] for line in chaos.lines() if line["kind"] == "eval"]
    print(f"{asked} steps asked and made; success {evaluations}")
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
