"""Reflections: what parses, what does not and why, and what triggers a retry."""

import json
from typing import get_args
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3l.errors import ReflectionError
from r3l.rollout import reflection
from r3l.rollout.reflection import (
    FIELDS,
    MAX_CHARS,
    RE_READ,
    TRY_CHARS,
    Cause,
    Reflection,
    json_schema,
    parse,
)

GOOD = {
    "trajectory_summary": "Went north, found { nothing }.",
    "root_cause_analysis": 'Took "the lamp" too late.',
    "trajectory_outcome": "failure",
    "improvement_suggestion": "Take it first.",
    "retry_from_step": 1,
}
SUCCESS = {
    "trajectory_summary": "Took the lamp.",
    "root_cause_analysis": None,
    "trajectory_outcome": "success",
    "improvement_suggestion": None,
    "retry_from_step": None,
}
OUTCOMES = ["success", "success_but_inefficient", "failure"]


def cause_of(text, num_steps=3, **options):
    with pytest.raises(ReflectionError) as caught:
        parse(text, num_steps, **options)
    assert caught.value.cause in get_args(Cause)
    return caught.value.cause


def changed(**values):
    return json.dumps(GOOD | values)


texts = st.text(min_size=1, max_size=40)
reflections = st.one_of(
    st.fixed_dictionaries(
        {
            "trajectory_summary": st.text(max_size=40),
            "root_cause_analysis": st.none() | texts,
            "trajectory_outcome": st.sampled_from(OUTCOMES[1:]),
            "improvement_suggestion": texts,
            "retry_from_step": st.integers(0, 6),
        }
    ),
    st.builds(lambda summary: SUCCESS | {"trajectory_summary": summary}, st.text(max_size=40)),
)
prose = st.text(st.characters(exclude_characters="{}", codec="utf-8"), max_size=30)


@given(reflections, prose, prose, st.sampled_from(["", "```", "```json"]))
def test_a_reflection_survives_prose_and_fences_around_it(values, before, after, fence):
    text = f"{before}\n{fence}\n{json.dumps(values, indent=1)}\n{fence[:3]}\n{after}"
    assert parse(text, 7) == Reflection(**values)


def test_braces_quotes_and_line_breaks_inside_strings_are_text():
    summary = 'saw "{" then "}" and \\ and {"trajectory_summary": 1}'
    assert parse(changed(trajectory_summary=summary), 3).trajectory_summary == summary
    broken = changed(trajectory_summary="a|b").replace("|", "\n")
    assert parse(broken, 3).trajectory_summary == "a\nb"


def test_stray_braces_and_drafts_before_the_object_are_passed_over():
    text = 'I think {so}, { "maybe", and {"draft": 1} and {} but: ' + json.dumps(GOOD) + " }"
    assert parse(text, 3) == Reflection(**GOOD)


def test_the_first_usable_object_is_taken():
    second = changed(retry_from_step=2)
    assert parse(json.dumps(GOOD) + second, 3).retry_from_step == 1
    assert parse(changed(retry_from_step=99) + second, 3).retry_from_step == 2


def test_a_wrapped_reflection_is_found_and_further_fields_are_ignored():
    assert (
        parse(json.dumps({"reflection": GOOD | {"mood": {"good": True}}}), 3).retry_from_step == 1
    )


def test_a_key_given_twice_counts_only_if_it_says_the_same():
    text = json.dumps(GOOD)
    assert parse(text[:-1] + ', "retry_from_step": 1}', 3).retry_from_step == 1
    assert cause_of(text[:-1] + ', "retry_from_step": 2}') == "not_json"


def without(values, *fields):
    return json.dumps({key: value for key, value in values.items() if key not in fields})


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_is_a_cause(field):
    assert cause_of(without(GOOD, field)) == "missing_field"


def test_a_success_may_leave_out_its_two_optional_texts_alone():
    left_out = without(SUCCESS, "root_cause_analysis", "improvement_suggestion")
    assert parse(left_out, 3) == Reflection(**SUCCESS)
    empty = {"root_cause_analysis": "", "improvement_suggestion": ""}
    assert parse(json.dumps(SUCCESS | empty), 3) == Reflection(**SUCCESS)
    assert cause_of(without(SUCCESS, "retry_from_step")) == "missing_field"
    assert cause_of(without(SUCCESS, "trajectory_summary")) == "missing_field"


