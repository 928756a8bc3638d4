"""A task of an agent is played by a model and shown as a chat."""

import asyncio
import json
import threading
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from actors.agents import check_with_model as module
from actors.agents.check_with_model import TryingPolicy, check_with_model, policy_of
from r3l.errors import UserError
from r3l.rollout.policy_interface import SampleParams
from r3l.run.config import RunConfig, load

ROOT = Path(__file__).parents[3]


def config_of(*more: str, **options: object) -> RunConfig:
    file = f"{ROOT}/examples/agents/workshop_agent.py:play"
    given = {"command": file, "tasks": f"{ROOT}/examples/agents/workshop.jsonl"} | options
    settings = ["env=agent", f"env.options={json.dumps(given)}", "algorithm=grpo", *more]
    return load(None, settings)


def test_a_task_is_played_by_the_model_and_its_calls_are_a_chat() -> None:
    config = config_of("model=builtin", "actor.temperature=0.01")

    async def lines() -> list[tuple[str, bool]]:
        return [line async for line in check_with_model(config)]

    (head, _), *chat, (last, passed) = asyncio.run(lines())
    assert head.endswith("played once by the model builtin, in this process")
    assert passed and ": reward " in last
    shown = "\n".join(text for text, _ in chat)
    assert shown.startswith("call 0, a new conversation: ") and ", trained" in shown
    assert "  system: Each item needs one tool" in shown
    assert shown.count("  assistant: use ") >= 5, "the policy knows how to reply"


def test_the_policy_has_the_runs_context_and_a_missing_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TryingPolicy", lambda model, **given: given)
    given = policy_of(config_of("model=builtin", "actor.max_model_len=256", "seed=4"))
    assert given == {"seed": 4, "context_length": 256}
    with pytest.raises(UserError, match="nowhere"):
        policy_of(config_of(f"model={tmp_path}/nowhere"))


def test_other_requests_go_on_while_a_grammar_is_compiled_that_was_tried_before() -> None:
    go, order = threading.Event(), list[str]()

    def compiled(schema: object, tag: object) -> None:
        order.append("compiled" if go.wait(20) else "the event loop stands still")

    async def run() -> None:
        policy = TryingPolicy.__new__(TryingPolicy)
        policy.grammars = Mock(check=AsyncMock(side_effect=lambda params: order.append("tried")))
        policy.rules = Mock(grammar=compiled)
        checking = asyncio.create_task(policy.check_grammar(SampleParams(1, json_schema={})))
        await asyncio.sleep(0.05)  # as long as another request may need
        go.set()
        await checking

    asyncio.run(run())
    assert order == ["tried", "compiled"]
