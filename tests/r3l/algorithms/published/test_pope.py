"""POPE: the shortest beginning of a solution that helps, and rows with the guidance in them."""

import numpy as np
import pytest
from msgspec.structs import replace

from r3l.records import Origin, Shown
from tests.r3l.algorithms.fakes import batch_of, get, plans_of

FAILED, WON = ("", (0.0, 0.0)), ("", (0.0, 1.0))


def kinds(*groups, **settings):
    return {kind for kind, *_ in plans_of(get("pope", share=1.0, **settings), *groups, seeds=40)}


def test_guidance_grows_until_a_guided_group_has_a_success():
    assert kinds(FAILED, WON) == {"guided 1"}
    assert kinds(("guided 1", (0.0, 0.0)), FAILED, WON) == {"guided 2"}
    assert kinds(("guided 2", (0.0, 1.0)), ("guided 1", (0.0, 0.0)), FAILED) == {"guided 2"}
    assert kinds(FAILED, ("guided 7", (0.0, 0.0)), WON) == {"guided 8"}


def test_only_tasks_without_a_success_of_their_own_are_guided_half_of_the_time():
    found = plans_of(get("pope"), FAILED, ("solutions", (1.0,)))
    assert set(found) == {(), ("guided 1", ("g1", 0))} and 160 < found[()] < 240
    assert not plans_of(get("pope", share=1.0), WON)[("guided 1", ("g1", 1))]
    assert set(plans_of(get("pope", share=1.0), FAILED, ("guided 1", (0.0,)))) == {()}


def test_guidance_has_at_most_a_quarter_of_the_steps_and_then_any_length_up_to_there():
    algorithm = get("pope")

    def lengths(kind, steps):
        return {algorithm.start_of(kind, steps, np.random.default_rng(n)) for n in range(60)}

    assert [lengths(f"guided {n}", 12) for n in (1, 2, 3)] == [{1}, {2}, {3}]
    assert lengths("guided 4", 12) == {1, 2, 3}
    assert lengths("guided 1", 3) == lengths("guided 2", 5) == {1}
    whole = get("pope", guidance_most=1.0)
    assert whole.start_of("guided 4", 5, np.random.default_rng()) == 4
    assert whole.start_of("guided 1", 2, np.random.default_rng()) == 1


def guided(make_trajectory, slot, reward, keep=None):
    """An attempt of steps of two, three and one tokens that starts at its second step, before which
    it read the tokens 91 and 92. `keep`: what it reads instead begins there."""
    made = make_trajectory([2, 3, 1], slot=slot, reward=reward, pivot=1, origin=Origin("g0", 0, 1))
    end = int(made.step_spans[1, 0]) - 1
    shown = Shown(np.array([91, 92], np.int32), end if keep is None else keep, end)
    made.logprobs[made.response_mask] = -np.arange(1.0, 7.0, dtype=np.float32)
    return made, replace(made, shown=shown)


def test_the_row_of_a_guided_attempt_has_its_guidance_and_its_true_ratio(make_trajectory):
    plain, read = guided(make_trajectory, 0, 1.0)
    rows = get("pope").rows(batch_of([read, guided(make_trajectory, 1, 0.0)[1]]))
    assert len(rows) == 2
    for row in rows:
        assert not row.distilled and row.source.attempt.shown is None
        end = int(plain.step_spans[1, 0]) - 1
        ids = plain.token_ids.tolist()
        assert row.token_ids.tolist() == [*ids[:end], 91, 92, *ids[end:]][: len(row.token_ids)]
        assert row.old_logprobs[row.mask].tolist() == [-3.0, -4.0, -5.0, -6.0]
        assert row.old_logprobs[end : end + 2].tolist() == [0.0, 0.0]
    want = get("grpo").rows(batch_of([read, guided(make_trajectory, 1, 0.0)[1]]))
    assert all(row.distilled and 91 not in row.token_ids[row.mask] for row in want)
    assert [len(row.token_ids) + 2 for row in want] == [len(row.token_ids) for row in rows]


@pytest.mark.parametrize("keep", [None, 0, 3])
def test_an_attempt_as_read_is_what_the_policy_read(make_trajectory, keep):
    plain, read = guided(make_trajectory, 0, 1.0, keep)
    ids, mask = read.as_shown()
    again = read.as_read()
    assert again.token_ids.tolist() == ids.tolist()
    assert again.responses_from(again.first_played).tolist() == mask.tolist()
    assert again.logprobs[mask].tolist() == plain.logprobs[plain.responses_from(1)].tolist()
    assert plain.as_read() is plain
    asked = get("pope", kl_coef=0.1).queries(batch_of([read]))
    assert [query.token_ids.tolist() for query in asked] == [ids[: len(asked[0].mask)].tolist()]
    assert asked[0].mask.tolist() == mask[: len(asked[0].mask)].tolist()
