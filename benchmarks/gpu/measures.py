"""Measures of one engine, each a generator of lines."""

import gc
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from deepspeed.runtime.zero import stage3, stage_1_and_2

from benchmarks.gpu import agreement
from benchmarks.gpu.jobs import Job
from benchmarks.gpu.lines import Lines, versions
from benchmarks.learner import (
    SIZES,
    Work,
    fed_as,
    flops,
    matmul_rate,
    record,
    seconds,
    synthetic,
    write_random_model,
)
from launch.topology.gpu_memory import MemoryEstimate, total
from learner.checkpoint import Checkpoints, RunState, latest, load_run
from learner.publishing.publisher import WeightPublisher
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from learner.step.tensor_file import host_copy
from r3l.algorithms.batch import Batch
from r3l.algorithms.queries import Query
from r3l.algorithms.rows import Row
from r3l.errors import RestartNeeded
from r3l.models.model_path import builtin_policy
from r3l.run.config import RunConfig, load
from r3l.text import GIB
from r3l.training.step_loss import AnyTrainer, StepResult

NOMINAL = {"H100": 989e12, "H200": 989e12}
"""Dense bfloat16 FLOP/s of a card, as its data sheet says."""
ROUNDS = 3
MODELS: dict[str, dict[str, int]] = SIZES | {
    "7b": {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
           "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
           "tie_word_embeddings": False},
    "tiny": agreement.SHAPE,
}  # fmt: skip
KINDS = {
    "matrix products": ("nvjet", "gemm", "cutlass", "cublas"),
    "attention": ("sdpa", "flash", "fmha"),
    "optimizer": ("multi_tensor", "adam", "Adam"),
    "copies between formats": ("direct_copy", "Memcpy", "copy_kernel", "Memset", "CatArray"),
    "rows and nodes": ("index", "gather", "scatter"),
    "softmax": ("SoftMax", "softmax"),
    "sums": ("reduce_kernel",),
    "elementwise": ("elementwise",),
}
"""Kinds of kernels by parts of their names; the first that fits."""
Lined = Iterator[dict[str, Any]]


@dataclass
class Bench:
    """What the measures of a job share. `model`: the folder of its random model."""

    job: Job
    config: RunConfig
    model: Path
    scratch: Path
    work: Work
    tiny: bool
    trainer: DeepSpeedTrainer

    def step(self, rows: Sequence[Row]) -> StepResult:
        """Makes one step on `rows`, after asking the reference model, if the algorithm has one."""
        if "reference" in self.trainer.held:
            rows = with_reference(self.trainer, rows)
        return self.trainer.step(rows, self.config.algorithm.loss)


def run_job(job: Job, scratch: Path, lines: Lines, left: float, *, tiny: bool) -> None:
    """Makes a job's engine and its measures; a failure is a line, and so is what comes too late."""
    ends = time.monotonic() + left
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    lines.common = {"card": card, "versions": versions(), "job": job.name}
    bench: Bench | None = None
    measures = [*(["start"] if job.size else []), *job.measures]
    for name in measures:
        if time.monotonic() > ends:
            lines.write({"measure": name, "error": "no time was left"})
            continue
        began = time.monotonic()
        try:
            if name == "start":
                bench = start(job, scratch, tiny=tiny)
                lines.write({"measure": name, **started(bench)})
            elif bench is not None:
                bench.trainer.budget = bench.config.learner.tokens_per_micro_batch
                for line in MEASURES[name](bench):
                    lines.write({"measure": name, **line})
            elif not job.size:
                for line in agreement.MEASURES[name](scratch):
                    lines.write({"measure": name, **line})
        except Exception as error:
            traceback.print_exc()
            text = " ".join(str(error).split())[:300]
            lines.write({"measure": name, "error": f"{type(error).__name__}: {text}"})
        print(f"{job.name} {name}: {time.monotonic() - began:.1f} s", flush=True)


