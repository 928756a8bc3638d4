"""R³L, its ablations and baselines at equal sampled tokens: `python -m benchmarks.ablations`.

Every run is a process of this module that appends one JSON line to the results file (the page's
name with .jsonl) when it has ended; runs found there are not made again. The page is written
again after every run.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import click

from benchmarks.ablations.table import render
from launch.plan import DEMO, resolve_model
from r3l import config as configuration
from r3l.config import RunConfig
from r3l.errors import UserError

WARM = "warm"
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    WARM: ("warm policy, untrained", ("algorithm=grpo",)),
    "r3l": ("R³L", ("algorithm=r3l",)),
    "no_credit": ("w/o credit", ("algorithm=r3l", "algorithm.credit=false")),
    "no_amplify": ("w/o amplification", ("algorithm=r3l", "algorithm.amplify=false")),
    "no_reflect": ("w/o reflect", ("algorithm=r3l", "algorithm.reflect=false")),
    "from_start": ("from start (with credit)", ("algorithm=r3l", "algorithm.from_start=true")),
    "no_guidance": ("no guidance (with credit)", ("algorithm=r3l", "algorithm.guidance=false")),
    "no_credit_from_start": (
        "w/o credit, from start",
        ("algorithm=r3l", "algorithm.credit=false", "algorithm.from_start=true"),
    ),
    "no_credit_no_guidance": (
        "w/o credit, no guidance",
        ("algorithm=r3l", "algorithm.credit=false", "algorithm.guidance=false"),
    ),
    "grpo": ("GRPO", ("algorithm=grpo",)),
    "raft": ("RAFT", ("algorithm=raft",)),
    "opmd": ("OPMD", ("algorithm=opmd",)),
    "reflect_grpo": ("Reflect-GRPO", ("algorithm=reflect_grpo",)),
}


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--tokens", default=200_000, show_default=True, help="sampled tokens per run")
@click.option("--only", default=",".join(VARIANTS), help="names, separated by commas; default all")
@click.option("--model", default="builtin", show_default=True, help="the warm policy's folder")
@click.option("--out", type=Path, default=Path("docs/results.md"), show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--one", type=(str, int), default=None, hidden=True, help="name and seed of one run")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def main(one: tuple[str, int] | None, **options: Any) -> None:
    """Train every variant from the warm policy and write what came of it to OUT."""
    try:
        if one is not None:
            _run(*one, **options)
        elif not _run_all(**options):
            sys.exit(1)
    except UserError as error:
        click.echo(f"benchmarks.ablations: {error}", err=True)
        sys.exit(2)


def _run(
    name: str, seed: int, tokens: int, model: str, out: Path, overrides: tuple[str, ...], **_: Any
) -> None:
    """Make one run and append its line, in a single write."""
    import torch

    from benchmarks.ablations.alternate import alternate

    torch.set_num_threads(1)
    config = _config(name, model, (*overrides, f"seed={seed}"))
    result = asyncio.run(alternate(config, 0 if name == WARM else tokens))
    record = {"name": name, "seed": seed, "setup": _setup(config, tokens)} | result
    with out.with_suffix(".jsonl").open("ab", buffering=0) as file:
        file.write(json.dumps(record).encode() + b"\n")


def _run_all(
    seeds: int, tokens: int, only: str, model: str, out: Path, jobs: int, overrides: tuple[str, ...]
) -> bool:
    """Make the missing runs, `jobs` at a time, and keep the page up to date; whether all ended."""
    names = only.split(",")
    if unknown := [name for name in names if name not in VARIANTS]:
        raise UserError(f"--only {unknown[0]!r}: unknown; there are {', '.join(VARIANTS)}")
    configs = [_config(name, model, overrides) for name in names]
    setup, settings = _setup(configs[0], tokens), configs[0].eval
    shared = ["--tokens", str(tokens), "--model", model, "--out", str(out), *overrides]
    shown = ["--seeds", str(seeds), "--jobs", str(jobs), "--only", only]
    command = shlex.join(["python", "-m", "benchmarks.ablations", *shown, *shared])
    facts = {"command": command, "tokens": f"{tokens:,}", "jobs": jobs, "cores": os.cpu_count()}
    facts |= {"tasks": settings.tasks, "temperature": settings.temperature}
    labels = {name: label for name, (label, _) in VARIANTS.items()}

    def write_page() -> None:
        out.write_text(render(_finished(out, setup), labels, **facts), encoding="utf-8")

    out.parent.mkdir(parents=True, exist_ok=True)
    made = {(record["name"], record["seed"]) for record in _finished(out, setup)}
    wanted = [(name, seed) for seed in range(seeds) for name in names]
    write_page()
    pool, good = ThreadPoolExecutor(jobs), True
    running: set[subprocess.Popen[bytes]] = set()
    try:
        runs = {
            pool.submit(_spawn, *run, shared, running): run for run in wanted if run not in made
        }
        for ended in as_completed(runs):
            good = good and not ended.result()
            click.echo("{} seed {}: {}".format(*runs[ended], ended.result() or "done"))
            write_page()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(running):
            process.kill()
    return good


def _spawn(name: str, seed: int, shared: list[str], running: set[subprocess.Popen[bytes]]) -> str:
    """One run in a process of its own, on one thread: "" or what it said before it failed."""
    command = [sys.executable, "-m", "benchmarks.ablations", "--one", name, str(seed), *shared]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
        running.add(process)
        code = process.wait()
        running.discard(process)
        said.seek(0)
        return f"failed\n{said.read()[-2000:].decode(errors='replace')}" if code else ""


def _config(name: str, model: str, overrides: tuple[str, ...]) -> RunConfig:
    own = VARIANTS[name][1]
    return configuration.load(DEMO, [f"model={resolve_model(model)}", *overrides, *own])


def _setup(config: RunConfig, tokens: int) -> str:
    """Digest of what runs of one table share: budget, settings and the warm policy's weights."""
    settings = config.model_dump_json(exclude={"model", "seed", "algorithm"})
    digest = hashlib.sha256(f"{tokens} {settings}".encode())
    for file in sorted(Path(config.model).glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _finished(out: Path, setup: str) -> list[dict[str, Any]]:
    """The runs of the results file. Raises UserError if they were made with another setup."""
    file = out.with_suffix(".jsonl")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    records = [json.loads(line) for line in lines]
    if any(record["setup"] != setup for record in records):
        raise UserError(
            f"{file}: holds runs of another model, budget or settings; choose another --out"
        )
    return records


if __name__ == "__main__":
    main()
