"""Nine algorithms, each one file of a user's, go through the whole plug: exploration under kills,
recall, queries, rows and loss. `tests/system/test_killed_agents.py` is the agent over HTTP."""

import numpy as np
import pytest
import torch

import r3l
from r3l.algorithms.losses import TokenBatch
from r3l.algorithms.registry import REGISTRY
from r3l.algorithms.rehearsal.rules import made_up_answer
from tests.plug import worlds
from tests.plug.files.help_where_all_failed import HelpWhereAllFailed
from tests.plug.files.own_parts import (
    EntropyBonus,
    Fading,
    HalfCredit,
    LastStepPivot,
    OwnQuestion,
    OwnTrigger,
    Signs,
)
from tests.plug.files.prefix_rl import PrefixRL
from tests.plug.files.reflecting_rloo import ReflectingRLOO
from tests.plug.files.sdpo import SDPO
from tests.plug.files.two_pivots import TwoPivots

OWN = [
    HelpWhereAllFailed,
    TwoPivots,
    ReflectingRLOO,
    PrefixRL,
    SDPO,
    OwnQuestion,
    OwnTrigger,
    LastStepPivot,
    HalfCredit,
    Signs,
    Fading,
    EntropyBonus,
]

LUCKY = worlds.Player(lucky=True)


def answered(algorithm, batch):
    """The batch with made-up answers to its queries."""
    draw = np.random.default_rng(0)
    answers = {
        query.key: np.where(query.mask, -draw.random(len(query.mask)), 0).astype(np.float32)
        if query.find != "topk"
        else made_up_answer(query)
        for query in algorithm.queries(batch)
    }
    return batch.with_answers(answers)


def trained(algorithm, batch):
    """The named parts of the loss on the rows of a batch, for made-up log-probabilities."""
    rows = algorithm.rows(answered(algorithm, batch))
    assert rows
    length = max(len(row.token_ids) for row in rows)

    def padded(values, dtype):
        made = torch.zeros(len(rows), length, dtype=dtype)
        for i, each in enumerate(values):
            made[i, : len(each)] = torch.as_tensor(np.array(each))
        return made

    logprobs_BT = -torch.rand(len(rows), length, generator=torch.Generator().manual_seed(0))
    tokens = TokenBatch(
        logprobs_BT.requires_grad_(True),
        padded([row.old_logprobs for row in rows], torch.float32),
        padded([row.mask for row in rows], torch.bool),
        padded([row.advantages for row in rows], torch.float32),
        padded([row.weights for row in rows], torch.float32),
        torch.tensor([row.distilled for row in rows]),
        padded([row.old_logprobs if r is None else r for row in rows for r in [row.reference]],
               torch.float32),
        tuple(row.loss for row in rows),
    )  # fmt: skip
    return rows, algorithm.loss(tokens), tokens


def batch_of(algorithm, memory, groups):
    return r3l.Batch(
        groups,
        recalled=memory.batch(algorithm, groups).recalled,
        version=3,
        chat=lambda: worlds.policy().chat,
    )


@pytest.mark.parametrize("kind", [*REGISTRY.values(), *OWN], ids=lambda kind: kind.__name__)
def test_an_algorithm_explores_under_kills_as_without_and_trains_on_it(kind) -> None:
    algorithm, memory = kind(group_size=4), r3l.Memory()
    groups = [worlds.explored(algorithm, memory, LUCKY) for _ in range(3)]
    for group in groups:
        assert not group.unresolved and len(group.results) == group.plan.slots
        before = r3l.Memory()
        before.groups = memory.groups
        again = worlds.explored_under_kills(algorithm, before, group.plan, LUCKY)
        assert worlds.digest(again) == worlds.digest(group)
        assert {r.name for r in again.reflections} == {r.name for r in group.reflections}
    _, parts, tokens = trained(algorithm, batch_of(algorithm, memory, groups))
    total = sum(parts.values())
    total.backward()
    assert torch.isfinite(total) and torch.isfinite(tokens.logprobs_BT.grad).all()
    assert tokens.measured["loss_policy"] is not None


