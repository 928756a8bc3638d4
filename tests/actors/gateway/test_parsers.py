"""Replies are read with vLLM's parsers, which refuse what they cannot read before a run starts."""

from typing import Any

import pytest

from actors.gateway.parsers import Reply, ReplyReader, reader_of
from r3l.errors import UserError
from r3l.rollout.agent_chat import PROBE_TOOLS, AgentChat
from r3l.rollout.chat import ChatFormat
from r3l.run.settings.actor import AgentConfig
from tests.r3l.fakes import CHATML
from tests.r3l.rollout.test_agent_chat import QWEN
from tests.r3l.rollout.test_chat import SPECIALS, tokenizer_for

CALL = '<tool_call>\n{"name": "add_one", "arguments": {"a": 1}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    SPECIALS[QWEN] = SPECIALS[CHATML]
    return tokenizer_for(QWEN)


@pytest.fixture(scope="module")
def reader(tokenizer: Any) -> ReplyReader:
    return ReplyReader(AgentChat(ChatFormat(tokenizer)), "auto", "auto")


def read(reader: ReplyReader, text: str, choice: str = "auto", stop: tuple[str, ...] = ()) -> Reply:
    ids = reader.tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)
    return reader.read(ids, PROBE_TOOLS, choice, stop)


def test_auto_finds_the_parser_that_reads_what_the_template_writes(reader: ReplyReader) -> None:
    assert reader.tool_parser == "hermes" and reader.reasoning_parser == ""


@pytest.mark.parametrize(("setting", "parser"), [("auto", "hermes"), ("none", "")])
def test_a_template_without_tools_is_read_as_hermes_writes(setting: str, parser: str) -> None:
    chat = ChatFormat(tokenizer_for(CHATML))
    made = reader_of(chat, AgentConfig(tool_parser=setting))
    assert made.tool_parser == parser
    assert len(read(made, CALL).calls) == bool(parser)


def test_parallel_calls_and_the_text_before_them_are_read(reader: ReplyReader) -> None:
    reply = read(reader, f"two of them\n{CALL}\n{CALL}")
    assert reply.text == "two of them" and not reply.broken
    function = {"name": "add_one", "arguments": '{"a": 1}'}
    assert [call["function"] for call in reply.calls] == [function] * 2
    assert len({call["id"] for call in reply.calls}) == 2


def test_a_call_that_does_not_parse_stays_text_and_is_marked(reader: ReplyReader) -> None:
    reply = read(reader, "<tool_call>\n{oops")
    assert reply == Reply("<tool_call>\n{oops", broken=True)
    assert not read(reader, "no call at all").broken


@pytest.mark.parametrize("arguments", ["[1, 2]", '"a"', "null"])
def test_a_call_whose_arguments_are_no_object_stays_text(
    reader: ReplyReader, arguments: str
) -> None:
    text = CALL.replace('{"a": 1}', arguments)
    assert read(reader, text) == Reply(text, broken=True)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e400", '"\\ud800"'])
def test_a_call_that_not_every_client_can_read_stays_text(reader: ReplyReader, value: str) -> None:
    text = CALL.replace("1", value)
    assert read(reader, text) == Reply(text, broken=True)


def test_a_reply_whose_reasoning_cannot_be_parsed_stays_text_and_is_marked(
    reader: ReplyReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("no parser can read this")

    monkeypatch.setattr(reader, "reasoning_parser", "some")
    monkeypatch.setattr(reader, "_kind", broken)
    ids = [*reader.chat.chat.encode("so"), reader.chat.chat.end_id]
    assert reader.read(ids, (), "auto") == Reply("so", broken=True)


def test_a_text_that_ended_the_reply_is_left_out(reader: ReplyReader) -> None:
    assert read(reader, "one END", stop=("END",)) == Reply("one ", stop="END")


def test_a_required_call_constrains_sampling(reader: ReplyReader) -> None:
    assert "add_one" in reader.constraint(PROBE_TOOLS, "required")["structural_tag"]


def test_a_choice_of_an_unknown_tool_is_refused_before_sampling(reader: ReplyReader) -> None:
    reader.constraint(PROBE_TOOLS, "auto")
    with pytest.raises(UserError, match="tools and tool_choice"):
        reader.constraint(PROBE_TOOLS, {"type": "function", "function": {"name": "nothing"}})
    with pytest.raises(UserError, match="tools and tool_choice"):
        reader.constraint([{"type": "function", "function": {"name": 3}}], "auto")


def test_a_reply_without_reasoning_is_all_text_if_nobody_asked_for_any() -> None:
    bos, eos, more = SPECIALS[CHATML]
    thinker = tokenizer_for(QWEN, specials=(bos, eos, (*more, "<think>", "</think>")))
    reader = ReplyReader(AgentChat(ChatFormat(thinker)), "hermes", "qwen3")

    def said(text: str, **more: Any) -> tuple[str, str, int]:
        reply = reader.read(reader.chat.chat.encode(text), PROBE_TOOLS, "auto", **more)
        return reply.text, reply.reasoning, len(reply.calls)

    assert said("hm</think>\n\nso") == ("so", "hm", 0)
    assert said(f"hm</think>\n\n{CALL}") == ("", "hm", 1)
    assert said('{"a": 1}', shaped=True) == ('{"a": 1}', "", 0) and said(CALL, shaped=True)[2] == 1
    assert said("so", arguments='{"enable_thinking": false}') == ("so", "", 0)
    assert reader.first_call(reader.chat.chat.encode(f"hm</think>\n\n{CALL}\n{CALL}"), PROBE_TOOLS)


def test_a_reply_becomes_a_message(reader: ReplyReader) -> None:
    message = read(reader, CALL).message()
    assert message["content"] is None and message["tool_calls"][0]["function"]["name"] == "add_one"
    assert Reply("", "hm").message() == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
    }


@pytest.mark.parametrize("name", ["nope", "mistral", "llama3_json"])
def test_a_parser_that_refuses_the_tokenizer_is_named(tokenizer: Any, name: str) -> None:
    with pytest.raises(UserError, match=f"tool_parser={name}: cannot"):
        ReplyReader(AgentChat(ChatFormat(tokenizer)), name, "none")


def test_a_tool_parser_needs_a_template_that_shows_tools() -> None:
    chat = AgentChat(ChatFormat(tokenizer_for(CHATML)))
    assert ReplyReader(chat, "auto", "none").tool_parser == ""
    with pytest.raises(UserError, match="does not support tools"):
        ReplyReader(chat, "hermes", "none")
