"""Trajectories refuse what they are not, and count what they hold."""

import numpy as np
import pytest
from msgspec.structs import replace

from r3l import codec
from r3l.errors import RecordError
from r3l.records import Extra, Origin, Segment, Shown, Trajectory


def shown(tokens: list[int], keep: int, resume: int) -> Shown:
    return Shown(np.array(tokens, np.int32), keep, resume)


def test_a_trajectory_counts_its_steps_and_what_it_sampled(make_trajectory):
    base = make_trajectory([2, 3, 4])
    assert (base.num_steps, base.generated_tokens, base.oldest_version) == (3, 9, 0)
    later = replace(base, step_newest_versions=np.array([0, 2, 1], dtype=np.int32))
    assert (later.oldest_version, later.newest_version) == (0, 2)
    assert [later.versions_of(k) for k in (0, 1)] == ["v0", "v0 to v2"]
    retry = make_trajectory([2, 3, 4], slot=1, of=0, pivot=1)
    assert retry.generated_tokens == 7


def test_the_role_of_an_attempt_follows_from_what_it_retries(make_trajectory):
    started = make_trajectory(pivot=1, origin=Origin("g7", 3, 1))
    assert (make_trajectory().role, started.role) == ("base", "base")
    assert make_trajectory(slot=1, of=0, pivot=0).role == "distilled"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"reward": float("nan")}, "reward"),
        ({"reward": float("inf")}, "reward"),
        ({"reward": -1e9 - 1}, "reward"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"step_newest_versions": np.zeros(1, dtype=np.int32)}, "step_newest_versions"),
        ({"step_newest_versions": np.array([0, -1], dtype=np.int32)}, "step_newest_versions"),
        ({"pivot": 2}, "pivot"),
        ({"pivot": -2}, "pivot"),
        ({"actions": ("one",)}, "step_spans"),
        ({"observations": ("one",)}, "step_spans"),
        ({"token_ids": np.zeros(10, dtype=np.int64)}, "token_ids"),
        ({"logprobs": np.zeros(9, dtype=np.float32)}, "logprobs"),
        ({"step_spans": np.array([[3, 5], [7, 11]], dtype=np.int32)}, "step_spans"),
        ({"step_spans": np.array([[3, 8], [7, 10]], dtype=np.int32)}, "step_spans"),
        ({"step_spans": np.array([[-1, 5], [7, 10]], dtype=np.int32)}, "step_spans"),
        ({"shown": shown([1], 3, 11)}, "shown"),
    ],
)
def test_a_malformed_trajectory_is_refused_by_field(make_trajectory, change, field):
    good = make_trajectory([2, 3])
    with pytest.raises(RecordError) as caught:
        replace(good, **change)
    assert caught.value.facts["field"] == field


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"reward_parts": {"a b": 1.0}}, "reward_parts"),
        ({"reward_parts": {"a": float("inf")}}, "reward_parts"),
        ({"reward_parts": {f"part{k}": 1.0 for k in range(17)}}, "reward_parts"),
        ({"scores": {"judge": float("nan")}}, "scores"),
        ({"scores": {f"score{k}": 1.0 for k in range(17)}}, "scores"),
        ({"step_rewards": np.zeros(3, dtype=np.float32)}, "step_rewards"),
        ({"step_rewards": np.zeros(2)}, "step_rewards"),
        ({"step_cut": np.zeros(1, dtype=np.bool_)}, "step_cut"),
        ({"step_cut": np.zeros(2, dtype=np.int32)}, "step_cut"),
        ({"start": 2}, "start"),
        ({"start": -1}, "start"),
    ],
)
def test_malformed_details_of_a_trajectory_are_refused_by_field(make_trajectory, extra, field):
    with pytest.raises(RecordError) as caught:
        replace(make_trajectory([2, 3]), extra=Extra(**extra))
    assert caught.value.facts["field"] == field


@pytest.mark.parametrize(("keep", "resume"), [(-1, 0), (3, 2)])
def test_what_was_shown_replaces_a_range_of_tokens(keep, resume):
    with pytest.raises(RecordError, match="0 <= keep <= resume"):
        shown([1], keep, resume)


