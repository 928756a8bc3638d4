"""Explorers: which stored attempts a group begins with, and what its attempts then are."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from r3l.algorithms.credit import group_masks
from r3l.algorithms.recall import GroupContext, StoredAttempt
from r3l.errors import UserError
from r3l.records import Recalled
from r3l.rollout import explorers
from r3l.rollout.explorers import Opening
from r3l.rollout.prompts import Prompts
from r3l.settings.sampling import ExplorerConfig
from tests.learner.fakes import trajectory
from tests.r3l.fakes import CharTokenizer, ScriptedPolicy
from tests.r3l.rollout.fakes import always_right, by_slot, explore, learner_of_advice


def history(*rewards: tuple[float, ...]) -> list[StoredAttempt]:
    return [
        StoredAttempt(f"g{number}", "base", slot, reward, number)
        for number, own in enumerate(rewards)
        for slot, reward in enumerate(own)
    ]


def chosen(name: str, stored: list[StoredAttempt], *, epoch: int = 1, **more: float) -> Counter:
    """What an explorer hands to each of 400 groups, by (group, slot); () is none."""
    rule = explorers.make(ExplorerConfig(name=name, **more))  # type: ignore[arg-type]
    context = GroupContext((), stored, 9, epoch)
    found: Counter = Counter()
    for seed in range(400):
        picks = rule.choose(context, lambda seed=seed: np.random.default_rng(seed))
        found[tuple((one.group_id, one.slot) for one in picks)] += 1
    return found


def test_a_failure_is_shown_from_the_second_epoch_on_at_tasks_of_low_reward() -> None:
    stored = history((0.0, 1.0), (0.0,))  # mean 1/3
    assert set(chosen("in_context", stored, epoch=0)) == {()}
    assert set(chosen("in_context", stored, threshold=1 / 3)) == {()}
    assert set(chosen("in_context", history((1.0,)), threshold=2)) == {()}
    got = chosen("in_context", stored, share=1)
    assert set(got) == {(("g0", 0),), (("g1", 0),)} and min(got.values()) > 150
    assert 160 < chosen("in_context", stored, share=0.5)[()] < 240


def test_cuts_of_a_stored_success_are_three_of_four_groups() -> None:
    stored = history((0.0, 0.0), (0.0, 1.0), (0.0, 0.0))
    got = chosen("prefix", stored)
    assert set(got) == {(), (("g1", 1),)} and 70 < got[()] < 130
    assert set(chosen("prefix", history((0.0, 0.5)))) == {()}
    assert set(chosen("prefix", history((1.0, 0.0)), threshold=0.5)) == {()}


def test_the_mean_of_a_task_leaves_retries_out() -> None:
    retry = StoredAttempt("g1", "distilled", 0, 1.0, 1)
    stored = [retry, *history((0.0, 0.0))]  # mean 0 without the retry, 1/3 with it
    assert chosen("in_context", stored, threshold=0.3, share=1)[()] == 0


def test_partial_histories_are_of_groups_with_spread() -> None:
    # variances 0, 1/4 and 1/16: the second group is four times as likely as the third
    stored = history((1.0, 1.0), (0.0, 1.0), (0.0, 0.5))
    got = chosen("partial", stored, share=1)
    by_group: Counter = Counter()
    for ((group, _),), count in got.items():
        by_group[group] += count
    assert set(by_group) == {"g1", "g2"} and 290 < by_group["g1"] < 350
    assert set(chosen("partial", history((1.0, 1.0)))) == {()}


def stored_success() -> Recalled:
    one = by_slot(explore(ScriptedPolicy(always_right), "algorithm=grpo"))["base", 0].trajectory
    assert one is not None and one.reward == 1.0
    return Recalled("", "g7", one)


def test_attempts_of_a_cut_play_its_first_steps_again_and_train_their_own_alone() -> None:
    handed, policy = stored_success(), ScriptedPolicy(lambda prompt: "x")
    results = explore(policy, "algorithm=grpo", "explorer=prefix", handed=[handed], seed=3)
    tries = [one.trajectory for one in results]
    assert len({one.extra.start for one in tries}) == 1  # type: ignore[union-attr]
    for one in tries:
        assert one is not None and one.extra.start in (1, 2) and one.extra.source == "g7/base/0"
        first = int(one.step_spans[one.extra.start, 0])
        assert one.actions == (*handed.trajectory.actions[: one.extra.start], *"xx")[:3]
        assert one.token_ids[:first].tolist() == handed.trajectory.token_ids[:first].tolist()
        [mask] = group_masks([one], mask_prefix=False)
        assert not mask[:first].any() and mask[first:].sum() == one.generated_tokens > 0
        oldest, newest = np.array([[0, 5, 9], [99, 8, 9]], np.int32)
        late = replace(one, step_versions=oldest, step_newest_versions=newest)
        assert late.oldest_version == (5 if one.extra.start == 1 else 9)
        assert late.newest_version == 9  # its first step is the stored attempt's
        assert (
            one.extra.step_rewards.tolist() == [0.0] * 3
            and one.extra.step_cut.tolist() == [False] * 3
        )
    assert len(policy.prompts) == 2 * (3 - tries[0].extra.start)  # type: ignore[union-attr]


def test_a_shown_failure_stays_in_the_attempt_and_can_be_left_out() -> None:
    failed = by_slot(explore(ScriptedPolicy(lambda p: "x"), "algorithm=grpo"))["base", 0].trajectory
    assert failed is not None
    policy = ScriptedPolicy(always_right)
    settings = ("algorithm=grpo", "explorer=in_context")
    [result, _] = explore(policy, *settings, handed=[Recalled("", "g3", failed)])
    plain = stored_success().trajectory
    shown = result.trajectory
    assert shown is not None and shown.extra.source == "g3/base/0"
    assert "It failed." in shown.extra.context
    assert "step 0 does: x" in shown.extra.context
    text = CharTokenizer().decode(shown.token_ids[: shown.extra.opening_tokens].tolist())
    assert "reflect briefly" in text and not shown.reframed
    bare = shown.without_context()
    assert bare.token_ids.tolist() == plain.token_ids.tolist()
    assert bare.step_spans.tolist() == plain.step_spans.tolist()
    assert bare.response_mask.tolist() == plain.response_mask.tolist()
    assert bare.logprobs.tolist() == plain.logprobs.tolist()
    assert (
        bare.reframed
        and bare.extra.context == shown.extra.context
        and bare.without_context() is bare
    )


def test_a_retry_of_an_attempt_with_a_context_keeps_it() -> None:
    failed = by_slot(explore(ScriptedPolicy(lambda p: "x"), "algorithm=grpo"))["base", 0].trajectory
    assert failed is not None
    for start in ("false", "true"):
        settings = ("explorer=in_context", f"algorithm.from_start={start}")
        policy = learner_of_advice()
        slots = by_slot(explore(policy, *settings, handed=[Recalled("", "g3", failed)]))
        base, retry = slots["base", 0].trajectory, slots["distilled", 0].trajectory
        assert base is not None and retry is not None and retry.reward == 1.0
        size, own = base.extra.opening_tokens, retry.extra
        assert (own.context, own.opening_tokens) == (base.extra.context, size)
        assert retry.token_ids[:size].tolist() == base.token_ids[:size].tolist()
        assert "It failed." in policy.prompts[-1] and "say b" in policy.prompts[-1]


def test_an_attempt_of_one_step_has_no_cut_and_step_rewards_add_up() -> None:
    rule = explorers.make(ExplorerConfig(name="prefix"))
    one = stored_success()
    assert one.trajectory.extra.step_rewards.tolist() == [0.0, 0.0, 1.0]
    short = replace(one, trajectory=trajectory("base", 0, 1.0, steps=1))
    random = np.random.default_rng(0)
    assert rule.openings([short], 2, random, Prompts()) == [Opening()] * 2


def test_an_explorer_of_ones_own_is_named_by_path(tmp_path: Path) -> None:
    file = tmp_path / "my_explorers.py"
    file.write_text(
        "from r3l.rollout.explorers import Explorer\n\n\nclass Newest(Explorer):\n"
        "    def choose(self, context, chance):\n        return list(context.history)[:1]\n"
    )
    stored = history((0.5,), (0.0,))
    assert set(chosen(f"{file}:Newest", stored)) == {(("g0", 0),)}
    with pytest.raises(UserError, match=r"explorer 'prefx': unknown.*prefix"):
        explorers.make(ExplorerConfig(name="prefx"))
