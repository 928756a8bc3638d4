"""An agent is played twice without a model: what it calls, how it fails, and what differs."""

import asyncio
import json
from pathlib import Path

import pytest

from actors.agents.check_agent import check_agent
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
    assert " made-up replies" in line and line.endswith(" equal")
    assert "trained: all 2 calls (actor.agent.train=all); models asked: any; " in line


def test_a_failure_and_a_world_that_differs_are_shown(tmp_path: Path) -> None:
    lines = dict(played(tmp_path, {"clock": True}, {"fails": True}))
    (clock, passed), (fails, failed) = sorted(lines.items())
    assert passed and "differs: call 1: message 2 " in clock
    assert not failed and "failed:" in fails and "ValueError: no luck" in fails


LOST = """
import os, pathlib, sys, urllib.request
sys.path.insert(0, {folder!r})
from stdlib_agent import ask


def play(task):
    if task["kind"] == "elsewhere":
        os.environ["OPENAI_BASE_URL"] = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
        ask([{{"role": "user", "content": "hi"}}])
    kept = pathlib.Path(task.get("kept") or os.environ["XDG_CACHE_HOME"]) / "replies"
    if task["kind"] == "caches" and not kept.exists():
        ask([{{"role": "user", "content": "hi"}}])
        kept.write_text("hi")
    if task["kind"] == "caches":
        ask([{{"role": "user", "content": "and now?"}}])
    return 0.0
"""


def test_an_agent_without_a_call_is_told_the_addresses_and_what_came_there(
    tmp_path: Path,
) -> None:
    lines = [
        text for text, _ in played(tmp_path, {"kind": "mute"}, {"kind": "elsewhere"}, source=LOST)
    ]
    assert all(line.endswith("; both attempts failed alike") for line in lines)
    (mute,) = (line for line in lines if "ended without a call" in line)
    (elsewhere,) = (line for line in lines if line != mute)
    for line in lines:
        assert "must use OPENAI_BASE_URL (http://127.0.0.1:" in line
    assert "what came there: nothing" in mute and "without a call (its last line is '0.0')" in mute
    assert "exit code 1" in elsewhere and "POST /chat/completions (404: " in elsewhere


def test_a_cache_of_the_attempt_is_empty_and_one_that_attempts_share_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "shared").mkdir()
    lines = [text for text, passed in played(
        tmp_path, {"kind": "caches"}, {"kind": "caches", "kept": str(tmp_path / "shared")},
        source=LOST) if passed]  # fmt: skip
    own, shared = sorted(lines, key=lambda line: "differs" in line)
    assert own.startswith("task 0: 2 calls") and own.endswith(" equal")
    assert "reward 0, as a made-up reply is seldom right" in own
    assert "call 0: " in shared and "a cache may have answered what only one" in shared


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
    assert "trained: all 6 calls" in line, "free replies have the shape"


NESTED = """
import json, sys
sys.path.insert(0, {folder!r})
from stdlib_agent import ask


def play(task):
    if task["kind"] == "forced":
        tool = {{"type": "function", "function": {{"name": "add", "parameters": task["schema"]}}}}
        reply = ask([{{"role": "user", "content": "go"}}], tools=[tool], tool_choice="required")
        return float(len(reply["tool_calls"]) == 1)
    shape = {{"type": "json_schema", "json_schema": {{"name": "x", "schema": task["schema"]}}}}
    if task["kind"] == "tool":
        bad = {{"type": "integer", "minimum": 2, "maximum": 1}}
        tool = {{"type": "function", "function": {{"name": "bad", "parameters": bad}}}}
        ask([{{"role": "user", "content": "a tool that cannot be called"}}], tools=[tool])
    said = ask([{{"role": "user", "content": "go"}}], response_format=shape)["content"]
    return float(json.loads(said)["best"]["n"] >= 5)
"""
STEP = {"type": "object", "required": ["n", "s"], "additionalProperties": False, "properties": {
    "n": {"type": "integer", "minimum": 5}, "s": {"type": ["string", "null"]}}}  # fmt: skip
PLAN = {"$defs": {"Step": STEP}, "type": "object", "required": ["best"],
        "properties": {"best": {"$ref": "#/$defs/Step"}}}  # fmt: skip


def test_an_agent_that_only_asks_for_a_nested_shape_or_forces_a_call_passes(tmp_path: Path) -> None:
    lines = played(tmp_path, {"kind": "shape", "schema": PLAN},
                   {"kind": "tool", "schema": PLAN}, {"kind": "forced", "schema": STEP},
                   source=NESTED)  # fmt: skip
    assert all(passed for _, passed in lines), lines
    (note,) = (line for line, _ in lines if line.startswith("note: "))
    assert "the tool bad is not called, as no arguments can be made up for it" in note
    tasks = [line for line, _ in lines if line != note]
    assert all("reward 1; both attempts are equal" in line for line in tasks), tasks
    assert sum("trained: call 0 of 1" in line for line in tasks) == 2, tasks


def test_a_shape_that_cannot_be_made_up_is_said_in_one_line(tmp_path: Path) -> None:
    none = {"type": "string", "pattern": "^one of a kind$"}
    ((line, passed),) = played(tmp_path, {"kind": "shape", "schema": none}, source=NESTED)
    assert not passed and "no reply can be made up: no value is made up for {'type'" in line
    assert "r3l-agent check YAML --model" in line


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
    assert len(notes) == noted
    assert all("empty replies earn 1, made-up ones " in note for note in notes)
