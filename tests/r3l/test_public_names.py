"""The public names of `import r3l`."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import r3l
from r3l.algorithms.registry import REGISTRY

ROOT = Path(r3l.__file__).parents[1]


def python(code: str, folder: Path) -> str:
    """What `code` prints, run in `folder` as in a notebook: the folder is first on the path."""
    code = f"import sys; sys.path.insert(1, {str(ROOT)!r}); {code}"
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    return ran.stdout + ran.stderr.strip().rpartition("\n")[2]


def test_every_public_name_is_there_and_another_is_refused_with_the_list() -> None:
    for name in r3l.PUBLIC:
        assert getattr(r3l, name) is not None and name in dir(r3l)
    with pytest.raises(AttributeError, match=r"no 'Bufer'; .*BufferClient"):
        _ = r3l.Bufer


def test_a_type_checker_finds_the_same_names_in_the_same_modules() -> None:
    found, renamed = {}, {}
    for node in ast.parse((ROOT / "r3l" / "__init__.pyi").read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.name: node.module for alias in node.names}
        elif isinstance(node, ast.Assign):  # an import by another name would be private
            renamed[node.targets[0].id] = node.value.id
    assert renamed == r3l.RENAMED
    assert found == {r3l.RENAMED.get(name, name): module for name, module in r3l.PUBLIC.items()}


def test_every_algorithm_that_has_a_name_is_public() -> None:
    assert {kind.__name__ for kind in REGISTRY.values()} <= set(r3l.PUBLIC)


def test_a_library_that_fails_is_named_by_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def transformers_like(module: str) -> None:
        try:
            raise RuntimeError("operator torchvision::nms does not exist")
        except RuntimeError as error:
            raise ModuleNotFoundError("Could not import module 'X'") from error

    monkeypatch.delitem(vars(r3l), "Trainer", raising=False)
    monkeypatch.setattr(r3l, "import_module", transformers_like)
    said = r"r3l\.Trainer cannot be imported \(RuntimeError: operator torchvision::nms .*\); rein"
    with pytest.raises(ImportError, match=said):
        _ = r3l.Trainer


def test_dir_shows_what_is_offered_and_nothing_else() -> None:
    assert r3l.Task and dir(r3l) == sorted(r3l.PUBLIC) == sorted(r3l.__all__)


def test_a_notebook_may_lie_beside_modules_with_the_names_of_ours(tmp_path: Path) -> None:
    (tmp_path / "buffer.py").write_text("raise SystemExit('not the one')")
    (tmp_path / "envs.py").write_text("")
    use = "import r3l; print(r3l.BufferClient.__module__, r3l.train.__module__)"
    assert python(use, tmp_path) == "buffer.client.clients launch.cli\n"
    said = python(f"import envs; {use}", tmp_path)
    assert "its package envs" in said and "rename yours" in said


LIGHT = """
import sys
from importlib.abc import MetaPathFinder

ALLOWED = "r3l buffer envs numpy msgspec pydantic pydantic_core annotated_types".split()
ALLOWED += "typing_extensions typing_inspection xxhash yaml".split()
ALLOWED += sys.stdlib_module_names


class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED and not name.startswith("_"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())
"""
EXPLORED = """
import asyncio
import r3l


class Characters:
    chat_template, all_special_ids, name_or_path = "made up", (0, 1), "characters"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt, tools=()):
        text = "".join(f"\\0{m['role']}\\n{m['content']}\\1\\n" for m in messages)
        return text + "\\0assistant\\n" * add_generation_prompt

    def encode(self, text, add_special_tokens=False):
        return [ord(character) for character in text]

    def decode(self, ids, skip_special_tokens=False):
        return "".join(chr(i) for i in ids if i > 1 or not skip_special_tokens)

    def convert_ids_to_tokens(self, i):
        return chr(i)


class Own:
    chat = r3l.ChatFormat(Characters())

    async def sample(self, token_ids, params):
        ids = (*map(ord, "take the key"), 1)
        return r3l.Sample(ids, (-0.5,) * len(ids), 0, 0, "stop")


[task] = r3l.tasks("keys", 1)
group = asyncio.run(r3l.explore(r3l.R3L(group_size=4), task, Own(), "keys"))
print([result.status for result in group.results])
for name in ("Trainer", "LocalPolicy", "BufferClient"):
    try:
        getattr(r3l, name)
    except ImportError as error:
        print(error)
"""


def test_the_core_explores_with_five_small_libraries_and_says_what_other_names_need() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LIGHT + EXPLORED], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    states, *needs = ran.stdout.splitlines()
    assert states == "['done', 'done', 'skipped', 'skipped']"
    assert needs[0].startswith("r3l.Trainer needs torch, which is not installed; run ")
    assert "r3l[cpu]" in needs[0] and needs[1].startswith("r3l.LocalPolicy needs ")
    assert needs[2].startswith("r3l.BufferClient needs zmq, ")
    assert needs[2].endswith("pip install r3l pyzmq")
