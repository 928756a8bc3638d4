"""One group as the viewer shows it."""

import numpy as np
import pytest

from buffer.viewer.attempts import Texts, pairs, plain_group
from envs.builtin.policy import model_path
from r3l.algorithms.published.grpo import GRPOConfig
from r3l.algorithms.r3l import R3LConfig
from r3l.errors import NotFound
from r3l.records import Group, GroupPlan, SlotResult, Task
from tests.buffer.viewer.stores import Made, attempt, results

NO_TEXTS = Texts(None)


def group(found, plan=None):
    return Group("g1", Task("t", "doors", 1), plan or GroupPlan(2, 2), "trained", tuple(found))


def trained(slot):
    return [step["trained"] for step in slot["steps"]]


def test_a_base_and_its_retry_are_trained_from_the_pivot_on_and_others_everywhere():
    first, second = pairs(group(results(Made(reward=0.5))), R3LConfig().build(), NO_TEXTS)
    from_pivot = [[0] * 4, [1] * 4, [1] * 4]
    assert trained(first["base"]) == trained(first["retry"]) == from_pivot
    assert (first["pivot"], first["gain"], first["retry"]["advantage"]) == (1, 1.0, 3.0)
    assert first["base"]["advantage"] == -0.5  # R - mean of 0, 0.5 and 1
    assert trained(second["base"]) == [[1] * 4] * 3
    assert second["retry"]["cause"] == "replay_diverged" and second["gain"] is None
    assert second["retry"]["reflection"]["pivot"] == 1


def test_without_a_known_algorithm_all_sampled_tokens_are_marked():
    first, _ = pairs(group(results(Made())), None, NO_TEXTS)
    assert trained(first["retry"]) == [[1] * 4] * 3 and first["retry"]["advantage"] is None


def test_what_an_algorithm_drops_is_not_trained():
    from r3l.algorithms.published.raft import RAFTConfig

    first, _ = pairs(group(results(Made())), RAFTConfig().build(), NO_TEXTS)
    assert (first["base"]["kept"], trained(first["base"])) == (False, [[0] * 4] * 3)
    assert first["retry"]["kept"]


def test_every_number_of_a_step_is_shown():
    first, _ = pairs(group(results(Made(), version=7)), None, NO_TEXTS)
    step = first["base"]["steps"][2]
    assert step["logprobs"] == [-0.25, -2.0, -0.25, -0.25] and step["tokens"] is None
    assert (first["base"]["cut"], first["base"]["parts"]) == (0, {})
    assert (step["version"], step["newest"]) == (7, 7)
    assert (step["seconds"], step["action"]) == (0.5, "act 2")


def test_an_unfinished_group_shows_what_is_there():
    (only,) = pairs(group(results(Made())[:1], GroupPlan(1, 1)), GRPOConfig().build(), NO_TEXTS)
    assert only["base"]["reward"] == 0.0 and only["retry"] is None
    (nothing,) = pairs(group([], GroupPlan(1)), R3LConfig().build(), NO_TEXTS)
    assert (nothing["base"], nothing["retry"]) == (None, None)


def test_a_base_with_two_retries_comes_twice():
    made = Made()
    both = [
        SlotResult("base", 0, "done", trajectory=attempt("base", 0, made)),
        *(
            SlotResult("distilled", slot, "done", trajectory=_of_base_0(slot, made))
            for slot in (0, 1)
        ),
    ]
    found = pairs(group(both, GroupPlan(1, 2)), R3LConfig().build(), NO_TEXTS)
    assert [(one["slot"], one["retry"]["slot"]) for one in found] == [(0, 0), (0, 1)]


def _of_base_0(slot, made):
    import msgspec

    return msgspec.structs.replace(
        attempt("distilled", slot, made, reward=1.0, pivot=1), parent=0, slot=slot
    )


def test_the_texts_of_tokens_are_together_the_text():
    from tokenizers import Tokenizer

    folder = model_path("builtin")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode("use brush \U0001f600 x").ids
    texts = Texts(folder).of(np.array(ids, np.int32))
    assert len(texts) == len(ids) and "".join(texts) == tokenizer.decode(ids)
    assert "" in texts and "\U0001f600" in texts  # an emoji of several tokens is the last one's


def test_a_group_has_its_facts_and_one_that_is_not_there_is_named(store):
    found = plain_group(store, "g0000000007", None, NO_TEXTS)
    assert (found["task"], found["seed"], found["step"]) == ("door/0002", "2", 1)
    assert found["times"]["trained"] == 1010.0 and len(found["pairs"]) == 2
    with pytest.raises(NotFound, match="there is no group 'g9'"):
        plain_group(store, "g9", None, NO_TEXTS)
