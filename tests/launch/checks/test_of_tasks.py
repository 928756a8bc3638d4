"""The tasks whose first steps are tried, and what is refused because of them."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from envs.preflight import FirstStep
from launch.checks import of_tasks
from launch.checks.of_tasks import (
    asks_for_reflections,
    check_first_prompts,
    check_first_steps,
    check_reflections,
    first_tasks,
    try_first_steps,
)
from r3l.errors import UserError
from r3l.models.model_folder import read_tokenizer
from r3l.models.model_path import builtin_policy
from r3l.records import Task
from r3l.rollout.chat import ChatFormat
from r3l.run.config import load
from tests.launch.fakes import refused

CHAT = ChatFormat(read_tokenizer(builtin_policy(), ""))


def test_each_environment_brings_its_first_tasks() -> None:
    tasks = first_tasks(load(None, ["env.others.keys={}"]))
    assert {task.env for task in tasks} == {"workshop", "keys"} and len(tasks) == 4


def test_the_task_with_the_longest_options_is_tried_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("math_verify")
    rows = [{"prompt": "1 + 1?" + " please" * (n == 7), "answer": "2"} for n in range(9)]
    short, long = tmp_path / "short.jsonl", tmp_path / "long.jsonl"
    short.write_text(json.dumps(rows[0]))
    long.write_text("\n".join(map(json.dumps, rows)))
    tried = list[Task]()

    def try_tasks(env: object, tasks: Sequence[Task], chat: object) -> list[FirstStep]:
        tried[:] = tasks
        return [FirstStep(1, 1, 1)] * len(tasks)

    monkeypatch.setattr(of_tasks, "try_tasks", try_tasks)
    for train, evaluated, more, prompts in (
        (long, short, "env.train_tasks=9", 1),
        (long, short, "env.train_tasks=1", 0),
        (short, long, "eval.tasks=9", 1),
        (short, long, "eval.tasks=0", 0),
    ):
        data = f"env.options={{train: {train}, eval: {evaluated}}}"
        config = load(None, ["env=math", data, more])
        try_first_steps(config, first_tasks(config), CHAT)
        assert sum("please" in task.options["prompt"] for task in tried) == prompts


def test_a_context_that_the_first_prompt_fills_is_refused(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "wordy.py"
    file.write_text(
        "from envs import EnvSpec\n"
        "class Wordy:\n"
        "    spec, in_process = EnvSpec('wordy', '', max_steps=1), True\n"
        "    close = lambda self: None\n"
        "    reset = lambda self, **_: ('the tool is in the box ' * 20, {})\n"
        "    step = lambda self, action: ('done', 0.0, True, False, {})\n"
    )
    line = refused("--run", run, "--env", f"{file}:Wordy", "actor.max_model_len=64")
    assert "actor.max_model_len=64: the first prompt" in line and " wordy.py:Wordy/train/" in line
    assert "no room for a response" in line and not run.exists()
    with pytest.raises(UserError, match="context has 4096 tokens"):
        check_first_prompts(builtin_policy(), 100_000, [Task("t/1", "t", 1)], [5000])


def test_the_exact_probability_is_refused_in_an_environment_that_lists_no_answers(
    run: Path,
) -> None:
    line = refused("--run", run, "eval.exact=true")
    assert "eval.exact=true: env workshop lists no right answers of task workshop/eval/" in line
    one = "env.options={stations: 1, steps: 1}"
    config, tasks = load(None, ["eval.exact=true", one]), []
    tasks = first_tasks(config)
    steps = try_first_steps(config, tasks, CHAT)
    assert {step.answers for step in steps.values()} == {4}


def test_algorithms_that_ask_for_reflections_in_json_are_known() -> None:
    def asks(*settings: str) -> bool:
        return asks_for_reflections(load(None, settings).algorithm)

    assert asks() and asks("algorithm=reflect_grpo")
    assert not asks("algorithm.reflect=false")
    assert not asks("algorithm=critique_grpo") and not asks("algorithm=grpo")


@pytest.mark.parametrize("name", ["prefix_rl", "pope", "exit", "restart_from_success"])
def test_an_environment_inside_whose_attempts_nothing_can_start_is_refused(name: str) -> None:
    tasks = [Task("a/1", "a", 1), Task("b/1", "b", 1)]
    one, more = (FirstStep(1, 1, 1, most_steps=n) for n in (1, 3))
    agent, fleeting = FirstStep(0, 1, 1), FirstStep(1, 1, 1, replayable=False, most_steps=3)

    def check(*steps: FirstStep, algorithm: str = name) -> None:
        config = load(None, [f"algorithm={algorithm}", f"model={builtin_policy()}"])
        named = {task.task_id: step for task, step in zip(tasks, steps, strict=True)}
        check_first_steps(config, CHAT, tasks, named)

    for steps in ((more, more), (one, more), (one, agent)):
        check(*steps)
    with pytest.raises(UserError, match=f'algorithm={name}: .* env b declares deterministic="no"'):
        check(more, fleeting)
    with pytest.raises(UserError, match=f"algorithm={name}: .* attempts of env a have one step"):
        check(one, one)
    check(one, fleeting, algorithm="grpo")


@pytest.mark.parametrize("name", ["r3l", "rltf", "hill", "reflect_grpo", "critique_grpo"])
def test_retries_are_refused_where_no_attempt_can_go_back_to_an_earlier_step(name: str) -> None:
    task = Task("a/1", "a", 1)
    once = FirstStep(1, 1, 1, replayable=False, reentered=False, most_steps=3)
    saved = FirstStep(1, 1, 1, replayable=False, most_steps=3)

    def check(step: FirstStep, *settings: str) -> None:
        config = load(None, [f"algorithm={name}", f"model={builtin_policy()}", *settings])
        check_first_steps(config, CHAT, [task], {task.task_id: step})

    check(saved)
    with pytest.raises(UserError, match=f"algorithm={name}: retries .* env a declares .* no snap"):
        check(once)
    if name == "r3l":
        check(once, "algorithm.reflect=false")


@pytest.mark.parametrize("name", ["sdpo", "rlsd", "forward_kl", "grpo"])
def test_algorithms_without_retries_may_play_a_world_that_is_played_once(name: str) -> None:
    assert not of_tasks.makes_retries(load(None, [f"algorithm={name}"]).algorithm)


def test_a_world_can_be_re_entered_by_replay_or_by_its_snapshots(tmp_path: Path) -> None:
    body = (
        "from envs import EnvSpec\n"
        "class Once:\n"
        "    spec = EnvSpec('once', '', max_steps=2, deterministic='KIND')\n"
        "    in_process = True\n"
        "    close = lambda self: None\n"
        "    reset = lambda self, **_: ('go', {})\n"
        "    step = lambda self, action: ('done', 0.0, True, False, {})\n"
    )
    saves, found = "    snapshot = lambda self: b''\n    restore = lambda self, state: None\n", []
    for number, (kind, more) in enumerate((("exact", ""), ("no", saves), ("no", ""))):
        file = tmp_path / f"once_{number}.py"
        file.write_text(body.replace("KIND", kind) + more)
        config = load(None, [f"env={file}:Once"])
        tasks = first_tasks(config)
        found.append(try_first_steps(config, tasks, CHAT)[tasks[0].task_id].reentered)
    assert found == [True, True, False]


def test_a_reflection_that_cannot_fit_its_budget_or_the_context_is_refused(run: Path) -> None:
    line = refused("--run", run, "--env", "workshop", "actor.max_reflection_tokens=12")
    assert "actor.max_reflection_tokens=12: the shortest" in line
    config = load(None, ["actor.max_model_len=200"]).actor
    check_reflections(config, CHAT, [FirstStep(50, 8, 100)])
    with pytest.raises(UserError, match=r"reflection .*has 190 tokens"):
        check_reflections(config, CHAT, [FirstStep(50, 8, 190)])


def test_a_limit_that_no_attempt_fits_with_its_advice_is_refused(run: Path) -> None:
    line = refused("--run", run, "--env", "workshop", "algorithm=sdpo", "algorithm.reading_limit=9")
    assert "algorithm.reading_limit=9: the shortest first prompt has " in line
    assert line.rstrip().endswith("raise reading_limit") and not run.exists()
