"""`make week`: a long run of tiny steps, and what its processes and files take meanwhile.

    r3l-launch, resumed if it exists ─► every N steps: memory, files, threads of each process and
                                        bytes on disk ─► lab/lines/week.jsonl ─► week.svg

Ctrl-C and SIGTERM stop the run; the next start continues it. `--draw` only draws the figure.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import psutil

from lab.results.charts import new_figure, save
from lab.results.lines import LINES, PAGES
from r3l.run.files.run_folder import RunFolder

SETTINGS = (
    "algorithm=grpo",
    "algorithm.group_size=2",
    "actor.max_response_tokens=8",
    "actor.max_model_len=512",
    "learner.groups_per_step=1",
    "learner.lr=1e-5",
    "learner.checkpoint_every=500",
    "learner.restarts=100",
    "actor.restarts=100",
    "buffer.restarts=100",
    "buffer.retention.groups=2000",
    "buffer.retention.grace_s=60",
    "eval.every=500",
    "eval.tasks=8",
)
PLAYED = ("env.options.stations=1", "env.options.steps=1")
AGENT = ("model=builtin", "env=agent", "env.options.command=examples/agents/workshop_agent.py:play")
NAMES = {"buffer.cli": "buffer", "learner.cli": "learner", "actors.cli": "actor",
         "launch.cli": "launcher"}  # fmt: skip
KINDS = ("launcher", "buffer", "learner", "actor", "engine", "others")
DISK = ("tensorboard", "progress.jsonl", "logs", "buffer", "checkpoints")
MIB = 1 << 20
POLL_S = 2.0


def kind_of(process: psutil.Process) -> str:
    """Returns what a process of the run is; an engine renames itself."""
    if "EngineCore" in process.name() or "EngineCore" in " ".join(process.cmdline()):
        return "engine"
    modules = [NAMES[word] for word in process.cmdline() if word in NAMES]
    return modules[0] if modules else "others"


def measure(process: psutil.Process) -> dict[str, int]:
    """Returns a process's memory in KiB, and its threads and open files. `anonymous`: heaps,
    stacks and the like, without pages of files, which the system drops and reads as it likes."""
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
    memory = {name: int(words[0]) for name, *words in map(str.split, rollup.splitlines()[1:])}
    return {
        "pid": process.pid,
        "rss": memory["Rss:"],
        "pss": memory["Pss:"],
        "anonymous": memory["Anonymous:"],
        "threads": process.num_threads(),
        "files": process.num_fds(),
    }


def processes(launcher: psutil.Process) -> dict[str, list[dict[str, int]]]:
    """Measures the launcher and all processes below it, by kind."""
    found = defaultdict[str, list[dict[str, int]]](list)
    for process in [launcher, *launcher.children(recursive=True)]:
        with suppress(psutil.Error, OSError):  # it has just ended
            found[kind_of(process)].append(measure(process))
    return dict(found)


def yield_cores(launcher: psutil.Process) -> None:
    """Gives the run's processes the cores that others leave (Linux schedules by session first)."""
    for process in [launcher, *launcher.children(recursive=True)]:
        with suppress(OSError):  # it has ended, or this kernel has no such groups
            Path(f"/proc/{process.pid}/autogroup").write_text("15")


def disk(run: Path) -> dict[str, int]:
    """Returns the KiB of disk that the parts of a run's folder take."""
    return {name: sum(map(_kib, _files(run / name))) for name in DISK}


def _files(path: Path) -> Iterator[Path]:
    return iter([path]) if path.is_file() else path.rglob("*")


