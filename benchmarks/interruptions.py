"""Stops a run of long steps at random moments and counts what has to be made again.

    start or resume ─► a random moment ─► Ctrl-C, SIGTERM or a lost terminal ─► wait for the end
         ▲                                                                            │
         └────────────────────────── another turn ◄───────────────────────────────────┘

The run is the shipped policy's with GRPO, and each of its micro-batches sleeps. It has a terminal
of its own. Ctrl-C is typed there; a terminal is lost when its other end is closed.
"""

import fcntl
import json
import os
import pty
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import psutil
from pydantic import Field

from r3l.algorithms.losses import Terms, TokenBatch
from r3l.algorithms.published.grpo import GRPO
from r3l.run.files.run_folder import RunFolder
from r3l.run.process.process_list import every_process

HOW = ("Ctrl-C", "SIGTERM", "terminal lost")
SETTINGS = (
    f"algorithm={__file__}:Slowly",
    "algorithm.group_size=4",
    "env.options.stations=1",
    "env.options.steps=1",
    "actor.max_response_tokens=8",
    "actor.max_model_len=512",
    "learner.groups_per_step=8",
    "learner.tokens_per_micro_batch=64",
    "eval.tasks=0",
)
START_S, END_S = 600.0, 600.0  # that a start and an end may take
EARLY = 0.2  # share of turns that are stopped while the run starts
EARLY_S = 30.0


class Slowly(GRPO):
    """GRPO whose every micro-batch takes `sleep_s` longer."""

    sleep_s: float = Field(15.0, ge=0, description="seconds that a micro-batch sleeps")

    def token_loss(self, batch: TokenBatch) -> Terms:
        time.sleep(self.sleep_s)
        return super().token_loss(batch)


class Terminal:
    """A launcher with a terminal of its own, whose output is kept in a file."""

    def __init__(self, run: Path, settings: tuple[str, ...], output: Path) -> None:
        self._own, other = pty.openpty()
        resume = ["--resume"] if RunFolder(run).exists else []
        command = [sys.executable, "-m", "launch.cli", "--run", str(run), "--actors", "1"]

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(other, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [*command, *resume, "--steps", "100000", *settings],
            stdin=other,
            stdout=other,
            stderr=other,
            preexec_fn=take_terminal,
            env=os.environ | {"TERM": "xterm"},
        )
        os.close(other)
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._keep, args=(output,), daemon=True)
        self._thread.start()

    def _keep(self, output: Path) -> None:
        with output.open("ab") as file, suppress(OSError):  # the launcher has ended
            while not self._lost.is_set():
                if select.select([self._own], [], [], 0.1)[0]:
                    file.write(os.read(self._own, 1 << 16))
                    file.flush()

    def stop(self, how: str) -> None:
        """Stops the launcher."""
        if how == "Ctrl-C":
            os.write(self._own, b"\x03")
        elif how == "SIGTERM":
            self.process.send_signal(signal.SIGTERM)
        else:
            self.close()

    def close(self) -> None:
        """Closes the terminal."""
        if not self._lost.is_set():
            self._lost.set()
            self._thread.join()
            os.close(self._own)


def lines(run: Path) -> list[dict[str, Any]]:
    """Reads the lines of progress."""
    path = run / "progress.jsonl"
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def steps(run: Path) -> list[int]:
    """Returns the steps that were made, in order; a step that was made twice is there twice."""
    return [line["step"] for line in lines(run) if line["kind"] == "step"]


def left(run: Path) -> list[int]:
    """Returns the processes that name the run's folder."""
    found = []
    for process in every_process():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and any(str(run) in w for w in process.cmdline()):
                found.append(process.pid)
    return found


def wait_for_step(run: Path, terminal: Terminal) -> None:
    """Waits until the learner of this start has begun a step."""
    began = time.time()
    while time.time() < began + START_S and terminal.process.poll() is None:
        beat = RunFolder(run).heartbeat()
        if beat and beat.time > began and beat.doing.startswith(("step", "micro-batch")):
            return
        time.sleep(0.2)
    raise SystemExit(f"no step began within {START_S:g} s: {run}")


def turn(run: Path, how: str, chance: random.Random, span_s: float, sleep_s: float,
         output: Path) -> dict[str, Any]:  # fmt: skip
    """Starts or resumes the run and stops it at a random moment; returns what came of it."""
    before, began = steps(run), time.monotonic()
    settings = (*SETTINGS, f"algorithm.sleep_s={sleep_s:g}")
    terminal = Terminal(run, settings, output)
    early = bool(before) and chance.random() < EARLY
    if not early:
        wait_for_step(run, terminal)
    time.sleep(chance.uniform(0, EARLY_S if early else span_s))
    doing = getattr(RunFolder(run).heartbeat(), "doing", "")
    stopped = time.monotonic()
    terminal.stop(how)
    code = terminal.process.wait(END_S)
    ended = time.monotonic()
    terminal.close()
    made = steps(run)
    return {
        "how": how,
        "early": early,
        "doing": doing,
        "after_s": round(stopped - began, 1),
        "to_end_s": round(ended - stopped, 1),
        "code": code,
        "steps": len(made) - len(before),
        "again": len(made) - len(set(made)) - (len(before) - len(set(before))),
        "left": len(left(run)),
    }


def table(turns: list[dict[str, Any]], step_s: list[float]) -> Iterator[str]:
    """Yields the table of all turns."""
    yield f"{len(step_s)} steps of {min(step_s):.0f}-{max(step_s):.0f} s"
    yield "| stopped by | turns | in a step | steps made again | s to the end: median | most |"
    yield "|---|---|---|---|---|---|"
    for how in HOW:
        own = [each for each in turns if each["how"] == how]
        if own:
            ends = [each["to_end_s"] for each in own]
            inside = sum(not each["early"] for each in own)
            again = sum(each["again"] for each in own)
            yield (f"| {how} | {len(own)} | {inside} | {again} | {statistics.median(ends):.1f} | "
                   f"{max(ends):.1f} |")  # fmt: skip


@click.command()
@click.option("--turns", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--sleep-s", default=15.0, show_default=True, help="of each micro-batch")
@click.option("--span-s", default=180.0, show_default=True, help="a moment after the first step's")
@click.option("--seed", default=0, show_default=True)
def main(turns: int, sleep_s: float, span_s: float, seed: int) -> None:
    """Stop a run so often, and print the table."""
    folder = Path(tempfile.mkdtemp(prefix="r3l-interruptions-"))
    run, chance, made = folder / "run", random.Random(seed), list[dict[str, Any]]()
    click.echo(str(folder))
    for number in range(turns):
        how = HOW[number % len(HOW)]
        made.append(turn(run, how, chance, span_s, sleep_s, folder / "launcher.log"))
        click.echo(json.dumps(made[-1]))
    step_s = [line["learner/step_s"] for line in lines(run) if line["kind"] == "step"]
    click.echo("\n".join(table(made, step_s)))


if __name__ == "__main__":
    main()
