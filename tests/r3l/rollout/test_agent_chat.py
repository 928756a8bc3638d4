"""The increments of a conversation with tools are what the chat template itself would write."""

import json
import re
from typing import Any

import pytest

from r3l.errors import UserError
from r3l.rollout.agent_chat import (
    PROBE_TOOLS,
    AgentChat,
    add_tools,
    plain_arguments,
    tool_call,
)
from r3l.rollout.chat import ChatFormat
from tests.r3l.fakes import CHATML, CharTokenizer

# As Qwen 2.5: several results of a turn share one user turn.
QWEN = (
    "{%- if tools %}{{- '<|im_start|>system\n' }}"
    "{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}"
    "{%- else %}{{- 'You are helpful.' }}{%- endif %}{{- '\n# Tools\n<tools>' }}"
    "{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}"
    "{{- '\n</tools><|im_end|>\n' }}"
    "{%- elif messages[0]['role'] == 'system' %}"
    "{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' or (message.role == 'system' and not loop.first) or "
    "(message.role == 'assistant' and not message.tool_calls) %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant' }}"
    "{%- if message.content %}{{- '\n' + message.content }}{%- endif %}"
    "{%- for call in message.tool_calls %}{%- set f = call.function %}"
    '{{- \'\n<tool_call>\n{"name": "\' + f.name + \'", "arguments": \' }}'
    "{{- f.arguments | tojson }}{{- '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}"
    "{%- elif message.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}"
    "{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}"
    "{{- '<|im_end|>\n' }}{%- endif %}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
# As Llama 3.1: a call replaces the text of its reply.
LLAMA = (
    "{% if tools %}{{ 'Tools: ' + tools | tojson + '<|im_end|>' }}{% endif %}"
    "{% for m in messages %}{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
    "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    "{{ '<|im_start|>assistant\n{\"name\": \"' + f.name + '\"}<|im_end|>' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# The tools wander to the last user's message.
WANDERING = (
    "{% for m in messages %}{% if tools and m.role == 'user' and "
    "(loop.last or loop.index0 == messages | length - 1) %}{{ tools | tojson }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CALLS = [tool_call("add_one", {"a": 1}, "aaaaaaaa1"), tool_call("add_two", {"a": 2}, "aaaaaaaa2")]
RESULTS = [
    {"role": "tool", "content": "2", "tool_call_id": "aaaaaaaa1"},
    {"role": "tool", "content": "4 <tool_call> \n", "tool_call_id": "aaaaaaaa2"},
]


def chat_of(template: str) -> AgentChat:
    return AgentChat(ChatFormat(CharTokenizer(template)))


def test_results_of_parallel_calls_follow_the_reply_as_the_template_writes_them() -> None:
    chat = chat_of(QWEN)
    tokenizer = chat.chat.tokenizer
    asked: list[dict[str, Any]] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "add"},
    ]
    opening = chat.open(asked, PROBE_TOOLS)
    reply = {"role": "assistant", "content": "so:", "tool_calls": CALLS}
    following = chat.following([("aaaaaaaa1", "add_one"), ("aaaaaaaa2", "add_two")], RESULTS)
    whole = chat.chat.render([*asked, reply, *RESULTS], PROBE_TOOLS, prompt=True)
    assert whole.startswith(tokenizer.decode(opening))
    assert whole.endswith("</tool_call><|im_end|>" + tokenizer.decode(following))


def test_a_user_may_follow_a_reply_without_calls() -> None:
    chat = chat_of(QWEN)
    text = chat.chat.tokenizer.decode(chat.following([], [{"role": "user", "content": "more"}]))
    assert text == "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_moves_its_tools_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"'characters'.*turn 0 changes earlier text"):
        chat_of(WANDERING)


def test_a_template_for_one_call_at_a_time_refuses_only_several() -> None:
    chat = chat_of(LLAMA)
    text = chat.chat.tokenizer.decode(chat.following([("aaaaaaaa1", "add_one")], RESULTS[:1]))
    assert text == "<|im_start|>tool\n2<|im_end|><|im_start|>assistant\n"
    with pytest.raises(UserError, match="refuses messages with"):
        chat.following([("aaaaaaaa1", "add_one"), ("aaaaaaaa2", "add_two")], RESULTS)


def test_a_template_without_tools_says_so_and_still_takes_conversations() -> None:
    chat = chat_of(CHATML)
    assert not chat.takes_tools
    asked = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    text = chat.chat.tokenizer.decode(chat.open(asked, []))
    assert text.endswith("<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n")


def test_each_of_several_templates_is_made_to_show_tools() -> None:
    class Several(CharTokenizer):
        """With templates by name, as transformers has them."""

        def apply_chat_template(self, messages: list[dict[str, str]], **given: Any) -> str:
            assert isinstance(self.chat_template, dict)
            own = CharTokenizer(self.chat_template["default"])
            return own.apply_chat_template(messages, **given)

    tokenizer = Several()
    tokenizer.chat_template = {"default": CHATML, "rag": "{{ messages }}"}  # type: ignore[assignment]
    chat = ChatFormat(tokenizer)
    add_tools(chat)
    assert AgentChat(chat).takes_tools
    assert all("Hermes" in text for text in chat.tokenizer.chat_template.values())


def test_a_template_without_tools_is_made_to_show_them_and_is_the_same_without() -> None:
    plain, chat = ChatFormat(CharTokenizer(CHATML)), ChatFormat(CharTokenizer(CHATML))
    add_tools(chat)
    add_tools(chat)  # shows them already
    assert chat.tokenizer.chat_template.count("Hermes") == 1
    asked = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert chat.render(asked, prompt=True) == plain.render(asked, prompt=True)
    reply = {"role": "assistant", "content": "so:", "tool_calls": CALLS}
    system, *rest = chat.render([*asked, reply, *RESULTS], PROBE_TOOLS).split("<|im_start|>")[1:]
    assert system.startswith("system\ns\n\n# Tools") and '"name": "add_two"' in system
    assert rest[1].startswith("assistant\nso:\n<tool_call>\n{") and '"name": "add_one"' in rest[1]
    assert rest[1].count("<tool_call>") == 2
    assert rest[2].startswith("user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n4")
    assert chat.render(asked[1:], PROBE_TOOLS).startswith("<|im_start|>user\n# Tools")
    assert AgentChat(chat).takes_tools


# As several families: results and calls have their own form only next to tools.
SHY = QWEN.replace("message.role == 'tool' %}", "message.role == 'tool' and tools %}").replace(
    "(message.role == 'assistant' and not message.tool_calls)",
    "(message.role == 'tool' and not tools) or "
    "(message.role == 'assistant' and not message.tool_calls)",
)


@pytest.mark.parametrize("tools", [PROBE_TOOLS, ()])
@pytest.mark.parametrize("template", [QWEN, SHY])
def test_an_increment_is_written_with_the_tools_of_its_conversation(
    template: str, tools: tuple[Any, ...]
) -> None:
    chat = chat_of(template)
    asked = [{"role": "user", "content": "add"}]
    reply = {"role": "assistant", "content": "so:", "tool_calls": CALLS}
    calls = [("aaaaaaaa1", "add_one"), ("aaaaaaaa2", "add_two")]
    shown = chat.chat.tokenizer.decode(chat.following(calls, RESULTS, tools))
    whole = chat.chat.render([*asked, reply, *RESULTS], tools, prompt=True)
    assert whole.endswith("<|im_end|>" + shown)
    assert ("<tool_response>" in shown) == (template is QWEN or bool(tools))


class Named(CharTokenizer):
    """With templates by name, as transformers has them."""

    def apply_chat_template(self, messages: list[dict[str, str]], **given: Any) -> str:
        assert isinstance(self.chat_template, dict)
        name = "tool_use" if given.get("tools") else "default"
        return CharTokenizer(self.chat_template[name]).apply_chat_template(messages, **given)


def named(**templates: str) -> ChatFormat:
    tokenizer = Named()
    tokenizer.chat_template = templates  # type: ignore[assignment]
    return ChatFormat(tokenizer)


def test_a_chat_with_tools_is_written_by_the_template_for_tools() -> None:
    chat = AgentChat(named(default=CHATML, tool_use=QWEN))
    assert chat.takes_tools
    asked = [{"role": "user", "content": "add"}]
    assert "<tools>" in chat.chat.tokenizer.decode(chat.open(asked, PROBE_TOOLS))
    assert "<tools>" not in chat.chat.tokenizer.decode(chat.open(asked, ()))
    calls = [("aaaaaaaa1", "add_one")]
    shown = chat.chat.tokenizer.decode(chat.following(calls, RESULTS[:1], PROBE_TOOLS))
    assert shown.startswith("\n<|im_start|>user\n<tool_response>\n2")


@pytest.mark.parametrize(("default", "tool_use"), [(CHATML, WANDERING), (WANDERING, QWEN)])
def test_both_named_templates_are_checked(default: str, tool_use: str) -> None:
    if default == WANDERING:
        default = CHATML.replace("m.content", "messages[-1].content")
    with pytest.raises(UserError, match="changes earlier"):
        AgentChat(named(default=default, tool_use=tool_use))


# As Mistral's: ids of nine characters only.
NINE = QWEN.replace(
    "{%- for message in messages %}",
    "{%- for message in messages %}{%- for id in (message.tool_calls or []) | map(attribute='id') "
    "| list + ([message.tool_call_id] if message.role == 'tool' else []) %}"
    "{%- if id | length != 9 %}{{ raise_exception('nine!') }}{%- endif %}"
    "{{- '[' + id + ']' }}{%- endfor %}",
)
IDS = ("aaaaaaaa1", "call_8kQzT0aPl3xWn", "toolu_01", "7", "a-b-c-d-e", "aaaaaaaa2")


@pytest.mark.parametrize("tools", [PROBE_TOOLS, ()])
def test_ids_that_a_template_refuses_are_renamed_alike_in_the_whole_conversation(
    tools: tuple[Any, ...],
) -> None:
    chat, seen = chat_of(NINE), []
    for call_id in IDS:
        reply = {"role": "assistant", "content": "", "tool_calls": [tool_call("f", {}, call_id)]}
        result = {"role": "tool", "content": "2", "tool_call_id": call_id}
        asked = [{"role": "user", "content": "add"}, reply, result]
        text = chat.chat.tokenizer.decode(chat.open(asked, tools))
        made, answered = re.findall(r"\[([a-z0-9]{9})\]", text)
        later = chat.chat.tokenizer.decode(chat.following([(call_id, "f")], [result], tools))
        assert made == answered and f"[{made}]" in later
        seen.append(made)
    assert len(set(seen)) == len(IDS) and (seen[0], seen[-1]) == (IDS[0], IDS[-1])


def test_ids_stay_as_they_are_in_a_template_that_takes_them() -> None:
    chat = chat_of(NINE.replace("raise_exception('nine!')", "''"))
    result = {"role": "tool", "content": "2", "tool_call_id": "toolu_01"}
    shown = chat.following([("toolu_01", "f")], [result], PROBE_TOOLS)
    assert "[toolu_01]" in chat.chat.tokenizer.decode(shown)


THINKING = CHATML.replace(
    "{{ '<|im_start|>assistant\n' }}",
    "{{ '<|im_start|>assistant\n' }}{% if not enable_thinking | default(true) %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}",
)


def test_a_template_gets_the_arguments_that_it_reads() -> None:
    chat = AgentChat(ChatFormat(CharTokenizer(THINKING), earlier_reasoning="keep"))
    off = chat.with_arguments('{"enable_thinking": false, "other": 1}')
    asked = [{"role": "user", "content": "hi"}]
    for each, thinks in ((chat, True), (off, False)):
        for ids in (each.open(asked, ()), each.following([], asked)):
            assert chat.chat.tokenizer.decode(ids).endswith("</think>\n\n") != thinks
    assert chat.with_arguments('{"other": 1}') is chat
    assert chat.with_arguments('{"enable_thinking": false}') is off
    for n in range(100):
        chat.with_arguments(json.dumps({"enable_thinking": n}))
    assert len(chat._others) <= 16


def test_arguments_that_a_template_cannot_take_are_refused() -> None:
    chat = AgentChat(ChatFormat(CharTokenizer(THINKING)))
    with pytest.raises(UserError, match="removes the reasoning of earlier replies"):
        chat.with_arguments('{"enable_thinking": false}')


def test_arguments_that_are_no_json_object_stay_text() -> None:
    assert plain_arguments('{"a": 1}') == {"a": 1}
    assert plain_arguments("{oops") == "{oops" and plain_arguments("3") == "3"
