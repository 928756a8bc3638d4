"""What an optimizer step costs: `python -m benchmarks.learner`, `make bench-learner`.

    rows ─┬► one DeepSpeed engine, fed in turn as
          │   baseline   padded separate sequences, logits and log-softmax at every position
          │   rows       padded separate sequences, the head only at trained tokens
          │   tree       shared prefixes once, the head only at trained tokens
          └► the trainer of plain PyTorch (r3l.Trainer), fed as a tree
              plain

One engine, one set of weights, one optimizer and one token budget for the first three; `plain` has
a copy of the weights and an optimizer of its own. Ways and workloads alternate within a round, and
what is printed are medians over rounds and their ratios. The model
is Qwen2.5-0.5B's architecture, or a smaller one, randomly initialised. By default the rows that
share half fit one micro-batch as a tree, and a run takes about eleven minutes on two idle cores.
"""

import asyncio
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, get_args

import click
import numpy as np
import torch
from torch import Tensor

from buffer import BufferClient, Lease
from envs import exploring
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from learner.step.full_weights import full_shape
from r3l.algorithms.batch import Batch
from r3l.algorithms.rows import Row
from r3l.records import Bool, Float32, Group, Int32
from r3l.run.config import RunConfig, load
from r3l.run.settings.learner import Compute
from r3l.training import attention
from r3l.training.local_policy import LocalPolicy
from r3l.training.measures.processor import fix_threads
from r3l.training.micro_batch import Nodes, collate, micro_batches
from r3l.training.model import resolve_dtype
from r3l.training.step_loss import Loss
from r3l.training.trainer import Trainer

