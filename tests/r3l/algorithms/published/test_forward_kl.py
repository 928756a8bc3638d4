"""Forward self-distillation: drawn tokens of the teacher, in expectation its cross-entropy."""

from collections import Counter

import msgspec
import numpy as np
import pytest
import torch

from r3l.algorithms.batch import Batch
from r3l.algorithms.losses import TokenBatch
from r3l.algorithms.published.forward_kl import Drawn, drawn_tokens, imitated
from r3l.algorithms.queries import TopK
from tests.plug import worlds
from tests.r3l.algorithms.fakes import loss_of
from tests.r3l.algorithms.shared.test_re_reading import explored, reading


def read(likeliest=2):
    algorithm = reading("forward_kl", likeliest=likeliest)
    batch = explored(algorithm)
    return algorithm, batch, algorithm.readings(batch)


def top_of(query, tokens, shares):
    """The teacher's tokens are the same at every position."""
    size = (len(query.token_ids), 1)
    ids, logprobs = np.tile(np.int32(tokens), size), np.tile(np.log(np.float32(shares)), size)
    return TopK(ids, np.where(query.mask[:, None], logprobs, 0).astype(np.float32))


def test_the_teacher_is_asked_for_its_likeliest_tokens():
    algorithm, batch, readings = read(likeliest=7)
    asked = algorithm.queries(batch)
    assert [(query.find, query.k, query.weights) for query in asked] == [
        ("topk", 7, "averaged")
    ] * 4
    assert len(readings) == 4
    assert not reading("forward_kl", distilled_weight=0).queries(batch)


def test_tokens_are_drawn_in_proportion_to_the_teacher_and_alike_in_a_replay():
    algorithm, batch, [one, *_] = read()
    top = top_of(algorithm.queries(batch)[0], [7, 9], [0.3, 0.1])  # 3 to 1, whatever the rest
    counts = Counter(
        token for step in range(400) for token in drawn_tokens(one, top, step, 9).token_ids.tolist()
    )
    assert set(counts) == {7, 9}
    assert counts[7] / counts.total() == pytest.approx(0.75, abs=0.05)
    first, again = (drawn_tokens(one, top, 3, 9) for _ in range(2))
    assert first.token_ids.tolist() == again.token_ids.tolist()
    # 0.4 of the teacher's probability is in its two likeliest tokens: 0.3 + 0.1.
    assert first.weights == pytest.approx(0.4, rel=1e-6)


def test_the_drawn_loss_has_the_formulas_value_in_expectation_also_under_a_limit():
    algorithm, batch, [one, *_] = read()
    top = top_of(algorithm.queries(batch)[0], [7, 9], [0.4, 0.2])
    scored = int(one.own_mask.sum())
    nats = {7: 1.0, 9: 2.0}  # −log π of the policy
    want = scored * (0.4 * 1.0 + 0.2 * 2.0)  # the formula's sum
    for limit in (1, scored):
        terms = [
            sum(
                float(row.weights[row.mask].sum()) * nats[int(row.token_ids[-1])]
                for row in imitated(one, drawn_tokens(one, top, step, limit))
            )
            for step in range(800)
        ]
        assert np.mean(terms) == pytest.approx(want, rel=0.03)


def test_own_tokens_share_a_row_and_each_other_one_has_a_row_of_its_prefix():
    _, _, [one, *_] = read()
    attempt, places = one.source.attempt, np.flatnonzero(one.own_mask)
    drawn = attempt.token_ids[places].copy()
    drawn[1] += 1
    weights = np.linspace(0.2, 0.9, len(places))
    together, other = imitated(one, Drawn(drawn, weights))
    assert together.weights[together.mask].tolist() == [weights[0], *weights[2:]]
    assert other.weights[other.mask].tolist() == [weights[1]]
    assert np.flatnonzero(together.mask).tolist() == [places[0], *places[2:]]
    assert np.flatnonzero(other.mask).tolist() == [places[1]] == [len(other.token_ids) - 1]
    assert other.token_ids[-1] == drawn[1]
    assert other.token_ids[:-1].tolist() == attempt.token_ids[: places[1]].tolist()
    assert {row.loss for row in (together, other)} == {"distilled"}


def test_an_attempt_has_no_more_rows_than_its_limit_and_they_weigh_for_the_others():
    algorithm, batch, [one, *_] = read()
    top = top_of(algorithm.queries(batch)[0], [7, 9], [0.5, 0.25])
    scored = int(one.own_mask.sum())
    assert scored > 2
    found = list(imitated(one, drawn_tokens(one, top, 0, 2)))
    weights = [float(row.weights[row.mask].item()) for row in found]
    assert weights == pytest.approx([0.75 * scored / 2] * 2, rel=1e-6)
    assert len(list(imitated(one, drawn_tokens(one, top, 0, scored)))) == scored


def test_one_attempt_with_advice_weighs_as_one_of_all_attempts_of_the_step():
    algorithm = reading("forward_kl", likeliest=2)
    [group] = explored(algorithm).groups
    few = msgspec.structs.replace(group, reflections=group.reflections[:1])
    batch = Batch([few], chat=lambda: worlds.policy().chat)
    [asked] = algorithm.queries(batch)
    found = algorithm.rows(batch.with_answers({asked.key: top_of(asked, [7, 9], [0.5, 0.5])}))
    weights = sum(float(row.weights[row.mask].sum()) for row in found)
    assert weights == pytest.approx(1 / 4)  # one of four attempts


def test_the_loss_is_a_mean_over_attempts_of_the_mean_over_their_scored_tokens():
    algorithm, batch, readings = read()
    answers = {query.key: top_of(query, [7, 9], [0.5, 0.5]) for query in algorithm.queries(batch)}
    rows = algorithm.rows(batch.with_answers(answers))
    scored = sum(int(each.own_mask.sum()) for each in readings)
    weights = sum(float(row.weights[row.mask].sum()) for row in rows)
    assert {row.loss for row in rows} == {"distilled"} and weights == pytest.approx(1.0)
    assert len(rows) == scored  # the attempts hold neither token
    micro = TokenBatch(
        torch.tensor([[-2.0]]), torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool),
        torch.zeros(1, 1), torch.full((1, 1), 0.25), torch.zeros(1, dtype=torch.bool),
        losses=("distilled",),
    )  # fmt: skip
    loss, measured = loss_of(reading("forward_kl", distilled_weight=3.0), micro)
    assert loss.item() == pytest.approx(1.5) and measured["loss_distilled"] == pytest.approx(0.5)
