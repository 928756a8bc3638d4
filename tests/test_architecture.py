"""The rooms and the one direction between them, read from the source."""

import ast
import configparser
import graphlib
import subprocess
import sys
from collections import Counter
from functools import cache
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
FOLDERS = {
    "r3l": "run views training algorithms rollout records weights models files settings".split(),
    "buffer": "viewer tools server groups client wire sampling indexes storage".split(),
    "envs": "isolation agents adapters questions builtin".split(),
    "actors": "agents gateway grammars dialects weights".split(),
    "learner": "offline publishing warmup step metrics evaluation".split(),
    "launch": "evaluation inspection checks backends topology".split(),
}
"""The folders of each room from the top down: a folder imports only those listed after it."""
ABOVE_THEIR_FOLDERS = {"launch"}
"""Rooms whose own modules import their folders, which do not import them."""
NAMES_OF_SEVERAL_MODULES = {"__init__", "actor", "cli", "registry"}
TOPICS = {
    "actors/agents/test_any_tree_of_calls.py",
    "actors/agents/test_hostile_agents.py",
    "actors/agents/test_replayed_sessions.py",
    "actors/agents/test_trained_frameworks.py",
    "actors/gateway/test_any_stop_text.py",
    "actors/gateway/test_odd_json.py",
    "actors/dialects/test_any_streamed_answer.py",
    "actors/gateway/test_real_clients.py",
    "actors/grammars/test_real_engine.py",
    "actors/test_explored_groups.py",
    "actors/test_sick_engine.py",
    "actors/weights/test_bad_link.py",
    "actors/weights/test_slow_link.py",
    "buffer/client/test_notebook.py",
    "buffer/groups/test_random_lives.py",
    "buffer/groups/test_reuse.py",
    "buffer/server/test_extreme_records.py",
    "buffer/storage/test_full_store.py",
    "buffer/storage/test_immutable_records.py",
    "buffer/wire/test_bad_link.py",
    "envs/isolation/test_later_worker.py",
    "launch/test_bad_inputs.py",
    "launch/test_killed_launcher.py",
    "learner/offline/test_regraded_agent.py",
    "learner/step/test_algorithm_by_hand.py",
    "learner/step/test_faults_on_one_rank.py",
    "learner/step/test_offload.py",
    "learner/step/test_plain_trainer.py",
    "learner/test_resume.py",
    "learner/test_silent_buffer.py",
    "learner/test_waiting_ranks.py",
    "r3l/algorithms/test_gradient_of_the_paper.py",
    "r3l/algorithms/test_unsolved.py",
    "r3l/test_public_names.py",
}
"""Test files of several modules together; those of `buffer/stress` are too."""
USERS_OF_LAB = {"benchmarks/peers.py", "benchmarks/week.py"}
"""They write lines of results and draw, as lab does."""
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


