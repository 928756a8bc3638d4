"""Tasksets of verifiers; test_verifiers_play.py plays real ones."""

import json
import sys
from pathlib import Path

import pytest

from envs import registry
from envs.agents import verifiers_taskset
from r3l.errors import UserError


def test_an_interpreter_without_verifiers_is_named() -> None:
    for call in (registry.make_any, registry.task_source):
        with pytest.raises(UserError, match=f"{sys.executable} cannot import verifiers"):
            call("verifiers:gsm8k")


def test_tasks_are_what_the_interpreter_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps({"index": n, "key": f"{n:0<64}"}) for n in range(2)]
    script = tmp_path / "lists.py"
    script.write_text(f"import sys\nif 'list' in sys.argv: print({chr(10).join(lines)!r})\n")
    monkeypatch.setattr(verifiers_taskset, "PLAY", script)
    monkeypatch.setattr(verifiers_taskset, "_run", verifiers_taskset._run.__wrapped__)
    config = {"taskset": {"split": "hard"}}
    (task,) = registry.tasks("verifiers:x", {"config": config}, "train", 1)
    given = task.options["task"]
    assert given["config"] == {"taskset": {"split": "hard", "id": "x"}}
    assert given["key"].startswith(task.task_id) and task.seed == given["index"]
    env = registry.make_any("verifiers:x")
    assert env.spec.name == "verifiers:x" and not registry.in_process("verifiers:x")
    script.write_text("")
    with pytest.raises(UserError, match="verifiers:x: has no tasks"):
        registry.task_source("verifiers:x")
