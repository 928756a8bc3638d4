"""Writes answers as /v1/responses and as Anthropic's /v1/messages do, whole and as streams.

response.created, response.in_progress
  response.output_item.added       an item without its content, for each item of the output
    response.content_part.added    an empty part; a function call has no parts
      …delta                       all of the text or the arguments, in one piece
      …done                        the same text or arguments once more
    response.content_part.done
  response.output_item.done        the whole item
response.completed                 the whole response; response.incomplete if it was cut

message_start                      the message without content
  content_block_start              an empty block, for each block of the content
    content_block_delta            all of the block's content, in one piece
  content_block_stop
message_delta                      why it ended, and the usage
message_stop
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from actors.dialects.chat_completions import Answer, Refused

Item = dict[str, Any]
Event = tuple[str, dict[str, Any]]
Block = dict[str, Any]


def write_response(whole: Answer, body: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a response. Equal answers get equal ids."""
    (choice,), usage = whole["choices"], whole["usage"]
    cut = choice["finish_reason"] == "length"
    output = _items(choice["message"], whole["id"])
    if cut:
        output[-1]["status"] = "incomplete"
    return {
        "id": f"resp_{whole['id']}",
        "object": "response",
        "created_at": whole["created"],
        "model": whole["model"],
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "output": output,
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "total_tokens": usage["total_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def _items(message: Mapping[str, Any], name: str) -> list[Item]:
    """Makes the output of a response: reasoning, text and calls, in this order."""
    items: list[Item] = []
    if reasoning := message.get("reasoning_content"):
        part = {"type": "reasoning_text", "text": reasoning}
        items.append(
            {"id": f"rs_{name}", "type": "reasoning", "summary": [], "content": [part]}
            | {"encrypted_content": None, "status": "completed"}
        )
    if message["content"] is not None:
        said = message["content"]
        part = {"type": "output_text", "text": said, "annotations": [], "logprobs": []}
        items.append(
            {"id": f"msg_{name}", "type": "message", "role": "assistant", "content": [part]}
            | {"status": "completed"}
        )
    for call in message.get("tool_calls") or ():
        made = {"id": f"fc_{call['id']}", "type": "function_call", "call_id": call["id"]}
        items.append(made | call["function"] | {"status": "completed"})
    return items


def response_events(whole: Answer, body: Mapping[str, Any]) -> Iterator[str]:
    """Yields the server-sent events of a response."""
    response = write_response(whole, body)
    begun = response | {"status": "in_progress", "output": [], "usage": None}
    begun["incomplete_details"] = None
    made: list[Event] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for n, item in enumerate(response["output"]):
        made += _item_events(n, item)
    made.append((f"response.{response['status']}", {"response": response}))
    for number, (kind, more) in enumerate(made):
        yield _event(kind, {"type": kind, "sequence_number": number} | more)


def _item_events(index: int, item: Item) -> Iterator[Event]:
    at = {"item_id": item["id"], "output_index": index}
    empty: Item = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
    added = item | empty | {"status": "in_progress"}
    yield "response.output_item.added", {"output_index": index, "item": added}
    if item["type"] == "function_call":
        kind, arguments = "response.function_call_arguments", item["arguments"]
        yield f"{kind}.delta", at | {"delta": arguments}
        yield f"{kind}.done", at | {"name": item["name"], "arguments": arguments}
    else:
        for n, part in enumerate(item["content"]):
            yield from _part_events(at | {"content_index": n}, part)
    yield "response.output_item.done", {"output_index": index, "item": item}


def _part_events(at: dict[str, Any], part: dict[str, Any]) -> Iterator[Event]:
    kind, text = f"response.{part['type']}", part["text"]
    more: Item = {"logprobs": []} if part["type"] == "output_text" else {}
    yield "response.content_part.added", at | {"part": part | {"text": ""}}
    if text:
        yield f"{kind}.delta", at | {"delta": text} | more
    yield f"{kind}.done", at | {"text": text} | more
    yield "response.content_part.done", at | {"part": part}


def broken_response(refused: Refused) -> str:
    """Writes the event that ends a stream without an answer. It contains the error twice: as OpenAI
    documents it, and where OpenAI's client looks for it."""
    error = {"code": refused.code, "message": str(refused), "param": None}
    return _event("error", {"type": "error", "sequence_number": 0} | error | {"error": error})


def write_message(whole: Answer, body: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a message. It shows the reasoning only if the request asks for it, since other requests
    do not expect a block before the text."""
    (choice,), usage = whole["choices"], whole["usage"]
    message, content = choice["message"], list[Block]()
    reasoning, asked = message.get("reasoning_content"), body.get("thinking")
    shown = isinstance(asked, dict) and asked.get("type") in ("enabled", "adaptive")
    if reasoning and shown:
        content.append({"type": "thinking", "thinking": reasoning, "signature": whole["id"]})
    if message["content"]:
        content.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls") or ():
        made = call["function"]
        block = {"type": "tool_use", "id": call["id"], "name": made["name"]}
        content.append(block | {"input": json.loads(made["arguments"])})
    reason, stop = _stop_reason(choice)
    return {
        "id": f"msg_{whole['id']}",
        "type": "message",
        "role": "assistant",
        "model": whole["model"],
        "content": content or [{"type": "text", "text": ""}],  # as Anthropic's empty answers
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
        },
    }


def _stop_reason(choice: Mapping[str, Any]) -> tuple[str, str | None]:
    """Returns why a message ended, and the stop text that ended it."""
    if choice["finish_reason"] == "length":
        return "max_tokens", None
    if choice["finish_reason"] == "tool_calls":
        return "tool_use", None
    stop = choice.get("stop_reason")
    return ("stop_sequence", stop) if stop else ("end_turn", None)


def message_events(whole: Answer, body: Mapping[str, Any]) -> Iterator[str]:
    """Yields the server-sent events of a message."""
    message = write_message(whole, body)
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    begun = message | {"content": [], "stop_reason": None, "stop_sequence": None}
    begun["usage"] = message["usage"] | {"output_tokens": 0}
    yield _of("message_start", message=begun)
    for n, block in enumerate(message["content"]):
        empty, deltas = _pieces(block)
        yield _of("content_block_start", index=n, content_block=empty)
        for delta in deltas:
            yield _of("content_block_delta", index=n, delta=delta)
        yield _of("content_block_stop", index=n)
    yield _of("message_delta", delta=ending, usage=message["usage"])
    yield _of("message_stop")


def _pieces(block: Block) -> tuple[Block, list[Block]]:
    """Splits a block of content into an empty one and the deltas that fill it."""
    if block["type"] == "tool_use":
        arguments = json.dumps(block["input"])
        return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]
    if block["type"] == "thinking":
        thought = {"type": "thinking_delta", "thinking": block["thinking"]}
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return block | {"thinking": "", "signature": ""}, [thought, signed]
    text = [{"type": "text_delta", "text": block["text"]}] if block["text"] else []
    return block | {"text": ""}, text


def message_error(refused: Refused) -> dict[str, Any]:
    kind = "authentication_error" if refused.status == 401 else refused.code
    return {"type": "error", "error": {"type": kind, "message": str(refused)}}


def broken_message(refused: Refused) -> str:
    """Writes the event that ends a stream without an answer."""
    return _event("error", message_error(refused))


def _of(kind: str, **data: Any) -> str:
    return _event(kind, {"type": kind} | data)


def _event(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"
