"""Lines of a file as groups to insert: of an export, or written by hand."""

import json

import pytest

from buffer.tools.json_values import plain
from buffer.tools.outside_groups import LeftOut, OutsideGroup, read
from r3l.errors import UserError
from r3l.records import Group, GroupPlan, Task, done
from tests.buffer.fakes import finished, full_result, thought
from tests.r3l.records.test_imported import Letters, said

GROUP = Group(
    "g0000000007", Task("t", "workshop", 1, {"a": [1]}), GroupPlan(1, "kind"), "trained",
    (finished(0, version=3, reward=0.5),), (thought(),), times={"trained": 1.5},
)  # fmt: skip
ATTEMPT = {"token_ids": [1, 2, 3], "spans": [[1, 3]], "reward": 1.0}


@pytest.fixture
def lines(tmp_path):
    def found(*given, source="a file"):
        file = tmp_path / "groups.jsonl"
        file.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in given))
        return list(read(file, source, Letters))

    return found


def test_a_line_of_an_export_is_a_group_of_another_run(lines):
    [group] = lines(plain(GROUP))
    assert (group.task, group.kind, group.source) == (GROUP.task, "kind", "a file")
    [attempt] = [result.trajectory for result in group.results]
    assert attempt.oldest_version == -1 and attempt.source == "a file"
    assert attempt.token_ids.tolist() == list(range(8)) and attempt.logprobs[2] == -1.0
    assert [each.version for each in group.reflections] == [-1]


def test_every_field_of_an_attempt_comes_back_from_json(lines):
    result = full_result(source="people", slot=0)
    whole = plain(GROUP) | {"results": [plain(result)]}
    [group] = lines(whole)
    again = group.results[0].trajectory
    assert plain(again) | {"step_versions": 0, "step_newest_versions": 0, "origin": 0} == plain(
        result.trajectory
    ) | {"step_versions": 0, "step_newest_versions": 0, "origin": 0}
    assert again.origin.group_id == "people/g1" or again.origin.group_id == "a file/g1"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"purpose": "eval"}, "evaluation"),
        ({"state": "filling"}, "unfinished"),
        ({"state": "expired", "cause": "no_contrast"}, "expired as no_contrast"),
        ({"results": [], "state": "expired"}, "no attempt"),
    ],
)
def test_what_is_no_material_for_replay_is_left_out_with_a_reason(lines, changes, why):
    assert lines(plain(GROUP) | changes) == [LeftOut(why)]


def test_a_group_that_was_too_old_for_its_run_is_material(lines):
    [group] = lines(plain(GROUP) | {"state": "expired", "cause": "stale"})
    assert isinstance(group, OutsideGroup)


def test_attempts_of_tokens_and_of_messages_make_a_group_by_hand(lines):
    chat = {"messages": said("a", "b"), "reward": 0}
    own = {"task": {"task_id": "t", "env": "e", "options": {"prompt": "p"}}, "source": "people"}
    first, second = lines(
        {"task": "q1", "attempts": [ATTEMPT, ATTEMPT | {"logprobs": [-1, -2]}]}, "",
        own | {"attempts": [chat, ATTEMPT]},
    )  # fmt: skip
    assert [r.slot for r in first.results] == [0, 1] and first.task.task_id == "q1"
    assert [r.trajectory.has_logprobs for r in first.results] == [False, True]
    assert second.source == "people" and second.task.options == {"prompt": "p"}
    assert [r.trajectory.source for r in second.results] == ["people"] * 2
    assert second.results[0].trajectory.actions == ("b",) and done(second.results[0].trajectory)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not an object"),
        ({"task": "t"}, "the line: lacks attempts"),
        ({"task": "t", "attempts": []}, "at least one attempt"),
        ({"task": "t", "attempts": [3]}, "attempt 0: is not an object"),
        ({"task": "t", "attempts": [ATTEMPT, {"reward": 1}]}, "attempt 1: lacks spans, token_ids"),
        ({"task": "t", "attempts": [ATTEMPT], "sauce": 1}, "unknown key 'sauce'"),
        ({"task": "t", "attempts": [ATTEMPT | {"rewards": 1}]}, "unknown key 'rewards'"),
        ({"task": "t", "attempts": [ATTEMPT | {"reward": "NaN"}]}, "attempt 0: reward 'NaN': must"),
        ({"task": "t", "attempts": [ATTEMPT | {"reward": None}]}, "reward None: must be a number"),
        (
            '{"task": "t", "attempts": [{"token_ids": [1], "spans": [[0, 1]], "reward": NaN}]}',
            "attempt 0: reward is nan",
        ),
        ({"task": "t", "attempts": [ATTEMPT | {"logprobs": "ab"}]}, "logprobs 'ab': must be num"),
        ({"task": "t", "attempts": [ATTEMPT | {"actions": "ab"}]}, "must be a list of texts"),
        ({"task": "t", "attempts": [ATTEMPT | {"temperature": "hot"}]}, "temperature: must be a"),
        ({"task": 3, "attempts": [ATTEMPT]}, "task 3: must be text"),
        ({"task": "t", "attempts": [ATTEMPT], "source": None}, "source None: must be text"),
        ({"task": "t", "attempts": [ATTEMPT], "kind": 1}, "kind 1: must be text"),
        (
            {"task": "t", "attempts": [{"messages": said("a", "b"), "reward": 1, "logprobs": [0]}]},
            "attempt 0 of messages: unknown key 'logprobs'",
        ),
        ({"task": "t", "attempts": [{"messages": "a", "reward": 1}]}, "messages 'a': messages are"),
        ({"task": "t", "attempts": [{"messages": ["a"], "reward": 1}]}, "message 'a': messages"),
        ('{"task": ' + "[" * 9**5, "too deep to be read"),
        ({"task": "t", "attempts": [ATTEMPT | {"logprobs": [-1]}]}, "1 log-probabilities for 3"),
        ({"task": "t", "attempts": [ATTEMPT | {"spans": [[1, 9]]}]}, "reach past the sequence"),
        ({"task": "t", "attempts": [ATTEMPT | {"token_ids": [1.5, 2, 3]}]}, "whole numbers"),
        ({"task": {"task_id": ""}, "attempts": [ATTEMPT]}, "its id is empty"),
        ({"results": 3}, "Group: "),
        (plain(GROUP) | {"results": [{"slot": 0, "status": "done"}]}, "need a trajectory"),
    ],
)
def test_a_bad_line_is_named_with_its_file_and_number(lines, line, rule):
    good = {"task": "t", "attempts": [ATTEMPT]}
    with pytest.raises(UserError, match=r"groups\.jsonl line 2: ") as refused:
        lines(good, line)
    assert rule in str(refused.value) and "\n" not in str(refused.value)


def test_numbers_that_do_not_fit_an_array_are_refused(lines):
    result = plain(finished())
    for field, value in (("token_ids", [1 << 40] * 8), ("token_ids", [0.5] * 8),
                         ("logprobs", [True] * 8), ("token_ids", "abc")):  # fmt: skip
        bad = result | {"trajectory": result["trajectory"] | {field: value}}
        with pytest.raises(UserError, match=field):
            lines(plain(GROUP) | {"results": [bad]})


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        list(read(tmp_path / "nothing.jsonl", "x", Letters))
