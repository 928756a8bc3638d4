"""The calls of an attempt as a chat."""

from actors.agents.shown_calls import LONGEST, chat_lines
from r3l.rollout.agent_chat import tool_call
from r3l.views.tape import TapedCall

ASKED = {"role": "user", "content": "What is\n12 times 13?"}
CALL = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "a product",
    "tool_calls": [tool_call("multiply", '{"a": 12}', "x")],
}
TAPE = [
    TapedCall("chat", "0", -1, (ASKED,), CALL, "stop", ("multiply",), read=9, conversation=0),
    TapedCall("chat", "1", 0, ({"role": "tool", "content": "156"},), {}, "length", trained=False),
    TapedCall("chat", "2", -1, (), finish="200", model="gpt-5"),
]


def test_each_call_shows_what_is_new_in_it_and_its_reply() -> None:
    assert [*chat_lines(TAPE, recorded=True)] == [
        "call 0, a new conversation: 9 tokens read, 0 sampled in 0.0 s, trained",
        "  tools: multiply",
        "  user: What is",
        "    12 times 13?",
        "  assistant (reasoning): a product",
        '  assistant calls multiply with {"a": 12}',
        "call 1, after call 0: 0 tokens read, no reply came, not trained",
        "  tool: 156",
        "  (the reply was cut: length)",
        "call 2, to gpt-5: 200, 0.0 s, not trained",
    ]
    assert "trained" not in " ".join(chat_lines(TAPE[:2], recorded=False))


def test_an_empty_reply_is_shown_and_a_long_message_is_cut() -> None:
    asked = {"role": "user", "content": "x" * (LONGEST + 1)}
    reply = {"role": "assistant", "content": ""}
    _, long, empty = chat_lines([TapedCall("chat", "0", -1, (asked,), reply)], recorded=False)
    assert long.endswith(f"x… ({LONGEST + 1} characters)") and empty == "  assistant: "
