"""R³L: its settings, what each ablation changes, and its six parts, which a subclass replaces."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3l.algorithms import losses
from r3l.algorithms.batch import Batch
from r3l.algorithms.credit import verified
from r3l.algorithms.guidance_gain import FLOOR, GroupGain, retry_probability
from r3l.algorithms.r3l import PLAIN, R3L, at_most
from r3l.algorithms.rows import imitation
from r3l.errors import UserError
from r3l.records import Group, GroupPlan, Shown
from r3l.rollout.exploration import Exploration
from r3l.rollout.group import explore_group
from r3l.run.config import load
from tests.r3l.algorithms.fakes import (
    TASK,
    advantages_of,
    batch_of,
    facts_of,
    get,
    group_of,
    kl_of,
    loss_of,
    planned,
    random_source,
    stored,
    thought_about,
    total,
)
from tests.r3l.fakes import Corridor, ScriptedPolicy


def thought(outcome="failure", step=1, advice="say b"):
    success = outcome == "success"
    return json.dumps(
        {
            "trajectory_summary": "tried",
            "root_cause_analysis": None if success else "wrong",
            "trajectory_outcome": outcome,
            "improvement_suggestion": None if success else advice,
            "retry_from_step": None if success else step,
        }
    )


FAILURE = thought()


def explored(algorithm, answer=FAILURE, doors="axc", plan=None):
    """A group in a corridor of three doors, and the policy that explored it. It opens the second
    door if it reads "say b"."""

    def reply(prompt):
        if "You review" in prompt:
            return answer
        door = int(prompt.rpartition("door ")[2][0])
        return "b" if door == 1 and "say b" in prompt else doors[door]

    policy, failures = ScriptedPolicy(reply), []
    x = Exploration(TASK, policy, Corridor, plan or planned(algorithm), on_failure=failures.append)
    results = asyncio.run(explore_group(algorithm.explore, x))
    assert not failures
    group = Group("g", TASK, x.plan, "complete", tuple(results), tuple(x.reflections.values()))
    return group, policy


def told(group):
    """The status or cause of each slot of a group."""
    return [result.cause or result.status for result in group.results]


# -- exploration -----------------------------------------------------------------------------


def test_half_of_a_group_are_attempts_and_half_are_retries_from_the_pivot():
    group, policy = explored(get(group_size=4))
    assert [(t.of, t.pivot, t.reward) for t in group.trajectories] == [
        (-1, -1, 0.0),
        (-1, -1, 0.0),
        (0, 1, 1.0),
        (1, 1, 1.0),
    ]
    assert [t.reflection for t in group.trajectories][2:] == ["reflect-0", "reflect-1"]
    schemas = [params.json_schema for params in policy.asked if params.json_schema]
    assert len(schemas) == 2 and next(iter(schemas[0]["oneOf"][0])) != "trajectory_outcome"


def test_r3l_explores_by_its_settings():
    small = {"group_size": 2}
    success = explored(get(**small), doors="abc")[0]
    assert told(success) == ["done", "done"]  # a failure by its reflection alone
    assert told(explored(get(**small), thought("success"), "abc")[0]) == ["done", "not_triggered"]
    assert told(explored(get(**small), "no json")[0]) == ["done", "not_triggered"]
    failures = get(reflect_on="failures", **small)
    assert told(explored(failures, doors="abc")[0]) == ["done", "not_reflected"]
    assert told(explored(failures)[0]) == ["done", "done"]
    for settings, pivot in (({"from_start": True}, 0), ({"pivot_shift": 1}, 2)):
        assert explored(get(**small, **settings))[0].trajectories[1].pivot == pivot
    unguided = explored(get(guidance=False, **small))[0].trajectories[1]
    assert unguided.shown is None and unguided.reward == 0.0


@given(shift=st.integers(-9, 9), named=st.integers(0, 2))
def test_a_shifted_pivot_stays_within_the_attempt(make_trajectory, shift, named):
    base = make_trajectory([1, 1, 1])
    pivot = get(pivot_shift=shift).pivot_of(thought_about(0, pivot=named), base)
    assert pivot == min(max(named + shift, 0), 2)
    assert get(pivot_shift=shift, from_start=True).pivot_of(thought_about(0), base) == 0


def test_the_schema_of_a_reflection_is_a_setting():
    def order(**settings):
        policy = explored(get(group_size=2, **settings))[1]
        [schema] = [params.json_schema for params in policy.asked if params.max_tokens > 50]
        return schema and next(iter(schema["oneOf"][0]["properties"]))

    assert order() == "trajectory_summary" and order(outcome_first=True) == "trajectory_outcome"
    assert order(constrained_reflection=False) is None


def test_without_reflection_there_are_only_base_attempts():
    ablated = get(reflect=False, group_size=3)
    assert planned(ablated) == GroupPlan(3, PLAIN)
    group, policy = explored(ablated)
    assert [t.of for t in group.trajectories] == [-1] * 3 and not group.reflections
    assert not any("You review" in prompt for prompt in policy.prompts)
    assert all(row.loss == "policy" for row in ablated.rows(batch_of(group.trajectories)))


def test_a_group_of_a_plain_plan_has_no_retries():
    group, _ = explored(get(group_size=4), plan=GroupPlan(4, PLAIN))
    assert [t.of for t in group.trajectories] == [-1] * 4


# -- the gate --------------------------------------------------------------------------------


def draws(gains, seeds=400, **settings):
    """How often a group gets retries."""
    algorithm = get(gate="measured", **settings)
    kinds = [
        planned(algorithm, gains=gains, random=lambda s=seed: np.random.default_rng(s)).kind
        for seed in range(seeds)
    ]
    assert set(kinds) <= {"", PLAIN}
    return kinds.count("") / seeds


def test_the_gate_gives_retries_with_the_probability_of_the_measured_gain():
    harmful = [GroupGain(-1.0, 1)] * 16
    even = [GroupGain(1.0, 1), GroupGain(-1.0, 1)] * 8
    better = [GroupGain(1.0, 1)] * 10 + [GroupGain(-1.0, 1)] * 6
    assert draws(harmful[:15]) == draws(()) == draws([GroupGain(1.0, 1)] * 16) == 1.0
    for gains in (harmful, even, better):
        assert draws(gains) == pytest.approx(retry_probability(gains), abs=0.06)
    assert retry_probability(harmful) == FLOOR  # so that the gain is measured further
    assert planned(get(gate="measured"), gains=harmful).slots == 8


def test_the_gate_decides_the_same_in_a_restarted_service():
    even = [GroupGain(1.0, 1), GroupGain(-1.0, 1)] * 8
    plans = {planned(get(gate="measured"), gains=even).kind for _ in range(5)}
    assert len(plans) == 1
    assert planned(get(), gains=[GroupGain(-1.0, 1)] * 64) == GroupPlan(8)  # without a gate


def test_a_gate_needs_retries_and_two_base_attempts():
    with pytest.raises(UserError, match="reflect=false makes none"):
        get(gate="measured", reflect=False)
    with pytest.raises(UserError, match="one base attempt is too few to measure a gain"):
        get(gate="measured", group_size=2)


# -- learning --------------------------------------------------------------------------------


def test_without_credit_only_the_masks_change(group):
    trajectories = group()
    full = [int(one.response_mask.sum()) for one in trajectories]
    assert [int(m.sum()) for m in get(credit=False).masks(trajectories)] == full == [5] * 6
    assert [int(m.sum()) for m in get().masks(trajectories)] == [3, 5, 3, 5, 3, 3]
    with_credit, _ = advantages_of(get(), trajectories)
    without, _ = advantages_of(get(credit=False), trajectories)
    assert with_credit.tolist() == without.tolist()


def test_amplification_follows_its_settings(group):
    trajectories = group((1.0, 0.0), ((1, 0.5),))
    assert advantages_of(get(amplify=False), trajectories)[0].tolist() == [0.5, -0.5, 0.0]
    assert advantages_of(get(), trajectories)[0].tolist() == [3.0, -0.5, 0.0]
    best = group((0.5, 0.0), ())
    assert advantages_of(get(), best)[0].tolist() == [0.75, -0.25]
    assert advantages_of(get(max_rule="group_max"), best)[0].tolist() == [3.0, -0.25]
    assert advantages_of(get(alpha=2.0, max_advantage=1.0), trajectories)[0][0] == 1.0


def test_the_standard_deviation_can_divide_what_is_amplified(group):
    trajectories = group((1.0, 0.0), ((1, 0.5),))  # s = 1/2, −1/2, 0; σ = 1/√6
    scores = [1.2247449, -1.2247449, 0.0]
    plain, _ = advantages_of(get(std="population", amplify=False), trajectories)
    assert plain == pytest.approx(scores, rel=1e-5, abs=1e-9)
    amplified, _ = advantages_of(get(std="population"), trajectories)
    assert amplified == pytest.approx([3.0, -1.2247449, 0.0], rel=1e-5, abs=1e-9)
    best, _ = advantages_of(get(std="population"), group((0.5, 0.0), ()))
    assert best == pytest.approx([3.0, -1.0], rel=1e-5)
    few = {"group_size": 2, "std": "none"}
    with pytest.raises(UserError, match="a group of one base attempt has no standard"):
        get(**few | {"std": "sample"})
    assert get(**few).base_attempts == 1


def test_the_authors_from_start_and_no_guidance_are_without_credit_as_well(group):
    for name, override in (("from_start", "true"), ("guidance", "false")):
        overrides = [f"algorithm.{name}={override}", "algorithm.credit=false"]
        algorithm = load(None, overrides).algorithm
        assert [int(mask.sum()) for mask in algorithm.masks(group())] == [5] * 6
        assert algorithm == get(**{name: override == "true", "credit": False})


def test_a_kl_and_clipped_ratios_can_be_switched_on(batch):
    plain, k2 = total(batch, losses.policy_gradient), kl_of(batch, losses.k2_kl)
    assert get().needs == () and get(kl_coef=0.001).needs == ("reference",)
    got, measured = loss_of(get(kl_coef=0.001), batch)
    assert got.item() == pytest.approx(plain + 0.001 * k2, rel=1e-12)
    assert measured["kl_reference"] == pytest.approx(k2)
    got, measured = loss_of(get(clipped=True, clip_high=0.5), batch)
    want = total(batch, losses.ppo_clip, clip_low=0.2, clip_high=0.5)
    assert got.item() == want != plain and "clip_fraction" in measured


def test_only_a_group_without_success_recalls_successes_of_some_age():
    history = [stored("g1", 1.0, 4), stored("g2", 0.0, 4), stored("g3", 1.5, 1)]

    def recalled(rewards=(0.0, 0.9), **settings):
        algorithm = get(**settings)
        found = algorithm.recalls(facts_of(rewards, 5), iter(history), random_source)
        return [one.group_id for one in found]

    assert recalled() == [] and recalled(recall_count=2) == ["g1", "g3"]
    assert recalled(recall_count=2, recall_age=1) == ["g1"]
    assert recalled((0.0, 1.0), recall_count=2) == recalled((1.0, 1.0), recall_count=2) == []
    assert len(recalled(recall_count=1)) == 1


def test_a_recalled_success_weighs_less_and_the_failures_beside_it_have_contrast(make_trajectory):
    group = [make_trajectory(slot=i, reward=r) for i, r in enumerate((0.0, 0.0, 0.0, 1.0))]
    got, keep = advantages_of(get(recall_count=1), group, recalled=1)
    assert keep.all() and got.tolist() == [-0.25, -0.25, -0.25, 1.5]  # α/α_off = 3/2


# -- supervised samples ----------------------------------------------------------------------


def corrected(make_trajectory, base=0.0, retry=1.0, steps=(2, 3), **more):
    """A group of an attempt and its retry from step 1, which read two tokens of advice."""
    attempts = [make_trajectory(slot=0, reward=base)]
    first = int(attempts[0].step_spans[1, 0])
    shown = Shown(np.array([71, 72], np.int32), first, first)
    named = {"reflection": "reflect-0", "shown": shown}
    attempts += [make_trajectory(steps, slot=1, of=0, pivot=1, reward=retry, **named)]
    return group_of(attempts, [thought_about(0, **more)])


def sampled(algorithm, group):
    """The trained tokens of each supervised sample."""
    samples = [sample for together in algorithm.samples(group) for sample in together]
    return [ids[mask].tolist() for ids, mask in samples]


def test_a_verified_correction_yields_its_reflection_and_what_the_retry_read(make_trajectory):
    group = corrected(make_trajectory)
    [[(asked, _), (guided, mask)]] = get().samples(group)
    assert asked.tolist() == [1, 2, 3, 4] and sampled(get(), group)[0] == [3, 4]
    retry = group.trajectories[1]
    first = int(retry.step_spans[1, 0])
    assert guided.tolist() == [*retry.token_ids[:first], 71, 72, *retry.token_ids[first:]]
    assert np.flatnonzero(mask).tolist() == list(range(first + 2, len(guided)))
    assert sampled(get(), corrected(make_trajectory, retry=0.9)) == []
    assert (
        len(sampled(get(verified_requires_success=False), corrected(make_trajectory, 0, 0.9))) == 2
    )


@pytest.mark.parametrize(
    ("base", "retry", "steps", "strict", "loose"),
    [
        (0.0, 1.0, (2, 3), True, True),
        (0.2, 0.9, (2, 3), False, True),
        (0.9, 0.9, (2, 3), False, False),
        (1.0, 0.5, (2, 3), False, False),
        (1.0, 1.0, (2,), True, True),
        (1.0, 1.0, (2, 3), False, False),
        (1.0, 1.5, (2, 3), True, True),
    ],
)
def test_a_correction_is_verified_by_reward_or_by_fewer_steps(
    make_trajectory, base, retry, steps, strict, loose
):
    one, again = make_trajectory(reward=base), make_trajectory(steps, reward=retry)
    assert verified(one, again) is strict
    assert verified(one, again, requires_success=False) is loose


def test_a_recognised_success_is_praised_and_a_mistaken_reflection_is_not(make_trajectory):
    def praised(reward, outcome, **settings):
        group = group_of([make_trajectory(reward=reward)], [thought_about(0, outcome)])
        return sampled(get(**settings), group)

    assert praised(1.0, "success") == [[3, 4]]
    assert praised(0.5, "success") == praised(1.0, "failure") == []
    assert praised(1.0, "success", praise=False) == []


def test_every_retry_of_an_attempt_may_yield_samples(make_trajectory):
    base = make_trajectory(slot=0)
    again = [
        make_trajectory(slot=1 + i, of=0, pivot=1, reward=r, reflection=f"way-{i}")
        for i, r in enumerate((1.0, 0.0, 1.0))
    ]
    thoughts = [thought_about(0, name=f"way-{i}", tokens=(1, 1, i, i)) for i in range(3)]
    found = sampled(get(), group_of([base, *again], thoughts))
    assert [tokens for tokens in found if len(tokens) == 2] == [[0, 0], [2, 2]] and len(found) == 4


def test_a_reflection_that_advised_several_corrections_is_one_sample(make_trajectory):
    attempts = [make_trajectory(slot=0)] + [
        make_trajectory(slot=i, of=0, pivot=1, reward=1.0, reflection="reflect-0") for i in (1, 2)
    ]
    assert [len(own) for own in sampled(get(), group_of(attempts, [thought_about(0)]))] == [2, 3, 3]


def supervised(rows):
    return [row for row in rows if row.loss == "sft"]


def test_supervised_rows_have_a_token_mean_of_their_own_or_share_the_policys(make_trajectory):
    batch = Batch([corrected(make_trajectory)], (0.5,))
    apart = supervised(get(sft_share=None).rows(batch))
    trained = sum(int(row.mask.sum()) for row in apart)
    assert [row.weights[0] for row in apart] == [0.5 / trained] * 2
    assert not any(row.advantages.any() for row in apart)
    mixed = get(sft_share=None, sft_pool="shared", normalize="sum").rows(batch)
    assert {row.weights[0] for row in mixed} == {0.5 / 4} and len(mixed) == 4
    for settings in ({"sft_weight": 0}, {"reflect": False}):
        assert not supervised(get(**settings).rows(batch))


def test_the_loss_adds_lambda_times_that_of_supervised_rows(batch):
    mixed = replace(batch, losses=("policy", "sft", "sft", "policy"))
    parts = get(sft_weight=0.3).loss(mixed)
    got, measured = loss_of(get(sft_weight=0.3), mixed)
    assert parts["sft"].item() == pytest.approx(0.3 * measured["loss_sft"])
    assert got.item() == pytest.approx(measured["loss_policy"] + 0.3 * measured["loss_sft"])


def corrections_of(sizes, number=0):
    """A correction of two samples for each size, which they share."""
    made = []
    for i, size in enumerate(sizes):
        ids = np.full(size, i + 1000 * number, np.int32)
        parts = (ids[: size // 2], ids[size // 2 :])
        made.append([imitation(group_of([]), part, np.ones_like(part, np.bool_)) for part in parts])
    return made


def tokens_of(corrections):
    return sum(sample.length for together in corrections for sample in together)


SIZES = st.lists(st.integers(2, 9), max_size=8)


@given(sizes=SIZES, budget=st.integers(0, 40), step=st.integers(0, 9), data=st.data())
def test_samples_within_a_budget_are_the_same_whatever_their_order(sizes, budget, step, data):
    made = corrections_of(sizes)
    found = at_most(made, budget, step)
    assert tokens_of(found) <= budget
    again = at_most(data.draw(st.permutations(made)), budget, step)
    assert [id(each) for each in again] == [id(each) for each in found]
    whole = {id(each) for each in made}
    assert whole.issuperset(map(id, found)), "both samples of a correction, or none"
    one_more = sorted(sizes, reverse=True)[: len(found) + 1]
    assert len(found) == len(made) or sum(one_more) > budget, "any of the others fits no more"


def test_a_corrections_chance_to_be_trained_does_not_depend_on_its_length():
    sizes = [4, 40] * 20  # 880 tokens; of a quarter, 220, five of the longest fit
    kept = dict.fromkeys(sizes, 0)
    steps = 1000
    for step in range(steps):
        found = at_most(corrections_of(sizes), 220, step)
        assert len(found) == 5
        for together in found:
            kept[tokens_of([together])] += 1
    short, long = kept[4] / steps / 20, kept[40] / steps / 20
    assert short + long == 0.25
    # 5/40 each, with a standard error of 0.0017 over the steps
    assert abs(short - 0.125) < 0.008 and abs(long - 0.125) < 0.008


def test_each_step_draws_other_corrections(make_trajectory):
    made = corrections_of([6] * 12)
    drawn = [frozenset(id(each) for each in at_most(made, 18, step)) for step in range(30)]
    assert all(len(one) == 3 for one in drawn) and len(set(drawn)) > 20
    assert frozenset().union(*drawn) == {id(each) for each in made}


def test_the_step_of_a_draw_is_the_version_of_its_batch(make_trajectory):
    groups = [corrected(make_trajectory, steps=(2, n)) for n in range(2, 9)]

    def found(version):
        aux = supervised(get(sft_share=0.4).rows(Batch(groups, version=version)))
        return [row.token_ids.tolist() for row in aux]

    assert 0 < len(found(1)) < 14 and found(1) == found(1) and found(None) == found(0)
    assert len({str(sorted(found(version))) for version in range(9)}) > 4


def test_the_supervised_tokens_of_a_step_are_a_share_of_the_attempts(make_trajectory):
    batch = Batch([corrected(make_trajectory)])
    attempts = sum(len(r.mask) for r in get().rows(batch) if r.loss == "policy")
    for share in (0.01, 0.3, 1.0, None):
        algorithm = get(sft_share=share)
        found = supervised(algorithm.rows(batch))
        assert sum(len(row.mask) for row in found) <= attempts * (9 if share is None else share)
        assert len(found) == (0 if share in (0.01, 0.3) else 2)
        assert algorithm.count_left_out(batch) == 2 - len(found)


# -- six parts that a subclass replaces ------------------------------------------------------


class Changed(R3L):
    """Asks otherwise, helps only where nothing was earned, from half of the attempt."""

    name: str = "changed"

    def question(self, base, prompts):
        return "You review.", f"what of {base.actions}?"

    def triggers(self, thought, base):
        return base.reward == 0.0

    def pivot_of(self, thought, base):
        return base.num_steps // 2

    def guidance_of(self, thought, base, prompts):
        return f"it was said: {thought.text}"

    def masks(self, attempts):
        return [one.responses_from(one.num_steps - 1) for one in attempts]

    def amplified(self, rewards):
        return 10.0 * rewards


def test_each_of_the_six_parts_can_be_replaced(make_trajectory):
    algorithm = Changed(group_size=2)
    group, policy = explored(algorithm, "say b")  # a reflection that is not JSON
    [asked] = [prompt for prompt in policy.prompts if "You review" in prompt]
    assert "what of ('a', 'x', 'c')?" in asked
    retry = group.trajectories[1]
    assert (retry.pivot, retry.reward) == (1, 1.0)
    assert "it was said: say b" in policy.chat.tokenizer.decode(retry.as_shown()[0])
    won, _ = explored(algorithm, "say b", "abc")
    assert told(won) == ["done", "not_triggered"]
    rows = [row for row in algorithm.rows(batch_of(group.trajectories)) if row.loss == "policy"]
    assert [set(row.advantages.tolist()) for row in rows] == [{10.0}]  # the base: 10 · 0
    assert rows[0].mask.sum() == retry.step_spans[-1, 1] - retry.step_spans[-1, 0]
