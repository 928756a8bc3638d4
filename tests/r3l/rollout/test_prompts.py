"""Prompts: how they are filled and overridden, and that steps are counted alike everywhere."""

import json
import re

import numpy as np
import pytest
from msgspec.structs import replace

from r3l.errors import ReflectionError
from r3l.rollout.prompts import Prompts, attempt_log
from r3l.rollout.reflection import FIELDS, Reflection, json_schema, parse


def test_log_prompt_and_spans_number_the_steps_alike(make_trajectory):
    attempt = make_trajectory([2, 3, 1, 4])
    _, user = Prompts().question("reflect", attempt)
    logged = [int(k) for k in re.findall(r"^step (\d+) does", user, re.MULTILINE)]
    low, high = re.search(r"numbered (\d+) to (\d+)", user).groups()
    other = json_schema(attempt.num_steps)["oneOf"][1]["properties"]
    admitted = other["retry_from_step"]["enum"]
    assert logged == list(range(int(low), int(high) + 1)) == admitted == [0, 1, 2, 3]
    for step in logged:
        assert f"step {step} does: {attempt.actions[step]}" in user
        reply = dict.fromkeys(FIELDS, "x") | {
            "trajectory_outcome": "failure",
            "retry_from_step": step,
        }
        pivot = parse(json.dumps(reply), attempt.num_steps).retry_from_step
        mask = attempt.responses_from(pivot)
        assert np.flatnonzero(mask)[0] == attempt.step_spans[step, 0]
    with pytest.raises(ReflectionError):
        parse(json.dumps(reply | {"retry_from_step": int(high) + 1}), attempt.num_steps)


def test_the_log_shows_the_systems_prompt_each_observation_before_its_step_and_the_last_one(
    make_trajectory,
):
    steps = [
        "step 0 sees: observation 0",
        "step 0 does: action 0",
        "step 1 sees: observation 1",
        "step 1 does: action 1",
        "end sees: observation 2",
    ]
    attempt = make_trajectory([1, 1])
    assert attempt_log(attempt).splitlines() == ["instructions: be good", *steps]
    assert attempt_log(replace(attempt, system="")).splitlines() == steps
    for kind in ("reflect", "critique"):
        _, user = Prompts().question(kind, attempt)
        assert user.startswith("instructions: be good\nstep 0 sees")
    own = Prompts({"reflect_user": "{attempt}."})
    assert own.question("reflect", attempt)[1] == "\n".join(steps) + "."


def test_a_stored_failure_is_shown_without_the_closing_remark(make_trajectory):
    attempt = replace(make_trajectory(), feedback="The right answer is 0.5.")
    assert "The right answer is 0.5." in Prompts().question("reflect", attempt)[1]
    text = Prompts().in_context(attempt)
    assert f"step 0 does: {attempt.actions[0]}\nstep 1 sees" in text and "0.5" not in text
    assert Prompts({"in_context": "AGAIN {attempt}"}).in_context(attempt).startswith("AGAIN step 0")


def test_the_reflection_prompt_names_every_field_and_outcome():
    system = Prompts().texts["reflect_system"]
    for word in (*FIELDS, "success", "success_but_inefficient", "failure"):
        assert f'"{word}"' in system


def test_guidance_holds_the_whole_report_or_only_the_diagnosis_and_the_advice():
    thought = Reflection("it went", "was late", "failure", "go {early}", 1)
    report = Prompts().guidance(thought)
    assert parse(report, 2) == thought
    advice = Prompts().guidance(thought, "advice")
    assert "was late" in advice and "go {early}" in advice and "it went" not in advice
    bare = Prompts().guidance(Reflection("s", None, "failure", "go", 1), "advice")
    assert "None" not in bare and "{" not in bare


def test_guidance_templates_may_use_the_report_and_each_of_its_fields():
    reflection = Reflection("went \u2191", None, "failure", 'say "b"', 1)
    names = " | ".join(f"{{{name}}}" for name in FIELDS)
    advice = Prompts({"guidance": f"{names} | {{report}}"}).guidance(reflection)
    *fields, report = advice.split(" | ")
    assert fields == ["went \u2191", "", "failure", 'say "b"', "1"]
    assert json.loads(report) == dict(
        zip(FIELDS, ["went \u2191", None, *fields[2:4], 1], strict=True)
    )
    assert parse(report, 2) == reflection


def test_braces_in_attempts_and_reflections_are_not_placeholders(make_trajectory):
    attempt = replace(make_trajectory([1], reward=0.5), actions=("print {reward} {last_step}",))
    assert "step 0 does: print {reward} {last_step}\n" in Prompts().question("reflect", attempt)[1]
    thought = Reflection("s", "{improvement_suggestion}", "failure", "go", 0)
    assert "{improvement_suggestion} go" in Prompts().guidance(thought, "advice")


def test_an_environment_may_override_a_prompt_and_only_one_that_exists(make_trajectory):
    prompts = Prompts({"reflect_user": "LOG {log} up to {last_step}"})
    assert prompts.question("reflect", make_trajectory([1, 1]))[1].endswith("up to 1")
    with pytest.raises(ValueError, match=r"no prompt 'reflect'; .*guidance"):
        Prompts({"reflect": "x"})