@pytest.mark.parametrize("outcome", OUTCOMES[1:])
@pytest.mark.parametrize(
    "lacking", [{"improvement_suggestion": None}, {"improvement_suggestion": ""}, {"pivot": None}]
)
def test_an_outcome_that_can_be_improved_needs_a_suggestion_and_a_pivot(outcome, lacking):
    lacking = {"retry_from_step": None} if "pivot" in lacking else lacking
    assert cause_of(changed(trajectory_outcome=outcome, **lacking)) == "missing_field"
    assert parse(changed(trajectory_outcome=outcome, root_cause_analysis=None), 3)


@pytest.mark.parametrize(
    "correction",
    [{"root_cause_analysis": "x"}, {"improvement_suggestion": "x"}, {"retry_from_step": 0}],
)
def test_a_success_that_names_a_correction_contradicts_itself(correction):
    assert cause_of(json.dumps(SUCCESS | correction)) == "contradiction"


def test_each_unusable_text_has_its_cause():
    assert cause_of("") == "not_json"
    assert cause_of("I would take the lamp earlier.") == "not_json"
    assert cause_of("[1, 2]") == "not_json"
    assert cause_of("{so it goes}") == "not_json"
    assert cause_of("{}") == "missing_field"
    assert cause_of(changed(trajectory_summary=None)) == "missing_field"
    assert cause_of(changed(trajectory_summary=5)) == "missing_field"
    assert cause_of(changed(improvement_suggestion=["a"])) == "missing_field"
    assert cause_of(changed(trajectory_outcome="Failure")) == "bad_outcome"
    assert cause_of(changed(trajectory_outcome=None)) == "bad_outcome"
    assert cause_of(changed(trajectory_outcome=["failure"])) == "bad_outcome"


@pytest.mark.parametrize("pivot", [3, -1, 99, True, False, "1", 1.0, 1.5, [1], {"a": 1}, 10**30])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_pivot_that_is_not_a_step_is_a_cause_whatever_the_outcome(pivot, outcome):
    text = changed(retry_from_step=pivot, trajectory_outcome=outcome)
    assert cause_of(text) == "bad_pivot"


def test_a_pivot_that_is_not_a_number_is_a_cause():
    assert cause_of(json.dumps(GOOD).replace(": 1}", ": NaN}")) == "bad_pivot"


@given(st.integers(1, len(json.dumps(GOOD)) - 1))
def test_an_object_cut_anywhere_is_truncated(length):
    assert cause_of(json.dumps(GOOD)[:length], truncated=True) == "truncated"
    assert cause_of("Well: " + json.dumps(GOOD)[:length]) == "truncated"


def test_a_cut_after_the_object_is_no_harm_and_a_cut_before_it_is_truncated():
    assert parse(json.dumps(GOOD) + " and so", 3, truncated=True).retry_from_step == 1
    assert cause_of("Let me think about", truncated=True) == "truncated"
    assert cause_of(changed(retry_from_step=9) + " and", truncated=True) == "bad_pivot"
    assert cause_of('{"trajectory_summary": "saw } and }", "root_cause') == "truncated"
    nested = '{"trajectory_summary": "x", "more": {"a": 1}, "root_cause'
    assert cause_of(nested) == "truncated"


@pytest.mark.parametrize(
    "text",
    [
        '{"{' * 8000,
        '{"a":' * 4000,
        '{"a":' * 4000 + "1" + "}" * 4000,
        '{"a{"b":' * 1500 + "}" * 1500,
        '{"a":' + "[" * 50000,
        '{"a":' + "9" * 5000 + "}",
        "{" * 20000,
        '{"a":"' + "\\" * 20001,
    ],
)
def test_degenerate_text_comes_to_an_end(text):
    assert cause_of(text)


@given(st.text(alphabet='{}[]":,\\ \n1atrue', max_size=60))
def test_any_text_parses_or_gives_a_cause(text):
    cause_of(text)


def test_a_lone_surrogate_is_replaced_by_text_that_can_be_encoded():
    text = json.dumps(GOOD).replace("Took", "\\ud800")
    parse(text, 3).root_cause_analysis.encode("utf-8")  # type: ignore[union-attr]


