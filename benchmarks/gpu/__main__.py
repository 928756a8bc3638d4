"""The learner on a GPU: `python -m benchmarks.gpu`, `make bench-gpu`.

    jobs, the most valuable first ─► one process each: an engine, and what is measured on it
                                        └─► lab/lines/gpu.jsonl, a line as soon as it is known

It needs PyTorch, transformers, DeepSpeed without its compiled ops, and the learner's other
libraries; no vLLM. Each line names the card and the versions, those that are not the pinned ones
too. A measure that fails, a process that dies or one that hangs is a line with its error, and the
next one runs. Measures that would begin after `--seconds` are left out.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from benchmarks.gpu.jobs import JOBS, Job
from benchmarks.gpu.lines import Lines


@click.command()
@click.option("--lines", type=Path, default=Path("lab/lines/gpu.jsonl"), show_default=True)
@click.option("--seconds", default=500.0, show_default=True, help="no measure begins after them")
@click.option("--only", default="", help="jobs, separated by commas; default: all")
@click.option("--measures", default="", help="of each job only these, separated by commas")
@click.option("--tiny", is_flag=True, help="tiny models and rows, to try it on a CPU")
@click.option("--job", hidden=True)
@click.option("--scratch", type=Path, hidden=True)
def main(
    lines: Path,
    seconds: float,
    only: str,
    measures: str,
    tiny: bool,
    job: str | None,
    scratch: Path | None,
) -> None:
    """Measure the learner on this machine's GPU; on a CPU with --tiny."""
    began = time.monotonic()
    if job is not None and scratch is not None:
        from benchmarks.gpu.measures import run_job  # torch

        left = float(sys.stdin.readline() or 0)
        run_job(JOBS[job].only(measures), scratch, Lines(lines), left, tiny=tiny)
        return
    names = only.split(",") if only else list(JOBS)
    with tempfile.TemporaryDirectory() as folder:
        options = ["--scratch", folder, "--lines", str(lines), "--measures", measures]
        options += ["--tiny"] if tiny else []
        waiting = [(name, [*options, "--job", name]) for name in names]
        ready = _start(waiting.pop(0)[1])
        for name in names:
            child, ready = ready, _start(waiting.pop(0)[1]) if waiting else ready
            left = seconds - (time.monotonic() - began)
            _run(JOBS[name], child, left, Lines(lines))


def _start(options: list[str]) -> subprocess.Popen[str]:
    """Starts a job's process, which imports its libraries and waits for its seconds."""
    command = [sys.executable, "-m", "benchmarks.gpu", *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, text=True)


def _run(job: Job, child: subprocess.Popen[str], left: float, lines: Lines) -> None:
    """Lets a job's process begin, and waits for its end."""
    if left <= 0:
        child.kill()
        child.wait()
        lines.write({"job": job.name, "error": "no time was left"})
        return
    try:
        child.communicate(f"{left}\n", timeout=max(min(left + 20.0, job.limit_s), 1.0))
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        lines.write({"job": job.name, "error": f"not done after {min(left, job.limit_s):.0f} s"})
    except OSError as error:  # it died before it could begin
        child.wait()
        lines.write({"job": job.name, "error": str(error)})
    else:
        if child.returncode:
            lines.write({"job": job.name, "error": f"ended with code {child.returncode}"})


if __name__ == "__main__":
    main()
