"""Session traces: what the hub's viewer opens, and what is read of such files."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from r3l.errors import UserError
from r3l.records import Group, done
from r3l.records.imported import imported_attempt
from r3l.views import session_trace
from r3l.views.session_trace import (
    ROLES,
    demonstration,
    is_trace,
    plain_messages,
    read_sessions,
    session_at,
    sessions_of,
)
from r3l.views.tape import TapedCall, write_tape
from tests.r3l.training.fakes import explore_group, group_of, thought

ASKED = {"role": "user", "content": "7+5?"}
CALL = {"id": "c1", "function": {"name": "add", "arguments": {"a": 7}}}


def lines(group: Group) -> dict[str, list[dict[str, Any]]]:
    return dict(sessions_of(group))


def written(path: Path, *rows: Any) -> Path:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


def header(**more: Any) -> dict[str, Any]:
    return {"type": "session", "harness": "other", "id": "s1"} | more


def message(role: str = "user", content: str = "hi", **more: Any) -> dict[str, Any]:
    return {"type": "message", "message": {"role": role, "content": content} | more}


def advised() -> Group:
    """A group of an attempt, and of a retry that was advised."""
    group = explore_group((0.0,), (1.0,), group_id="g7")
    retry = group.trajectories[1]
    text = json.dumps({"improvement_suggestion": "go left", "retry_from_step": 1})
    record = msgspec.structs.replace(thought(0, text=text), name="why")
    told = msgspec.structs.replace(retry, reflection="why")
    results = [
        msgspec.structs.replace(result, trajectory=told) if result.slot == retry.slot else result
        for result in group.results
    ]
    return msgspec.structs.replace(group, results=tuple(results), reflections=(record,))


def test_an_attempt_is_a_header_and_messages_as_the_viewer_reads_them() -> None:
    made = lines(advised())
    assert list(made) == ["g7-0", "g7-1"]
    first, *rest = made["g7-0"]
    assert (first["type"], first["harness"], first["id"]) == ("session", "r3l", "g7-0")
    assert first["reward"] == 0.0 and first["name"].endswith("attempt 0: reward 0")
    assert first["task"].keys() == {"task_id", "env", "seed", "options"}
    for line in rest:
        assert line["type"] == "message" and line["message"].keys() == {"role", "content"}
        assert line["message"]["role"] in ROLES and isinstance(line["message"]["content"], str)


def test_a_retry_has_its_reward_its_advice_and_its_pivot() -> None:
    retry = lines(advised())["g7-1"][0]
    assert (retry["reward"], retry["of"], retry["advice"]) == (1.0, 0, "go left")
    group = advised()
    pivot = group.trajectories[1].pivot
    assert retry.get("pivot", -1) == pivot
    assert "retry of 0" in retry["name"] and retry["name"].endswith("reward 1")


def test_an_agents_calls_have_their_tools_and_each_conversation_is_a_session() -> None:
    reply = {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"}
    result = {"role": "tool", "content": "12", "tool_call_id": "c1"}
    end = {"role": "assistant", "content": "12"}
    calls = [
        TapedCall("chat", "a", -1, (ASKED,), reply),
        TapedCall("chat", "b", 0, (result,), end),
        TapedCall("chat", "c", 0, (result, {"role": "developer", "content": "again"}), end),
        TapedCall("chat", "d", -1, (ASKED,), end, model="another"),
    ]
    group = explore_group((1.0,), (None,), group_id="g7")
    attempt = group.trajectories[0]
    extra = msgspec.structs.replace(attempt.extra, tape=write_tape(calls))
    changed = msgspec.structs.replace(attempt, extra=extra)
    made = lines(msgspec.structs.replace(group, results=(done(changed), *group.results[1:])))
    assert list(made)[:2] == ["g7-0", "g7-0-1"]
    sent = [line["message"] for line in made["g7-0"][1:]]
    arguments = json.dumps({"a": 7})
    call = {"id": "c1", "function": {"name": "add", "arguments": arguments}}
    assert sent == [
        ASKED,
        {"role": "assistant", "content": "", "toolCalls": [call], "reasoningContent": "hm"},
        {"role": "tool", "content": "12", "toolCallId": "c1"},
        end,
    ]
    assert made["g7-0-1"][0]["conversation"] == 1
    assert made["g7-0-1"][-2]["message"] == {"role": "system", "content": "again"}


def taped(*messages: dict[str, Any]) -> Group:
    """A group of an agent's attempt, which was asked the messages."""
    call = TapedCall("chat", "a", -1, (ASKED, *messages), {"role": "assistant", "content": "12"})
    group = explore_group((1.0,), (), group_id="g7")
    [attempt] = group.trajectories
    extra = msgspec.structs.replace(attempt.extra, tape=write_tape([call]))
    changed = msgspec.structs.replace(attempt, extra=extra)
    return msgspec.structs.replace(group, results=(done(changed),))


def test_what_the_format_has_another_name_for_is_written_so_that_it_is_read(tmp_path: Path) -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "run", "input": "ls"}}
    group = taped(
        {"role": "assistant", "content": None, "tool_calls": [custom]},
        {"role": "function", "name": "run", "content": [{"type": "text", "text": "a b"}]},
    )
    [rows] = lines(group).values()
    [session] = read_sessions(written(tmp_path / "f.jsonl", *rows))
    call = {"id": "c1", "function": {"name": "run", "arguments": '{"input": "ls"}'}}
    assert session.messages[1]["tool_calls"] == [call]
    assert session.messages[2] == {"role": "tool", "content": "a b"}


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "conversations with images or other parts that are not text",
        ),
        ({"role": "critic", "content": "no"}, "conversations with a message of another role"),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "search"}]},
            "conversations with calls of tools that are not functions",
        ),
    ],
)
def test_what_the_format_has_no_place_for_is_left_out_and_counted(
    odd: dict[str, Any], why: str
) -> None:
    left = Counter[str]()
    assert list(sessions_of(taped(odd), left)) == [] and left == {why: 1}