def start(job: Job, scratch: Path, *, tiny: bool) -> Bench:
    """Makes the engine of a job."""
    config = load(None, list(job.settings))
    size = "tiny" if tiny else job.size
    model = scratch / size
    if not model.exists():
        write_random_model(model, MODELS[size], torch.bfloat16)
    length, groups = (64, 2) if tiny else (1024, 8)
    rows = [row for seed in range(groups) for row in synthetic(0.5, length=length, seed=seed)]
    trainer = DeepSpeedTrainer(model, config.learner, needs=config.algorithm.needs)
    return Bench(job, config, model, scratch, Work("half shared", rows), tiny, trainer)


def started(bench: Bench) -> dict[str, Any]:
    """The engine as it is after two steps of one row: dtype, stage, memory of its states beside the
    estimates."""
    trainer = bench.trainer
    bench.step(bench.work.rows[:1])  # the optimizer makes its state
    _reset_peak()
    bench.step(bench.work.rows[:1])
    gc.collect()
    estimate = MemoryEstimate.of(bench.config.model_copy(update={"model": str(bench.model)}))
    assert estimate is not None
    needs = estimate.learner_needs(1)
    return {
        "settings": list(bench.job.settings),
        "parameters": estimate.shape.parameters,
        "dtype": str(trainer.dtype),
        "stage": trainer.stage,
        "pack": trainer.module.pack,
        "device": str(trainer.device),
        "estimate_gib": total(needs),
        "estimate_parts": needs,
        "deepspeed_gib": _deepspeed_gib(trainer.stage, estimate.shape.parameters, bench),
        **_memory("states_gib"),
    }


def with_reference(trainer: AnyTrainer, rows: Sequence[Row]) -> list[Row]:
    """Returns the rows with the reference model's log-probabilities of their trained tokens."""
    asked = [
        Query(number, row.token_ids, row.mask, weights="reference", temperature=row.temperature)
        for number, row in enumerate(rows)
    ]
    found: dict[int, Any] = trainer.answers(asked)
    return [replace(row, reference=found[number]) for number, row in enumerate(rows)]


def card(bench: Bench) -> Lined:
    """The ceilings of the card, and its memory."""
    device = bench.trainer.device
    for dtype in (torch.bfloat16, torch.float32):
        rate = matmul_rate(time.perf_counter, device, dtype, tries=20)
        yield {"dtype": str(dtype), "matmul_tflops": rate / 1e12}
    size = 1 << (24 if bench.tiny else 32)
    a, b = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    took = min(seconds(lambda: b.copy_(a), time.perf_counter) for _ in range(5))
    memory = torch.cuda.mem_get_info()[1] / GIB if torch.cuda.is_available() else 0.0
    yield {"copy_tb_per_s": 2 * size / took / 1e12, "memory_gib": memory}


def ways(bench: Bench) -> Lined:
    """Steps as a forest, as padded rows, and, on one engine, with all logits as well."""
    baseline = ["baseline"] if "card" in bench.job.measures else []
    for way in ["tree", "rows", *baseline]:
        yield _timed(bench, way)


def budgets(bench: Bench) -> Lined:
    """Steps as a forest in smaller and larger micro-batches."""
    for budget in (64, 256) if bench.tiny else (2048, 4096, 16384, 32768):
        bench.trainer.budget = budget
        yield _timed(bench, "tree", 2)


def two_groups(bench: Bench) -> Lined:
    """Steps as a forest with two groups, not one, in each micro-batch: what a micro-batch costs
    whatever its size."""
    bench.trainer.budget = 10240
    yield _timed(bench, "tree", 2)


