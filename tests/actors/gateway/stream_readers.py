"""Strict readers of the three protocols' streams, written from the protocols' documentation.

Each puts the pieces of a stream together to the answer that a whole reply would have been, and
fails where a client could read something else: a piece that says what was said before, an item
that is not announced empty, ids or numbers that change, an event out of place.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

Json = dict[str, Any]


def events_of(text: str) -> list[tuple[str, str]]:
    """Splits server-sent events into (event, data); comments are left out."""
    assert text.endswith("\n\n"), "a stream ends with a whole event"
    found = []
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            assert "\n" not in block
            continue
        lines = [line.partition(": ") for line in block.split("\n")]
        assert [name for name, _, _ in lines] in (["data"], ["event", "data"]), block
        named = lines[0][2] if len(lines) == 2 else ""
        found.append((named, lines[-1][2]))
    return found


def read_chat(text: str, *, usage: bool) -> Json:
    """Puts a streamed chat completion together. `usage`: the request asked for it."""
    *chunks, (_, done) = events_of(text)
    assert done == "[DONE]" and not any(event for event, _ in chunks)
    parts = [json.loads(data) for _, data in chunks]
    heads = [{n: part[n] for n in ("id", "created", "model", "object")} for part in parts]
    assert all(head == heads[0] for head in heads), "the head of a chunk changes"
    assert heads[0]["object"] == "chat.completion.chunk"
    whole = heads[0] | {"object": "chat.completion"}
    if usage:
        last = parts.pop()
        assert last["choices"] == [] and all(part["usage"] is None for part in parts)
        whole["usage"] = last["usage"]
    else:
        assert not any("usage" in part for part in parts)
    choices = []
    for part in parts:
        (choice,) = part["choices"]
        choices.append(choice)
    return whole | {"choices": [_choice(choices)]}


def _choice(choices: list[Json]) -> Json:
    *begun, end = choices
    assert all(choice["finish_reason"] is None for choice in begun) and end["finish_reason"]
    assert end["delta"] == {} and begun[0]["delta"]["role"] == "assistant"
    message: Json = {}
    calls: list[Json] = []
    for number, choice in enumerate(begun):
        delta = dict(choice["delta"])
        assert ("role" in delta) == (number == 0) and delta, "the role comes first and once"
        message |= {"role": delta.pop("role")} if number == 0 else {}
        for call in delta.pop("tool_calls", ()):
            _add_call(calls, dict(call))
        for name, piece in delta.items():
            message[name] = piece if message.get(name) is None else message[name] + piece
    message |= {"tool_calls": calls} if calls else {}
    return {name: end[name] for name in end if name != "delta"} | {"message": message}


def _add_call(calls: list[Json], piece: Json) -> None:
    index = piece.pop("index")
    if index == len(calls):  # the first piece of a call has its id, type and name
        assert set(piece) == {"id", "type", "function"} and piece["function"]["name"]
        calls.append(piece)
        return
    assert index == len(calls) - 1 and set(piece) == {"function"}, "only the newest call goes on"
    assert set(piece["function"]) == {"arguments"}
    calls[index]["function"]["arguments"] += piece["function"]["arguments"]


def read_response(text: str) -> Json:
    """Puts a streamed response together, and compares the pieces with all later whole forms."""
    events = []
    for number, (event, data) in enumerate(events_of(text)):
        made = json.loads(data)
        assert made["type"] == event and made.pop("sequence_number") == number
        events.append(made)
    created, begun, *middle, end = events
    assert (created["type"], begun["type"]) == ("response.created", "response.in_progress")
    for each in (created, begun):
        assert each["response"]["status"] == "in_progress" and each["response"]["output"] == []
    whole: Json = end["response"]
    assert end["type"] == f"response.{whole['status']}"
    for name in ("id", "created_at", "model", "object", "tools", "tool_choice"):
        assert created["response"][name] == begun["response"][name] == whole[name]
    left, output = iter(middle), []
    for event in left:
        assert event["type"] == "response.output_item.added"
        assert event["output_index"] == len(output), "items come one after the other"
        output.append(_read_item(event, left))
    assert output == whole["output"], "the whole response has what its pieces said"
    ids = [item["id"] for item in output]
    assert len(set(ids)) == len(ids)
    return whole


def _read_item(added: Json, left: Iterator[Json]) -> Json:
    item, index = dict(added["item"]), added["output_index"]
    at = {"item_id": item["id"], "output_index": index}
    assert item["status"] == "in_progress"
    if item["type"] == "function_call":
        assert item["arguments"] == "", "a call is announced without its arguments"
        kind = "response.function_call_arguments"
        item["arguments"], done = _read_deltas(left, kind, "arguments", at)
        assert done["name"] == item["name"]
        event = next(left)
    else:
        assert item["content"] == [], "an item is announced without its content"
        item["content"] = []
        while (event := next(left))["type"] == "response.content_part.added":
            here = at | {"content_index": len(item["content"])}
            assert here.items() <= event.items()
            item["content"].append(_read_part(event["part"], left, here))
    assert event["type"] == "response.output_item.done" and event["output_index"] == index
    whole: Json = event["item"]
    assert whole["status"] in ("completed", "incomplete")
    assert item | {"status": whole["status"]} == whole, "the whole item has what its pieces said"
    return whole


def _read_part(part: Json, left: Iterator[Json], here: Json) -> Json:
    assert part["text"] == "", "a part is announced empty"
    text, _ = _read_deltas(left, f"response.{part['type']}", "text", here)
    done = next(left)
    assert done["type"] == "response.content_part.done" and here.items() <= done.items()
    assert done["part"] == part | {"text": text}
    return dict(done["part"])


def _read_deltas(left: Iterator[Json], kind: str, name: str, here: Json) -> tuple[str, Json]:
    text = ""
    while (event := next(left))["type"] == f"{kind}.delta":
        assert here.items() <= event.items() and event["delta"]
        text += event["delta"]
    assert event["type"] == f"{kind}.done" and here.items() <= event.items()
    assert event[name] == text, "the whole text is what its pieces said"
    return text, event


def read_message(text: str) -> Json:
    """Puts a streamed message of Anthropic's protocol together."""
    found = [(event, json.loads(data)) for event, data in events_of(text)]
    assert all(data["type"] == event for event, data in found)
    (_, start), *middle, (_, delta), (_, stop) = found
    assert stop == {"type": "message_stop"} and start["type"] == "message_start"
    message: Json = start["message"]
    assert message["content"] == [] and message["stop_reason"] is message["stop_sequence"] is None
    left = iter([data for _, data in middle])
    for event in left:
        assert event["type"] == "content_block_start"
        assert event["index"] == len(message["content"]), "blocks come one after the other"
        message["content"].append(_read_block(event, left))
    assert delta["type"] == "message_delta" and delta["delta"]["stop_reason"]
    message["usage"] |= delta["usage"]
    return message | delta["delta"]


FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def _read_block(start: Json, left: Iterator[Json]) -> Json:
    block, pieces = dict(start["content_block"]), ""
    filled = {"text": ["text"], "thinking": ["thinking", "signature"], "tool_use": []}
    assert all(block[name] == "" for name in filled[block["type"]]), "a block is announced empty"
    assert block["type"] != "tool_use" or block["input"] == {}
    while (event := next(left))["type"] == "content_block_delta":
        assert event["index"] == start["index"]
        piece = event["delta"]
        if piece["type"] == "input_json_delta":
            assert block["type"] == "tool_use"
            pieces += piece["partial_json"]
        else:
            assert FIELDS[piece["type"]] in filled[block["type"]]
            block[FIELDS[piece["type"]]] += piece[FIELDS[piece["type"]]]
    assert event == {"type": "content_block_stop", "index": start["index"]}
    return block | ({"input": json.loads(pieces)} if block["type"] == "tool_use" else {})


def joined(events: Iterable[str]) -> str:
    return "".join(events)
