"""Attempts from elsewhere: made from tokens or a chat, or brought from another run."""

import numpy as np
import pytest
from msgspec.structs import replace

from r3l import codec
from r3l.errors import RecordError
from r3l.records import Extra, Origin, Segment, SlotResult, done
from r3l.records.imported import as_imported, imported_attempt, imported_chat
from tests.buffer.fakes import full_result

IDS, SPANS = [5, 6, 7, 8, 9], [(1, 3), (4, 5)]


def test_tokens_spans_and_a_reward_make_an_attempt_whose_log_probabilities_are_unknown():
    attempt = imported_attempt(IDS, SPANS, 0.5, source="people")
    assert attempt.response_mask.tolist() == [False, True, True, False, True]
    assert attempt.step_versions.tolist() == [-1, -1] and attempt.oldest_version == -1
    assert (attempt.reward, attempt.source, attempt.num_steps) == (0.5, "people", 2)
    assert not attempt.has_logprobs


@pytest.mark.parametrize("given", [[-1.0, -2.0, -3.0], [9.0, -1.0, -2.0, 9.0, -3.0]])
def test_log_probabilities_are_of_the_responses_alone(given):
    attempt = imported_attempt(IDS, SPANS, 0.5, source="x", logprobs=given)
    assert attempt.logprobs.tolist() == [0.0, -1.0, -2.0, 0.0, -3.0] and attempt.has_logprobs


def test_versions_are_lists_and_the_newest_ones_are_the_oldest_unless_given():
    attempt = imported_attempt(IDS, SPANS, 0.5, source="x", step_versions=[3, 4])
    assert (attempt.oldest_version, attempt.newest_version) == (3, 4)
    assert attempt.step_newest_versions.tolist() == [3, 4]
    both = {"step_versions": [3, 3], "step_newest_versions": [3, 5]}
    attempt = imported_attempt(IDS, SPANS, 0.5, source="x", **both)
    assert (attempt.oldest_version, attempt.newest_version) == (3, 5)


def test_an_attempt_of_an_actor_has_log_probabilities_even_if_all_of_them_are_0():
    attempt = imported_attempt(IDS, SPANS, 0.5, source="x")
    assert replace(attempt, source="").has_logprobs


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"source": ""}, "must be non-empty text, not ''"),
        ({"token_ids": [1.5, 2.0, 3, 4, 5]}, "token_ids .*must be whole numbers"),
        ({"token_ids": [1 << 40, 2, 3, 4, 5]}, "token_ids"),
        ({"token_ids": ["a"] * 5}, "token_ids"),
        ({"token_ids": [[1, 2], [3]]}, "token_ids"),
        ({"spans": [(1, 3), (2, 5)]}, "overlap"),
        ({"spans": [(1, 9)]}, "reach past the sequence of 5 tokens"),
        ({"token_ids": [[1, 2]]}, "token_ids .*must be one list of whole numbers"),
        ({"spans": []}, r"spans \[\]: must be a list of \(start, end\), one for each response"),
        ({"spans": [1, 3]}, r"spans \[1, 3\]: must be a list of \(start, end\)"),
        ({"spans": [(1, 2, 3)]}, r"must be a list of \(start, end\)"),
        ({"step_versions": [7]}, r"step_versions is int32\(1,\); it must be int32\(2,\)"),
        ({"step_versions": ["a", "b"]}, "step_versions"),
        ({"step_seconds": [0.1, 0.2]}, "step_seconds is a list, not an array; it must be float32"),
        ({"logprobs": [-1.0]}, "1 log-probabilities for 5 tokens, 3 of them in responses"),
        ({"reward": float("nan")}, "reward is nan"),
        ({"reward": float("inf")}, "reward is inf"),
        ({"actions": ["one"]}, "2 step spans, 1 actions"),
        ({"spans": [(1, 1), (4, 4)]}, "no response has a token"),
        ({"source": 3}, "source of an imported attempt must be non-empty text, not 3"),
        ({"reward": None}, "reward None: must be a number"),
        ({"reward": "1"}, "reward '1': must be a number"),
        ({"reward": 10**400}, "reward 1000+: must be a number"),
        ({"logprobs": [10**400] * 3}, "logprobs .*must be numbers"),
        ({"source": "x\ud800"}, "source holds half a surrogate pair"),
        ({"system": "x\ud800"}, "system holds half a surrogate pair"),
        ({"actions": ["\udfff", ""]}, "actions holds half a surrogate pair"),
        ({"logprobs": [[1], [2, 3]]}, "logprobs .*must be numbers"),
        ({"logprobs": "abc"}, "logprobs .*must be numbers"),
        ({"actions": [1, 2]}, "actions: 1 is not text"),
        ({"observations": "abc"}, "observations 'abc': must be a list of texts"),
    ],
)
def test_what_cannot_be_an_attempt_is_refused_in_one_line(given, rule):
    fields = {"token_ids": IDS, "spans": SPANS, "reward": 0.0, "source": "x"} | given
    with pytest.raises(RecordError, match=rule) as refused:
        imported_attempt(**fields)
    assert "\n" not in str(refused.value)


