"""An agent on a real engine: what is stored is what the learner computes, and a killed actor leaves
no agent behind."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from actors.engine import VLLMPolicy
from actors.gateway.agent_attempt import agents_served
from envs.builtin.policy import builtin_policy
from envs.isolation.pool import environments_of_all
from envs.registry import tasks_of_all
from r3l.config import RunConfig, load
from r3l.records import GroupPlan, SlotResult
from r3l.rollout.group import explore_group

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]
AGENT = ROOT / "tests" / "actors" / "gateway" / "stdlib_agent.py"


def config_of(folder: Path, mood: str) -> RunConfig:
    tasks = folder / "tasks.jsonl"
    asked = [{"id": n, "question": "use saw", "answer": "use", "mood": mood} for n in range(4)]
    tasks.write_text("\n".join(map(json.dumps, asked)))
    given = {"command": f"python {AGENT}", "tasks": str(tasks)}
    small = {"kv_cache_memory_bytes": 64 << 20}
    return load(
        None,
        [
            "env=agent",
            f"env.options={json.dumps(given)}",
            "algorithm=grpo",
            "actor.max_model_len=1024",
            "actor.max_response_tokens=24",
            f"actor.engine={json.dumps(small)}",
        ],
    )


def test_the_learner_computes_the_log_probabilities_that_are_stored(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    config = config_of(tmp_path, "")
    policy = VLLMPolicy.start(builtin_policy(), config.actor)

    async def explore() -> list[SlotResult]:
        tasks = tasks_of_all(config.env, "train", 4)
        async with (
            environments_of_all(config.env, 4) as made,
            agents_served(made, config, policy) as make_env,
        ):
            groups = [
                explore_group(t, policy, lambda t=t: make_env(t), config, plan=GroupPlan(2))
                for t in tasks
            ]
            return [result for results in await asyncio.gather(*groups) for result in results]

    try:
        results = asyncio.run(explore())
    finally:
        policy.close()
    model = AutoModelForCausalLM.from_pretrained(builtin_policy(), dtype=torch.float32)
    assert results
    for result in results:
        played = result.trajectory
        assert played is not None and played.num_steps == 2, result.cause
        assert not played.extra.segments  # the second call continues the first
        ids = torch.tensor(played.token_ids[None].astype(np.int64))
        with torch.no_grad():
            logits = model(ids).logits[0, :-1].double().log_softmax(-1)
        learned = logits.gather(1, ids[0, 1:, None])[:, 0].numpy()
        sampled = played.response_mask[1:]
        gap = np.abs(learned[sampled] - played.logprobs[1:][sampled]).max()
        assert gap < 1e-5, gap


def test_the_program_of_the_page_trains(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "agents.md").read_text("utf-8")
    (shown,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(shown.splitlines()) <= 20
    small = '"builtin", "learner.steps": 1, "learner.groups_per_step": 2, "eval.tasks": 2'
    program = shown.replace('"~/models/Qwen2.5-1.5B-Instruct"', small)
    (tmp_path / "sums.py").write_text(program.replace('run="sums"', 'run="sums", actors=1'))
    ran = subprocess.run(
        [sys.executable, "sums.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "runs" / "sums" / "model").is_dir()


def test_a_killed_actor_leaves_no_agent_behind(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from tests.actors.gateway.test_agent_attempt import config_of, play\n"
        "play(config_of(Path(sys.argv[1]), 'silent'), attempts=3)\n"
    )
    actor = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert wait_for(lambda: len(agents()) == 3, 60)
    actor.send_signal(signal.SIGKILL)
    actor.wait()
    assert wait_for(lambda: not agents(), 30), agents()


def agents() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if str(AGENT) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_for(happens: object, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not happens():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