def _kib(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_blocks >> 1
    return 0


def reached(run: Path) -> int:
    """Returns the newest step, from the end of the progress file."""
    path = run / "progress.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - MIB, 0))
        for text in reversed(file.read().splitlines()):
            with suppress(ValueError):
                if (line := json.loads(text))["kind"] == "step":
                    return int(line["step"])
    return 0


def watch(
    run: Path, launcher: subprocess.Popen[bytes], every: int, out: Path, *, polite: bool
) -> None:
    """Appends a line every so many steps, until the launcher has ended."""
    begun, first = time.time(), reached(run)
    due = first + every
    while launcher.poll() is None:
        time.sleep(POLL_S)
        step = reached(run)
        if polite and step > first:  # it starts at full speed
            yield_cores(psutil.Process(launcher.pid))
        if step < due:
            continue
        due = step - step % every + every
        line = {"begun": round(begun), "first": first, "step": step,
                "seconds": round(time.time() - begun), "disk": disk(run),
                "processes": processes(psutil.Process(launcher.pid))}  # fmt: skip
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def tasks(folder: Path) -> Path:
    """Writes the agent's tasks, rows of five stations."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "week-tasks.jsonl"
    rows = [
        {"id": f"{split}-{n}", "seed": first + n, "split": split, "stations": 5}
        for split, first, count in (("train", 0, 1000), ("eval", 10_000, 8))
        for n in range(count)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path.absolute()


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Returns the least-squares slope of a line through points (x, y)."""
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((each - x) ** 2 for each, _ in points)
    return sum((a - x) * (b - y) for a, b in points) / spread if spread else 0.0


def series(lines: Sequence[dict[str, Any]], kind: str, field: str) -> list[tuple[int, float]]:
    """Returns (step, sum over the processes of a kind) for each line that has any."""
    return [
        (line["step"], sum(each[field] for each in line["processes"][kind]))
        for line in lines
        if kind in line["processes"]
    ]


def growth(lines: Sequence[dict[str, Any]], kind: str, field: str, skip: int) -> list[float]:
    """Returns the growth per 1,000 steps within each life of a kind's processes, without the
    first `skip` steps of each life; lives of fewer than three lines are left out."""
    lives = defaultdict[tuple[int, ...], list[tuple[float, float]]](list)
    for line in lines:
        if here := line["processes"].get(kind):
            pids = (line["begun"], *sorted(each["pid"] for each in here))
            lives[pids].append((line["step"], sum(each[field] for each in here)))
    settled = ([p for p in life if p[0] >= life[0][0] + skip] for life in lives.values())
    return [1000 * slope(life) for life in settled if len(life) > 2]


def draw(lines: Sequence[dict[str, Any]], out: Path) -> None:
    """Draws memory, files and threads by kind of process, and the disk, over the steps."""
    figure = new_figure(9, 6)
    axes = figure.subplots(2, 2)
    for axis, field, title, unit in (
        (axes[0, 0], "anonymous", "memory without pages of files, MiB", 1 << 10),
        (axes[0, 1], "files", "open files", 1),
        (axes[1, 0], "threads", "threads", 1),
    ):
        for kind in KINDS:
            points = series(lines, kind, field)
            axis.plot([p[0] for p in points], [p[1] / unit for p in points], lw=0.9, label=kind)
        axis.set_title(title, fontsize=9)
    for name in DISK:
        steps = [line["step"] for line in lines]
        sizes = [line["disk"][name] / 1024 for line in lines]
        axes[1, 1].plot(steps, sizes, lw=0.9, label=name)
    axes[1, 1].set_title("disk, MiB", fontsize=9)
    starts = [b["step"] for a, b in pairwise(lines) if a["begun"] != b["begun"]]
    for axis in axes.flat:
        for start in starts:
            axis.axvline(start, color="#a0aec0", lw=0.6, ls=":")
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=7)
        axis.legend(fontsize=6, loc="best")
    figure.supxlabel("optimizer steps (dotted: the run was started again)", fontsize=9)
    save(figure, out)


def table(lines: Sequence[dict[str, Any]], skip: int) -> Iterator[str]:
    """Yields growth per 1,000 steps by kind, a number for each life of its processes."""
    yield "| process | memory, MiB per 1,000 steps | files | threads |"
    yield "|---|---|---|---|"
    for kind in KINDS:
        cells = [
            ", ".join(f"{each / unit:+.1f}" for each in growth(lines, kind, field, skip)) or "-"
            for field, unit in (("anonymous", 1024), ("files", 1), ("threads", 1))
        ]
        yield f"| {kind} | {' | '.join(cells)} |"


@click.command()
@click.option("--run", type=click.Path(path_type=Path), help="default: runs/week or week-agent")
@click.option("--steps", type=click.IntRange(min=1), default=10_000, show_default=True)
@click.option("--every", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--skip", default=500, show_default=True, help="steps before growth counts")
@click.option("--lines", type=click.Path(path_type=Path), help="default: in lab/lines")
@click.option("--agent", is_flag=True, help="an agent over HTTP plays, not a built-in world")
@click.option("--draw", "only_draw", is_flag=True, help="make no steps")
@click.option("--polite", is_flag=True, help="leave the cores to other programs")
@click.argument("settings", nargs=-1)
def main(run: Path | None, steps: int, every: int, skip: int, lines: Path | None, agent: bool,
         only_draw: bool, polite: bool, settings: Sequence[str]) -> None:  # fmt: skip
    """Make the steps that are missing, and draw the figure. SETTINGS: further key=value."""
    name = "week-agent" if agent else "week"
    run, lines = run or Path("runs") / name, lines or LINES / f"{name}.jsonl"
    if not only_draw:
        played = (*AGENT, f"env.options.tasks={tasks(run.parent)}") if agent else PLAYED
        command = [sys.executable, "-m", "launch.cli", "--run", str(run), "--actors", "1"]
        resume = ["--resume"] if RunFolder(run).exists else []
        run.parent.mkdir(parents=True, exist_ok=True)
        with (run.parent / f"{run.name}.log").open("ab") as output:
            launcher = subprocess.Popen(
                [*command, *resume, "--steps", str(steps), *SETTINGS, *played, *settings],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C comes from here alone
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, lambda *_: launcher.send_signal(signal.SIGTERM))
        watch(run, launcher, every, lines, polite=polite)
        click.echo(f"r3l-launch ended with {launcher.returncode} at step {reached(run)}")
    found = [json.loads(text) for text in lines.read_text(encoding="utf-8").splitlines()]
    draw(found, (PAGES if lines.parent == LINES else lines.parent) / f"{lines.stem}.svg")
    click.echo("\n".join(table(found, skip)))


if __name__ == "__main__":
    main()