def test_an_attempt_reads_as_it_was_shown_and_only_its_own_tokens_are_its_own(make_trajectory):
    """Responses at 3:5 and 7:10."""
    own = make_trajectory([2, 3])
    ids, mask = own.as_shown()
    assert ids is own.token_ids and mask.nonzero()[0].tolist() == [3, 4, 7, 8, 9]
    retry = replace(own, slot=1, of=0, pivot=1, shown=shown([50, 51], 6, 6))
    ids, mask = retry.as_shown()
    assert ids.tolist() == [0, 1, 2, 3, 4, 5, 50, 51, 6, 7, 8, 9]
    assert mask.nonzero()[0].tolist() == [9, 10, 11]
    begun = replace(own, shown=shown([50, 51], 0, 3))
    ids, mask = begun.as_shown()
    assert ids.tolist() == [50, 51, 3, 4, 5, 6, 7, 8, 9]
    assert mask.nonzero()[0].tolist() == [2, 3, 6, 7, 8]


@pytest.mark.parametrize(
    ("context", "ids", "spans"),
    [
        (([50, 51], 0, 3), [50, 51, 3, 4, 5, 6, 7, 8, 9], [[2, 4], [6, 9]]),
        (([50] * 5, 0, 3), [50] * 5 + [3, 4, 5, 6, 7, 8, 9], [[5, 7], [9, 12]]),
        (([50, 51], 6, 6), [0, 1, 2, 3, 4, 5, 50, 51, 6, 7, 8, 9], [[3, 5], [9, 12]]),
    ],
)
def test_what_was_read_can_become_the_attempts_own(make_trajectory, context, ids, spans):
    """Responses at 3:5 and 7:10, with log-probabilities of −1."""
    own = make_trajectory([2, 3], reward=0.5)
    begun = replace(own, shown=shown(*context))
    read = begun.as_read()
    assert read.token_ids.tolist() == begun.as_shown()[0].tolist() == ids
    assert read.step_spans.tolist() == spans and read.shown is None
    first = int(context[1] > 0)  # what is before the context was not sampled in this attempt
    assert read.responses_from(first).tolist() == begun.as_shown()[1].tolist()
    assert read.logprobs.tolist() == np.where(read.response_mask, -1.0, 0.0).tolist()
    assert (read.reward, read.actions) == (0.5, own.actions)
    assert own.as_read() is own and codec.decode(Trajectory, codec.encode(read)).num_steps == 2


def test_a_further_conversation_is_a_trajectory_without_what_the_main_one_was_shown(
    make_trajectory,
):
    main = make_trajectory([2, 3], slot=1, of=0, pivot=1, shown=shown([50], 6, 6))
    other = make_trajectory([1, 1, 1])
    fields = ("token_ids", "logprobs", "step_spans", "step_versions", "step_newest_versions")
    segment = Segment(**{name: getattr(other, name) for name in fields}, start=1)
    played = replace(main, extra=Extra(segments=(segment,)))
    whole, further = played.conversations()
    assert whole is played and (further.num_steps, further.first_played) == (3, 1)
    assert (further.of, further.pivot, further.shown) == (0, -1, None)
    assert played.generated_tokens == 3 + 2


def test_a_further_conversation_that_would_be_no_trajectory_is_refused(make_trajectory):
    other = make_trajectory([1, 1])
    fields = ("token_ids", "logprobs", "step_spans", "step_versions")
    older = {name: getattr(other, name) for name in fields}
    with pytest.raises(RecordError, match="newest version is older"):
        Segment(**older, step_newest_versions=np.array([0, -1], np.int32))


def test_responses_cut_off_are_counted_from_the_first_step_that_was_played(make_trajectory):
    cut = np.array([True, False, True])
    made = make_trajectory([2, 3, 4])
    counts = [replace(made, extra=Extra(step_cut=cut, start=k)).cut_responses for k in range(3)]
    assert counts == [2, 1, 1]
    retry = make_trajectory([2, 3, 4], slot=1, of=0, pivot=1)
    assert replace(retry, extra=Extra(step_cut=cut)).cut_responses == 1
    assert made.cut_responses == 0


def test_where_an_attempt_began_is_stored_with_it(make_trajectory):
    more = {"origin": Origin("g7", 3, 1), "reflection": "why", "source": "logs of a bench"}
    made = make_trajectory(pivot=1, shown=shown([9], 2, 3), extra=Extra(scores={"a": 1.0}), **more)
    again = codec.decode(Trajectory, codec.encode(made))
    assert (again.origin, again.reflection, again.source) == tuple(more.values())
    assert again.extra.scores == {"a": 1.0} and again.shown is not None
    assert (again.shown.tokens.tolist(), again.shown.keep, again.shown.resume) == ([9], 2, 3)