def profile(bench: Bench) -> Lined:
    """Where the time of a step goes on the GPU: how much of it kernels run, and which."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    activity = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
    with fed_as("tree", bench.trainer):
        bench.step(bench.work.rows)
        with profiled(activities=[activity]) as profiler:
            took = seconds(lambda: bench.step(bench.work.rows), time.perf_counter)
    kernels = [(e.key, e.self_device_time_total / 1e6, e.count) for e in profiler.key_averages()]
    kernels = [kernel for kernel in kernels if kernel[1]]
    kinds: dict[str, float] = {}
    for name, spent, _ in kernels:
        kind = next((k for k, parts in KINDS.items() if any(p in name for p in parts)), "other")
        kinds[kind] = kinds.get(kind, 0.0) + spent
    largest = sorted(kernels, key=lambda kernel: -kernel[1])[:8]
    yield {
        "step_s": took,
        "kernels": sum(count for _, _, count in kernels),
        "busy_s": sum(kinds.values()),
        "kinds_s": kinds,
        "largest_s": {name[:120]: spent for name, spent, _ in largest},
    }


def transfer(bench: Bench) -> Lined:
    """Seconds in which all weights come to the host's memory: as PyTorch copies them, and as the
    publisher does."""
    copies: dict[str, Callable[[torch.Tensor], Any]] = {
        "plain": lambda tensor: tensor.to("cpu", copy=True),
        "host_copy": host_copy,
    }
    for round_ in range(2):
        for name, copy in copies.items():

            def copy_all(copy: Callable[[torch.Tensor], Any] = copy) -> None:
                for _, tensor in bench.trainer.published_weights()[0]:
                    copy(tensor)

            yield {"copy": name, "round": round_, "seconds": seconds(copy_all, time.perf_counter)}


def patches(bench: Bench) -> Lined:
    """Publishes the weights after each of a few steps."""
    trainer, publisher = bench.trainer, WeightPublisher("tcp://127.0.0.1:0")
    try:
        version = 1  # 0 would be an anchor
        first = publisher.publish(version, *_weights(trainer))
        yield {"lr": None, **first}
        for lr in (1e-6, 1e-5, 1e-4):
            _set_rate(trainer, lr)
            for _ in range(2):
                with fed_as("tree", trainer):
                    bench.step(bench.work.rows)
                version += 1
                metrics = publisher.publish(version, *_weights(trainer))
            yield {"lr": lr, **metrics}
    finally:
        publisher.close()
        _set_rate(trainer, bench.config.learner.lr)


def checkpoint(bench: Bench) -> Lined:
    """Saves a checkpoint, loads it, and compares the next step's gradient of both engines."""
    from transformers import AutoTokenizer

    trainer, folder = bench.trainer, bench.scratch / "checkpoints"
    tokenizer = AutoTokenizer.from_pretrained(builtin_policy())
    checkpoints = Checkpoints(trainer, folder, tokenizer, keep=1)
    try:
        pause = seconds(lambda: checkpoints.save(RunState(1)), time.perf_counter)
        written = seconds(checkpoints.finish, time.perf_counter)
    finally:
        checkpoints.close()
    saved = latest(folder)
    assert saved is not None
    size = sum(path.stat().st_size for path in saved.iterdir())
    yield {"pause_s": pause, "disk_s": written, "gib": size / GIB}
    trainer.budget = 2048  # two engines are in memory
    norms = [bench.step(bench.work.rows).metrics["learner/grad_norm"]]
    _free()
    began = time.monotonic()
    again, _ = load_run(saved, bench.model, trainer.config, bench.config.algorithm, 0)
    took = time.monotonic() - began
    again.budget = trainer.budget
    norms.append(replace(bench, trainer=again).step(bench.work.rows).metrics["learner/grad_norm"])
    yield {"resume_s": took, "grad_norms": norms}
    del again
    shutil.rmtree(folder)
    _free()


def out_of_memory(bench: Bench) -> Lined:
    """A step whose micro-batch does not fit: the budget is halved until it does, or the learner is
    to start again."""
    if not torch.cuda.is_available():
        return
    trainer = bench.trainer
    trainer.budget = 1 << 17
    rows = [row for seed in range(32) for row in synthetic(0.0, length=1024, seed=seed)]
    try:
        with fed_as("tree", trainer):
            result = bench.step(rows)
    except RestartNeeded as needed:
        yield {"restart": str(needed)}
        return
    yield {"halvings": result.out_of_memory, "budget": trainer.budget, "applied": result.applied}
    yield _timed(bench, "tree")


