"""Panels: what is in their digests, how a file is checked, and those that are shipped."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from envs import registry
from envs.isolation.pool import environments_of_all
from launch.evaluation import panel as panels
from launch.evaluation.panel import (
    Panel,
    agreement,
    difference,
    main,
    panel_of,
    read_panel,
    read_shipped,
    shipped_difference,
    usual_panel,
    write_panel,
)
from r3l.errors import UserError
from r3l.run.settings.environment import EnvConfig
from tests.envs.shared_data import shared

WORLD = """
from envs import EnvSpec
class World:
    in_process = True
    def __init__(self, shown="door", limit=3, kind="exact"):
        self.shown, self.count = shown, 0
        self.spec = EnvSpec("world", "Go.", max_steps=limit, deterministic=kind)
    def reset(self, *, seed, options=None):
        self.count += 1
        if self.shown == "broken" and seed % 2:
            raise KeyError("no")
        return f"{self.shown} {seed}", {}
    def step(self, action): return "done", 1.0, True, False, {}
    def close(self): pass
"""


@pytest.fixture
def world(tmp_path: Path) -> str:
    (tmp_path / "world.py").write_text(WORLD)
    return f"{tmp_path / 'world.py'}:World"


def test_a_panel_is_the_same_every_time_and_of_its_tasks_alone(world: str) -> None:
    panel = usual_panel(world, tasks=5)
    assert panel == usual_panel(world, tasks=5) and len(panel.digest) == 16
    assert panel.tasks[0].id == "world.py:World/eval/000000"
    assert panel.facts == {
        "env": "world.py:World", "split": "eval", "tasks": 5, "digest": panel.digest,
    }  # fmt: skip
    fewer = usual_panel(world, tasks=4)
    assert fewer.tasks == panel.tasks[:4] and fewer.digest != panel.digest


@pytest.mark.parametrize("options", [{"shown": "gate"}, {"limit": 4}, {"kind": "canonical"}])
def test_a_changed_observation_limit_or_option_changes_the_digest(
    world: str, options: dict[str, object]
) -> None:
    assert usual_panel(world, options, 3).digest != usual_panel(world, {}, 3).digest


def test_paths_and_defaults_among_the_options_do_not_count(world: str) -> None:
    plain = usual_panel(world, {}, 3)
    assert usual_panel(world, {"limit": 3}, 3) == plain and plain.options == {}
    assert usual_panel(world, {"shown": "/data/here"}, 3).options == {}
    assert usual_panel(world, {"limit": 5}, 3).options == {world: {"limit": 5}}


@pytest.mark.parametrize(
    ("kind", "same", "other"),
    [("exact", "a b c", "a c b"), ("canonical", "c  a b", "a b d"), ("no", "anything", None)],
)
def test_only_what_repeats_of_an_observation_counts(
    world: str, kind: str, same: str, other: str | None
) -> None:
    def digest(shown: str) -> str:
        [task] = registry.tasks("keys", {}, "eval", 1)
        config = EnvConfig(name=world, options={"shown": shown, "kind": kind})

        async def made() -> Panel:
            async with environments_of_all(config, 1) as make_env:
                return await panel_of(config, "eval", [task], make_env)

        return asyncio.run(made()).tasks[0].digest

    assert digest(same) == digest("a b c")
    assert other is None or digest(other) != digest("a b c")


def test_a_task_that_cannot_be_opened_makes_the_panel_unknown(world: str, tmp_path: Path) -> None:
    panel = usual_panel(world, {"shown": "broken"}, 4)
    assert panel.digest == "" and panel.failed == 2
    with pytest.raises(UserError, match="2 of 4 tasks could not be opened"):
        write_panel(tmp_path / "panel.json", panel)
    assert not (tmp_path / "panel.json").exists()
    known = usual_panel(world, {"shown": "broken"}, 4)
    assert "cannot be checked: 2 of 4" in difference(panel, known)


def test_a_panel_file_reads_back_and_says_what_differs(world: str, tmp_path: Path) -> None:
    panel, file = usual_panel(world, tasks=4), tmp_path / "new" / "panel.json"
    write_panel(file, panel)
    known = read_panel(file)
    assert known == panel and difference(panel, known) == ""
    assert len(file.read_text().splitlines()) < 20
    said = {
        "is of the environment": usual_panel("keys", tasks=4),
        "has 4 tasks, and this evaluation only 3; give --tasks 4": usual_panel(world, tasks=3),
        "has 4 tasks, and this evaluation 5; give --tasks 4": usual_panel(world, tasks=5),
        "is of the env.options defaults": usual_panel(world, {"limit": 9}, 4),
    }
    for text, other in said.items():
        assert text in difference(other, known)
    moved = usual_panel(world, {"shown": "/x"}, 4)
    assert "differs in 4 of 4 tasks; the first is world.py:World/eval/000000" in difference(
        moved, known
    )


def test_a_differing_panel_is_refused_or_marked_and_never_silent(world: str) -> None:
    panel, known = usual_panel(world, tasks=2), usual_panel(world, tasks=3)
    assert agreement(panel, None, None, any_panel=False) == ""
    assert agreement(panel, Path("f"), panel, any_panel=False) == ""
    with pytest.raises(UserError, match=r"^--panel f: has 3 tasks, .*or add --any-panel"):
        agreement(panel, Path("f"), known, any_panel=False)
    assert agreement(panel, Path("f"), known, any_panel=True).startswith("--panel f: has 3 tasks")


@pytest.mark.parametrize(
    "text", ["", "nope", "[]", "{}", '{"panel": 1}', '{"digest": "x", "tasks": []}']
)
def test_a_file_that_is_no_panel_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "panel.json").write_text(text)
    with pytest.raises(UserError, match=r"--panel .*panel\.json: is not a panel"):
        read_panel(tmp_path / "panel.json")


def test_an_edited_panel_file_is_refused(world: str, tmp_path: Path) -> None:
    file = tmp_path / "panel.json"
    write_panel(file, usual_panel(world, tasks=3))
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values | {"tasks": values["tasks"][:2]}))
    with pytest.raises(UserError, match="does not match its own digest"):
        read_panel(file)
    with pytest.raises(UserError, match="cannot be read"):
        read_panel(tmp_path)


@pytest.mark.parametrize("name", sorted(read_shipped()))
def test_a_shipped_panel_still_holds(name: str) -> None:
    """If a world was changed on purpose: python -m launch.evaluation.panel > …/panels.json"""
    if name.startswith("reasoning:"):
        pytest.importorskip("reasoning_gym")
    panel = usual_panel(name)
    assert panel.digest == read_shipped()[name]["digest"]
    assert shipped_difference(panel) == ""


def test_a_changed_world_differs_from_its_shipped_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "read_shipped", lambda: {"keys": {"tasks": 3, "digest": "0" * 16}})
    panel = usual_panel("keys", tasks=3)
    assert "differs from the shipped panel of keys" in (shipped_difference(panel) or "")
    with pytest.raises(UserError, match=r"shipped panel of keys.*--any-panel"):
        agreement(panel, None, None, any_panel=False)
    assert shipped_difference(usual_panel("keys", tasks=4)) is None
    assert shipped_difference(usual_panel("keys", {"locks": 2}, 3)) is None
    assert shipped_difference(usual_panel("workshop", tasks=3)) is None


def test_the_text_of_the_shipped_file_is_printed_anew(capsys: pytest.CaptureFixture[str]) -> None:
    main(["keys"])
    assert json.loads(capsys.readouterr().out) == read_shipped()


def test_the_panel_of_alfworld_lists_its_unseen_games(tmp_path: Path) -> None:
    pytest.importorskip("alfworld", reason="pip install 'r3l[alfworld]'")
    data = os.environ.get("ALFWORLD_DATA") or str(shared("alfworld"))
    panel = usual_panel("alfworld", {"data": data})
    assert panel.digest and panel.options == {}
    assert all(task.id.startswith("alfworld/valid_unseen/") for task in panel.tasks)
    write_panel(tmp_path / "panel.json", panel)
    assert (
        difference(usual_panel("alfworld", {"data": data}), read_panel(tmp_path / "panel.json"))
        == ""
    )
