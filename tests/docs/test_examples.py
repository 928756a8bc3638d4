"""The files of `examples/` keep the promises of an environment and can be warmed up."""

import ast
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from buffer.sampling.live_sampler import LiveSampler
from buffer.sampling.samplers import random_source
from buffer.storage.stored_rows import GroupRow
from envs import registry
from envs.base import Skill
from envs.demonstrations import demonstrating, warmup_tasks
from envs.testing import check_env
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch
from r3l.algorithms.rehearsal.rehearse import rehearse
from r3l.errors import UserError
from r3l.records import GroupPlan
from r3l.run.config import load
from r3l.run.settings.buffer_sampling import SamplerConfig
from tests.r3l.algorithms.fakes import group_of
from tests.r3l.rollout.fakes import always_right, explored, learner_of_advice, reflection

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NAMES = {"door.py": "Door", "own_questions.py": "Questions", "two_rewards.py": "Sums"}


@pytest.fixture
def options(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The options that an example needs."""
    file = tmp_path / "questions.jsonl"
    asked = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(30)]
    asked[3]["question"] = "3\u2028+\u20853?"  # ends no line
    rows = "\n".join(json.dumps(row, ensure_ascii=False) for row in asked)
    file.write_text(f"\ufeff{rows}\n\n", encoding="utf-8")
    return {"own_questions.py": {"file": str(file)}}


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        *NAMES,
        "own_algorithm.py",
        "surprise.py",
        "two_pivots.py",
    }


def test_the_file_to_copy_has_every_method_and_changes_nothing() -> None:
    given = load(None, [f"algorithm={EXAMPLES / 'own_algorithm.py'}:OwnAlgorithm"]).algorithm
    rehearse(given)
    plain, written = Algorithm(), vars(type(given).__base__)
    for method in ("plan", "admits", "recalls", "explore", "queries", "rows", "loss"):
        assert method in written, method
    policy = learner_of_advice(reflection(step=2))
    slots, _ = explored(policy, "algorithm=grpo", "algorithm.group_size=8")
    played = [replace(slot.trajectory, reward=slot.slot / 8) for slot in slots]
    batch = Batch([group_of(played)])
    found = list(zip(given.rows(batch), plain.rows(batch), strict=True))
    assert any(own.advantages.any() for own, _ in found)
    for own, default in found:
        for name, value in vars(default).items():
            assert np.array_equal(getattr(own, name), value), name


def test_a_sampler_of_ones_own_picks_what_surprised_and_what_nobody_knows() -> None:
    name = f"{EXAMPLES / 'surprise.py'}:Surprise"
    live = LiveSampler(SamplerConfig(name=name, own={"temperature": 0.0, "unknown": 0.5}))
    made = GroupRow("g1", "t", 0, GroupPlan(1), "complete")
    rows = [made.with_changes(group_id=f"g{n}", priority=p) for n, p in enumerate((0.1, None, 9.0))]
    picks = live.pick(rows, 2, random_source(0, 0))
    assert [pick.row.group_id for pick in picks] == ["g2", "g1"]


def test_two_retries_of_each_failure_begin_at_the_pivot_and_at_half_of_it() -> None:
    name = f"{EXAMPLES / 'two_pivots.py'}:TwoPivots"
    rehearse(load(None, [f"algorithm={name}"]).algorithm)
    policy = learner_of_advice(reflection(step=2))
    slots, thoughts = explored(policy, f"algorithm={name}", "algorithm.group_size=6")
    found = [(slot.of, slot.trajectory.pivot) for slot in slots if slot.trajectory]
    assert found == [(-1, -1), (-1, -1), (0, 2), (0, 1), (1, 2), (1, 1)]
    assert set(thoughts) == {"reflect-0", "reflect-1"}  # each is asked for once
    policy.reply = always_right
    slots, _ = explored(policy, f"algorithm={name}", "algorithm.group_size=6")
    assert [slot.cause for slot in slots] == ["", "", *["not_reflected"] * 4]
    with pytest.raises(UserError, match="group_size"):
        load(None, [f"algorithm={name}", "algorithm.group_size=8"])


@pytest.mark.parametrize("file", NAMES)
def test_an_example_keeps_the_promises_of_an_environment_and_can_be_warmed_up(
    file: str, options: dict[str, dict[str, Any]]
) -> None:
    name, given = f"{EXAMPLES / file}:{NAMES[file]}", options.get(file, {})
    check_env(name, options=given)
    assert registry.in_process(name)
    env = demonstrating(name, **given)
    for task in warmup_tasks(name, given, 10):
        env.reset(seed=task.seed, options=dict(task.options))
        assert env.step(env.demonstrate(Skill(), random.Random(0)))[1:3] == (1.0, True)


def test_own_data_are_split_and_own_prompts_are_shown(options: dict[str, dict[str, Any]]) -> None:
    name, given = f"{EXAMPLES}/own_questions.py:Questions", options["own_questions.py"]
    train = registry.tasks(name, given, "train", 99)
    held_out = registry.tasks(name, given, "eval", 99)
    assert (len(train), len(held_out)) == (27, 3)
    assert not {task.task_id for task in train} & {task.task_id for task in held_out}
    assert "hint" in registry.make(name, **given).spec.prompts["guidance"]


def test_parts_of_a_reward_are_named_in_info() -> None:
    env = registry.make(f"{EXAMPLES}/two_rewards.py:Sums")
    env.reset(seed=1)
    _, reward, *_, info = env.step("I do not know")
    assert reward == -0.2 and info["rewards"] == {"answer": 0.0, "form": -0.2, "length": -0.0}


def test_the_page_shows_the_door_of_the_examples(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "environments" / "your-own.md").read_text("utf-8")
    shown, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "door.py").write_text(shown)
    check_env(f"{tmp_path}/door.py:Door")
    spec = r"EnvSpec\((.*?)\n    \)"
    example = (EXAMPLES / "door.py").read_text("utf-8")
    assert re.search(spec, shown, re.DOTALL)[1] == re.search(spec, example, re.DOTALL)[1]  # type: ignore[index]
    assert ast.parse(shown)