def test_two_pivots_follow_into_gain_credit_and_rows() -> None:
    algorithm = TwoPivots(group_size=4)
    memory = r3l.Memory()
    group = worlds.explored(algorithm, memory)
    pivots = {(t.of, t.pivot) for t in group.trajectories if t.of >= 0}
    assert group.plan.slots == 6 and pivots == {(0, 1), (0, 0), (1, 1), (1, 0)}
    assert len(group.reflections) == 2 and {t.reflection for _, t in group.retries} == {
        "reflect-0",
        "reflect-1",
    }
    assert memory.gains[0].slots == 4  # every retry is measured
    masks = algorithm.masks(group.trajectories)
    assert masks[0].sum() == group.trajectories[0].response_mask.sum()  # from the earlier pivot, 0
    assert masks[2].sum() < group.trajectories[2].response_mask.sum()  # from step 1


def test_help_comes_only_where_all_attempts_failed() -> None:
    group = worlds.explored(HelpWhereAllFailed(group_size=4))
    assert [r.of for r in group.results] == [-1, -1, 0, 1]
    solver = worlds.Player(lambda prompt: "abc"[(prompt.count("<|im_start|>assistant") - 1) % 3])
    solved = worlds.explored(HelpWhereAllFailed(group_size=4), player=solver)
    assert [r.of for r in solved.results] == [-1] * 4 and not solved.reflections
    assert solved.rewards.tolist() == [1.0] * 4


def test_an_attempt_starts_inside_a_stored_success_and_is_trained_from_there() -> None:
    algorithm, memory = PrefixRL(group_size=4), r3l.Memory(seed=1)
    memory.keep(worlds.explored(r3l.R3L(group_size=4), memory))  # its retries succeed
    group = worlds.explored(algorithm, memory)
    started = [t for t in group.trajectories if t.origin is not None]
    assert group.plan.kind == "prefix" and started
    for attempt in started:
        assert attempt.pivot == attempt.origin.step > 0 and attempt.of == -1
        mask = algorithm.masks(group.trajectories)[attempt.slot]
        assert not mask[: attempt.step_spans[attempt.pivot, 0]].any() and mask.any()


def test_a_group_begins_with_a_stored_failure_and_is_trained_on_what_it_read() -> None:
    algorithm, memory = ReflectingRLOO(group_size=4), r3l.Memory(seed=2)
    groups = [worlds.explored(algorithm, memory) for _ in range(4)]
    kinds = [group.plan.kind for group in groups]
    assert kinds[0] == "" and {*kinds[1:]} == {"", "reflecting"}
    group = groups[kinds.index("reflecting")]
    again = worlds.explored_under_kills(algorithm, memory, group.plan, worlds.Player())
    assert worlds.digest(again) == worlds.digest(group)
    lucky = worlds.explored_under_kills(algorithm, memory, group.plan, LUCKY)
    rows = algorithm.rows(r3l.Batch([lucky]))
    text = worlds.policy().chat.tokenizer.decode
    assert rows and all("It failed." in text(row.token_ids) for row in rows)
    for attempt in lucky.trajectories:
        ids, mask = attempt.as_shown()
        assert "It failed." not in text(attempt.token_ids) and len(ids) > len(attempt.token_ids)
        assert mask.sum() == attempt.response_mask.sum()


def test_a_users_question_is_asked_once_and_its_answer_guides() -> None:
    group = worlds.explored(OwnQuestion(group_size=4))
    assert [r.text for r in group.reflections] == ["say abc"] * 2
    assert [r.status for r in group.results] == ["done"] * 4
    ids, _ = group.results[2].trajectory.as_shown()
    assert "The coach says: say abc" in worlds.policy().chat.tokenizer.decode(ids)


def test_a_setting_of_ones_own_works_and_an_unknown_one_is_refused() -> None:
    half, whole = Fading(group_size=4), Fading(group_size=4, fade=1.0)
    memory = r3l.Memory()
    batch = r3l.Batch([worlds.explored(half, memory)])
    of = lambda algorithm: np.concatenate([row.advantages for row in algorithm.rows(batch)])  # noqa: E731
    assert not np.array_equal(of(half), of(whole))
    with pytest.raises(ValueError, match="fate"):
        Fading(fate=1.0)


def test_a_further_part_of_the_loss_is_added_and_measured() -> None:
    algorithm, memory = EntropyBonus(group_size=4), r3l.Memory()
    batch = batch_of(algorithm, memory, [worlds.explored(algorithm, memory)])
    _, parts, tokens = trained(algorithm, batch)
    assert set(parts) == {"policy", "sft", "bonus"}
    assert float(parts["bonus"].detach()) == pytest.approx(-0.01 * tokens.measured["surprise"])