def test_another_runs_attempt_loses_its_versions_and_names_its_origin_elsewhere_once():
    result = full_result(source="", origin=Origin("g0000000001", 2, 1))
    brought = as_imported(result, "old").trajectory
    assert brought.step_versions.tolist() == brought.step_newest_versions.tolist() == [-1, -1]
    assert (brought.source, brought.origin.group_id) == ("old", "old/g0000000001")
    assert codec.encode(as_imported(done(brought), "older")) == codec.encode(done(brought))
    own = as_imported(result, "mine", own=True).trajectory
    assert own.step_versions.tolist() == result.trajectory.step_versions.tolist()
    assert own.origin == result.trajectory.origin and own.source == "mine"


def test_a_slot_without_an_attempt_is_brought_as_it_is():
    failed = SlotResult(1, "failed", cause="env")
    assert as_imported(failed, "old") is failed


class Letters:
    """A chat of single letters: U and A before a message, 0 after a reply."""

    end_id = 0
    prompt_ids = (65,)

    def open(self, system, user):
        return (83, *self.encode(system), *self.turn("user", user))

    def turn(self, role, content):
        return (85, *self.encode(content))

    def encode(self, text):
        return tuple(text.encode())


def said(*texts):
    return [{"role": ("user", "assistant")[n % 2], "content": t} for n, t in enumerate(texts)]


def test_every_reply_of_a_chat_is_a_response_with_its_end():
    messages = [{"role": "system", "content": "s"}, *said("a", "bb", "c", "d")]
    attempt = imported_chat(Letters(), messages, 1.0, source="people")
    text = bytes(attempt.token_ids.tolist())
    assert text == b"SsUaAbb\0UcAd\0"
    assert [text[a:b] for a, b in attempt.step_spans] == [b"bb\0", b"d\0"]
    assert attempt.actions == ("bb", "d") and attempt.observations == ("a", "c", "")
    assert attempt.system == "s"


def test_what_is_said_after_the_last_reply_is_its_last_observation():
    attempt = imported_chat(Letters(), said("a", "b", "c"), 1.0, source="people")
    assert attempt.observations == ("a", "c") and attempt.num_steps == 1


@pytest.mark.parametrize(
    "messages",
    [[], said("a"), said("a", "b")[::-1], [{"role": "user"}], [{"role": "tool", "content": "x"}],
     said("a\ud800", "b"),
     [*said("a", "b"), {"role": "assistant", "content": "c"}], "ab", ["a", "b"], None, said("a")[0],
     [said("a")[0], {"role": "assistant", "content": "c", "tool_calls": [{"id": 1}]}]],
)  # fmt: skip
def test_messages_out_of_turn_are_refused(messages):
    with pytest.raises(RecordError, match="message"):
        imported_chat(Letters(), messages, 1.0, source="people")


def test_the_further_conversations_of_an_attempt_lose_their_versions_too():
    segment = Segment(
        np.arange(3, dtype=np.int32), np.zeros(3, np.float32), np.array([[1, 3]], np.int32),
        np.array([4], np.int32), np.array([5], np.int32),
    )  # fmt: skip
    result = full_result(source="", extra=Extra(segments=(segment,)), pivot=-1, origin=None)
    brought = as_imported(result, "old").trajectory
    assert brought.extra.segments[0].step_newest_versions.tolist() == [-1]
