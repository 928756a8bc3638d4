"""The Python of docs/library.md and of the README runs as it stands there."""

import re
from pathlib import Path

import pytest

from r3l.records import GroupPlan
from tests.buffer.fakes import Served

ROOT = Path(__file__).parents[2]
TASKS = 'r3l.tasks("workshop", 200)'


def blocks(page: str) -> list[str]:
    """The Python of a page, block by block."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


@pytest.mark.system
def test_the_library_page_runs_from_top_to_bottom(tmp_path, capsys) -> None:
    import torch

    import r3l

    page = blocks("docs/library.md")
    served = Served(tmp_path / "store")
    names = {"torch": torch, "endpoint": served.endpoint}
    try:
        for number, block in enumerate(page):
            if number == 0:  # a twentieth of its tasks
                assert TASKS in block
                block = block.replace(TASKS, TASKS.replace("200", "10"))
            if "endpoint" in block:
                fill(served, names["r3l"])
            exec(compile(block, f"docs/library.md, block {number}", "exec"), names)
    finally:
        served.stop()
    assert capsys.readouterr().out.count("[") >= 20
    assert isinstance(names["group"], r3l.Group)


def fill(served, r3l) -> None:
    """Explores two groups and puts them into the buffer, as an actor does."""
    import asyncio

    policy = r3l.LocalPolicy("builtin")
    with r3l.BufferClient(served.endpoint, name="actor") as client:
        client.add_tasks(r3l.tasks("workshop", 2))
        client.set_version(0)
        for _ in range(2):
            lease = client.lease("actor", 0, GroupPlan(8))
            group = asyncio.run(
                r3l.explore(r3l.R3L(), lease.task, policy, "workshop", plan=lease.plan)
            )
            client.put(lease.group_id, "actor", [*group.results, *group.reflections])


def test_the_ten_lines_of_the_readme_are_those_of_the_library_page() -> None:
    assert blocks("docs/library.md")[0] in blocks("README.md")
