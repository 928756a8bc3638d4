"""Answers of the other dialects, as OpenAI's and Anthropic's own clients put them together."""

import json
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from actors.dialects.chat_completions import Refused, write
from actors.dialects.dialect_answers import (
    broken_message,
    broken_response,
    message_events,
    response_events,
    write_message,
    write_response,
)
from actors.gateway.parsers import Reply
from tests.actors.dialects.test_chat_completions import WHOLE
from tests.actors.gateway.stream_readers import events_of, joined

RESPONSE_EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
CUT = write(Reply("", "hm").message(), 1, cut=True, read=3, sampled=2)
MESSAGE_EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


@pytest.mark.parametrize("whole", [WHOLE, CUT], ids=["whole", "cut"])
def test_every_event_is_one_that_openais_client_knows(whole: dict[str, object]) -> None:
    for kind, data in events_of(joined(response_events(whole, {}))):
        assert RESPONSE_EVENT.validate_json(data).type == kind
    Response.model_validate(write_response(whole, {}) | {"parallel_tool_calls": True})


def test_openais_client_puts_a_stream_together_to_the_whole_response() -> None:
    state = ResponseStreamState(input_tools=omit, text_format=omit)  # type: ignore[var-annotated]
    for _, data in events_of(joined(response_events(WHOLE, {}))):
        state.handle_event(RESPONSE_EVENT.validate_json(data))
    made = [item.to_dict() for item in state._output_items.values()]
    whole = write_response(WHOLE, {})["output"]
    assert made[1]["content"][0]["text"] == whole[1]["content"][0]["text"] == "so"
    assert made[2]["arguments"] == whole[2]["arguments"] == '{"a": 1}'


def test_a_cut_response_says_so_and_equal_answers_have_equal_ids() -> None:
    response = write_response(CUT, {})
    assert (response["status"], response["output"][-1]["status"]) == ("incomplete",) * 2
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert write_response(CUT, {}) == response


def test_an_error_in_a_stream_is_read_by_openais_client() -> None:
    ((kind, data),) = events_of(broken_response(Refused(503, "engine_replaced", "ask again")))
    made = json.loads(data)
    assert kind == made["type"] == "error" and RESPONSE_EVENT.validate_json(data).type == "error"
    assert made["error"]["message"] == made["message"] == "ask again"


@pytest.mark.parametrize("body", [{}, THINKING], ids=["plain", "thinking"])
def test_anthropics_client_puts_a_stream_together_to_the_whole_message(
    body: dict[str, Any],
) -> None:
    snapshot, buffers = None, dict[int, bytes]()
    for kind, data in events_of(joined(message_events(WHOLE, body))):
        event = MESSAGE_EVENT.validate_json(data)
        assert event.type == kind
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    whole = Message.model_validate(write_message(WHOLE, body)).to_dict()
    made = snapshot.to_dict(exclude_none=False)
    assert {name: made[name] for name in whole if name != "content"} == {
        name: whole[name] for name in whole if name != "content"
    }
    blocks: Any = zip(snapshot.content, write_message(WHOLE, body)["content"], strict=True)
    for block, expected in blocks:
        assert expected.items() <= block.to_dict().items()


def test_reasoning_is_shown_to_those_who_ask_for_it() -> None:
    kinds = [[b["type"] for b in write_message(WHOLE, body)["content"]] for body in ({}, THINKING)]
    assert kinds == [["text", "tool_use"], ["thinking", "text", "tool_use"]]


@pytest.mark.parametrize(
    ("cut", "stop", "reason"),
    [(True, "", "max_tokens"), (False, "", "end_turn"), (False, "END", "stop_sequence")],
)
def test_a_message_says_why_it_ended(cut: bool, stop: str, reason: str) -> None:
    whole = write(Reply("").message(), 1, cut=cut, read=3, sampled=2, stop=stop)
    message = write_message(whole, {})
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, stop or None)
    assert message["content"] == [{"type": "text", "text": ""}]


def test_an_error_in_a_stream_has_its_own_event() -> None:
    ((kind, data),) = events_of(broken_message(Refused(503, "engine_replaced", "ask again")))
    assert kind == "error" and '"type": "engine_replaced"' in data
