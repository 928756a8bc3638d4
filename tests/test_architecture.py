"""The rooms and the one direction between them (DESIGN §1), read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("r3l", "buffer", "envs", "actors", "learner", "launch")
MAY_IMPORT = {
    "r3l": set(),
    "buffer": {"r3l"},
    "envs": {"r3l"},
    "actors": {"r3l", "buffer", "envs"},
    "learner": {"r3l", "buffer", "envs"},
    "launch": {"r3l", "buffer", "envs", "actors", "learner"},
}
FORBIDDEN = {
    "r3l": {"zmq", "lmdb", "vllm", "deepspeed", "transformers"},
    "buffer": {"torch", "vllm", "deepspeed", "transformers"},
    "envs": {"torch", "vllm", "deepspeed", "zmq", "lmdb"},
    "actors": {"deepspeed", "lmdb"},
    "learner": {"vllm", "lmdb"},
    "launch": {"lmdb", "deepspeed"},
}
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def imports(path: Path) -> list[str]:
    """Top-level names of every module a file imports, wherever in the file."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.append(node.module or "")
    return [name.split(".")[0] for name in names]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        wrong = (set(imports(path)) & set(ROOMS)) - MAY_IMPORT[room] - {room}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_touches_only_its_own_libraries(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        wrong = set(imports(path)) & (FORBIDDEN[room] | PICKLES)
        if path == ROOT / "r3l" / "model_folder.py":
            wrong -= {"transformers"}  # which alone can tell whether it can read a folder
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_torch_is_used_in_r3l_only_for_the_losses() -> None:
    users = [p.name for p in (ROOT / "r3l").rglob("*.py") if "torch" in imports(p)]
    assert set(users) <= {"losses.py", "algorithm.py", "critique_grpo.py"}, users


@pytest.mark.parametrize(
    "module",
    [
        "r3l.config",
        "r3l.algorithms.registry",
        "r3l.weights.chunks",
        "launch.cli",
        "launch.plan",
        "launch.supervisor",
        "buffer",
    ],
)
def test_importing_the_light_modules_loads_no_heavy_library(module: str) -> None:
    heavy = ("torch", "vllm", "numba")
    code = f"import {module}, sys; print(*(m for m in {heavy} if m in sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []


def test_no_file_passes_500_lines_and_no_function_80() -> None:
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert len(text.splitlines()) <= 500, path
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    assert node.end_lineno - node.lineno < 80, f"{path}: {node.name}"


def test_no_thread_of_a_test_keeps_pytest_from_ending_when_the_test_fails() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Thread"):
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert "daemon=True" in ast.unparse(node), f"{where}: a thread that is no daemon"