def workshop(bench: Bench) -> Lined:
    """Steps on groups of the built-in environment, as the shipped policy explores them."""
    took = time.monotonic()
    groups = record(bench.config, 2 if bench.tiny else 8)
    took = time.monotonic() - took
    bench.work = Work("workshop", bench.config.algorithm.rows(Batch(groups)))
    for way in ("tree", "rows"):
        yield {"recording_s": took, **_timed(bench, way)}


MEASURES: dict[str, Callable[[Bench], Lined]] = {
    "card": card,
    "ways": ways,
    "budgets": budgets,
    "two_groups": two_groups,
    "profile": profile,
    "transfer": transfer,
    "patches": patches,
    "checkpoint": checkpoint,
    "out_of_memory": out_of_memory,
    "workshop": workshop,
}


def _timed(bench: Bench, way: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """A way's seconds a step, tokens/s, MFU and memory; a first step warms up."""
    trainer, work = bench.trainer, bench.work
    with fed_as(way, trainer):
        result = bench.step(work.rows)
        _reset_peak()
        took = [
            seconds(lambda: bench.step(work.rows), time.perf_counter)
            for _ in range(1 if bench.tiny else rounds)
        ]
        memory = _memory("allocated_gib")
        used = flops(work, way, trainer) / median(took)
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    peak = next((rate for name, rate in NOMINAL.items() if name in card), None)
    shared = bench.config.learner.lora.rank > 0 or trainer.dtype != torch.bfloat16
    return {
        "work": work.name,
        "way": way,
        "budget": trainer.budget,
        "tokens": work.tokens,
        "trained_tokens": sum(int(row.mask.sum()) for row in work.rows),
        "step_s": median(took),
        "steps_s": took,
        "tokens_per_s": work.tokens / median(took),
        "tflops": used / 1e12,
        "mfu": used / peak if peak and not shared else None,
        "loss": result.metrics["learner/loss"],
        "grad_norm": result.metrics["learner/grad_norm"],
        "out_of_memory": result.out_of_memory,
        **memory,
    }


def _weights(trainer: DeepSpeedTrainer) -> tuple[Any, ...]:
    """What `publish` takes behind the version, as the learner gives it."""
    tensors, shapes = trainer.published_weights()
    return tensors, None, shapes, trainer.adapters


def _set_rate(trainer: DeepSpeedTrainer, lr: float) -> None:
    """Sets the learning rate of the next steps."""
    trainer.schedule.base_lrs = [lr] * len(trainer.schedule.base_lrs)
    for group in trainer.optimizer.param_groups:
        group["lr"] = lr


def _deepspeed_gib(stage: int, parameters: int, bench: Bench) -> float | None:
    """DeepSpeed's own estimate of a rank's model states; it has one for stages 2 and 3."""
    offload = bench.config.learner.offload != "none"
    if stage == 3:
        largest = MODELS[bench.model.name]["vocab_size"] * MODELS[bench.model.name]["hidden_size"]
        gpu = stage3.estimate_zero3_model_states_mem_needs(
            parameters, largest, num_gpus_per_node=1, cpu_offload=offload, cpu_offload_params=False
        )[1]
    elif stage == 2:
        gpu = stage_1_and_2.estimate_zero2_model_states_mem_needs(
            parameters, num_gpus_per_node=1, cpu_offload=offload
        )[1]
    else:
        return None
    return float(gpu) / GIB


def _memory(name: str) -> dict[str, float]:
    """The GPU's memory now (`name`), and the most since `_reset_peak`, in GiB; empty on a CPU."""
    if not torch.cuda.is_available():
        return {}
    torch.cuda.synchronize()
    free, whole = torch.cuda.mem_get_info()
    return {
        name: torch.cuda.memory_allocated() / GIB,
        "peak_gib": torch.cuda.max_memory_allocated() / GIB,
        "reserved_gib": torch.cuda.max_memory_reserved() / GIB,
        "used_gib": (whole - free) / GIB,
    }


def _reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
