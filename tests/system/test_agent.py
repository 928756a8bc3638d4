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
from typing import Any

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


def explored(config: RunConfig, plan: GroupPlan, count: int = 4) -> list[list[SlotResult]]:
    """Explores groups of tasks with the shipped policy."""
    policy = VLLMPolicy.start(builtin_policy(), config.actor)

    async def explore() -> list[list[SlotResult]]:
        tasks = tasks_of_all(config.env, "train", count)
        async with (
            environments_of_all(config.env, count) as made,
            agents_served(made, config, policy) as make_env,
        ):
            groups = [
                explore_group(t, policy, lambda t=t: make_env(t), config, plan=plan) for t in tasks
            ]
            return await asyncio.gather(*groups)

    try:
        return asyncio.run(explore())
    finally:
        policy.close()


def learned(token_ids: Any) -> Any:
    """Computes the log-probability of each token after the first, as the learner does."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(builtin_policy(), dtype=torch.float32)
    ids = torch.tensor(token_ids[None].astype(np.int64))
    with torch.no_grad():
        logits = model(ids).logits[0, :-1].double().log_softmax(-1)
    return logits.gather(1, ids[0, 1:, None])[:, 0].numpy()


def test_the_learner_computes_the_log_probabilities_that_are_stored(tmp_path: Path) -> None:
    groups = explored(config_of(tmp_path, ""), GroupPlan(2))
    results = [result for group in groups for result in group]
    assert results
    for result in results:
        played = result.trajectory
        assert played is not None and played.num_steps == 2, result.cause
        assert not played.extra.segments  # the second call continues the first
        sampled = played.response_mask[1:]
        gap = np.abs(learned(played.token_ids)[sampled] - played.logprobs[1:][sampled]).max()
        assert gap < 1e-5, gap


def test_a_retry_has_the_tokens_of_its_base_and_samples_with_the_guidance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    improved = "algorithm.verified_requires_success=false"
    small = 'actor.engine={"kv_cache_memory_bytes": 67108864}'
    lengths = ("actor.max_model_len=1024", "actor.max_reflection_tokens=192")
    example = ROOT / "examples" / "agents" / "workshop_r3l.yaml"
    groups = explored(load(example, [improved, small, *lengths]), GroupPlan(4, 4), 6)
    compared = 0
    for group in groups:
        bases = {result.slot: result.trajectory for result in group if result.role == "base"}
        for result in group:
            assert result.cause != "replay_diverged"
            base, retry = bases[result.slot], result.trajectory
            if result.role == "base" or base is None or retry is None:
                continue
            end = int(base.step_spans[retry.pivot - 1, 1]) if retry.pivot else 0
            assert np.array_equal(base.token_ids[:end], retry.token_ids[:end])
            for sample in result.aux:
                if sample.kind == "retry":
                    known = retry.logprobs[retry.responses_from(retry.pivot)]
                    mine = learned(sample.token_ids)[sample.response_mask[1:]]
                    assert np.abs(mine - known).max() < 1e-5
                    compared += 1
    assert compared, [(result.role, result.status, result.cause) for g in groups for result in g]


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
