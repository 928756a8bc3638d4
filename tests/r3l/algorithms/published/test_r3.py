"""R³'s three parts: literal numbers, and its Algorithm 1 written out slowly."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import r3l
from r3l.algorithms.batch import Batch
from r3l.algorithms.shared.self_reflection import REFLECTING
from r3l.records import AttemptKey, GroupPlan, Recalled, Shown
from r3l.training.trainer import Trainer
from tests.plug import worlds
from tests.r3l.algorithms.fakes import (
    advantages_of,
    facts_of,
    get,
    group_of,
    planned,
    random_source,
    stored,
)
from tests.r3l.training.fakes import tiny_folder


def attempts_of(make_trajectory, rewards):
    return [make_trajectory(slot=i, reward=r) for i, r in enumerate(rewards)]


# ── cross-context replay ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        # mean 1/4, std √3/4: (0 − 1/4)/(√3/2) and (1 − 1/4)/(√3/2)
        ("all", [-0.2886751, -0.2886751, -0.2886751, 0.8660254]),
        # (0 − 1/4)/(√3/4) for the group's own attempts
        ("replayed", [-0.5773503, -0.5773503, -0.5773503, 0.8660254]),
    ],
)
def test_one_recalled_success_among_three_failures_has_these_advantages(
    make_trajectory, scale, expected
):
    group = attempts_of(make_trajectory, (0.0, 0.0, 0.0, 1.0))
    found, keep = advantages_of(get("r3", alpha=2.0, scale=scale), group, recalled=1)
    assert keep.all() and found == pytest.approx(expected, rel=1e-5)


def test_without_stored_attempts_r3_is_grpo(make_trajectory):
    group = attempts_of(make_trajectory, (0.0, 1.0, 0.25))
    ours, theirs = advantages_of(get("r3"), group), advantages_of(get("grpo"), group)
    assert ours[0].tolist() == theirs[0].tolist() and ours[1].all()
    assert planned(get("r3")) == planned(get("grpo")) == GroupPlan(8)
    assert get("r3").recalls(facts_of((0.0, 0.0)), (), random_source) == []
    assert planned(get("r3"), epoch=1) == GroupPlan(8)


def test_replay_can_be_left_out_and_a_small_group_recalls_one():
    history = [stored(f"g{i}", 1.0, version=i) for i in range(9)]

    def recalled(rewards=(0.0, 0.5), **settings):
        return get("r3", **settings).recalls(facts_of(rewards, 9), history, random_source)

    assert not recalled(recall_count=0)
    assert [len(recalled(group_size=size)) for size in (2, 4, 8, 16)] == [1, 1, 2, 2]
    assert [one.version for one in recalled(recall_count=9, recall_age=2)] == [7, 8]
    assert not recalled((0.0, 1.0)) and not recalled((1.0, 1.0))  # no stored failure


def test_a_scale_for_recalled_attempts_without_any_is_refused():
    with pytest.raises(ValueError, match=r"scale=replayed: .*=0 recalls nothing"):
        get("r3", scale="replayed", recall_count=0)


# ── in-context self-reflection ──────────────────────────────────────────────────────────────


def test_a_hard_task_gets_reflecting_groups_and_plain_ones_unless_reflection_is_off():
    history = [stored("g1", 0.0), stored("g2", 0.6)]  # mean 0.3

    def kinds(**settings):
        algorithm = get("r3", group_size=4, **settings)
        return {
            planned(
                algorithm, epoch=2, history=history, random=lambda s=seed: np.random.default_rng(s)
            ).kind
            for seed in range(20)
        }

    assert kinds() == kinds(reflect_below=0.31) == {"", REFLECTING}
    assert kinds(reflection=False) == kinds(reflect_below=0.3) == {""}


@pytest.mark.parametrize(
    "change", [{"reflect_below": 0.0}, {"ranking_max": 1.0}, {"peak_share": 0}]
)
def test_settings_that_would_undo_a_part_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        get("r3", **change)


def reflecting_memory(player):
    """What is stored of a task whose second group reflects."""
    algorithm = r3l.R3(group_size=4, reflect_below=1.0)
    for seed in range(20):
        memory = r3l.Memory(seed)
        _, group = (worlds.explored(algorithm, memory, player) for _ in range(2))
        if group.plan.kind == REFLECTING:
            return memory, group
    raise AssertionError("no group reflects")


def test_a_reflecting_group_is_trained_in_its_context_and_recalled_without_it():
    algorithm = r3l.R3(group_size=4, kl_coef=0.0)
    memory, group = reflecting_memory(worlds.Player(lucky=True))
    first = memory.groups["corridor/1"][0]
    rows = algorithm.rows(Batch([first, group], version=0))
    read = {row.token_ids.tobytes() for row in rows if row.source.into == group.group_id}
    shown = {attempt.as_shown()[0].tobytes() for attempt in group.trajectories}
    assert read == shown and len(rows) == 8
    assert not any(row.distilled or row.reused for row in rows)
    assert all((row.old_logprobs[row.mask] == -0.5).all() for row in rows)
    assert all(row.fresh.sum() == row.mask.sum() for row in rows)
    # Its own group has its own advantages.
    both = algorithm.advantages(Batch([first, group]))
    assert both[1].tolist() == algorithm.advantages(Batch([group]))[0].tolist()

    won = next(t for t in group.trajectories if t.reward >= 1)
    failed = replace(first, results=tuple(r for r in first.results if r.trajectory.reward < 1))
    joins = [Recalled(failed.group_id, group.group_id, won)]
    *own, last = algorithm.rows(Batch([failed], recalled=joins, version=0))
    assert last.token_ids.tolist() == won.token_ids[: len(last.mask)].tolist()
    assert last.distilled and last.reused and not any(row.distilled for row in own)


def test_a_reflecting_group_goes_on_on_another_actor_as_it_would_have_been():
    player = worlds.Player(lucky=True)
    memory, group = reflecting_memory(player)
    algorithm, before = r3l.R3(group_size=4), r3l.Memory()
    before.groups = memory.groups
    again = worlds.explored_under_kills(algorithm, before, group.plan, player)
    assert worlds.digest(again) == worlds.digest(group)
    assert [t.as_read().token_ids.tolist() for t in again.trajectories] == [
        t.as_read().token_ids.tolist() for t in group.trajectories
    ]


def test_the_references_log_probabilities_are_asked_in_the_context_that_is_trained():
    algorithm = r3l.R3(group_size=4, kl_coef=0.5, ranking=False)
    _, group = reflecting_memory(worlds.Player(lucky=True))
    queries = algorithm.queries(Batch([group]))
    batch = Batch([group]).with_answers({q.key: np.float32(-2) * q.mask for q in queries})
    for row, query in zip(algorithm.rows(batch), queries, strict=True):
        assert row.token_ids.tolist() == query.token_ids.tolist()
        assert (row.reference[row.mask] == -2).all()


# ── structural-entropy ranking, and the length term ─────────────────────────────────────────


def test_a_failed_group_is_ranked_and_recalls_at_once(make_trajectory):
    """Three truncated failures with rewards 0.25, 0.5, 0 by rank, and one recalled success: mean
    7/16, std 0.36975."""
    group = [
        replace(make_trajectory([5], slot=i, reward=0.1), finish="truncated") for i in range(3)
    ]
    entropies = [[2, 0.6, 0.6, 0.6, 0.6], [3, 0.1, 0.1, 0.1, 0.1], [1, 1, 1, 1, 1]]
    algorithm = get("r3", kl_coef=0.0)
    joins = [Recalled("g", "old", make_trajectory(slot=6, reward=1.0))]
    batch = Batch([group_of(group)], recalled=joins)
    answers = {}
    for query, values in zip(algorithm.queries(batch), entropies, strict=True):
        answers[query.key] = np.zeros(len(query.token_ids), np.float32)
        answers[query.key][query.mask] = values
    [found] = algorithm.advantages(batch.with_answers(answers))
    assert found == pytest.approx([-0.2535459, 0.0845153, -0.5916072, 0.7606378], rel=1e-5)
    rows = algorithm.rows(batch.with_answers(answers))
    assert [row.advantages[-1] for row in rows] == pytest.approx(found.tolist())
    off = get("r3", ranking=False, kl_coef=0.0)
    assert off.queries(batch) == []
    assert off.advantages(batch)[0] == pytest.approx([-0.2886751] * 3 + [0.8660254], rel=1e-4)


def test_a_shorter_success_earns_more_and_what_succeeds_does_not_change(make_trajectory):
    group = attempts_of(make_trajectory, (1.0, 1.0, 0.5, 0.0))
    group[1] = make_trajectory([4, 6], slot=1, reward=1.0)
    rewards = np.array([1.0, 1.0, 0.5, 0.0])
    algorithm = get("r3", length_bonus=True, length_limit=20)
    bonus = algorithm._bonus(rewards, group)
    assert bonus.tolist() == [0.75, 0.5, 0.0, 0.0]  # 5 and 10 of 20 tokens
    found = algorithm.weigh(rewards, group)
    assert found == pytest.approx(advantages_by_hand([1.75, 1.5, 0.5, 0.0], 0, 2.0, "all"))
    beyond = get("r3", length_bonus=True, length_limit=5)._bonus(rewards, group)
    assert beyond.tolist() == [0.0] * 4
    assert get("r3").weigh(rewards[:2], group[:2]).tolist() == [0.0, 0.0]
    history = [stored("g1", 0.0)]
    recalled = algorithm.recalls(facts_of((1.0, 1.0)), history, random_source)
    assert recalled == history  # both are successes


# ── Algorithm 1, slowly ─────────────────────────────────────────────────────────────────────


def advantages_by_hand(rewards, recalled, alpha, scale):
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
    found = []
    for i, reward in enumerate(rewards):
        softened = recalled > 0 and (scale == "all" or i >= len(rewards) - recalled)
        found.append((reward - mean) / ((alpha if softened else 1.0) * std + 1e-6))
    return found


def algorithm_1(own, recalled, entropies, lengths, settings):
    """The advantages of one group. `own`: (reward, whether it was truncated), `recalled`: rewards,
    `entropies`: by place in the group, `lengths`: response tokens of all."""
    rewards = [reward for reward, _ in own]
    cut = [i for i, (_, truncated) in enumerate(own) if truncated]
    if not any(reward >= 1 for reward in rewards) and settings["ranking"]:
        wins = {}
        for i in cut:
            wins[i] = 0
            for j in cut:
                higher = peak(entropies[i], settings) > peak(entropies[j], settings)
                if higher and level(entropies[i]) < level(entropies[j]):
                    wins[i] += 1
        for i in cut:
            ranks = [k for k, s in enumerate(sorted(wins.values(), reverse=True)) if s == wins[i]]
            each = [settings["ranking_max"] * (1 - k / max(len(cut) - 1, 1)) for k in ranks]
            rewards[i] = sum(each) / len(each) if len(cut) > 1 else 0.0
    rewards += recalled
    if settings["length_bonus"]:
        for i, reward in enumerate(rewards):
            if reward >= 1:
                rewards[i] = reward + max(0, 1 - lengths[i] / settings["length_limit"])
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    return advantages_by_hand(rewards, len(recalled), settings["alpha"], settings["scale"])


def peak(values, settings):
    k = max(1, math.floor(settings["peak_share"] * len(values)))
    return sum(sorted(values)[-k:]) / k


def level(values):
    return sum(values) / len(values)


REWARDS = st.sampled_from([0.0, 0.25, 1.0, 1.5, -0.5])


@given(
    st.lists(st.tuples(REWARDS, st.booleans(), st.integers(1, 6)), min_size=1, max_size=6),
    st.lists(st.tuples(REWARDS, st.integers(1, 6)), max_size=2),
    st.fixed_dictionaries(
        {
            "alpha": st.floats(0.5, 4),
            "scale": st.sampled_from(["all", "replayed"]),
            "ranking": st.booleans(),
            "peak_share": st.sampled_from([0.2, 0.5, 1.0]),
            "ranking_max": st.sampled_from([0.0, 0.5, 0.9]),
            "length_bonus": st.booleans(),
            "length_limit": st.integers(1, 9),
        }
    ),
    st.randoms(use_true_random=False),
)
def test_any_group_follows_algorithm_1(make_trajectory, own, recalled, settings, random):
    algorithm = get("r3", kl_coef=0.0, **settings)
    attempts = [
        replace(
            make_trajectory([length], slot=i, reward=reward),
            finish="context_overflow" if truncated else "terminated",
        )
        for i, (reward, truncated, length) in enumerate(own)
    ]
    joins = [
        Recalled("g", "old", make_trajectory([length], slot=i, reward=reward))
        for i, (reward, length) in enumerate(recalled)
    ]
    batch = Batch([group_of(attempts)], recalled=joins)
    entropies = {
        i: [random.choice([0.0, 0.5, 1.0, 3.0]) for _ in range(length)]
        for i, (_, _, length) in enumerate(own)
    }
    answers = {}
    for query in algorithm.queries(batch):
        answers[query.key] = np.zeros(len(query.token_ids), np.float32)
        answers[query.key][query.mask] = entropies[query.key[3]]
    [found] = algorithm.advantages(batch.with_answers(answers))
    lengths = [length for *_, length in own] + [length for _, length in recalled]
    expected = algorithm_1(
        [(reward, truncated) for reward, truncated, _ in own],
        [reward for reward, _ in recalled],
        entropies,
        lengths,
        settings,
    )
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)


# ── with a model ────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("model"))


def test_ranks_are_those_of_the_models_entropies_and_a_step_is_made_of_them(
    make_trajectory, model_folder
):
    import torch
    from transformers import AutoModelForCausalLM

    context = Shown(np.arange(100, 120, dtype=np.int32), 0, 3)
    tokens = np.random.default_rng(0).integers(3, 200, (3, 11)).astype(np.int32)
    attempts = [
        replace(
            make_trajectory([4, 2], slot=i, tokens=tokens[i]),
            finish="truncated",
            shown=context,
            temperature=0.7,
        )
        for i in range(3)
    ]
    plan = GroupPlan(3, REFLECTING, (AttemptKey("g0", 1),))
    algorithm = get("r3", group_size=4, peak_share=0.5)
    batch = Batch([replace(group_of(attempts), plan=plan)])
    trainer = Trainer(model_folder, needs=algorithm.needs)
    batch = trainer.answer(batch, algorithm.queries(batch))

    model = AutoModelForCausalLM.from_pretrained(model_folder)
    by_place = {}
    for place, attempt in enumerate(attempts):
        ids, mask = attempt.as_shown()
        with torch.no_grad():
            logits = model(torch.tensor(ids.astype(np.int64))[None]).logits[0] / 0.7
        logprobs = logits.log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        by_place[place] = [float(entropy[t - 1]) for t in np.flatnonzero(mask)]
    settings = algorithm.model_dump()
    expected = algorithm_1([(0.0, True)] * 3, [], by_place, [6] * 3, settings)
    [found] = algorithm.advantages(batch)
    assert found == pytest.approx(expected, abs=1e-5)
    answers = [a for key, a in batch.answers.items() if key[0] == "entropy"]
    for answer, values in zip(answers, by_place.values(), strict=True):
        assert answer[answer != 0] == pytest.approx(values, abs=1e-5)
    rows = algorithm.rows(batch)
    assert [len(row.token_ids) for row in rows] == [28] * 3 and rows[0].reference is not None
    result = trainer.step(rows, algorithm.loss)
    assert result.applied and result.metrics["learner/kl_reference"] == pytest.approx(0, abs=1e-6)
