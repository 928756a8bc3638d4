"""Re-reading: which attempts the advised policy scores, at which tokens, and what is left out."""

import json

import numpy as np
import pytest

import r3l
from r3l.algorithms.batch import Batch
from r3l.errors import UserError
from r3l.records import SlotResult
from tests.plug import worlds
from tests.r3l.algorithms.fakes import get, group_of, thought_about

ADVICE = "advice: {improvement_suggestion}."


def reading(name="sdpo", **more):
    return get(name, **{"group_size": 4, "advice": ADVICE, "std": "none"} | more)


def explored(algorithm, **more):
    """A batch of one group of failures, each with a reflection that advises from step 1."""
    group = worlds.explored(algorithm)
    return Batch([group], chat=lambda: worlds.policy().chat, **more)


def answers_of(algorithm, batch, teacher=-1.0, own=-1.5):
    values = {"teacher": teacher, "own": own}
    return {
        query.key: np.where(query.mask, values[query.key[0]], 0).astype(np.float32)
        for query in algorithm.queries(batch)
    }


def test_each_failure_gets_a_reflection_and_no_retry():
    group = worlds.explored(reading())
    assert [t.of for t in group.trajectories] == [-1] * 4 and group.rewards.max() < 1
    assert {thought.of for thought in group.reflections} == {0, 1, 2, 3}
    solved = worlds.explored(reading(), player=worlds.Player(lambda prompt: "abc"[
        (prompt.count("<|im_start|>assistant") - 1) % 3
    ]))  # fmt: skip
    assert solved.rewards.tolist() == [1.0] * 4 and not solved.reflections


def test_the_teacher_reads_the_advice_before_the_step_that_the_reflection_names():
    algorithm = reading()
    batch = explored(algorithm)
    queries = algorithm.queries(batch)
    assert [query.key[0] for query in queries] == ["teacher", "own"] * 4
    chat, attempt = worlds.policy().chat, batch.groups[0].trajectories[0]
    teacher, own = queries[:2]
    assert (teacher.weights, own.weights) == ("averaged", "current")
    assert "advice: say abc." in chat.tokenizer.decode(teacher.token_ids.tolist())
    assert "advice:" not in chat.tokenizer.decode(own.token_ids.tolist())
    assert own.mask.tolist() == attempt.responses_from(1).tolist()
    scored = [query.token_ids[query.mask].tolist() for query in (teacher, own)]
    assert scored[0] == scored[1] and scored[0]


def test_a_gap_is_the_teachers_log_probability_less_the_policys_and_0_elsewhere():
    algorithm = reading()
    batch = explored(algorithm)
    [gaps] = algorithm.gaps(batch.with_answers(answers_of(algorithm, batch)))
    for gap, attempt in zip(gaps, batch.groups[0].trajectories, strict=True):
        assert gap.tolist() == (0.5 * attempt.responses_from(1)).tolist()
    with pytest.raises(UserError, match=r"call batch = trainer\.answer"):
        algorithm.gaps(batch)


def test_the_teacher_is_an_average_the_reference_or_the_policy_itself():
    for teacher, needs in (
        ("averaged", ("averaged",)),
        ("reference", ("reference",)),
        ("current", ()),
    ):
        algorithm = reading(teacher=teacher)
        assert algorithm.needs == needs
        asked = algorithm.queries(explored(algorithm))
        assert {query.weights for query in asked} == {teacher, "current"}
    assert reading(teacher="reference", kl_coef=0.1).needs == ("reference",)


def test_an_attempt_that_is_too_long_with_its_advice_is_left_out_and_counted():
    algorithm = reading()
    batch = explored(algorithm)
    longest = max(len(query.token_ids) for query in algorithm.queries(batch))
    for limit, left in ((longest, 0), (longest - 1, 4)):
        short = reading(reading_limit=limit)
        assert short.count_left_out(batch) == left and len(short.readings(batch)) == 4 - left
    assert not any(gap.any() for gap in short.gaps(batch)[0])


def test_a_reflection_that_cannot_be_read_or_that_calls_it_a_success_advises_nothing(
    make_trajectory,
):
    praise = ("fine", None, "success", None, None)
    fields = ("trajectory_summary", "root_cause_analysis", "trajectory_outcome",
              "improvement_suggestion", "retry_from_step")  # fmt: skip
    text = json.dumps(dict(zip(fields, praise, strict=True)))
    attempts = [make_trajectory(slot=slot) for slot in range(3)]
    thoughts = [thought_about(0, cause="not_json"), thought_about(1)]
    thoughts[1] = type(thoughts[1])(**{
        name: getattr(thoughts[1], name) for name in thoughts[1].__struct_fields__
    } | {"text": text, "outcome": "success"})  # fmt: skip
    group = group_of(attempts, thoughts)
    algorithm = reading()
    assert not algorithm.readings(Batch([group]))
    assert algorithm.metrics([group]) == {"group/advised": 0.0}
    lost = group_of([], [])
    assert algorithm.metrics([lost]) == {}


def test_a_group_in_which_an_attempt_failed_to_be_played_reads_the_others():
    algorithm = reading()
    plan = algorithm.plan(r3l.Memory().facts("t"))
    actor = worlds.Actor(
        algorithm, plan, worlds.Player(), results=[SlotResult(0, "failed", cause="env")]
    )
    results = actor.run()
    assert [result.status for result in results] == ["failed", "done", "done", "done"]
    assert {thought.of for thought in actor.x.reflections.values()} == {1, 2, 3}


def test_the_advice_is_put_into_each_attempt_once_for_a_batch(monkeypatch):
    algorithm = reading()
    batch, calls = explored(algorithm), []
    advised = Batch.advised
    monkeypatch.setattr(Batch, "advised", lambda *given: calls.append(1) or advised(*given))
    answered = batch.with_answers(answers_of(algorithm, batch))  # asks
    algorithm.gaps(answered)
    assert algorithm.count_left_out(answered) == 0 and len(algorithm.readings(answered)) == 4
    assert len(calls) == 4
    assert len(reading(advice="{root_cause_analysis}").readings(answered)) == 4 and len(calls) == 8
    assert not answered.as_read(lambda group: True).memo


def test_a_batch_without_a_chat_format_is_refused_in_one_line():
    algorithm = reading()
    batch = Batch(explored(algorithm).groups)
    with pytest.raises(UserError, match="has no chat format"):
        algorithm.queries(batch)
