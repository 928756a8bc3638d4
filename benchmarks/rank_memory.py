"""Memory of two ranks that share one batch, from the draw to the last micro-batch, without a model.

    python -m benchmarks.rank_memory --mb 1000

Attempts of 8,192 tokens, half of them sampled, eight of a group, with texts of 4.4 characters a
token. Says in MB what a rank holds above what it had imported: at most, and after the batch is cut.
"""

import json
import multiprocessing
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import torch

from buffer import Draw
from buffer.storage.stored_rows import DrawRow, Status
from launch.backends.process_commands import free_port
from learner.ranks import receive_draw, share_draw
from learner.step.draw_rows import make_rows
from learner.step.shared_rows import SharedRows
from r3l.algorithms.published.grpo import GRPO
from r3l.codec import encode
from r3l.records import Group, GroupPlan, Task, Trajectory, done
from r3l.training.measures.processor import fix_threads

TOKENS, TURNS, ATTEMPTS, VOCABULARY = 8192, 8, 8, 150_000
BUDGET = 16_384  # tokens of a micro-batch
TEXT = "the agent opens the drawer and finds a key, then "  # about 4.4 characters a token


def attempt(slot: int, chance: np.random.Generator) -> Trajectory:
    """An attempt whose turns read as many tokens as they sample."""
    turn = TOKENS // TURNS
    spans = np.array([[t * turn + turn // 2, (t + 1) * turn] for t in range(TURNS)], np.int32)
    mask = np.zeros(TOKENS, np.bool_)
    for start, end in spans:
        mask[start:end] = True
    text = TEXT * int(4.4 * turn / 2 / len(TEXT))
    return Trajectory(
        slot=slot,
        token_ids=chance.integers(0, VOCABULARY, TOKENS, dtype=np.int32),
        logprobs=np.where(mask, -np.abs(chance.normal(0.3, 0.5, TOKENS)), 0).astype(np.float32),
        step_spans=spans,
        step_versions=np.zeros(TURNS, np.int32),
        step_newest_versions=np.zeros(TURNS, np.int32),
        step_seconds=np.zeros(TURNS, np.float32),
        reward=float(slot % 2),
        system="s",
        observations=(text,) * (TURNS + 1),
        actions=(text,) * TURNS,
    )


def drawn(megabytes: int) -> Draw:
    """A draw of so many bytes, as the buffer's client returns it."""
    records, names, size = list[bytes](), list[str](), 0
    while size < megabytes * 1_000_000:
        chance = np.random.default_rng(len(records))
        names.append(f"g{len(records)}")
        results = tuple(done(attempt(slot, chance)) for slot in range(ATTEMPTS))
        task = Task("t/0", "t", 0)
        group = Group(names[-1], task, GroupPlan(ATTEMPTS), "complete", results)
        records.append(encode(group))
        size += len(records[-1])
    row = DrawRow(1, "r", "learner", 0, tuple(names), "fifo", 0.0)
    return Draw.read(row, (Status("drawn", "", {}),) * len(names), records)


def megabytes(name: str) -> float:
    """A value of this process's status in MB."""
    found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def rank(number: int, port: int, size: int) -> None:
    """Does one rank's part, and prints what it held."""
    fix_threads(1)
    at = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=at, rank=number, world_size=2)
    device = torch.device("cpu")
    trainer: Any = SimpleNamespace(rank=number, world=2, device=device, vocabulary=VOCABULARY)
    trainer.answers = lambda queries: {}
    trainer.answer = lambda batch, queries: batch
    torch.distributed.barrier()
    before = megabytes("VmRSS")
    own = [drawn(size)] if number == 0 else []  # so that nobody else holds it
    seen = {"rank": number, "records": round(megabytes("VmRSS") - before)}
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins at the present size
    seen |= _measured(trainer, own)
    seen["most"] = round(megabytes("VmHWM") - before)
    seen["after_cut"] -= round(before)
    print(json.dumps(seen), flush=True)
    torch.distributed.barrier()


def _measured(trainer: Any, own: list[Draw]) -> dict[str, Any]:
    began, cpu = time.monotonic(), time.process_time()
    draw = share_draw(trainer, own.pop()) if own else receive_draw(trainer)
    assert draw is not None
    made = make_rows(trainer, GRPO(kl_coef=0), draw)
    cut_cpu, after = time.process_time() - cpu, megabytes("VmRSS")
    shared, tokens = SharedRows(made.rows, BUDGET, trainer.device, shared=True), 0
    for rows in shared:
        tokens += sum(len(row.token_ids) for row in rows)
    return {
        "after_cut": round(after),
        "micro_batches": len(shared),
        "million_tokens": round(tokens / 1e6, 1),
        "all_s": round(time.monotonic() - began, 1),
        "cut_cpu_s": round(cut_cpu, 1),
        "cpu_s": round(time.process_time() - cpu, 1),
    }


@click.command()
@click.option("--mb", default=1000, show_default=True, help="bytes of the batch, in MB")
def main(mb: int) -> None:
    """Run both ranks."""
    forks = multiprocessing.get_context("fork")
    port = free_port()
    ranks = [forks.Process(target=rank, args=(number, port, mb)) for number in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()


if __name__ == "__main__":
    main()
