"""`python -m benchmarks.peers`: a step of GRPO by r3l-launch and by TRL, on this machine.

Both train the same model on the same work: 12 prompts a step, 8 samples each, 64 tokens a prompt
and 64 a sample, no KL, the same reward and learning rate. They take turns. TRL samples with
transformers, in the process that trains, with as many threads as it likes; of r3l every process has
what its plan gives it. A run's first SKIPPED steps are left out.

The size 135 is SmolLM2-135M-Instruct, with 4 prompts of about 75 tokens; the others are untrained.

TRL is installed beside the packages of this environment, in `build/peers`, when it is missing.

Every run is a line of lab/lines/peers.jsonl, and so is the floor of a size. `--read` prints the
tables of the lines again.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import click
import psutil
from msgspec import convert

from benchmarks.peers_trl import LEARNING_RATE, SAMPLES, TOKENS
from envs.registry import make
from lab.results.lines import LINES, append, processor
from learner.warmup import tiny_policy
from r3l.models.model_path import model_path
from r3l.run.process.memory import STEADY_MEMORY

ROOT = Path(__file__).parent.parent
FILE = LINES / "peers.jsonl"
HEAD = [
    "| parameters | | s/step | CPU s/step | first step, s | memory, GiB |",
    "|---|---|---|---|---|---|",
]
SITE = ROOT / "build" / "peers"
PACKAGES = "trl==1.16.0 accelerate==1.15.0 datasets==5.2.0 dill multiprocess xxhash pyarrow".split()
SKIPPED = 3
SIZES = {"1": (128, 4, 32), "12": (384, 6, 64), "60": (768, 8, 64)}
"""Millions of parameters: hidden size, layers, size of a head."""
SMOLLM2 = "135"
PROMPTS = dict.fromkeys(SIZES, 12) | {SMOLLM2: 4}
"""Prompts a step of each size."""
PARTS = {
    "learner": "learner.cli",
    "engine": "VLLM::EngineCore",
    "actor": "actors.cli",
    "buffer": "buffer.cli",
    "launcher": "launch.cli",
    "TRL": "peers_trl",
}
"""Processes by a part of their command line."""
SPANS = (
    "learner/forward_s", "learner/backward_s", "learner/update_s", "learner/step_s",
    "learner/pack_s", "learner/wait_s", "weights/publish_s", "weights/fetch_s", "weights/pause_s",
    "time/generation_s", "actor/idle_share",
)  # fmt: skip
WORDS = "river stone lamp window garden letter bridge candle".split()
SYSTEM, SAID = "Say something.", 51  # words of an observation: a prompt has 64 tokens
WORLD = f"""
from r3l.rollout.env_interface import EnvSpec

WORDS = {WORDS!r}