@cache  # most rules read the same files, and parsing them takes most of the time
def imported(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """What a file imports, wherever in the file: modules, each with the names taken from it."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.append((node.module, tuple(alias.name for alias in node.names)))
    return found


@cache
def functions(path: Path) -> list[tuple[str, int]]:
    """The functions of a file, wherever in the file: their names, and how many lines follow the
    first one."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    found = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(node.name, (node.end_lineno or 0) - node.lineno) for node in found]


def imports(path: Path) -> list[str]:
    """Top-level names of every module a file imports, wherever in the file."""
    return [module.split(".")[0] for module, _ in imported(path)]


def module_of(path: Path) -> str:
    """The dotted name of a module, or of the package whose __init__ it is."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path, known: set[str]) -> set[str]:
    """Dotted names of the project's modules that a file imports, wherever in the file."""
    found = set()
    for module, names in imported(path):
        members = {f"{module}.{name}" for name in names}
        found |= members & known or {module}
    return found & known - {module_of(path)}


def folder_of(module: str) -> str:
    """The folder of its room in which a module is; "." for the room itself."""
    _, _, rest = module.partition(".")
    folder = rest.partition(".")[0]
    return folder if folder and (ROOT / module.partition(".")[0] / folder).is_dir() else "."


@pytest.mark.parametrize("room", ROOMS)
def test_no_modules_import_each_other_in_a_circle(room: str) -> None:
    paths = list((ROOT / room).rglob("*.py"))
    known = {module_of(path) for path in paths}
    graph = {module_of(path): imported_modules(path, known) for path in paths}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("room", FOLDERS)
def test_a_folder_of_a_room_imports_only_folders_below_it(room: str) -> None:
    paths, order = list((ROOT / room).rglob("*.py")), FOLDERS[room]
    known = {module_of(path) for path in paths}
    assert {folder_of(module) for module in known} == {".", *order}
    for path in paths:
        if (folder := folder_of(module_of(path))) != ".":
            above = order[: order.index(folder)] + ["."] * (room in ABOVE_THEIR_FOLDERS)
            wrong = {m for m in imported_modules(path, known) if folder_of(m) in above}
            assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


RUN = "r3l.run"
"""The lowest room of the services. The core is the rest of r3l."""
MENTION_RUN_CONFIG = ("r3l/__init__.py", "r3l/run/", "buffer/cli.py", "buffer/server/service.py",
                      "buffer/viewer/", "actors/", "learner/", "launch/")  # fmt: skip
"""The core, the buffer's groups, storage and messages, and the environments are told values."""


def test_the_core_never_imports_what_services_share() -> None:
    paths = list((ROOT / "r3l").rglob("*.py"))
    known = {module_of(path) for path in paths}
    for path in (path for path in paths if folder_of(module_of(path)) != "run"):
        wrong = {m for m in imported_modules(path, known) if f"{m}.".startswith(f"{RUN}.")}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_the_settings_of_a_run_are_mentioned_only_where_they_belong() -> None:
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(MENTION_RUN_CONFIG):
            assert "RunConfig" not in path.read_text(encoding="utf-8"), f"{name}: take values"


OF_ALTERNATIVES = {"adapters", "loggers", "presets", "published", "questions", "variants"}
"""Folders in which each module is one of many that a name chooses: they may grow."""


def test_a_folder_holds_3_to_14_files_and_folders_of_code() -> None:
    for package in (path for room in ROOMS for path in (ROOT / room).rglob("__init__.py")):
        folder = package.parent
        modules = {path for path in folder.glob("*.py") if path != package}
        inside = {path.parent for path in folder.glob("*/__init__.py")}
        most = 1000 if folder.name in OF_ALTERNATIVES else 14
        assert 2 <= len(modules | inside) <= most, f"{folder}: {len(modules)} and {len(inside)}"


def test_no_two_modules_have_one_name() -> None:
    names = Counter(path.stem for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    twice = {name for name, count in names.items() if count > 1}
    assert twice <= NAMES_OF_SEVERAL_MODULES, twice


def test_every_folder_of_modules_is_installed() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    listed = set(settings["options"]["packages"].split())
    folders = {module_of(p) for room in ROOMS for p in (ROOT / room).rglob("__init__.py")}
    assert listed == folders


def place_of_tests(path: Path) -> Path:
    """Where the tests of a module are."""
    return ROOT / "tests" / path.parent.relative_to(ROOT) / f"test_{path.name}"


@pytest.mark.parametrize("room", ROOMS)
def test_every_module_with_functions_has_its_test_file(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        if functions(path) and path.name != "__init__.py":
            assert place_of_tests(path).is_file(), f"{path.relative_to(ROOT)} has no test file"


@pytest.mark.parametrize("room", ROOMS)
def test_every_test_file_is_of_a_module_or_of_a_listed_topic(room: str) -> None:
    modules = {place_of_tests(path) for path in (ROOT / room).rglob("*.py")}
    found = set((ROOT / "tests" / room).rglob("test_*.py")) - modules
    topics = {ROOT / "tests" / name for name in TOPICS if name.startswith(f"{room}/")}
    assert topics <= found, topics - found
    strays = {path for path in found - topics if path.parent.name != "stress"}
    assert not strays, strays


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        wrong = (set(imports(path)) & set(ROOMS)) - MAY_IMPORT[room] - {room}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_nothing_but_the_named_programs_uses_the_research_programs() -> None:
    rooms = (*ROOMS, "benchmarks", "examples")
    paths = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    users = {str(path.relative_to(ROOT)) for path in paths if "lab" in imports(path)}
    assert users == USERS_OF_LAB


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_touches_only_its_own_libraries(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        wrong = set(imports(path)) & (FORBIDDEN[room] | PICKLES)
        if {ROOT / "r3l" / "models", ROOT / "r3l" / "training"} & {*path.parents}:
            wrong -= {"torch", "transformers"}  # which alone can tell what they can read
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_torch_is_used_in_r3l_only_for_training_losses_merged_adapters_and_gguf_files() -> None:
    paths = [path for path in (ROOT / "r3l").rglob("*.py") if "torch" in imports(path)]
    folders = {folder_of(module_of(path)) for path in paths}
    assert folders == {"training", "algorithms", "weights", "models"}
    others = {path.name for path in paths if path.parent.name in ("weights", "models")}
    assert others == {"low_rank.py", "gguf_model.py"}, others


LIGHT = (
    ("import r3l", "numpy zmq pydantic buffer"),
    ("import launch.cli", "numpy pydantic torch"),
    ("import r3l.run.config; r3l.run.config.RunConfig().algorithm.needs", "torch vllm"),
    ("import envs.registry; envs.registry.make('keys')", "torch transformers envs.builtin.workshop "
     "reasoning_gym textworld scienceworld"),
    ("import r3l.algorithms.registry, r3l.weights.chunks, buffer", "torch vllm"),
    ("import launch.preparation, launch.supervisor", "torch vllm"),
)  # fmt: skip
"""What is done one after the other, and the modules that are not loaded then."""
COMMANDS = ("launch.cli", "launch.eval_cli", "envs.cli", "actors.cli", "actors.agent_cli",
            "learner.cli", "learner.cli train", "learner.cli warmup",
            "buffer.cli", "buffer.cli serve", "buffer.cli view")  # fmt: skip


def printed_by(code: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def test_light_modules_load_no_heavy_library() -> None:
    """One interpreter does it all."""
    code = (
        f"import sys\nfor what, heavy in {LIGHT}:\n    exec(what)\n"
        "    for module in set(heavy.split()) & sys.modules.keys():\n"
        "        print(what, 'loads', module)"
    )
    assert printed_by(code) == ""


def test_the_help_of_every_command_loads_no_heavy_library() -> None:
    heavy = {"torch", "transformers", "deepspeed", "vllm", "tokenizers", "tensorboard", "scipy"}
    code = (
        "import sys\nfrom importlib import import_module\n"
        f"for line in {COMMANDS}:\n"
        "    module, *words = line.split()\n"
        "    main = import_module(module).main\n"
        "    sys.argv = ['r3l', *words, '--help']\n"
        "    try:\n"
        "        main.main(standalone_mode=False) if hasattr(main, 'main') else main()\n"
        "    except SystemExit:\n"
        "        pass\n"
        f"print('heavy:', *({heavy} & sys.modules.keys()))"
    )
    said = printed_by(code)
    assert said.count("Usage: ") == len(COMMANDS) and said.splitlines()[-1] == "heavy:"


def test_no_file_passes_500_lines_and_no_function_80() -> None:
    for room in (*ROOMS, "lab", "tests"):
        for path in (ROOT / room).rglob("*.py"):
            assert len(path.read_text(encoding="utf-8").splitlines()) <= 500, path
            for name, lines in functions(path):
                assert lines < 80, f"{path}: {name}"


def test_no_thread_of_a_test_keeps_pytest_from_ending_when_the_test_fails() -> None:
    for path in (path for room in ("tests", "lab") for path in (ROOT / room).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "Thread" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Thread"):
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert "daemon=True" in ast.unparse(node), f"{where}: a thread that is no daemon"


def test_no_wait_can_lose_a_cancellation() -> None:
    """In Python 3.11 `asyncio.wait_for` swallows a cancellation that comes with the result, and
    what was to end goes on for ever; `asyncio.timeout` does not."""
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        assert "wait_for(" not in path.read_text(encoding="utf-8"), f"{path}: use asyncio.timeout"


def test_no_process_is_overlooked() -> None:
    """`psutil.process_iter` overlooks a process with the id of an ended one, if it saw that one."""
    rooms = (*ROOMS, "benchmarks", "lab", "tests")
    for path in (path for room in rooms for path in (ROOT / room).rglob("*.py")):
        if path != Path(__file__):
            text = path.read_text(encoding="utf-8")
            assert "psutil.process_iter(" not in text, f"{path}: use every_process"
