"""Every task of a user's list is reset to before a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from envs import openings as module
from envs.openings import openings
from envs.testing import check_env
from r3l.errors import UserError

TICKETS = """
from envs import ListedTasks, Task, json_lines
from r3l.rollout.env_interface import EnvSpec

class Tickets:
    in_process = True
    spec = EnvSpec("tickets", "Name the queue.", max_steps=1)
    def __init__(self, file=""): ...
    @staticmethod
    def task_source(file=""):
        tasks = [Task(f"line/{n}", "tickets", n, row) for n, row in enumerate(json_lines(file), 1)]
        return ListedTasks({"train": tasks[5:], "eval": tasks[:5]})
    def reset(self, *, seed, options=None):
        self.queue = options["queue"]
        return options["text"], {}
    def step(self, action):
        return "Done.", float(action == self.queue), True, False, {}
    def close(self): ...
"""


def tickets(folder: Path, rows: list[dict[str, Any]], code: str = TICKETS) -> tuple[str, Any]:
    (folder / "tickets.py").write_text(code)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return f"{folder / 'tickets.py'}:Tickets", {"file": str(folder / "rows.jsonl")}


def rows(number: int = 40) -> list[dict[str, Any]]:
    return [{"text": f"ticket {n}", "queue": "login"} for n in range(1, number + 1)]


def test_each_task_begins_with_its_text(tmp_path: Path) -> None:
    seen = openings(*tickets(tmp_path, rows()))
    assert len(seen) == 40 and seen["line/37"] == "ticket 37"


def test_a_row_that_lacks_a_key_is_named(tmp_path: Path) -> None:
    bad = rows()
    del bad[36]["queue"]
    name, options = tickets(tmp_path, bad)
    with pytest.raises(UserError, match=r"reset to task line/37 raised KeyError: 'queue' \(.*py:1"):
        openings(name, options)
    with pytest.raises(AssertionError, match=r"^reset to task line/37 raised KeyError"):
        check_env(name, options=options)


def test_a_row_whose_text_is_none_is_named(tmp_path: Path) -> None:
    bad = rows()
    bad[11]["text"] = None
    with pytest.raises(UserError, match="reset to task line/12: tickets: observation "):
        openings(*tickets(tmp_path, bad))


def test_only_a_quick_class_with_a_list_is_reset(tmp_path: Path, monkeypatch: Any) -> None:
    given = tickets(tmp_path, rows(), TICKETS.replace("in_process = True", "pass"))
    assert openings(*given) == {} == openings("countdown", {}) == openings("workshop", {})
    monkeypatch.setattr(module, "MOST_S", -1.0)
    (tmp_path / "b").mkdir()
    assert openings(*tickets(tmp_path / "b", rows())) == {}