def test_attempts_without_their_texts_are_left_out_and_counted() -> None:
    tokens = imported_attempt([5, 6, 7, 8], [(2, 4)], 1.0, source="people")
    asked = imported_attempt(
        [5, 6, 7, 8, 9], [(2, 3), (3, 5)], 1.0, source="people", slot=1,
        actions=["a", ""], observations=["q", "", ""],
    )  # fmt: skip
    ends = imported_attempt(
        [5, 6, 7], [(2, 3)], 1.0, source="people", slot=2, actions=[""], observations=["q", ""]
    )
    left = Counter[str]()
    group = group_of(done(tokens), done(asked), done(ends), group_id="g7")
    assert [name for name, _ in sessions_of(group, left)] == ["g7-2"]
    assert left == {"attempts of tokens without a text": 2}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    for name, rows in lines(advised()).items():
        written(tmp_path / f"{name}.jsonl", *rows)
    assert is_trace(tmp_path) and is_trace(tmp_path / "g7-0.jsonl")
    found = list(read_sessions(tmp_path))
    assert [session.reward for session in found] == [0.0, 1.0]
    for session, rows in zip(found, lines(advised()).values(), strict=True):
        assert session.messages == [row["message"] for row in rows[1:]]
        assert plain_messages(session) == (session.messages, "")


def test_a_demonstration_ends_with_a_reply_and_earned_something(tmp_path: Path) -> None:
    call = {"toolCalls": [CALL], "reasoningContent": "hm"}
    rows = (
        header(reward=1), message(), message("assistant", "", **call),
        message("tool", "12", toolCallId="c1", timestamp=5), message("assistant", "yes"), message(),
        header(reward=0), message(), message("assistant", "no"),
        header(), message(), message("assistant", "maybe"),
        header(), message(),
        header(reward=1), message(), message("assistant", ""),
    )  # fmt: skip
    sessions = list(read_sessions(written(tmp_path / "f.jsonl", *rows)))
    row, failed, unknown, silent, empty = map(demonstration, sessions)
    assert row is not None and [m["role"] for m in row["messages"]] == [
        "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert row["messages"][1]["tool_calls"] == [CALL]
    assert row["messages"][2]["tool_call_id"] == "c1" and "timestamp" not in row["messages"][2]
    assert failed is None and unknown is not None and silent is None and empty is None
    assert plain_messages(sessions[0]) == ((), "tool calls")


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        ((message(),), "line 1: comes before a header of type session"),
        (
            (header(), message("critic")),
            "line 2: role 'critic': must be one of user, assistant, s",
        ),
        ((header(), {"type": "event"}), "line 2: type 'event': must be session or message"),
        ((header(), {"type": "message", "message": 5}), "line 2: message: must be an object"),
        ((header(), message("user", 5)), "line 2: content: must be text"),  # type: ignore[arg-type]
        ((header(), message(image="x")), "line 2: 'image' is not a field of a message; remove it"),
        ((header(), "{"), "line 2: is not JSON"),
        ((header(), "[]"), "line 2: must be an object of type session or message"),
        ((header(id=""),), "line 1: the session's header needs id, a text"),
        ((header(),), "line 1: its session has no message"),
        ((header(), header(), message()), "line 1: its session has no message"),
        ((header(), message("user", "a\ud800")), "line 2: holds half a surrogate pair"),
        ((header(reward=10**400), message()), "line 1: reward: is too large"),
    ],
)
def test_a_malformed_line_is_named_with_the_rule(
    tmp_path: Path, rows: tuple[Any, ...], rule: str
) -> None:
    with pytest.raises(UserError) as error:
        _ = [each.reward for each in read_sessions(written(tmp_path / "f.jsonl", *rows))]
    assert rule in str(error.value) and "\n" not in str(error.value)


def test_a_reward_that_is_no_number_is_refused(tmp_path: Path) -> None:
    [session] = read_sessions(written(tmp_path / "f.jsonl", header(reward="much"), message()))
    with pytest.raises(UserError, match="line 1: reward 'much': must be a number"):
        _ = session.reward


def test_sessions_are_read_one_at_a_time_and_again_from_their_places(tmp_path: Path) -> None:
    rows = (header(id="ü"), message(), "", header(id="b"), message("user", "x"), header(), "{")
    reading = read_sessions(
        written(tmp_path / "f.jsonl", "\ufeff" + json.dumps(rows[0]), *rows[1:])
    )
    found = [next(reading), next(reading)]
    assert [session.where.number for session in found] == [1, 4]
    assert [session_at(session.where) for session in found] == found
    (tmp_path / "f.jsonl").write_text("")
    with pytest.raises(UserError, match="line 4: the file was changed while it was read"):
        session_at(found[1].where)


def test_a_line_without_end_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_trace, "LINE", 1 << 20)
    file = written(tmp_path / "f.jsonl", header(), message("user", "x" * (2 << 20)))
    with pytest.raises(UserError, match="line 2: has more than 1 MiB; shorten it"):
        list(read_sessions(file))


def test_other_files_are_no_traces(tmp_path: Path) -> None:
    assert not is_trace(written(tmp_path / "a", {"task": "q", "attempts": []}))
    assert not is_trace(written(tmp_path / "b", "x")) and not is_trace(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert not is_trace(tmp_path / "empty")
