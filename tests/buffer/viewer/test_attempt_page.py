"""One group as the viewer shows it."""

import msgspec
import numpy as np
import pytest

from buffer.storage.stored_rows import TrainedAttempt
from buffer.viewer.attempt_page import Texts, pairs, plain_group
from r3l.errors import NotFound
from r3l.models.model_path import model_path
from r3l.records import Group, GroupPlan, Task
from tests.buffer.viewer.stores import Made, agent_results, reflections, results, trained

NO_TEXTS = Texts(None)


def group(found, plan=None):
    task, thoughts = Task("t", "doors", 1), tuple(reflections())
    return Group("g1", task, plan or GroupPlan(4), "trained", tuple(found), thoughts)


def marked(slot):
    return [step["trained"] for step in slot["steps"]]


def used():
    return {one.slot: one for one in trained("g1")}


def test_steps_are_marked_and_advantages_shown_as_the_learner_trained_on_them():
    first, second = pairs(group(results(Made(reward=0.5))), NO_TEXTS, used())
    assert marked(first["base"]) == marked(first["retry"]) == [False, True, True]
    assert (first["pivot"], first["gain"], first["retry"]["advantage"]) == (1, 1.0, 3.0)
    assert (first["base"]["advantage"], first["base"]["token_weight"]) == (-0.5, 0.01)
    assert (first["base"]["reliance"], first["retry"]["reliance"]) == (None, -0.75)
    assert marked(second["base"]) == [True] * 3
    assert second["retry"]["steps"] is None and second["retry"]["advantage"] is None
    assert [one["reflection"]["name"] for one in (first, second)] == ["reflect-0", "reflect-1"]


def test_nothing_is_marked_of_what_the_learner_did_not_train_on():
    for slot in pairs(group(results(Made())), NO_TEXTS, {}):
        assert marked(slot["base"]) == [False] * 3 and slot["base"]["advantage"] is None


def test_every_number_of_a_step_is_shown():
    first, _ = pairs(group(results(Made(), version=7)), NO_TEXTS, {})
    step = first["base"]["steps"][2]
    assert step["logprobs"] == [-0.25, -2.0, -0.25, -0.25] and step["tokens"] is None
    assert (step["versions"], step["seconds"], step["action"]) == ("v7", 0.5, "act 2")
    assert (step["length"], first["base"]["seconds"], first["retry"]["seconds"]) == (4, 1.5, 1.0)


def test_the_texts_of_tokens_are_together_the_text():
    from tokenizers import Tokenizer

    folder = model_path("builtin")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode("use brush \U0001f600 x").ids
    texts = Texts(folder).of(np.array(ids, np.int32))
    assert len(texts) == len(ids) and "".join(texts) == tokenizer.decode(ids)
    assert "" in texts and "\U0001f600" in texts  # an emoji of several tokens is the last one's


def test_a_group_has_its_facts_and_one_that_is_not_there_is_named(store):
    found = plain_group(store, "g0000000007", NO_TEXTS)
    assert (found["task"], found["seed"], found["step"]) == ("door/0002", "2", 1)
    assert found["times"]["trained"] == 1010.0 and len(found["pairs"]) == 2
    assert found["pairs"][0]["retry"]["advantage"] == 3.0 and found["recalled"] == []
    assert (found["kind"], found["handed"], found["unresolved"]) == ("", [], [])
    with pytest.raises(NotFound, match="there is no group 'g9'"):
        plain_group(store, "g9", NO_TEXTS)


def test_an_attempt_that_joined_a_group_is_shown_with_the_group_it_comes_from(store):
    with store.write() as txn:
        step = txn.step(1)
        joined = TrainedAttempt("g0000000007", "g0000000003", 1, 0.5, 0, 0.01)
        txn.put_step(msgspec.structs.replace(step, attempts=(*step.attempts, joined)))
    found = plain_group(store, "g0000000007", NO_TEXTS)
    assert [(one["group_id"], one["advantage"]) for one in found["recalled"]] == [
        ("g0000000003", 0.5)
    ]
    assert found["pairs"][1]["base"]["advantage"] == 0.25  # its own slot of that number


def test_an_agents_attempt_has_its_tree_of_calls_and_its_conversations():
    first, _ = pairs(group(agent_results(Made())), Texts(model_path("builtin")), used())
    base, retry = first["base"], first["retry"]
    assert base["tree"] == [(0, 0), (1, 0), (2, 1), (3, 0)] and len(base["calls"]) == 4
    main, branch, unknown = base["conversations"]
    assert (main["calls"], main["main"], main["steps"]) == ([0, 1], True, [])
    assert (branch["calls"], branch["main"]) == ([0, 2], False)
    assert [step["trained"] for step in branch["steps"]] == [True, True]
    assert branch["steps"][1]["observation"] == "[tool] 2\n[user] make it short"
    assert branch["steps"][0]["action"] == 'add({"a": 1})'
    assert branch["steps"][1]["logprobs"] == [-0.25, -2.0, -0.25, -0.25]
    assert len(branch["steps"][1]["tokens"]) == 4
    (step,) = unknown["steps"]
    assert (step["tokens"], step["logprobs"], step["trained"]) == (None, [], False)
    assert [one["main"] for one in retry["conversations"]] == [True]
    plain, _ = pairs(group(results(Made())), NO_TEXTS, {})
    assert plain["base"]["tree"] == plain["base"]["conversations"] == []
