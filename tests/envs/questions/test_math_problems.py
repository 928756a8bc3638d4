"""Mathematics: reading data, judging answers in processes, attempts and paragraphs."""

import json
import os
import signal
import threading
import types

import pytest

from envs import registry
from envs.questions.datasets import load
from envs.questions.verifier import Verifier
from envs.testing import check_env
from r3l.errors import EnvironmentFailed, UserError
from tests.envs.shared_data import shared


@pytest.fixture(scope="module")
def verifier():
    pytest.importorskip("math_verify")
    pool = Verifier(workers=1, cpu_s=2.0)
    yield pool
    pool.close()


@pytest.fixture
def file(tmp_path):
    def write(*rows):
        path = tmp_path / "problems.jsonl"
        path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
        load.cache_clear()
        return str(path)

    return write


# ── data ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        ({"question": "q", "answer": "Half of 1,000.\n#### 1,000"}, "q", "1000"),
        ({"problem": "q", "solution": r"So \boxed{\frac{1}{2}}."}, "q", r"\frac{1}{2}"),
        ({"problem": "q", "answer": "$x$", "solution": "s"}, "q", "x"),
        ({"question": "q", "final_answer": ["1", "$2$"]}, "q", "1, 2"),
        ({"prompt": "q", "solution": "34"}, "q", "34"),
        ({"prompt": "q", "answer": 34}, "q", "34"),
        (
            {
                "prompt": [{"role": "user", "content": "q"}],
                "reward_model": {"ground_truth": "5"},
            },
            "q",
            "5",
        ),
    ],
)
def test_rows_of_every_data_set_in_use_are_read(file, row, prompt, answer):
    (problem,) = load("math", "train", file(row))
    assert (problem.prompt, problem.answer) == (prompt, answer)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ((), "holds no problems"),
        (('{"prompt": "q"',), "line 1 is not JSON"),
        (({"prompt": "q", "answer": "1"}, {"answer": "1"}), "row 2: holds no problem"),
        (({"prompt": "q"},), "row 1: holds no reference answer"),
        ((["q", "1"],), "row 1: must be an object"),
    ],
)
def test_a_file_that_holds_no_problems_is_refused_by_name_and_row(file, rows, says):
    with pytest.raises(UserError, match=says) as caught:
        load("math", "train", file(*rows))
    assert "math.train" in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named_and_so_is_what_else_could_be_given():
    with pytest.raises(UserError, match=r"gsm8k\.eval: /no/such\.jsonl cannot be read .*@split"):
        registry.tasks("gsm8k", {"eval": "/no/such.jsonl"}, "eval", 1)


def test_a_data_set_of_the_hub_is_asked_for_by_repository_configuration_and_split(monkeypatch):
    asked = []
    fake = types.ModuleType("datasets")
    fake.load_dataset = lambda *a, **k: asked.append((a, k)) or [{"question": "q", "answer": "1"}]
    monkeypatch.setitem(__import__("sys").modules, "datasets", fake)
    load.cache_clear()
    (task,) = registry.tasks("gsm8k", {}, "eval", 5)
    assert asked == [(("openai/gsm8k", "main"), {"split": "test"})]
    assert task.options == {"prompt": "q", "answer": "1", "attempts": 1}
    load.cache_clear()


def test_a_missing_package_is_one_line_with_the_install_command(monkeypatch):
    import sys

    load.cache_clear()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"^env gsm8k: .*datasets.*pip install 'r3l\[math\]'$"):
        registry.tasks("gsm8k", {}, "train", 1)
    monkeypatch.setattr("envs.requirements.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"math_verify; pip install 'r3l\[math\]'$"):
        registry.make("gsm8k")


def test_a_data_set_without_training_problems_says_how_to_give_some():
    with pytest.raises(UserError, match=r"aime24: has no train problems .*env\.options\.train="):
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
    (held_out,) = registry.tasks("math", {"eval": path, "eval_attempts": 2}, "eval", 9)
    assert held_out.options["attempts"] == 2


def test_a_problem_keeps_its_task_id_wherever_its_row_stands(file):
    rows = [{"prompt": f"{n}+0?", "answer": str(n), "unique_id": f"sum/{n}"} for n in range(3)]
    for order in (rows, rows[::-1]):
        found = registry.tasks("math", {"eval": file(*order)}, "eval", 3)
        answers = {task.task_id: task.options["answer"] for task in found}
        assert answers == {f"math/eval/sum/{n}": str(n) for n in range(3)}
    twice = file(rows[0], rows[0] | {"answer": "9"})
    found = registry.tasks("math", {"eval": twice}, "eval", 2)
    assert [task.task_id for task in found] == ["math/eval/sum/0", "math/eval/sum/0#2"]


# ── judging ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1/2", "0.5"),
        (r"\frac{1}{2}", r"\dfrac12"),
        ("1300", r"1\,300"),
        ("1300", "1,300"),
        ("10", "1e1"),
        ("18", r"\$18.00"),
        ("18", "18."),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\pi/2)"),
        (r"\text{Evelyn}", "Evelyn"),
        ("p - q", "-q+p"),
        (r"2\sqrt{13}", r"\sqrt{52}"),
        ("10%", "10"),
    ],
)
def test_an_answer_in_another_notation_is_right(verifier, gold, answer):
    assert verifier.check(gold, answer) == "correct"


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("357", "3, 5, 7", "wrong"),
        ("2", "3", "wrong"),
        ("p - q", "q - p", "wrong"),
        ("2", "", "unreadable"),
        ("2", "(" * 500, "unreadable"),
        ("2", "x" * 5000, "unreadable"),
    ],
)
def test_a_wrong_answer_is_wrong(verifier, gold, answer, verdict):
    assert verifier.check(gold, answer) == verdict


