"""Mathematics: problems as tasks, verdicts as rewards."""

import asyncio

import pytest

from envs import registry
from envs.questions.math_problems import DATA_SETS
from envs.testing import check_env
from r3l.errors import UserError
from r3l.records import Task
from r3l.rollout.group import explore_group
from r3l.run.config import load
from tests.envs.shared_data import shared
from tests.r3l.fakes import ScriptedPolicy
from tests.r3l.rollout.fakes import exploration, reflection


def test_every_data_set_is_an_environment():
    assert list(DATA_SETS) == registry.MATHEMATICS


def test_a_data_set_without_training_problems_says_how_to_give_some():
    with pytest.raises(UserError, match=r"aime24: .*no data .*train"):
        registry.tasks("aime24", {}, "train", 1)


def test_a_task_carries_its_problem_and_kind_and_evaluation_has_one_attempt(file):
    path = file({"prompt": "1+1?", "answer": "2", "subject": "Number Theory", "solution": "s"})
    (train,) = registry.tasks("math", {"train": path}, "train", 9)
    assert train.task_id == "math/train/000000"
    assert train.options == {
        "prompt": "1+1?",
        "answer": "2",
        "family": "number_theory",
        "solution": "s",
    }
    (held_out,) = registry.tasks("math", {"eval": path}, "eval", 9)
    assert held_out.options["attempts"] == 1


def test_a_problem_keeps_its_task_id_wherever_its_row_stands(file):
    rows = [{"prompt": f"{n}+0?", "answer": str(n), "unique_id": f"sum/{n}"} for n in range(3)]
    for order in (rows, rows[::-1]):
        found = registry.tasks("math", {"eval": file(*order)}, "eval", 3)
        answers = {task.task_id: task.options["answer"] for task in found}
        assert answers == {f"math/eval/sum/{n}": str(n) for n in range(3)}
    twice = file(rows[0], rows[0] | {"answer": "9"})
    found = registry.tasks("math", {"eval": twice}, "eval", 2)
    assert [task.task_id for task in found] == ["math/eval/sum/0", "math/eval/sum/0#2"]


def test_a_comparison_that_takes_too_long_earns_nothing_and_is_named(monkeypatch, file):
    env = registry.make("math", train=file({"prompt": "What is 1 + 1?", "answer": "2"}))
    env.reset(seed=0)
    monkeypatch.setattr(env.verifier, "check", lambda gold, answer: "timeout")
    text, reward, *_, info = env.step(r"\boxed{9^{9^{9}}}")
    assert (reward, info["fault"]) == (0.0, "verifier_timeout") and "cannot be read" in text
    env.close()


@pytest.mark.parametrize("options", [{}, {"step": "paragraph", "paragraphs": 6}])
def test_real_problems_conform(options):
    pytest.importorskip("math_verify")
    data = {"train": str(shared("math500.jsonl"))}
    check_env("math", options=options | data)


def test_the_policy_never_reads_the_reference(half):
    env = half(attempts=3)
    said = [env.step(rf"\boxed{{{n}}}")[0] for n in (1, 2, 3)] + [env.feedback()]
    assert not any("0.5" in text for text in said)


def test_only_the_reflection_reads_the_reference_and_only_if_so_set(half):
    def prompts(**options):
        """(prompts of reflections, prompts of attempts) of a group whose attempts fail."""

        def reply(prompt):
            return reflection(step=0) if "You review one attempt" in prompt else r"\boxed{7}"

        policy, config = ScriptedPolicy(reply), load(None, ["algorithm.group_size=2"])
        task = Task("t", "math", 0)
        make = lambda task: half(attempts=2, **options)  # noqa: E731
        x = exploration(policy, config, task, make)
        asyncio.run(explore_group(config.algorithm.explore, x))
        asked = [prompt for prompt in policy.prompts if "You review one attempt" in prompt]
        return asked, [prompt for prompt in policy.prompts if prompt not in asked]

    asked, played = prompts()
    assert len(asked) == 1 and len(played) == 4
    assert "No answer was right." in asked[0] and "0.5" not in asked[0]
    asked, played = prompts(reflect_with_answer=True)
    assert "No answer was right. The right answer is 0.5." in asked[0]
    assert len(played) == 4 and not any("0.5" in prompt for prompt in played)


def test_feedback_on_a_right_answer_does_not_repeat_it(half):
    env = half(reflect_with_answer=True)
    assert env.step(r"\boxed{1/2}")[1] == 1.0 and env.feedback() == "Answer 1 was right."


def test_reflect_with_answer_is_true_or_false(half):
    with pytest.raises(UserError, match="reflect_with_answer: must be true or false"):
        half(reflect_with_answer="yes")