@given(reflections, st.integers(1, 7))
def test_a_retry_is_triggered_by_an_improvable_outcome_with_a_pivot_inside_the_attempt(
    values, num_steps
):
    pivot = values["retry_from_step"]
    try:
        triggered = parse(json.dumps(values), num_steps).triggers_retry(num_steps)
    except ReflectionError:
        assert pivot >= num_steps
        triggered = False
    improvable = values["trajectory_outcome"] in ("failure", "success_but_inefficient")
    assert triggered == (improvable and pivot is not None and pivot < num_steps)


def test_a_pivot_of_another_attempt_does_not_trigger():
    reflection = Reflection(**GOOD)
    assert reflection.triggers_retry(2)
    assert not reflection.triggers_retry(1)


def test_the_schema_has_a_branch_for_a_success_and_one_for_the_other_outcomes():
    schema = json_schema(3)
    success, other = (branch["properties"] for branch in schema["oneOf"])
    for branch in schema["oneOf"]:
        assert list(branch["properties"]) == list(GOOD) == branch["required"]
        assert branch["additionalProperties"] is False
    text, null = {"type": "string", "maxLength": MAX_CHARS}, {"type": "null"}
    assert list(success.values()) == [text, null, {"enum": ["success"]}, null, null]
    assert other["trajectory_outcome"] == {"enum": ["success_but_inefficient", "failure"]}
    assert other["root_cause_analysis"] == {"anyOf": [text, null]}
    assert other["improvement_suggestion"] == text | {"minLength": 1}
    assert other["retry_from_step"] == {"enum": [0, 1, 2]}
    assert json.loads(json.dumps(schema)) == schema


def test_the_outcome_can_be_decoded_first():
    fields = ["trajectory_outcome", *(name for name in GOOD if name != "trajectory_outcome")]
    for branch, usual in zip(
        json_schema(3, outcome_first=True)["oneOf"], json_schema(3)["oneOf"], strict=True
    ):
        assert list(branch["properties"]) == branch["required"] == fields
        assert branch["properties"] == usual["properties"]


def admitted(values, num_steps):
    """Whether an object follows one branch of the schema, as its few keywords say."""

    def follows(value, rule):
        if "anyOf" in rule:
            return any(follows(value, one) for one in rule["anyOf"])
        if "enum" in rule:
            return value in rule["enum"]
        if rule["type"] == "null":
            return value is None
        return isinstance(value, str) and len(value) >= rule.get("minLength", 0)

    return any(
        set(values) == set(branch["required"])
        and all(follows(values[name], rule) for name, rule in branch["properties"].items())
        for branch in json_schema(num_steps)["oneOf"]
    )


any_values = st.fixed_dictionaries(
    {
        "trajectory_summary": st.sampled_from(["", "went north"]),
        "root_cause_analysis": st.sampled_from([None, "too late"]),
        "trajectory_outcome": st.sampled_from(OUTCOMES),
        "improvement_suggestion": st.sampled_from([None, "", "go south"]),
        "retry_from_step": st.sampled_from([None, 0, 2, 3]),
    }
)


@given(any_values)
def test_the_parser_accepts_what_the_schema_accepts_and_nothing_else(values):
    try:
        parse(json.dumps(values), 3)
    except ReflectionError:
        assert not admitted(values, 3)
    else:
        # "" is not in the schema of a success, where it counts as null
        assert admitted(
            values | {"improvement_suggestion": values["improvement_suggestion"] or None}, 3
        )


@given(
    st.lists(st.sampled_from(['{"', "{", "}", '":', "1", '{"a":1}', " "]), min_size=1, max_size=3)
)
def test_a_hostile_text_is_read_a_bounded_number_of_times(tokens):
    text = "".join(tokens) * (20_000 // len(tokens))
    starts, read = 0, 0

    def counted(text, start):
        nonlocal starts, read
        starts += 1
        values, end = reflection._DECODER.raw_decode(text, start)
        read += end - start
        return values, end

    with mock.patch.object(reflection, "_decode", counted):
        cause_of(text)
    assert starts <= (RE_READ * len(text) + 10_000) / TRY_CHARS + 1
    assert read <= (RE_READ + 1) * len(text) + 10_000
