"""The preflight of an environment before a run."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from envs.preflight import FirstStep, try_tasks
from envs.registry import tasks
from r3l.errors import UserError
from r3l.records import Task
from r3l.rollout.chat import ChatFormat
from r3l.run.settings.environment import EnvConfig
from tests.r3l.fakes import CharTokenizer

MINE = """
import os, sys, time
from r3l.rollout.env_interface import EnvSpec

class Mine:
    spec = EnvSpec("mine", "Sum up.", max_steps=3)
    in_process = {in_process}

    def reset(self, *, seed, options=None):
        {reset}
        return "1 + 1 = ?", {{}}

    def step(self, action):
        {step}
        return "no", 0.0, True, False, {{}}

    def close(self):
        pass
"""


def mine(folder: Path, *, reset: str = "pass", step: str = "pass", in_process: bool = True) -> str:
    file = folder / "mine.py"
    file.write_text(MINE.format(reset=reset, step=step, in_process=in_process))
    return f"{file}:Mine"


def tried(name: str, **limits: float) -> list[FirstStep]:
    config = EnvConfig(name=name, **limits)  # type: ignore[arg-type]
    found: list[Task] = [*tasks(name, {}, "train", 1), *tasks(name, {}, "eval", 1)]
    return try_tasks(config, found, ChatFormat(CharTokenizer()))


def test_the_tokens_of_each_first_prompt_are_told(tmp_path: Path) -> None:
    chat = ChatFormat(CharTokenizer())
    prompt = len(chat.open("Sum up.", "1 + 1 = ?")) + len(chat.prompt_ids)
    first, second = tried(mine(tmp_path))
    assert (first.prompt, first.budget) == (prompt, 512) and first == second
    assert first.reflection_prompt > prompt + len("step 0 sees: 1 + 1 = ?")


@pytest.mark.parametrize("in_process", [True, False])
def test_a_notebook_can_start_a_run_from_within_its_own_loop(
    tmp_path: Path, in_process: bool
) -> None:
    async def cell() -> list[int]:
        return tried(mine(tmp_path, in_process=in_process))

    assert len(asyncio.run(cell())) == 2


@pytest.mark.parametrize("in_process", [True, False])
@pytest.mark.parametrize(
    ("where", "what", "named"),
    [
        ("reset", "raise ValueError('no data')", "raised ValueError: no data (FILE:10)"),
        ("step", "int(action)", "base 10: 'try' (FILE:14)"),
        ("step", "sys.exit(3)", ""),
        ("reset", "return None", " NoneType instead of a tuple of 2 values"),
    ],
)
def test_what_a_reset_or_step_raises_is_told_with_the_task_and_the_line_of_the_users_code(
    tmp_path: Path, where: str, what: str, named: str, in_process: bool
) -> None:
    name = mine(tmp_path, in_process=in_process, **{where: what})  # type: ignore[arg-type]
    with pytest.raises(UserError) as caught:
        tried(name)
    call = "reset" if where == "reset" else "step('try')"
    assert str(caught.value).startswith(f"env {name}: {call} of task mine.py:Mine/train/000000: ")
    assert str(caught.value).endswith(named.replace("FILE", str(tmp_path / "mine.py")))


def test_a_reset_that_raises_only_for_evaluation_tasks_is_found(tmp_path: Path) -> None:
    name = mine(tmp_path, reset="assert seed < 200_000_000, 'unknown seed'")
    with pytest.raises(UserError, match=r"reset .*/eval/000000: .*unknown seed"):
        tried(name)


def test_an_environment_that_hangs_or_crashes_costs_the_preflight_only_its_process(
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match=r"1 s \(env.step_s\)"):
        tried(mine(tmp_path, reset="time.sleep(60)", in_process=False), step_s=1)
    (tmp_path / "crash").mkdir()
    with pytest.raises(UserError, match="ended the worker process"):
        tried(mine(tmp_path / "crash", step="os.abort()", in_process=False))


@pytest.mark.parametrize(
    ("step", "paid"),
    [
        ("return '', float(action in '2'), True, False, {}", 1.0),
        ("return '', 1.0, True, False, {}", 1.0),
        ("return '', float(action == '2'), True, False, {}", 0.0),
        ("return '', 1.0, False, False, {}", 0.0),
        ("return '', -0.5, True, False, {}", -0.5),
        ("return '', 1 / len(action), True, False, {}", 0.0),
    ],
)
def test_what_an_empty_response_earns_is_told(tmp_path: Path, step: str, paid: float) -> None:
    assert [one.for_nothing for one in tried(mine(tmp_path, step=step))] == [paid, paid]


@pytest.mark.parametrize("in_process", [True, False])
def test_a_reset_that_does_not_depend_on_its_seed_alone_is_refused(
    tmp_path: Path, in_process: bool
) -> None:
    reset = "return str(time.monotonic_ns()), {}"
    name = mine(tmp_path, reset=reset, in_process=in_process)
    with pytest.raises(UserError, match=r'two resets .*deterministic="no"'):
        tried(name)
    file = tmp_path / "mine.py"
    file.write_text(file.read_text().replace("max_steps=3", 'max_steps=3, deterministic="no"'))
    if not in_process:  # the module is imported once in this process
        assert len(tried(name)) == 2


def test_an_agents_tasks_are_prepared(tmp_path: Path) -> None:
    """Its first prompt is not known before it calls; what asks for a reflection is."""
    chat = ChatFormat(CharTokenizer())
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": 1}))
    (folder := tmp_path / "files").mkdir()
    options = {"command": "true", "tasks": f"{tmp_path}/tasks.jsonl", "workspace": str(folder)}
    config = EnvConfig(name="agent", options=options)
    found = tasks("agent", options, "train", 1)
    (step,) = try_tasks(config, found, chat)
    assert (step.prompt, step.budget) == (0, 1024) and step.reflection_prompt > 100
    os.mkfifo(folder / "pipe")  # which cannot be copied
    with pytest.raises(UserError, match=r"env agent: prepare of task 1: .*pipe"):
        try_tasks(config, found, chat)
