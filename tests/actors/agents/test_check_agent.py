"""An agent is played twice without a model: what it calls, how it fails, and what differs."""

import asyncio
import json
from pathlib import Path

import pytest

from actors.agents.check_agent import check_agent, example
from r3l.rollout.chat import ChatFormat
from r3l.run.config import load
from tests.actors.gateway.test_real_clients import Vocabulary
from tests.r3l.rollout.test_agent_chat import QWEN

AGENT = """
import sys, time
sys.path.insert(0, {folder!r})
from stdlib_agent import ask

TOOL = {{"name": "add", "parameters": {{"type": "object", "properties": {{
    "a": {{"type": "integer"}}, "how": {{"enum": ["fast", "slow"]}}}}}}}}


def play(task):
    messages, made = [{{"role": "user", "content": f"add {{task['id']}}"}}], []
    for _ in range(5):
        reply = ask(messages, tools=[{{"type": "function", "function": TOOL}}])
        messages.append(reply)
        if not reply.get("tool_calls"):
            break
        (call,) = reply["tool_calls"]
        made.append(call["function"]["arguments"])
        result = str(time.time_ns() if task.get("clock") else 7)
        messages.append({{"role": "tool", "tool_call_id": call["id"], "content": result}})
    if task.get("fails"):
        raise ValueError("no luck")
    assert made == ['{{"a": 1, "how": "fast"}}'], made
    return float(reply["content"] == "7")
"""


def played(folder: Path, *tasks: dict[str, object], source: str = AGENT) -> list[tuple[str, bool]]:
    (folder / "mine.py").write_text(source.format(folder=str(Path(__file__).parent)))
    lines = [json.dumps({"id": n, "split": "train"} | task) for n, task in enumerate(tasks)]
    (folder / "tasks.jsonl").write_text("\n".join(lines))
    options = {"command": f"{folder}/mine.py:play", "tasks": f"{folder}/tasks.jsonl"}
    given = ["env=agent", f"env.options={json.dumps(options)}", "algorithm=grpo"]

    async def check() -> list[tuple[str, bool]]:
        config = load(None, [*given, "actor.max_response_tokens=500"])
        return [line async for line in check_agent(config, ChatFormat(Vocabulary(QWEN)))]

    return asyncio.run(check())


def test_an_agent_with_a_tool_is_played_without_a_model(tmp_path: Path) -> None:
    ((line, passed),) = played(tmp_path, {})
    assert passed and all(part in line for part in ("task 0", "2 calls", "add 1", "reward 1"))
    assert line.endswith(" equal")


def test_a_failure_and_a_world_that_differs_are_shown(tmp_path: Path) -> None:
    lines = dict(played(tmp_path, {"clock": True}, {"fails": True}))
    (clock, passed), (fails, failed) = sorted(lines.items())
    assert passed and "differs: call 1: message 2 " in clock
    assert not failed and "failed:" in fails and "ValueError: no luck" in fails


SHAPED = """
import sys
sys.path.insert(0, {folder!r})
from stdlib_agent import ask

TOOL = {{"type": "function", "function": {{"name": "add", "parameters": {{"type": "object"}}}}}}
TEXTS = {{"choice": ["yes", "no"]}}
SHAPE = {{"json": {{"type": "object", "properties": {{"a": {{"type": "integer"}}}}}}}}


def play(task):
    assert ask([{{"role": "user", "content": "go"}}], structured_outputs=TEXTS)["content"] == "yes"
    for shape, said in ((TEXTS, "yes"), (SHAPE, '{{"a": 1}}')):
        messages = [{{"role": "user", "content": f"say {{said}}"}}]
        reply = ask(messages, tools=[TOOL], structured_outputs=shape)
        (call,) = reply["tool_calls"]
        result = {{"role": "tool", "tool_call_id": call["id"], "content": "7"}}
        reply = ask([*messages, reply, result], tools=[TOOL], structured_outputs=shape)
        assert reply["content"] == said, reply
    ask([{{"role": "user", "content": "a reply that is trained"}}])
    return 1.0
"""


def test_replies_with_a_shape_are_made_up_too(tmp_path: Path) -> None:
    ((line, passed),) = played(tmp_path, {}, source=SHAPED)
    assert passed and "6 calls" in line and "add 2" in line, line


GRADED = """
import sys
sys.path.insert(0, {folder!r})
from stdlib_agent import ask


def play(task):
    if "loop" in task:
        while True:
            ask([{{"role": "user", "content": "again"}}])
    reply = ask([{{"role": "user", "content": "say it"}}])["content"] or ""
    return {{"nonsense": 1.0, "contains": float(task.get("answer", "") in reply),
            "shorter": -len(reply) / 1000, "refuses": float(reply == "say it")}}[task["kind"]]
"""


@pytest.mark.parametrize(
    ("kind", "answer", "noted"),
    [("nonsense", "", True), ("contains", "", True), ("contains", "it", False),
     ("shorter", "", False), ("refuses", "", False)],
)  # fmt: skip
def test_a_reward_for_empty_replies_is_noted(
    tmp_path: Path, kind: str, answer: str, noted: bool
) -> None:
    lines = played(tmp_path, {"kind": kind, "answer": answer}, source=GRADED)
    assert all(passed for _, passed in lines)
    notes = [line for line, _ in lines if line.startswith("note: ")]
    assert len(notes) == noted and all("empty replies earn 1" in note for note in notes)


def test_values_fit_their_schema() -> None:
    shape = {"a": {"anyOf": [{"type": "null"}]}, "b": {"type": "array", "items": {}}}
    assert example({"type": "object", "properties": shape}) == {"a": None, "b": ["text"]}