class Words:
    spec = EnvSpec("words", {SYSTEM!r}, max_steps=1, max_response_tokens={TOKENS})
    in_process = True

    def reset(self, *, seed, options=None):
        return " ".join(WORDS[(seed // 8 ** (k % 9) + k) % 8] for k in range({SAID})), {{}}

    def step(self, action):
        return "Done.", float(len(action) % 2), True, False, {{}}

    def close(self): ...
"""


@dataclass(frozen=True)
class Work:
    """`prompts`: of a step; `bf16`: r3l's learner and TRL compute in bfloat16, with weights in
    float32."""

    steps: int
    prompts: int
    bf16: bool


@dataclass
class Measured:
    """A run: seconds until its first step, and of each later step but the first SKIPPED; CPU
    seconds a step by PARTS; the most memory of all its processes together, GiB."""

    first_s: float
    steps_s: list[float]
    cpu_s: dict[str, float]
    gib: float


def write_work(folder: Path, size: str) -> None:
    """The model, r3l's environment and TRL's prompts."""
    if size == SMOLLM2:
        (folder / "model").symlink_to(model_path("smollm2"))
    else:
        write_model(folder / "model", *SIZES[size])
    (folder / "words.py").write_text(WORLD, encoding="utf-8")
    env = make(f"{folder / 'words.py'}:Words")
    asked = [
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": env.reset(seed=n)[0]}]
        for n in range(1000)
    ]
    (folder / "prompts.json").write_text(json.dumps(asked), encoding="utf-8")


def write_model(folder: Path, hidden: int, layers: int, head: int) -> None:
    """An untrained model that knows the work's words."""
    tokenizer = tiny_policy.build_tokenizer([" ".join(WORDS), SYSTEM, "Done."])
    tokenizer.save_pretrained(folder)
    model = tiny_policy.build_model(tokenizer, seed=0, hidden=hidden, layers=layers, head=head)
    model.save_pretrained(folder)


def settings(folder: Path, work: Work) -> list[str]:
    """r3l's settings of the work."""
    return [
        "algorithm=grpo", "algorithm.kl_coef=0", f"algorithm.group_size={SAMPLES}",
        f"env={folder / 'words.py'}:Words", f"model={folder / 'model'}", "eval.tasks=0",
        f"learner.groups_per_step={work.prompts}", f"learner.lr={LEARNING_RATE}",
        f"learner.compute={'bfloat16' if work.bf16 else 'dtype'}",
        "learner.checkpoint_every=1000", "buffer.max_staleness=1",
        f"actor.concurrent_requests={work.prompts * SAMPLES}",
        "actor.engine.kv_cache_memory_bytes=536870912", "actor.max_model_len=256",
    ]  # fmt: skip


def r3l(folder: Path, work: Work) -> tuple[list[str], Path, dict[str, str]]:
    """The command of r3l, the file of its steps, its environment."""
    run = folder / f"run-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "launch.cli", "--run", str(run), "--actors", "1"]
    command += ["--steps", str(work.steps), *settings(folder, work)]
    return command, run / "progress.jsonl", {}


def trl(folder: Path, work: Work) -> tuple[list[str], Path, dict[str, str]]:
    """The command of TRL, the file of its steps, its environment."""
    out = folder / f"trl-{time.monotonic_ns()}.jsonl"
    script = str(ROOT / "benchmarks" / "peers_trl.py")
    files = map(str, (folder / "model", folder / "prompts.json", out))
    numbers = map(str, (work.steps, work.prompts, int(work.bf16)))
    return [sys.executable, script, *files, *numbers], out, {"PYTHONPATH": str(SITE)}


PEERS = {"r3l": r3l, "TRL": trl}


def measure(command: list[str], file: Path, env: dict[str, str], log: Path) -> Measured:
    """Run a command and watch its steps, processes and memory until it ends."""
    began, gib = time.time(), 0.0
    used: dict[int, dict[str, float]] = {}  # CPU seconds so far, by how many steps had ended
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, env=os.environ | env, stdout=said, stderr=said, cwd=ROOT
        )
        while process.poll() is None:
            cpu, held = usage(process.pid)
            gib = max(gib, held)
            used.setdefault(len(_ends(file)), cpu)
            time.sleep(0.5)
    if process.returncode:
        raise click.ClickException(f"{' '.join(command)}\n{log.read_text()[-2000:]}")
    ends = _ends(file)
    steps = [after - before for before, after in pairwise(ends)]
    counted = sorted(count for count in used if SKIPPED <= count < len(ends))
    cpu = dict[str, float]()
    if len(counted) > 1:
        first, last = counted[0], counted[-1]
        spent = [(part, used[last][part] - used[first].get(part, 0.0)) for part in used[last]]
        cpu = {part: seconds / (last - first) for part, seconds in spent}
    return Measured(ends[0] - began, steps[SKIPPED - 1 :], cpu, gib)


def _ends(file: Path) -> list[float]:
    """When each step ended, seconds since the epoch."""
    texts = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    lines = [json.loads(text) for text in texts if text.endswith("}")]
    return [line["time"] for line in lines if line["kind"] == "step"]


def usage(pid: int) -> tuple[dict[str, float], float]:
    """(CPU seconds by PARTS, GiB of memory) of a process and all below it."""
    cpu, held = defaultdict[str, float](float), 0.0
    try:
        top = psutil.Process(pid)
        processes = [top, *top.children(recursive=True)]
    except psutil.Error:
        return cpu, held
    for process in processes:
        try:
            times, words = process.cpu_times(), " ".join(process.cmdline())
            part = next((part for part, word in PARTS.items() if word in words), "other")
            cpu[part] += times.user + times.system
            held += process.memory_info().rss / (1 << 30)
        except psutil.Error:  # it has ended
            continue
    return cpu, held


def profile(runs: list[Measured], file: Path) -> str:
    """Where a step of r3l goes: CPU seconds by process, seconds of its parts."""
    parts = [f"{part} {median([run.cpu_s.get(part, 0.0) for run in runs]):.2f}" for part in PARTS]
    texts = file.read_text(encoding="utf-8").splitlines()
    steps = [line for line in map(json.loads, texts) if line["kind"] == "step"][SKIPPED:]
    spans = [
        f"{tag} {median([line[tag] for line in steps if tag in line] or [0.0]):.2f}"
        for tag in SPANS
    ]
    return f"CPU s/step: {', '.join(parts)}; {', '.join(spans)}"


def floor(folder: Path, work: Work) -> tuple[float, float, float]:
    """CPU seconds a step of sampling and of training alone, and of a bare PyTorch loop over the
    same tokens. No system made of the first two can take less than their sum divided by the number
    of cores."""
    spent = list[float]()
    for part in ("generation", "training", "bare"):
        command = [sys.executable, "-m", "benchmarks.peers_floor", part, str(folder)]
        command += [str(work.steps), *settings(folder, work)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | STEADY_MEMORY
        made = subprocess.run(
            command, env=environment, capture_output=True, text=True, cwd=ROOT, check=False
        )
        if made.returncode:
            raise click.ClickException(f"{' '.join(command)}\n{made.stderr[-2000:]}")
        spent.append(median(json.loads(made.stdout.splitlines()[-1])[SKIPPED:]))
    return spent[0], spent[1], spent[2]


def table(size: str, found: dict[str, list[Measured]]) -> list[str]:
    """The rows of one size."""
    rows = []
    for name, runs in found.items():
        step = median([one for run in runs for one in run.steps_s])
        others = (median(values) for values in zip(
            *((sum(run.cpu_s.values()), run.first_s, run.gib) for run in runs), strict=True)
        )  # fmt: skip
        cpu, first, gib = others
        rows.append(f"| {size} M | {name} | {step:.2f} | {cpu:.2f} | {first:.1f} | {gib:.2f} |")
    return rows


def rows_of(lines: Sequence[dict[str, Any]]) -> list[str]:
    """The rows of one size, from its lines in a results file."""
    rows = list[str]()
    for name in PEERS:
        runs = [convert(line, Measured) for line in lines if line["peer"] == name]
        rows += table(lines[0]["size"], {name: runs} if runs else {})
    for line in lines:
        if line["peer"] == "floor":
            lowest = (line["sampling_s"] + line["training_s"]) / line["cores"]
            rows.append(f"| {line['size']} M | floor | {lowest:.2f} | | | |")
    return rows


def again(lines: Sequence[dict[str, Any]]) -> list[str]:
    """The table of each measurement in a results file."""
    shown = list[str]()
    for _, made in groupby(lines, key=lambda line: line["at"]):
        own = list(made)
        work = {name: own[0][name] for name in ("at", "machine", "steps", "bf16")}
        shown += [", ".join(f"{name} {value}" for name, value in work.items()), "", *HEAD]
        for _, of_size in groupby(own, key=lambda line: line["size"]):
            shown += rows_of(list(of_size))
        shown.append("")
    return shown


def install() -> None:
    """Install TRL, unless it is there."""
    if not (SITE / "trl").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(SITE), *PACKAGES], check=True)


@click.command()
@click.option("--sizes", default="1,12", show_default=True, help=f"of {', '.join(PROMPTS)} million")
@click.option("--steps", default=20, show_default=True, type=click.IntRange(SKIPPED + 2))
@click.option("--rounds", default=2, show_default=True, type=click.IntRange(1))
@click.option("--bf16", is_flag=True, help="r3l's learner and TRL compute in bfloat16")
@click.option("--lines", type=click.Path(path_type=Path), default=FILE, help="results file")
@click.option("--read", is_flag=True, help="print the tables of --lines, and measure nothing")
def main(sizes: str, steps: int, rounds: int, bf16: bool, lines: Path, read: bool) -> None:
    """Measure r3l and TRL in turns, append the lines, and print the table."""
    if read:
        texts = lines.read_text(encoding="utf-8").splitlines() if lines.exists() else []
        click.echo("\n".join(again([json.loads(text) for text in texts])))
        return
    install()
    rows, notes, began = [*HEAD], list[str](), time.strftime("%Y-%m-%d %H:%M:%S")
    for size in sizes.split(","):
        work, made = Work(steps, PROMPTS[size], bf16), list[dict[str, Any]]()
        named = {"at": began, "machine": processor(), "size": size, **asdict(work)}
        with tempfile.TemporaryDirectory(prefix="r3l-peers-") as name:
            folder = Path(name)
            write_work(folder, size)
            found: dict[str, list[Measured]] = {name: [] for name in PEERS}
            for _ in range(rounds):
                for peer, prepare in PEERS.items():
                    found[peer].append(measure(*prepare(folder, work), folder / "said.log"))
                    made.append(named | {"peer": peer} | asdict(found[peer][-1]))
                    append(lines, made[-1])
            alone = floor(folder, work)
            spent = dict(zip(("sampling_s", "training_s", "bare_s"), alone, strict=True))
            made.append(named | {"peer": "floor", "cores": len(os.sched_getaffinity(0))} | spent)
            append(lines, made[-1])
            notes += [
                f"{size} M: sampling alone {alone[0]:.2f} CPU s/step, training {alone[1]:.2f}, "
                f"a bare loop {alone[2]:.2f}",
                f"{size} M: {profile(found['r3l'], max(folder.glob('run-*/progress.jsonl')))}",
            ]
        rows += rows_of(made)
        click.echo("\n".join(rows_of(made)), err=True)
    click.echo("\n".join([*rows, "", *notes]))


if __name__ == "__main__":
    main()
