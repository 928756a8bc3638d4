"""Answers of an environment, checked: each fault fails its slot with a cause."""

import asyncio
import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from r3l.errors import EnvironmentFailed
from r3l.rollout.env_calls import fault_in, guarded, number_of, parts_in, place, read_step
from r3l.text import TEXT_LIMIT
from tests.r3l.fakes import Corridor
from tests.r3l.rollout.fakes import Faulty, explore, learner_of_advice


def test_a_world_that_raises_fails_its_slots_and_nothing_else() -> None:
    class Broken(Corridor):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            raise OSError("power cut")

    slots = explore(learner_of_advice(), make_env=Broken)
    assert slots[0].cause == "environment_OSError"
    assert slots[1].cause == "no_base"


def test_what_user_code_raised_is_told_with_its_file_and_line_and_its_traceback() -> None:
    def call() -> None:
        json.loads("{")  # raises inside a library

    with pytest.raises(EnvironmentFailed) as caught:
        asyncio.run(guarded(call))
    line = call.__code__.co_firstlineno + 1
    assert str(caught.value).endswith(f"({__file__}:{line})")
    text = caught.value.facts["traceback"]
    assert text.startswith("Traceback (most recent call last)") and "json/decoder.py" in text
    assert place(ValueError()) == "no traceback"


class End(BaseException):
    """An end that is no Exception."""


@pytest.mark.parametrize(
    ("call", "answer", "cause"),
    [
        ("reset", (7, {}), "bad_observation"),
        ("reset", "text alone", "bad_reset"),
        ("reset", ValueError("no such task"), "environment_ValueError"),
        ("step", (None, 0.0, False, False, {}), "bad_observation"),
        ("step", ("on", float("nan"), False, False, {}), "bad_reward"),
        ("step", ("on", "much", False, False, {}), "bad_reward"),
        ("step", ("on", 10**400, False, False, {}), "bad_reward"),
        ("step", ("on", 1e9 + 1, False, False, {}), "bad_reward"),
        ("step", ("on", 1e9, False, False, {}), "bad_reward"),  # ten of them
        ("step", ("on", 0.0, True, {}), "bad_step"),
        ("step", ("half \ud83d", 0.0, True, False, {}), "bad_observation"),
        ("step", ("x" * (TEXT_LIMIT + 1), 0.0, True, False, {}), "bad_observation"),
        ("step", SystemExit(3), "environment_SystemExit"),
        ("step", KeyboardInterrupt(), "environment_KeyboardInterrupt"),
        ("step", GeneratorExit(), "environment_GeneratorExit"),
        ("step", asyncio.CancelledError(), "environment_CancelledError"),
        ("reset", End("\ud83d"), "environment_End"),
        ("feedback", "half \ud83d", "bad_feedback"),
        ("feedback", 3, "bad_feedback"),
    ],
)
def test_a_wrong_answer_of_the_environment_fails_the_slot_with_a_cause(
    call: str, answer: Any, cause: str
) -> None:
    slots = explore(learner_of_advice(), make_env=lambda: Faulty(call, answer))
    assert slots[0].status == "failed" and slots[0].cause == cause
    assert slots[1].cause == "no_base"


def test_a_call_may_answer_at_once_or_later_and_what_it_raises_gets_a_cause() -> None:
    async def later() -> int:
        return 7

    async def lost() -> int:
        raise EnvironmentFailed("gone", cause="environment_crash")

    assert asyncio.run(guarded(lambda: 7)) == asyncio.run(guarded(later)) == 7
    for call, cause in (
        (lambda: 1 / 0, "environment_ZeroDivisionError"),
        (lost, "environment_crash"),
    ):
        with pytest.raises(EnvironmentFailed) as caught:
            asyncio.run(guarded(call))
        assert caught.value.cause == cause


def test_an_attempt_that_is_stopped_from_outside_has_not_failed() -> None:
    async def stopped() -> None:
        call = asyncio.create_task(guarded(lambda: asyncio.sleep(9)))
        await asyncio.sleep(0)
        call.cancel()
        await call

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stopped())


def test_text_and_truth_of_numpy_are_taken() -> None:
    import numpy as np

    assert read_step("rooms", ("on", np.bool_(True), False, False, {}))[1] == 1.0
    room = np.array(["a red room"])[0]
    observation = read_step("rooms", (room, 0.5, False, False, {"rewards": {np.str_("red"): 1.0}}))
    assert type(observation[0]) is str
    assert [type(name) for name in parts_in(observation[4])] == [str]


NUMBERS: list[tuple[Any, float]] = [
    (np.float32(0.5), 0.5),
    (np.float16(0.5), 0.5),
    (np.longdouble(0.5), 0.5),
    (np.int64(1), 1.0),
    (np.uint8(1), 1.0),
    (np.bool_(True), 1.0),
    (np.mean([0.0, 1.0]), 0.5),
    (np.array(0.25), 0.25),
    (np.array([0.25], np.float32), 0.25),
    (np.array([[True]]), 1.0),
    (Fraction(1, 4), 0.25),
    (Decimal("0.25"), 0.25),
    (True, 1.0),
    (-3, -3.0),
]
"""What user code may return as a reward."""
NO_NUMBERS: list[Any] = [
    *(float("nan"), float("inf"), np.float32("nan"), np.array([np.inf]), Decimal("NaN")),
    *(Decimal("Infinity"), 1j, np.complex64(1), np.array([0.5, 0.5]), np.array([])),
    *("1", np.str_("1"), np.datetime64(1, "s"), None, [1.0], {}),
]


@pytest.mark.parametrize(("given", "number"), NUMBERS, ids=lambda value: repr(value))
def test_a_number_of_any_library_is_a_reward_and_a_part(given: Any, number: float) -> None:
    assert number_of(given) == number and type(number_of(given)) is float
    answer = read_step("env", ("on", given, False, False, {}))
    assert answer[1] == number
    assert parts_in({"rewards": {"form": given}}) == {"form": number}


@pytest.mark.parametrize("given", [*NO_NUMBERS, Decimal("sNaN")], ids=lambda value: repr(value))
def test_what_is_no_finite_number_is_no_reward(given: Any) -> None:
    assert not math.isfinite(number_of(given))
    with pytest.raises(EnvironmentFailed, match="reward is"):
        read_step("env", ("on", given, False, False, {}))
    assert parts_in({"rewards": {"form": given}}) == {}


def test_a_fault_is_named_by_text_and_an_info_that_is_not_a_mapping_is_empty() -> None:
    assert read_step("world", ("on", True, 0, 1, None)) == ("on", 1.0, False, True, {})
    assert fault_in({"fault": "\x1b[2J\0" + "x" * 999}) == r"\x1b[2J\x00" + "x" * 69
    assert (fault_in({"fault": "slow"}), fault_in({}), fault_in({"fault": 3})) == ("slow", "", "")


def test_parts_of_a_reward_are_finite_numbers_with_short_names() -> None:
    given = {"format": 0.5, "answer": 1, "a b": 1.0, "late": float("nan"), "x" * 41: 1.0, 3: 1.0}
    assert parts_in({"rewards": given}) == {"format": 0.5, "answer": 1.0}
    assert parts_in({}) == parts_in({"rewards": [1.0]}) == parts_in({"rewards": {"a": "b"}}) == {}
    assert len(parts_in({"rewards": {f"part{k}": 1.0 for k in range(99)}})) == 16
