"""Cost of a weight update: `python -m benchmarks.weights`, `make bench-weights`.

    publisher process ── loopback ──► subscriber and a vLLM engine in this process

Prints, from one run, so that ratios hold on a busy machine: the same bytes over plain ZeroMQ,
whole updates and updates at three learning rates, the pause that a running request sees, and many
subscribers at once. Seconds are medians. `--link-gbit 1` limits loopback to 1 Gbit/s, for which
it runs in a network namespace of its own; `--encrypted` adds the keys that other machines need.
`--link-gbit 0.001 --slow-s 120 --hidden 64` measures only how often weights arrive over 1 Mbit/s,
`--journal-steps 10` only what the weight journal takes on disk, `--in-step-gb 0.5` only what
publishing takes of a step.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import torch

from actors.weights.subscriber import WeightSubscriber
from benchmarks.weights.crowd import fetch_and_say, measure_crowd
from benchmarks.weights.engine import NoEngine, measure_pauses, start_engine
from benchmarks.weights.in_step import measure_in_step
from benchmarks.weights.journal_bytes import measure_journal
from benchmarks.weights.publisher import Learner, Publisher, this_command
from benchmarks.weights.slow_link import measure_slow_link
from benchmarks.weights.updates import Updates, measure_updates
from buffer.wire.curve_keys import generate

SLOW_GBIT = 0.1


def build_model(folder: Path, hidden: int, layers: int) -> None:
    """A random Qwen2 of about 100 M parameters (hidden 768, 12 layers), with a tokenizer."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from r3l.models.model_path import builtin_policy

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32_000,
        hidden_size=hidden,
        intermediate_size=8 * hidden // 3 // 64 * 64,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).bfloat16().save_pretrained(folder)
    AutoTokenizer.from_pretrained(builtin_policy()).save_pretrained(folder)


async def measure(folder: Path, repeat: int, policy: Any, keys: Path | None) -> None:
    """Measure everything and print it as it comes."""
    publisher = Publisher(folder, keys)
    subscriber = WeightSubscriber(publisher.endpoint, timeout_s=120, keys=publisher.keys)
    updates = Updates(publisher, subscriber, policy)
    size = int((await updates.update(anchor=True))["full_bytes"])
    print(f"{size / 1e6:.0f} MB, {size / 2e6:.0f} M parameters in bf16, {repeat} runs each\n")
    await measure_updates(updates, size, repeat)
    if not isinstance(policy, NoEngine):
        await measure_pauses(updates)
    policy.close()
    await measure_crowd(publisher, size, repeat)
    publisher.close()
    subscriber.close()


def run_shaped(gbit: float) -> None:
    """Replace this process by the same command in a network namespace of its own, whose loopback
    carries `gbit` Gbit/s. Needs iproute2; root or user namespaces."""
    shape = f"tc qdisc add dev lo root tbf rate {gbit}gbit burst 256kb latency 100ms"
    mtu = 65536
    if gbit < SLOW_GBIT:  # packets as on such a link, not as on loopback
        shape = f"tc qdisc add dev lo root tbf rate {gbit}gbit burst 16kb latency 400ms"
        mtu = 1500
    script = f'ip link set lo up mtu {mtu} && {shape} && exec "$@"'
    again = [*this_command(*sys.argv[1:]), "--link-gbit", "0"]
    os.execvp("unshare", ["unshare", "--map-root-user", "--net", "sh", "-c", script, "sh", *again])


@click.command()
@click.option("--hidden", default=768, show_default=True, help="model width")
@click.option("--layers", default=12, show_default=True, help="model depth")
@click.option("--repeat", default=5, show_default=True, help="runs per metric")
@click.option("--engine/--no-engine", default=True, help="load into vLLM, or only transfer")
@click.option("--link-gbit", default=0.0, help="limit the link, Gbit/s; default: loopback's speed")
@click.option("--encrypted", is_flag=True, help="with keys, as between machines")
@click.option("--slow-s", default=0.0, help="only how often weights arrive, for so many seconds")
@click.option("--every-s", default=10.0, show_default=True, help="between two versions, for that")
@click.option("--journal-steps", default=0, help="only what so many steps take in the journal")
@click.option("--in-step-gb", default=0.0, help="only what publishing takes of a step, of a set")
@click.option("--serve", type=Path, hidden=True)
@click.option("--fetch", hidden=True)
@click.option("--keys", type=Path, hidden=True)
def main(
    hidden: int,
    layers: int,
    repeat: int,
    engine: bool,
    link_gbit: float,
    encrypted: bool,
    slow_s: float,
    every_s: float,
    journal_steps: int,
    in_step_gb: float,
    serve: Path | None,
    fetch: str | None,
    keys: Path | None,
) -> None:
    """Measure weight updates into a real engine, over loopback or a slower link."""
    if link_gbit:
        run_shaped(link_gbit)
    elif serve is not None:
        Learner(serve, keys).serve()
    elif fetch is not None:
        asyncio.run(fetch_and_say(fetch, keys))
    elif in_step_gb:
        measure_in_step(in_step_gb, repeat)
    else:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            build_model(folder, hidden, layers)
            if journal_steps:
                measure_journal(folder, journal_steps)
                return
            if slow_s:
                asyncio.run(measure_slow_link(folder, slow_s, every_s))
                return
            if encrypted:
                keys = folder / "keys"
                generate(keys)
            policy = start_engine(folder) if engine else NoEngine()
            asyncio.run(measure(folder, repeat, policy, keys))


if __name__ == "__main__":
    main()
