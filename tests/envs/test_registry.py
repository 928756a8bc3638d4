"""Names and options of environments, and classes of the user's own."""

import sys

import pytest

from envs import registry
from r3l.errors import UserError
from r3l.run.config import load


def test_an_unknown_environment_is_one_line_that_lists_the_known_ones():
    with pytest.raises(UserError, match=r"env 'alfwurld': .*mean alfworld.*workshop") as caught:
        registry.make("alfwurld")
    assert "\n" not in str(caught.value)


def test_an_unknown_option_names_itself_and_the_known_ones():
    with pytest.raises(UserError, match=r"workshop\.station: unknown; .*stations"):
        registry.make("workshop", station=4)


@pytest.mark.parametrize(
    "options", [{"stations": 0}, {"stations": 13}, {"steps": 4}, {"items": True}]
)
def test_a_setting_out_of_range_is_refused_with_the_range(options):
    with pytest.raises(UserError, match=rf"option {next(iter(options))} is .* integer in"):
        registry.make("workshop", **options)


def test_the_tasks_of_a_run_are_those_of_all_its_environments_as_many_of_each():
    several = load(None, ["env.others.keys={}"]).env
    for count, of_each in ((5, (2, 3)), (4, (2, 2))):
        names = [task.env for task in registry.tasks_of_all(several, "train", count)]
        assert (names.count("workshop"), names.count("keys")) == of_each
    with pytest.raises(UserError, match=r"1 train tasks .*2 environments"):
        registry.tasks_of_all(several, "train", 1)
    alone = load(None, []).env
    assert registry.tasks_of_all(alone, "eval", 3) == registry.tasks("workshop", {}, "eval", 3)


def test_a_task_of_several_environments_names_the_one_that_plays_it(tmp_path):
    (tmp_path / "door.py").write_text(NAMELESS)
    path = f"{tmp_path}/door.py:Door"
    config = load(None, [f"env={path}", "env.others.keys={}"]).env
    assert [t.env for t in registry.tasks_of_all(config, "train", 2)] == [path, "keys"]
    clash = load(None, [f"env={path}", f'env.others={{"{path[:-4]}Same": {{}}}}']).env
    with pytest.raises(UserError, match=r"two environments .*task one;"):
        registry.tasks_of_all(clash, "train", 2)


TYPED = """
class Door:
    def __init__(self, wide: bool = False, high=2, far: "float" = 1.0, named: str = "", any=None):
        pass
"""


def test_text_for_a_number_or_a_truth_is_refused_by_the_option(tmp_path):
    (tmp_path / "typed.py").write_text(TYPED)
    path = f"{tmp_path}/typed.py:Door"
    for option, text, rule in (
        ("wide", "no", "true or false"),
        ("high", "1:30", "a whole number"),
        ("far", "1_0.5", "a number"),
    ):
        with pytest.raises(
            UserError, match=rf"typed.py:Door.{option}: must be {rule}, not .*{text}"
        ):
            registry.task_source(path, **{option: text})
    registry.task_source(path, named="no", any="no", wide=True, high=3, far=2)


def test_the_tasks_of_an_own_class_are_the_same_in_every_folder(tmp_path):
    ids = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "typed.py").write_text(TYPED)
        ids.append(
            [t.task_id for t in registry.tasks(f"{tmp_path}/{place}/typed.py:Door", {}, "train", 3)]
        )
    assert ids[0] == ids[1] and ids[0][0].startswith("typed.py:Door/train/")


NAMELESS = """
from envs.base import ListedTasks, Task

class Door:
    @classmethod
    def task_source(cls, **options):
        return ListedTasks({"train": [Task("one", "", 0)]})

class Same(Door):
    pass
"""
DOOR = """
class Door:
    from r3l.rollout.env_interface import EnvSpec
    spec = EnvSpec("door", "Say open.", max_steps=3)

    def __init__(self, word="open"):
        self.word = word

    def reset(self, *, seed, options=None):
        return f"door {seed}", {}

    def step(self, action):
        right = action == self.word
        return "it opens" if right else f"{action!r}? it stays shut", float(right), right, False, {}

    def close(self):
        pass
"""


def test_a_users_own_class_is_named_by_its_file(tmp_path):
    file = tmp_path / "door.py"
    file.write_text(DOOR)
    env = registry.make(f"{file}:Door", word="sesame")
    assert env.step("sesame")[1] == 1.0
    task = registry.task_source(f"{file}:Door").tasks("train", 1)[0]
    assert task.env == f"{file}:Door" and not registry.in_process(f"{file}:Door")


def test_a_users_own_class_may_declare_that_it_runs_inside_the_actor(tmp_path):
    file = tmp_path / "door.py"
    file.write_text(DOOR + "\n    in_process = True\n")
    assert registry.in_process(f"{file}:Door")


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        (DOOR, "gate.py:Gate", "file .*gate.py does not exist"),
        (DOOR, "door.py:Gate", "door.py defines no class 'Gate'"),
        ("import nosuchthing", "door.py:Door", "importing it raised ModuleNotFoundError"),
        ("def (", "door.py:Door", "importing it raised SyntaxError"),
        ("class Door: pass", "door.py:Door", "needs spec, reset, step and close"),
        (DOOR.replace("self.word = word", "1 / 0"), "door.py:Door", "raised ZeroDivisionError"),
    ],
)
def test_a_users_class_that_cannot_be_used_is_one_line(tmp_path, text, name, line):
    (tmp_path / "door.py").write_text(text)
    with pytest.raises(UserError, match=line) as caught:
        registry.make(f"{tmp_path}/{name}")
    assert "\n" not in str(caught.value)


def test_a_source_without_tasks_is_refused(tmp_path):
    file = tmp_path / "door.py"
    file.write_text(
        DOOR + "\n    @staticmethod\n    def task_source():\n"
        "        from envs import ListedTasks\n        return ListedTasks({})\n"
    )
    with pytest.raises(UserError, match="train split has no"):
        registry.tasks(f"{file}:Door", {}, "train", 5)


def test_an_error_of_a_task_source_names_the_users_line(tmp_path):
    file = tmp_path / "door.py"
    for source in ("1 / 0", "return iter(3)", "ListedTasks({'train': [Task('', 'd', 0)]})"):
        body = f"from envs import ListedTasks, Task\n{DOOR}\n    @staticmethod\n"
        file.write_text(f"{body}    def task_source():\n        {source}\n")
        line = len(file.read_text().splitlines())
        with pytest.raises(UserError, match=rf"door\.py:Door: .* \(.*door\.py:{line}\)$"):
            registry.tasks(f"{file}:Door", {}, "train", 5)
        sys.modules.pop("r3l_user_door")


def test_an_error_of_r3ls_own_environment_names_no_line():
    with pytest.raises(UserError) as caught:
        registry.make("keys", locks="many")
    assert ".py" not in str(caught.value)


def built_in() -> list[str]:
    """The environments that need no other package and have a demonstrator."""
    return [
        name for name, place in registry.ENVIRONMENTS.items() if place.startswith("envs.builtin.")
    ]


@pytest.mark.parametrize("name", built_in())
def test_the_built_in_worlds_play_inside_the_actor(name):
    assert registry.in_process(name)
