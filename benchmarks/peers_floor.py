"""The floor of `python -m benchmarks.peers`: the CPU seconds of its sampling and of its training,
each alone and with one thread.

    python -m benchmarks.peers_floor generation|training|bare FOLDER STEPS [section.key=value ...]

FOLDER has the model and the prompts. `generation` samples every step's responses with the actor's
engine and writes them to FOLDER/samples.json; `training` makes the same steps from them; `bare`
trains on the same tokens with PyTorch and transformers alone. Each prints a list of the CPU seconds
of every step.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.peers_trl import SAMPLES, TOKENS
from launch.checks.presets import DEMO
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.run import config as configuration
from r3l.run.config import RunConfig

Step = list[dict[str, Any]]
"""Every attempt of a step: `prompt` and `response` are token ids, `logprobs` as sampled."""


async def generate(folder: Path, steps: int, config: RunConfig) -> list[float]:
    """Sample the responses of all steps, one step after the other."""
    from transformers import AutoTokenizer

    from actors.engine import VLLMPolicy

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    prompts = json.loads((folder / "prompts.json").read_text(encoding="utf-8"))
    policy, count = VLLMPolicy.start(folder / "model", config.actor), config.learner.groups_per_step
    made: list[Step] = []
    spent = []
    for step in range(steps):
        asked = [
            tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            for messages in prompts[step * count : (step + 1) * count]
            for _ in range(SAMPLES)
        ]
        before = _cpu_seconds()
        replies = await asyncio.gather(
            *(policy.sample(ids, SampleParams(max_tokens=TOKENS)) for ids in asked)
        )
        spent.append(_cpu_seconds() - before)
        made.append([_attempt(ids, reply) for ids, reply in zip(asked, replies, strict=True)])
    policy.close()
    (folder / "samples.json").write_text(json.dumps(made), encoding="utf-8")
    return spent


def train(folder: Path, config: RunConfig) -> list[float]:
    """Make a step from the responses of each step."""
    from learner.step.deepspeed_trainer import DeepSpeedTrainer

    algorithm = config.algorithm
    trainer = DeepSpeedTrainer(folder / "model", config.learner, needs=algorithm.needs)
    spent = []
    for attempts in json.loads((folder / "samples.json").read_text(encoding="utf-8")):
        rows = rows_of(attempts)
        before = time.process_time()
        trainer.step(rows, algorithm.loss)
        spent.append(time.process_time() - before)
    return spent


def train_bare(folder: Path, config: RunConfig) -> list[float]:
    """Make each step with the loop that one would write by hand: every group is one sequence, its
    prompt and then all responses, without regard to which token may see which."""
    import torch
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    optimizer = torch.optim.AdamW(lm.parameters(), lr=config.learner.lr)
    bfloat16 = config.learner.compute == "bfloat16"
    spent = []
    for attempts in json.loads((folder / "samples.json").read_text(encoding="utf-8")):
        before = time.process_time()
        for prompt, group in groupby(attempts, key=lambda attempt: attempt["prompt"]):
            said = [token for attempt in group for token in attempt["response"]]
            ids = torch.tensor([*prompt, *said])
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                kept = lm(ids[None], use_cache=False, logits_to_keep=len(said) + 1).logits[0, :-1]
            torch.nn.functional.cross_entropy(kept.float(), ids[-len(said) :]).backward()
        torch.nn.utils.clip_grad_norm_(lm.parameters(), config.learner.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        spent.append(time.process_time() - before)
    return spent


def rows_of(attempts: Step) -> list[Any]:
    """Rows of a step with advantages of 1 and -1."""
    from benchmarks.learner import row_of

    trained = sum(len(attempt["response"]) for attempt in attempts)
    rows = []
    for number, attempt in enumerate(attempts):
        prompt, response = attempt["prompt"], attempt["response"]
        mask = np.arange(len(prompt) + len(response)) >= len(prompt)
        logprobs = np.zeros(len(mask), np.float32)
        logprobs[mask] = attempt["logprobs"]
        ids = np.array(prompt + response, np.int32)
        advantage = 1.0 - 2.0 * (number % 2)
        rows.append(row_of(ids, mask, logprobs, advantage=advantage, weight=1.0 / trained))
    return rows


def _attempt(prompt: Sequence[int], reply: Sample) -> dict[str, Any]:
    response, logprobs = list(reply.token_ids), list(reply.logprobs)
    return {"prompt": list(prompt), "response": response, "logprobs": logprobs}


def _cpu_seconds() -> float:
    """CPU seconds of this process and all below it."""
    own = psutil.Process(os.getpid())
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def main(part: str, folder: Path, steps: int, settings: list[str]) -> None:
    """Print the CPU seconds of every step of a part."""
    config = configuration.load(DEMO, settings)
    if part == "generation":
        spent = asyncio.run(generate(folder, steps, config))
    else:
        spent = (train_bare if part == "bare" else train)(folder, config)
    print(json.dumps(spent))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
