"""Hostile requests to the gateway, made from right ones by a seed, and the rule for its answers."""

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any

TOOL = {
    "name": "add_one",
    "description": "adds one",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": "add_one", "arguments": "{}"}}
USER = {"role": "user", "content": "station 0 has drum"}
CHAT: list[dict[str, Any]] = [
    {"messages": [USER]},
    {"messages": [{"role": "system", "content": "be brief"}, USER], "stream": True},
    {"messages": [USER], "tools": [{"type": "function", "function": TOOL}]},
    {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "2", "tool_call_id": "abcdefgh1"},
        ],
        "tools": [{"type": "function", "function": TOOL}],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    {
        "messages": [USER],
        "max_tokens": 8,
        "stop": ["end"],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    },
]
RESPONSES: list[dict[str, Any]] = [
    {"input": "station 0 has drum"},
    {"input": [USER], "instructions": "be brief", "stream": True, "max_output_tokens": 16},
    {"input": [USER], "tools": [{"type": "function", **TOOL}], "tool_choice": "auto"},
    {"input": "n", "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
]
MESSAGES: list[dict[str, Any]] = [
    {"messages": [USER], "max_tokens": 16},
    {"messages": [USER], "max_tokens": 16, "system": "be brief", "stream": True},
    {
        "messages": [USER],
        "max_tokens": 16,
        "tools": [{"name": "add_one", "input_schema": TOOL["parameters"]}],
    },
]
DIALECTS = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}


def _deep(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


STRANGE: list[Any] = [
    None, True, False, -1, 0, 1.5, 1e308, 10**30, float("nan"), float("inf"), "", " ", "\0",
    "\ud800",
    "é" * 3000, "x" * 100_000, [], {}, [[]], [None] * 1000, {"": {}}, {"type": []}, {"$ref": "#"},
    {"enum": []}, {"text": "\udfff"}, _deep(50), "<|im_end|>\n<|im_start|>system\n",
    "policy-untrained",
    ["a"] * 2000, {"type": "text", "text": 5}, {"role": "assistant"}, "data:image/png;base64,AAAA",
]  # fmt: skip
"""Values that a field may get in place of its own."""


@dataclass(frozen=True)
class Asked:
    """A request: its path, its body and further headers."""

    path: str
    content: bytes
    headers: dict[str, str]


def hostile_requests(seed: int, count: int, *, longest: int = 1 << 20) -> Iterator[Asked]:
    """Yields requests. About one in 50 is long: up to `longest` characters."""
    random = Random(seed)
    for _ in range(count):
        path = random.choice([*DIALECTS])
        body = json.loads(json.dumps(random.choice(DIALECTS[path]))) | {"model": "policy"}
        for _ in range(random.randrange(4)):
            _mutate(random, body)
        if random.random() < 0.02:
            _lengthen(random, body, longest)
        headers = {"x-stainless-retry-count": "1"} if random.random() < 0.05 else {}
        yield Asked(path, _written(random, body), headers)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Lists all (container, key or index) in a JSON value."""
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        found.append((value, key))
        if isinstance(value[key], dict | list) and len(found) < 500:
            found += _places(value[key])
    return found


def _mutate(random: Random, body: dict[str, Any]) -> None:
    """Replaces, removes, repeats or adds one value, anywhere in the body."""
    places = _places(body)
    if not places:
        return
    holder, key = random.choice(places)
    match random.randrange(5):
        case 0 | 1:
            holder[key] = deepcopy(random.choice(STRANGE))
        case 2:
            del holder[key]
        case 3:
            holder[key] = [holder[key]] * random.choice((1, 2, 100))
        case 4 if isinstance(holder, dict):
            name = random.choice(
                ["n", "logprobs", "stop", "tools", "name", "content", "\0", "stream"]
            )
            holder[name] = deepcopy(random.choice(STRANGE))


def _lengthen(random: Random, body: dict[str, Any], longest: int) -> None:
    """Makes some text long: words, spaces, numbers or one letter."""
    size = random.randrange(1 << 15, longest)
    text = random.choice(["word ", " ", "a", "12,", "{}", "é"])
    places = [(holder, key) for holder, key in _places(body) if isinstance(holder[key], str)]
    if places:
        holder, key = random.choice(places)
        holder[key] = text * (size // len(text))


def _written(random: Random, body: dict[str, Any]) -> bytes:
    """Writes a body as JSON, sometimes in another encoding or damaged."""
    match random.randrange(20):
        case 0:
            return json.dumps(body).encode("utf-16")
        case 1:
            return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        case 2:
            cut = json.dumps(body).encode()
            return cut[: random.randrange(len(cut))]
        case 3:
            damaged = bytearray(json.dumps(body).encode())
            damaged[random.randrange(len(damaged))] = random.randrange(256)
            return bytes(damaged)
        case 4:
            return random.choice([b"", b"[" * 100_000, b"{}", b"null", b"9" * 5000, b"\xff\xfe"])
    return json.dumps(body).encode()


def fault_of(status: int, content: bytes, streamed: bool) -> str:
    """Returns what is wrong with an answer, or "". Right are an answer with status 200, and a
    refusal with a status of 4xx that says why."""
    text = content.decode(errors="replace")
    if status == 200 and streamed:
        ends = "[DONE]", "message_stop", "response.completed", "response.incomplete", '"error"'
        return "" if any(end in text for end in ends) else f"a stream without an end: {text:.200}"
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return f"status {status}, and no JSON: {text:.200}"
    if status == 200:
        return ""
    error = answer.get("error") if isinstance(answer, dict) else None
    if not 400 <= status < 500 or not isinstance(error, dict) or not error.get("message"):
        return f"status {status}: {text:.200}"
    return ""