SIZES: dict[str, dict[str, int]] = {
    "1.5b": {"vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960,
             "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2},
    "0.5b": {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
             "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2},
    "60m": {"vocab_size": 32768, "hidden_size": 512, "intermediate_size": 2048,
            "num_hidden_layers": 10, "num_attention_heads": 8, "num_key_value_heads": 2},
    "8m": {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 768,
           "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2},
}  # fmt: skip
WAYS = ("baseline", "rows", "tree", "plain")
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {
    "wall": time.perf_counter,
    "cpu": time.process_time,  # on a machine that others use too; fair with one thread only
}
TARGETS = {"workshop": 0.60, "half shared": 0.50}


@dataclass
class Work:
    """The rows of one step, and what was measured on them: seconds of each round by way."""

    name: str
    rows: list[Row]
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens of the rows, each row's own."""
        return sum(len(row.token_ids) for row in self.rows)


@dataclass(frozen=True)
class Trainers:
    """The trainers that are compared, and the loss of both. `plain`: if it is measured."""

    deepspeed: DeepSpeedTrainer
    loss: Loss
    plain: Trainer | None = None

    def step(self, way: str, rows: Sequence[Row]) -> None:
        """Makes a step on `rows` in one of WAYS."""
        if way == "plain":
            assert self.plain is not None
            self.plain.step(rows, self.loss)
            return
        with fed_as(way, self.deepspeed):
            self.deepspeed.step(rows, self.loss)


@click.command()
@click.option("--size", type=click.Choice(list(SIZES)), default="0.5b", show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--groups", default=1, show_default=True, help="recorded workshop groups in a step")
@click.option("--length", default=224, show_default=True, help="tokens of a synthetic row")
@click.option("--budget", default=1024, show_default=True, help="computed tokens, micro-batch")
@click.option("--threads", default=os.cpu_count(), show_default=True, help="of PyTorch")
@click.option("--clock", type=click.Choice(list(CLOCKS)), default="wall", show_default=True)
@click.option("--compute", type=click.Choice(get_args(Compute)), default="dtype")
@click.option("--ways", default=",".join(WAYS), show_default=True, help="separated by commas")
@click.option("--crossover", is_flag=True, help="also measure tree against rows by shared share")
def main(
    size: str,
    rounds: int,
    groups: int,
    length: int,
    budget: int,
    threads: int,
    clock: str,
    compute: str,
    ways: str,
    crossover: bool,
) -> None:
    """Print step times, their ratios, tokens/s, the share of the matmul peak and the idle share."""
    fix_threads(1)  # more would spin against each other on the recording policy
    shape = SIZES[size]
    settings = [f"learner.tokens_per_micro_batch={budget}", f"learner.compute={compute}"]
    config = load(None, settings)
    recorded = record(config, groups)
    works = [
        Work("workshop", config.algorithm.rows(Batch(recorded))),
        Work("half shared", synthetic(0.5, length=length)),
    ]
    if crossover:
        works += [Work(f"{s:.0%} shared", synthetic(s, length=length)) for s in (0, 0.1, 0.25)]
    with tempfile.TemporaryDirectory() as folder:
        trainers = random_model(Path(folder) / "model", shape, config, plain="plain" in ways)
        fix_threads(threads)
        click.echo(f"{size}: {rounds} rounds, {threads} threads, {clock} seconds, {load_average()}")
        peak = measure(trainers, works, rounds, ways.split(","), CLOCKS[clock])
        report(works, trainers.deepspeed, peak)
        waiting(trainers, recorded, config, Path(folder) / "store", rounds)
    click.echo(load_average())


def record(config: RunConfig, count: int) -> list[Group]:
    """Explores groups of the built-in environment with the shipped policy."""
    policy, name = LocalPolicy("builtin", seed=config.seed), config.env.name
    tasks = exploring.tasks(name, count, seed=config.seed)

    async def explore() -> list[Group]:
        algorithm, decoding = config.algorithm, config.actor.decoding()
        groups = (
            exploring.explore(algorithm, task, policy, name, decoding=decoding) for task in tasks
        )
        return await asyncio.gather(*groups)

    return asyncio.run(explore())


def synthetic(
    shared: float, *, length: int, rows: int = 8, turn: int = 8, seed: int = 0
) -> list[Row]:
    """One group of `rows` rows of `length` random tokens that begin with the same `shared` part;
    behind it every second turn of `turn` tokens is a trained response."""
    rng = np.random.default_rng(seed)
    start = int(shared * length)
    places = np.arange(length)
    mask = (places >= max(start, 1)) & ((places - start) // turn % 2 == 1)
    prefix = rng.integers(3, 8000, start)
    logprobs = np.where(mask, -9.0, 0.0).astype(np.float32)
    return [
        row_of(
            np.concatenate([prefix, rng.integers(3, 8000, length - start)]).astype(np.int32),
            mask,
            logprobs,
            advantage=1.0 - 2.0 * (number % 2),
            weight=1.0 / (rows * max(int(mask.sum()), 1)),
        )
        for number in range(rows)
    ]


def row_of(
    token_ids: Int32, mask: Bool, logprobs: Float32, *, advantage: float = 0.0, weight: float = 1.0
) -> Row:
    """Makes a row with one advantage and one weight for all of its tokens."""
    advantages = np.full(len(token_ids), advantage, np.float32)
    return Row(token_ids, mask, logprobs, advantages, np.full(len(token_ids), weight))


def random_model(
    folder: Path, shape: dict[str, int], config: RunConfig, *, plain: bool = False
) -> Trainers:
    """Returns the trainers of a randomly initialised model of the Qwen2 architecture."""
    learner, algorithm = config.learner, config.algorithm
    write_random_model(folder, shape, resolve_dtype(learner.dtype))
    trainer = DeepSpeedTrainer(folder, learner, needs=algorithm.needs)
    if not plain:
        return Trainers(trainer, algorithm.loss)
    other = Trainer(
        folder,
        lr=learner.lr,
        tokens_per_micro_batch=learner.tokens_per_micro_batch,
        needs=algorithm.needs,
        dtype=trainer.dtype,
        device=trainer.device,
    )
    other.module.compute = trainer.module.compute
    return Trainers(trainer, algorithm.loss, other)


def write_random_model(folder: Path, shape: dict[str, int], dtype: torch.dtype) -> None:
    """Writes a randomly initialised model, made on the GPU if there is one; a shape without
    `tie_word_embeddings` is tied."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    qwen2 = Qwen2Config(**{"tie_word_embeddings": True, "rope_theta": 1e6} | shape)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        lm = Qwen2ForCausalLM(qwen2).to(dtype)
    lm.save_pretrained(folder)


@contextmanager
def fed_as(way: str, trainer: DeepSpeedTrainer) -> Iterator[None]:
    """Make the trainer's engine compute its micro-batches this way."""
    module = trainer.module
    module.pack = "tree" if way == "tree" else "rows"
    module.lm.set_attn_implementation("sdpa")
    if way == "tree":
        module.lm.set_attn_implementation(attention.TREE)
    if way == "baseline":
        setattr(module, "forward", partial(full_logits, module))  # noqa: B010 - over the class's
    try:
        yield
    finally:
        module.__dict__.pop("forward", None)


def full_logits(
    module: Any, nodes: Nodes, select_BT: Tensor, temperatures_B: Tensor
) -> tuple[Tensor, Tensor]:
    """What PolicyModule.forward returns (entropies left at 0), from logits at every position."""
    present_BT = nodes.paths_BT > 0  # node 0 is a first token; elsewhere it is padding
    present_BT[:, 0] = True
    ids_BT = nodes.token_ids_N[nodes.paths_BT]
    hidden_BTD = module.lm.get_decoder()(
        input_ids=ids_BT, attention_mask=present_BT.long(), use_cache=False
    ).last_hidden_state
    logits_BTV = torch.nn.functional.linear(hidden_BTD, module.head.weight).float()
    logits_BTV /= temperatures_B[:, None, None]
    all_BT = logits_BTV[:, :-1].log_softmax(-1).gather(2, ids_BT[:, 1:, None])[..., 0]
    logprobs_BT = torch.nn.functional.pad(all_BT, (1, 0)).masked_fill(~select_BT, 0.0)
    return logprobs_BT, torch.zeros_like(logprobs_BT)


def measure(
    trainers: Trainers, works: Sequence[Work], rounds: int, ways: Sequence[str], clock: Clock
) -> float:
    """Fill in the seconds; returns the machine's matmul peak in FLOP/s, its best over the
    rounds. A first step of each way on the smallest work warms up and is not counted."""
    smallest = min(works, key=lambda work: work.tokens)
    for way in ways:
        trainers.step(way, smallest.rows)
    peak, device = 0.0, trainers.deepspeed.device
    for number in range(rounds):
        peak = max(peak, matmul_rate(clock, device, trainers.deepspeed.dtype))
        for work in works:
            for way in ways:
                took = seconds(partial(trainers.step, way, work.rows), clock)
                work.seconds.setdefault(way, []).append(took)
                click.echo(f"  round {number} {work.name} {way} {took:.2f} s")
    return peak


def matmul_rate(clock: Clock, device: torch.device, dtype: torch.dtype, tries: int = 5) -> float:
    """FLOP/s of the best of a few square matrix products in the training format."""
    size = 8192 if device.type == "cuda" else 1536
    a, b = torch.randn(2, size, size, device=device, dtype=dtype)
    best = min(seconds(lambda: a @ b, clock) for _ in range(tries))
    return 2.0 * size**3 / best


def report(works: Sequence[Work], trainer: DeepSpeedTrainer, peak: float) -> None:
    """Print a line per work and way. The share of the peak counts the matrix products a way
    makes, padding and unneeded logits included and recomputation not: how well it uses the
    machine, where tokens/s of the rows say what for."""
    click.echo(f"matmul peak {peak / 1e9:.1f} GFLOP/s ({trainer.dtype})")
    for work in works:
        rows = work.rows
        plan = micro_batches(rows, trainer.config.tokens_per_micro_batch, 1, shared=True)[0]
        packed = sum(len(collate(part, trainer.device).nodes.token_ids_N) for part in plan)
        click.echo(
            f"{work.name}: {len(rows)} rows, {work.tokens} tokens, "
            f"{1 - packed / work.tokens:.0%} shared, "
            f"{sum(int(row.mask.sum()) for row in rows) / work.tokens:.0%} trained"
        )
        base = next(iter(work.seconds.values()))
        for way, took in work.seconds.items():
            ratio = median(a / b for a, b in zip(took, base, strict=True))
            target = f" (target {TARGETS[work.name]:.0%})" if work.name in TARGETS else ""
            click.echo(
                f"  {way:9} {median(took):7.2f} s  {ratio:4.0%} of the first"
                f"{target if way == 'tree' else ''}  {work.tokens / median(took):6.1f} tokens/s  "
                f"{flops(work, way, trainer) / median(took) / peak:4.0%} of peak"
            )


def flops(work: Work, way: str, trainer: DeepSpeedTrainer) -> float:
    """Matrix-product FLOPs of one step, forward and backward (3 × 2 per weight and position)."""
    lm = trainer.module.lm
    head = math.prod(full_shape(lm.get_output_embeddings().weight))
    shapes = [full_shape(parameter) for parameter in lm.parameters()]  # tied: once
    tied = lm.get_output_embeddings().weight is lm.get_input_embeddings().weight
    matrices = sum(math.prod(shape) for shape in shapes if len(shape) == 2)
    body = matrices - head if tied else matrices - 2 * head  # looking a token up is no product
    heads = lm.config.num_attention_heads * lm.config.num_hidden_layers
    width = heads * lm.config.hidden_size // lm.config.num_attention_heads
    budget, shared = trainer.budget, way in ("tree", "plain")
    total = 0.0
    for rows in micro_batches(work.rows, budget, 1, shared=shared)[0]:
        micro = collate(rows, torch.device("cpu"))
        count, longest = micro.mask_BT.shape
        positions = micro.nodes.token_ids_N.numel() if shared else count * longest
        chosen = len(micro.nodes.paths_BT[micro.mask_BT].unique())
        projected = positions if way == "baseline" else chosen
        attended = count * longest**2 / 2
        total += 6.0 * (body * positions + head * projected) + 12.0 * width * attended
    return total


def waiting(
    trainers: Trainers, groups: Sequence[Group], config: RunConfig, store: Path, steps: int
) -> None:
    """Print the share of a step that goes to drawing, packing and committing when a real buffer
    service holds groups enough."""
    count, device = len(groups), trainers.deepspeed.device
    budget = config.learner.tokens_per_micro_batch
    spent = dict.fromkeys(("draw", "pack", "step", "commit"), 0.0)
    with serving(store, count, steps) as endpoint, BufferClient(endpoint) as client:
        fill(client, groups, steps)
        for version in range(steps):
            times = [time.perf_counter()]
            draw = client.draw(count, version, wait_s=5.0)
            assert draw is not None
            times.append(time.perf_counter())
            rows = config.algorithm.rows(draw)
            for part in micro_batches(rows, budget, 1, shared=True)[0]:
                collate(part, device)
            times.append(time.perf_counter())
            trainers.step("tree", rows)
            times.append(time.perf_counter())
            client.commit(draw.draw_id, version + 1, version + 1)
            times.append(time.perf_counter())
            for name, (start, end) in zip(spent, pairwise(times), strict=True):
                spent[name] += end - start
    rest = sum(spent.values()) - spent["step"]
    parts = ", ".join(f"{name} {1000 * value / steps:.1f} ms" for name, value in spent.items())
    click.echo(f"waiting: {parts}: {rest / sum(spent.values()):.2%} not stepping (target 10%)")


@contextmanager
def serving(store: Path, count: int, steps: int) -> Iterator[str]:
    """A buffer service process on a new store; yields its endpoint."""
    command = [sys.executable, "-m", "buffer.cli", "serve", "--store", str(store)]
    options = [
        f"learner.groups_per_step={count}",
        f"buffer.max_staleness={steps}",
    ]
    process = subprocess.Popen(
        [*command, "--bind", "tcp://127.0.0.1:0", *options], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait(30)


def fill(client: BufferClient, groups: Sequence[Group], times: int) -> None:
    """Put every group `times` times, as an actor would."""
    client.add_tasks([group.task for group in groups])
    for _ in range(times):
        for group in groups:
            lease = client.lease("bench", 0, group.plan)
            if not isinstance(lease, Lease):
                raise RuntimeError(f"no lease: {lease}")
            client.put(lease.group_id, "bench", [*group.reflections, *group.results])


def load_average() -> str:
    """How busy the machine was in the last minute."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def seconds(work: Callable[[], object], clock: Clock) -> float:
    """How long one call takes by a clock."""
    began = clock()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - began


if __name__ == "__main__":
    main()
