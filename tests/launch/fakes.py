"""Helpers of the launcher's tests: refusals, and runs whose processes are short scripts."""

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from click.testing import CliRunner

from launch.backends.process_commands import ProcessCommands
from launch.backends.processes import Child, Command
from launch.cli import main
from launch.topology.machines import Machine, RequestedPlaces, parse_learner
from launch.topology.placement import Topology, place
from r3l.files.checksums import with_checksum
from r3l.run.config import load
from r3l.run.files.run_folder import RunFolder


def refused(*arguments: str | Path) -> str:
    """The one line with which r3l-launch refuses these arguments."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    lines = result.output.strip().splitlines()
    assert len(lines) == 1, result.output
    return lines[0]


def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def said(child: Child, word: str) -> str | None:
    """The rest of the first line of a child's output that begins with `word`; None without one."""
    with child.log.open("rb") as output:
        output.seek(child.log_from)
        lines = output.read().decode().splitlines()
    return next((line.removeprefix(word).strip() for line in lines if line.startswith(word)), None)


def reports(run: Path, process: str, **more: str) -> str:
    """The script of a process that reports to its launcher; `more`: fields of ProcessStatus."""
    file, status = RunFolder(run).processes / f"{process}.json", {"state": "ready"} | more
    return (
        f"import pathlib; file = pathlib.Path({str(file)!r}); "
        f"file.parent.mkdir(exist_ok=True); file.write_text({json.dumps(with_checksum(status))!r})"
    )


@contextlib.contextmanager
def handlers_put_back() -> Iterator[None]:
    """The test's own signal handlers are back afterwards."""
    handlers = {s: signal.getsignal(s) for s in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


def topology(
    actors: int, learner: str = "1cpu", *, gpus: int = 0, cores: int = 1, **more: Any
) -> Topology:
    """The places of a run on one machine with so many GPUs of 80 GiB."""
    ranks, device, machines = parse_learner(learner)
    names = tuple(str(gpu) for gpu in range(gpus))
    machine = Machine("localhost", names, 80.0 if gpus else None, None if gpus else cores)
    return place(RequestedPlaces(actors, ranks, device, machines, **more), [machine])


def plan_for(run: Path, *overrides: str, **more: Any) -> Any:
    """As much of a plan as a run of short scripts needs; `run` has its folder of logs."""
    (run / "logs").mkdir()
    values = {
        "actors": 0,
        "topology": topology(more.get("actors", 0)),
        "resume": False,
        "keys": None,
    }
    values |= {"buffer_bind": "tcp://127.0.0.1:*", "weights_bind": "tcp://127.0.0.1:*"}
    return SimpleNamespace(run=run, config=load(None, list(overrides)), **(values | more))


class Played(ProcessCommands):
    """A run whose processes are short scripts. Buffer and actor die in their first life; the
    learner is done when all live a second time."""

    def _life(self, name: str, process: str) -> Command:
        second, folder = f"{name}-again", self.plan.run
        script = (
            "import sys, time; from pathlib import Path; again = Path(sys.argv[1]);"
            f"{reports(folder, process, address='tcp://127.0.0.1:4001')};"
            "print('is up', flush=True); known = again.exists(); again.touch();"
            "time.sleep(600 if known else 1); sys.exit(9)"
        )
        words = [sys.executable, "-c", script, str(folder / second)]
        return Command(words, at_once=name == "actor")

    def buffer(self) -> Command:
        return self._life("buffer", "buffer")

    def actor(self, index: int) -> Command:
        return self._life("actor", f"actor-{index}")

    def learner(self) -> Command:
        serves = reports(self.plan.run, "learner", address="tcp://127.0.0.1:2")
        return Command([sys.executable, "-c", f"{serves}; import time; time.sleep(600)"])
