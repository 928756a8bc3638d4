"""RLVMR: steps earn by their tag."""

import msgspec
import numpy as np
import pytest

from r3l.algorithms.published.rlvmr import step_rewards
from r3l.records import Extra, Segment
from tests.r3l.algorithms.fakes import batch_of, get

INVALID = ("Nothing happens.",)


def said(tag, action, thought="because"):
    return f"<{tag}>{thought}</{tag}> <action>{action}</action>"


def attempt(make_trajectory, actions, answers=(), reward=0.0, slot=0):
    seen = ("start", *(answers or ("ok",) * len(actions)))
    made = make_trajectory([2] * len(actions), reward=reward, slot=slot)
    return msgspec.structs.replace(made, actions=tuple(actions), observations=seen)


def rewards_of(*args, **settings):
    return step_rewards(attempt(*args, **settings), INVALID)


@pytest.mark.parametrize("reward,earned", [(1.0, 1.0), (0.99, 0.0)])
def test_a_plan_earns_if_the_attempt_succeeds(make_trajectory, reward, earned):
    assert rewards_of(make_trajectory, [said("planning", "go")], reward=reward) == [
        ("planning", earned)
    ]


def test_exploring_earns_for_an_action_that_was_not_tried(make_trajectory):
    actions = [said("monitor", "open box"), said("explore", "open box"), said("explore", "look")]
    assert rewards_of(make_trajectory, actions) == [
        ("monitor", 0.0),
        ("explore", 0.0),
        ("explore", 1.0),
    ]


def test_reflecting_earns_for_another_action_after_an_invalid_one(make_trajectory):
    actions = [said("monitor", "fly"), said("reflection", "fly"), said("reflection", "walk")]
    refused = ("Nothing happens.", "Nothing happens.", "You walk.")
    assert rewards_of(make_trajectory, actions, refused)[1:] == [
        ("reflection", 0.0),
        ("reflection", 1.0),
    ]
    assert rewards_of(make_trajectory, [actions[0], actions[2]])[1] == ("reflection", 0.0)
    assert rewards_of(make_trajectory, [actions[2]]) == [("reflection", 0.0)]
    assert rewards_of(make_trajectory, ["fly", actions[2]])[1] == ("reflection", 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "<action>go</action>",
        said("planning", "go", thought=" "),
        said("planning", "go") + said("explore", "go"),
        "<action>go</action><planning>late</planning>",
        "<planning>no action</planning>",
        "<planning>one</explore><action>go</action>",
    ],
)
def test_a_response_of_another_form_has_no_tag(make_trajectory, text):
    assert rewards_of(make_trajectory, [text], reward=1.0) == [("", 0.0)]


def test_the_advantage_of_a_step_is_that_of_its_attempt_and_that_of_its_tag(make_trajectory):
    won = attempt(make_trajectory, [said("planning", "go"), said("explore", "look")], reward=1.0)
    lost = attempt(make_trajectory, [said("planning", "go"), "go"], reward=0.0, slot=1)
    algorithm, batch = get("rlvmr", group_size=2, step_weight=0.5), batch_of([won, lost])
    [advantages] = algorithm.advantages(batch)
    own = 0.5 / (np.sqrt(0.5) + 1e-6)  # of two values, 1 and 0, by the sample's deviation
    assert advantages == pytest.approx([own, -own])
    [per_token] = algorithm.token_advantages(batch, [advantages])
    wanted = [[own + 0.5 * own, own + 0.5 * 1.0], [-own - 0.5 * own, -own]]
    for own_tokens, one, steps in zip(per_token, (won, lost), wanted, strict=True):
        spans = one.step_spans.tolist()
        assert [own_tokens[start] for start, _ in spans] == pytest.approx(steps)
        assert not own_tokens[~one.response_mask].any()
    rows = algorithm.rows(batch)
    for row, own_tokens in zip(rows, per_token, strict=True):
        assert row.advantages.tolist() == pytest.approx(own_tokens[: len(row.mask)])


def test_without_the_weight_it_is_grpo(make_trajectory):
    won = attempt(make_trajectory, [said("planning", "go")], reward=1.0)
    lost = attempt(make_trajectory, [said("explore", "go")], slot=1)
    batch = batch_of([won, lost])
    plain = get("rlvmr", group_size=2, step_weight=0).rows(batch)
    for row, other in zip(plain, get("grpo", std="sample").rows(batch), strict=True):
        assert set(row.advantages[row.mask].tolist()) == set(other.advantages.tolist())


def test_further_conversations_have_the_advantage_of_their_attempt(make_trajectory):
    won = attempt(make_trajectory, [said("planning", "go"), "go"], reward=1.0)
    numbers = np.zeros(1, np.int32)
    beside = Segment(
        np.arange(3, dtype=np.int32), np.zeros(3, np.float32), np.array([[1, 3]], np.int32),
        numbers, numbers,
    )  # fmt: skip
    won = msgspec.structs.replace(won, extra=Extra(segments=(beside,)))
    batch = batch_of([won, attempt(make_trajectory, [said("planning", "go")], slot=1)])
    algorithm = get("rlvmr")
    [values] = algorithm.advantages(batch)
    main, further, _ = algorithm.rows(batch)
    assert set(further.advantages.tolist()) == {np.float32(values[0])}
    assert main.advantages[main.mask].max() > values[0]