def test_an_answer_that_never_ends_costs_its_worker_and_nothing_else(verifier, monkeypatch):
    assert verifier.check("2", "2") == "correct"
    monkeypatch.setattr(verifier, "cpu_s", 0.5)
    assert verifier.check("2", "9^{9^{9^{9}}}") == "timeout"
    assert verifier.counts["timeout"] == 1
    monkeypatch.undo()
    assert verifier.check("2", "1 + 1") == "correct"


def test_a_comparison_that_takes_too_long_earns_nothing_and_is_named(monkeypatch, file):
    env = registry.make("math", train=file({"prompt": "What is 1 + 1?", "answer": "2"}))
    env.reset(seed=0)
    monkeypatch.setattr(env.verifier, "check", lambda gold, answer: "timeout")
    text, reward, *_, info = env.step(r"\boxed{9^{9^{9}}}")
    assert (reward, info["fault"]) == (0.0, "verifier_timeout") and "cannot be read" in text
    env.close()


def test_a_worker_that_is_killed_is_replaced(verifier):
    verifier.check("2", "2")
    os.kill(verifier._workers[0].process.pid, signal.SIGKILL)
    assert verifier.check("2", "2") == "correct"


def test_a_reference_that_cannot_be_read_fails_the_attempt_by_name(verifier):
    with pytest.raises(EnvironmentFailed) as caught:
        verifier.check("", "2")
    assert caught.value.cause == "unreadable_reference"


def test_threads_share_the_pool(verifier):
    verdicts = {}
    threads = [
        threading.Thread(
            target=lambda n=n: verdicts.update({n: verifier.check(str(n), f"{n}.0")}), daemon=True
        )
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert verdicts == dict.fromkeys(range(20), "correct")


@pytest.mark.parametrize("name", ["gsm8k_test.jsonl", "math500.jsonl"])
def test_real_reference_answers_agree_with_themselves(verifier, name):
    problems = load("math", "eval", str(shared(name)))
    for problem in problems[::25]:
        for answer in (problem.answer, f" ${problem.answer}$.", rf"\boxed{{{problem.answer}}}"):
            assert verifier.check(problem.answer, answer) == "correct", (problem.answer, answer)


# ── play ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def half(file):
    """The environment on one problem, by options; posed."""
    pytest.importorskip("math_verify")
    path = file({"prompt": "What is 1/2 of 1?", "answer": "0.5", "solution": "One.\n\nHalf it."})
    made = []

    def make(**options):
        made.append(env := registry.make("math", train=path, **options))
        assert env.reset(seed=0)[0] == "What is 1/2 of 1?"
        return env

    yield make
    for env in made:
        env.close()


def test_an_attempt_may_be_made_again_until_none_is_left(half):
    env = half(attempts=2)
    assert env.step(r"\boxed{2}")[:3] == ("Incorrect. Try again, 1 attempt left.", 0.0, False)
    assert env.step(r"\boxed{\frac12}")[:3] == ("Correct.", 1.0, True)
    assert env.feedback() == "Answer 2 was right."
    env.reset(seed=0)
    for _ in range(2):
        last = env.step("no idea")
    assert last[1:4] == (0.0, True, False) and "No final answer was found" in last[0]
    assert env.step("again")[2]


def test_a_solution_by_paragraphs_goes_on_until_its_answer(half):
    env = half(step="paragraph", paragraphs=3)
    assert env.spec.stop == ["\n\n"] and env.spec.max_steps == 3
    assert env.step("One half is asked for.")[:4] == ("Continue.", 0.0, False, False)
    assert env.step(r"That is \boxed{1/2}.")[:4] == ("Correct.", 1.0, True, False)
    env.reset(seed=0)
    replies = [env.step("Hm.") for _ in range(3)]
    assert replies[-1][1:4] == (0.0, False, True)
    assert env.feedback() == "No final answer was given."


def test_a_wrong_answer_ends_a_solution_by_paragraphs(half):
    env = half(step="paragraph")
    assert env.step(r"\boxed{3}")[:3] == ("Incorrect.", 0.0, True)


@pytest.mark.parametrize("options", [{}, {"step": "paragraph", "paragraphs": 6}])
def test_real_problems_keep_the_promises_of_an_environment(options):
    pytest.importorskip("math_verify")
    data = {"train": str(shared("math500.jsonl"))}
    check_env("math", options=options | data)


def test_the_reference_never_stands_in_what_the_policy_reads(half):
    env = half(attempts=3)
    said = [env.step(rf"\boxed{{{n}}}")[0] for n in (1, 2, 3)] + [env.feedback()]
    assert not any("0.5" in text for text in said)
