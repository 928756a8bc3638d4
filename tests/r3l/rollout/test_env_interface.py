"""What an environment may declare about itself."""

import re
from dataclasses import replace

import numpy as np
import pytest

from r3l.errors import UserError
from r3l.rollout.env_interface import canonical
from tests.r3l.fakes import Corridor


@pytest.mark.parametrize("threshold", [0.0, -110.0, float("nan"), float("inf")])
def test_a_success_threshold_that_is_not_positive_is_refused(
    threshold: float,
) -> None:
    with pytest.raises(UserError, match="must be positive"):
        replace(Corridor().spec, success_threshold=threshold)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("name", "", "name is ''; it must be text that is not empty"),
        ("system_prompt", None, "system_prompt is None; it must be text"),
        ("max_steps", 0, "max_steps is 0; it must be a whole number, 1 or more"),
        ("max_steps", "3", "max_steps is '3'; it must be a whole number"),
        ("max_response_tokens", 8.5, "max_response_tokens is 8.5; it must be a whole number"),
        ("success_threshold", "1", "success_threshold is '1'; it must be a number"),
        ("deterministic", "yes", "'yes'; it must be one of exact, canonical, no"),
        ("sessions", 0, "sessions is 0; it must be None, or a whole number, 1 or more"),
        ("stop", "\n\n", "it must be a list of texts, none of them empty"),
        ("stop", [""], "it must be a list of texts, none of them empty"),
        ("prompts", {"guidance": 3}, "prompts is {'guidance': 3}; it must be texts by name"),
    ],
)
def test_a_value_that_no_attempt_can_use_is_refused_by_its_name(
    field: str, value: object, rule: str
) -> None:
    spec = Corridor().spec
    with pytest.raises(UserError, match=re.escape(rule)) as refused:
        replace(spec, **{field: value})
    who = value if field == "name" else spec.name
    assert str(refused.value).startswith(f"env {who}: its spec: {field} is ")


def test_numbers_of_numpy_are_numbers() -> None:
    spec = replace(Corridor().spec, max_steps=np.int64(3), success_threshold=np.float32(0.5))
    assert type(spec.max_steps) is int and type(spec.success_threshold) is float


def test_canonical_texts_are_equal_in_any_order_of_their_words() -> None:
    assert canonical("a key,\n a door") == canonical("a door a key,") == "a a door key,"
    assert canonical("a door") != canonical("a a door")
