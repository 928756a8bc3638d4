"""The made-up world and its policy: what a rehearsal meets in them."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3l.algorithms.rehearsal.made_up import (
    QUESTION_TOKENS,
    STEPS,
    TASK,
    Characters,
    MadeUpPolicy,
    MadeUpWorld,
    fitting,
)
from r3l.records import GroupPlan
from r3l.rollout.exploration import Decoding, Exploration
from r3l.rollout.group import explore_group
from r3l.rollout.reflection import json_schema, parse
from tests.r3l.algorithms.fakes import get


def explored(algorithm, course, slots):
    decoding = Decoding(max_reflection_tokens=QUESTION_TOKENS)
    x = Exploration(TASK, MadeUpPolicy(course), MadeUpWorld, GroupPlan(slots), decoding, seed=3)
    asyncio.run(explore_group(algorithm.explore, x))
    return x


def test_attempts_fail_succeed_or_differ_as_their_course_says():
    rewards = {
        course: [one.reward for one in explored(get("grpo"), course, 8).attempts]
        for course in ("failed", "successful", "mixed")
    }
    assert set(rewards["failed"]) == {0.0} and set(rewards["successful"]) == {1.0}
    assert len(set(rewards["mixed"]) - {0.0, 1.0}) > 0 and len(set(rewards["mixed"])) > 2


def test_some_reflections_lead_to_retries_and_some_do_not():
    x = explored(get("r3l"), "mixed", 8)
    assert {result.status for result in x.results.values()} == {"done", "skipped"}
    assert {thought.cause for thought in x.reflections.values()} == {""}
    critiques = explored(get("critique_grpo"), "failed", 4)
    assert [one.of for one in critiques.attempts] == [-1, -1, 0, 1]


def test_an_attempt_has_three_steps_with_a_share_of_the_reward_each():
    [one] = explored(get("grpo"), "successful", 1).attempts
    assert one.num_steps == STEPS and one.extra.step_rewards.tolist() == pytest.approx([1 / 3] * 3)
    assert one.observations == ("door 0", "door 1", "door 2", "door 3")


@given(st.text(st.characters(codec="utf-8"), max_size=30), st.booleans())
def test_characters_are_decoded_as_they_were_encoded(text, special):
    tokenizer = Characters()
    ids = tokenizer.encode("<start>" + text + "<end>")
    assert tokenizer.decode(ids) == "<start>" + text + "<end>"
    assert len(ids) >= 2 and {tokenizer.convert_ids_to_tokens(i) for i in (ids[0], ids[-1])} == {
        "<start>",
        "<end>",
    }


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"type": "string", "minLength": 9}, ["text....."]),
        ({"type": "array", "items": {"type": "integer", "minimum": 3}, "minItems": 2}, [[3, 3]]),
        ({"type": "object", "properties": {"a": {"type": "boolean"}}}, [{"a": True}, {"a": False}]),
        ({"anyOf": [{"type": "null"}, {"type": "number"}]}, [None, 0]),
        ({"enum": ["yes", "no"]}, ["yes", "no"]),
        ({"const": 7}, [7]),
        ({}, ["text"]),
    ],
)
def test_an_answer_fits_its_schema(schema, values):
    assert [fitting(schema, turn) for turn in range(len(values))] == values


def test_the_reflections_of_a_rehearsal_name_each_outcome():
    schemas = [json_schema(3), json_schema(3, outcome_first=True)]
    texts = [json.dumps(fitting(schema, turn)) for schema in schemas for turn in range(12)]
    outcomes = {parse(text, 3).trajectory_outcome for text in texts}
    assert {"success", "failure"} <= outcomes
