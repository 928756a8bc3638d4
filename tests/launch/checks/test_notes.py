"""What a user should know about a run that can start."""

import json
from pathlib import Path
from typing import Any

import pytest

from envs.preflight import FirstStep
from launch.checks import notes as module
from launch.checks.notes import notes
from r3l.models.model_path import builtin_policy
from r3l.run.config import load
from tests.envs.agents.task_folders.folders import made
from tests.envs.agents.task_folders.test_private_view import pytestmark as needs_views

EXAMPLES = Path(__file__).parents[3] / "examples"


def lines(*overrides: str) -> list[str]:
    return list(notes(load(None, [f"model={builtin_policy()}", *overrides]), openings={}))


def test_a_context_that_the_model_lacks_is_told() -> None:
    most = json.loads((builtin_policy() / "config.json").read_bytes())["max_position_embeddings"]
    assert lines(f"actor.max_model_len={most}") == []
    (line,) = lines(f"actor.max_model_len={most * 2}")
    assert f"context of {most} tokens" in line


@pytest.mark.parametrize(
    ("flags", "told"),
    [("sse2 avx2", 1), ("avx2 avx512f", 0), ("avx2 avx_ne_convert", 0), ("bf16", 0)],
)
def test_bfloat16_on_a_processor_without_it_is_told(
    flags: str, told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CPU", tmp_path / "cpuinfo")
    monkeypatch.setattr(module, "visible_gpus", list)
    (tmp_path / "cpuinfo").write_text(f"flags\t: fpu {flags} sha_ni\n")
    named = [line for line in lines("learner.compute=bfloat16") if "float32" in line]
    assert len(named) == told and all("learner.compute=bfloat16: this" in line for line in named)
    assert lines() == []


def test_starts_inside_stored_attempts_need_tasks_that_come_twice() -> None:
    few = ("learner.steps=4", "learner.groups_per_step=8", "env.train_tasks=32")
    (line,) = lines("algorithm=prefix_rl", *few)
    assert line.startswith("algorithm=prefix_rl: starts inside stored attempts")
    assert "the run's 32 groups are at 32 tasks (env.train_tasks)" in line
    assert lines("algorithm=prefix_rl", *few[:2], "env.train_tasks=31") == []
    assert lines("algorithm=exit", "algorithm.share=0", *few) == lines("algorithm=grpo", *few) == []


def test_more_groups_in_a_step_than_training_tasks_are_told() -> None:
    few = "learner.groups_per_step=8"
    (line,) = lines(few, "env.train_tasks=5")
    assert line.startswith("learner.groups_per_step=8: there are 5 training tasks, so each step ")
    assert line.endswith("give more tasks (env.train_tasks)")
    assert lines(few, "env.train_tasks=8") == []
    both = lines("learner.groups_per_step=1", "env.others={keys: {}}")
    assert not [line for line in both if "groups_per_step" in line]


def test_a_question_that_pays_an_empty_response_is_told() -> None:
    steps = {"t/2": FirstStep(9, 9, 9, for_nothing=0.5), "t/1": FirstStep(9, 9, 9, for_nothing=1.0),
             "t/3": FirstStep(9, 9, 9, for_nothing=-1.0)}  # fmt: skip
    config = load(None, [f"model={builtin_policy()}"])
    (line,) = notes(config, steps)
    assert line.startswith("task t/1: an empty response earns 1 of a full success, and so it is ")
    assert list(notes(config, {"t/3": steps["t/3"]})) == []


def test_the_longest_first_prompt_says_when_it_leaves_less_than_half_of_a_response() -> None:
    steps = {"t/1": FirstStep(3000, 512, 10), "t/2": FirstStep(3900, 512, 10)}

    def told(*overrides: str) -> list[str]:
        config = load(None, [f"model={builtin_policy()}", *overrides])
        return [line for line in notes(config, steps) if "first prompt" in line]

    (line,) = told()
    assert "t/2 leaves 196 of the 512 " in line
    assert told("actor.max_response_tokens=300") == []
    (line,) = told("actor.max_model_len=1000")
    assert "leaves 0 of" in line


def test_evaluation_problems_that_are_trained_on_are_counted(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    rows = [{"prompt": f"{n} + {n}?", "answer": str(2 * n)} for n in range(12)]
    for name, some in (("train", rows[:9]), ("eval", rows[6:])):
        (tmp_path / name).write_text("\n".join(map(json.dumps, some)))
    data = [f"env.options.{name}={tmp_path / name}" for name in ("train", "eval")]
    told = [line for line in lines("env=math", *data) if "the same problem" in line]
    assert len(told) == 1 and told[0].startswith("3 of 6 evaluation tasks")
    assert not any("the same problem" in line for line in lines("env=countdown"))


def test_evaluation_tasks_that_begin_as_a_training_task_are_counted(tmp_path: Path) -> None:
    """Although each row has a seed and an id of its own."""
    rows = [{"question": f"{n % 12}?", "answer": "1", "id": str(n)} for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    env = f"env={EXAMPLES / 'own_questions.py'}:Questions"
    data = f"env.options.file={tmp_path / 'rows.jsonl'}"
    config = load(None, [env, data, f"model={builtin_policy()}"])
    told = [line for line in notes(config, openings={}) if "as a training task" in line]
    assert told == []
    openings = {f"q/{n}": row["question"] for n, row in enumerate(rows)}
    (line,) = (line for line in notes(config, {}, openings) if "as a training task" in line)
    assert line.startswith("1 of 2 evaluation tasks begin with the same text as a training task")
    alike = dict.fromkeys(openings, "Guess my number.")
    assert not [line for line in notes(config, {}, alike) if "as a training task" in line]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ((), 1),
        (("env.train_tasks=959",), 0),
        (("env.train_tasks=960",), 1),
        (("env.train_tasks=960", "learner.steps=61"), 0),
        (("algorithm.recall_count=0",), 1),
        (("algorithm.reflection=false",), 1),
        (("algorithm.reflection=false", "algorithm.recall_count=0"), 0),
        (("learner.steps=0",), 0),
        (("algorithm=grpo",), 0),
    ],
)
def test_r3_says_once_if_no_task_comes_again(settings: tuple[str, ...], told: int) -> None:
    """Of 60 steps of 16 groups."""
    found = [line for line in lines("algorithm=r3", *settings) if "comes once" in line]
    assert len(found) == told
    assert all("reflects on them, at the same task, but the run's 960 groups" in x for x in found)


def agent_of(folder: Path, *more: str, **options: Any) -> list[str]:
    """The notes on a run of an agent whose tasks have an answer."""
    (folder / "tasks.jsonl").write_text('{"id": 1, "question": "q", "answer": "a"}')
    (folder / "grade.py").write_text("def grade(task, calls):\n    return 0\n")
    given = {"command": "true {question}", "tasks": f"{folder}/tasks.jsonl"} | options
    return lines("env=agent", f"env.options={json.dumps(given)}", *more)


def test_fields_that_only_the_grader_sees_are_told_once(tmp_path: Path) -> None:
    reward = f"{tmp_path}/grade.py:grade"
    told = [line for line in agent_of(tmp_path, reward=reward) if "grader alone" in line]
    assert told == [
        "env agent: the tasks' answer is shown to the grader alone, and question to the agent too; "
        "env.options.hidden=[...] lists the fields that the agent does not see"
    ]
    for options in ({}, {"reward": reward, "hidden": ["answer"]}):
        assert not [line for line in agent_of(tmp_path, **options) if "grader alone" in line]


def test_a_field_of_the_command_that_no_task_has_is_told(tmp_path: Path) -> None:
    assert not [line for line in agent_of(tmp_path) if "no field" in line]
    (told,) = (line for line in agent_of(tmp_path, command="true {qestion}") if "no field" in line)
    assert "{qestion}, which is no field of the tasks (answer, id, question)" in told


@needs_views
def test_task_folders_that_run_without_their_container_are_told(tmp_path: Path) -> None:
    made(tmp_path, "one", dockerfile="FROM a\nWORKDIR /app\nRUN make\n")
    made(tmp_path, "two")
    given = {"command": "true", "tasks": str(tmp_path), "unsandboxed": True}
    told = [line for line in lines("env=agent", f"env.options={json.dumps(given)}")
            if "container" in line]  # fmt: skip
    assert told == [
        "env agent: agent and tests of 2 task folders run as your user, without a container "
        "(env.options.unsandboxed); RUN is not followed in the Dockerfile of one"
    ]


def test_variables_that_agents_do_not_get_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "x")
    monkeypatch.setenv("LLM_BASE_URL", "http://x")
    (line,) = (line for line in agent_of(tmp_path) if "do not get" in line)
    assert "LLM_BASE_URL, MY_TOKEN" in line and "env.pass_environment" in line
    told = agent_of(tmp_path, "env.pass_environment=['*']")
    assert not any("do not get" in line for line in told)
    assert lines() == []  # the built-in world is played inside the actor
