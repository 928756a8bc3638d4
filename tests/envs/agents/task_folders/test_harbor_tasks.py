"""Task folders as tasks of an agent: what plays them, what the agent sees, what its tests pay."""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from envs import registry
from envs.agents.agent import Agent
from envs.agents.agent_runner import MAIN, AgentRunner, ProcessState
from envs.agents.agent_steps import run_process
from envs.agents.opened_folder import FOLDER
from envs.agents.task_folders.harbor_tasks import NOTHING, ORACLE
from envs.agents.task_folders.private_view import ATTEMPTS
from envs.isolation import reaper
from envs.isolation.pool import environments
from r3l.errors import EnvironmentFailed, UserError
from r3l.rollout.env_calls import guarded
from r3l.run.settings.environment import EnvConfig
from tests.envs.agents.task_folders.folders import TOML, made
from tests.envs.agents.task_folders.test_private_view import pytestmark as needs_views

LOOKS = """
import glob, json, os, sys

here = sys.argv[1]
paths = ["/tests", "/solution", "/logs/verifier/reward.txt", here + "/tasks/task"]
paths += glob.glob("/tmp/r3l-agent-*/*")
told = json.dumps({**os.environ}) + open("/proc/self/cmdline").read()
print(json.dumps({
    "found": [path for path in paths if os.path.exists(path) and "caches" not in path],
    "told": [word for word in ("JUDGE", "SOLVER", here + "/tasks/task") if word in told],
    "cwd": os.getcwd(), "files": sorted(os.listdir("/app")), "mode": os.environ["MODE"],
    "task": json.loads(os.environ["R3L_TASK"]), "own": os.environ["R3L_WORKSPACE"],
}))
open("answer", "w").write("1")
"""


def agent(folder: Path, command: str = NOTHING, **options: Any) -> Agent:
    return Agent(command=command, tasks=str(folder), **{"unsandboxed": True} | options)


def ended(env: Agent, state: ProcessState) -> ProcessState:
    deadline = time.monotonic() + 120
    while state.exit is None and time.monotonic() < deadline:
        time.sleep(0.02)
        state = env.processes[MAIN].state()
    return env.stop(MAIN)


def played(env: Agent, name: str = "task") -> tuple[ProcessState, Any]:
    """Plays and grades a task. Returns how the agent ended, and the grader's result."""
    try:
        env.prepare({"id": name}, [])
        state = ended(env, env.start({}))
        graded = ended(env, env.grade([]))
        assert graded.exit == 0, graded
        return state, json.loads(graded.stdout)
    finally:
        env.close()


def test_tasks_of_a_folder_are_listed_with_their_instruction_alone(tmp_path: Path) -> None:
    for name in ("one", "two"):
        made(tmp_path, name)
    listed = registry.tasks("agent", {"tasks": str(tmp_path)}, "train", 9)
    assert sorted(task.task_id for task in listed) == ["one", "two"]
    (one,) = (task for task in listed if task.task_id == "one")
    assert one.options["task"] == {"id": "one", "instruction": "Write 1 to /app/answer."}


def test_a_strangers_tests_are_refused_unless_the_user_says_so(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(
        UserError, match=r"would run as your user.*allow that with unsandboxed=true, or "
    ):
        agent(tmp_path, "true", unsandboxed=False)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"command": "harbor:terminus-2"}, "harbor:terminus-2 needs Harbor's containers; leave"),
        ({"command": "http://127.0.0.1:1/x"}, "a server does not see a task's files; name a prog"),
        (
            {"harbor": {"environment": {}}},
            "harbor is only for Harbor's runner; leave out harbor or",
        ),
        ({"reward": "a.py:b"}, "reward: tasks .* have an environment and tests of their own"),
        ({"workspace": "/tmp"}, "workspace: tasks .* leave workspace out"),
        ({"command": ORACLE, "mcp": {"a": "true"}}, "mcp: tasks .* leave mcp out"),
        ({"tasks": "tasks.jsonl"}, "unsandboxed is for task folders in Harbor's format, but tasks"),
        ({"tasks": "x", "unsandboxed": False, "command": ORACLE}, "harbor:oracle is for task fold"),
    ],
)
def test_options_that_contradict_task_folders_are_refused(
    tmp_path: Path, options: dict[str, Any], what: str
) -> None:
    made(tmp_path)
    given = {"command": "true", "tasks": str(tmp_path), "unsandboxed": True} | options
    with pytest.raises(UserError, match=what):
        Agent(**given)


@needs_views
def test_an_agent_in_the_folder_of_tasks_and_a_task_for_containers_are_refused(
    tmp_path: Path,
) -> None:
    made(tmp_path, "fine")
    (tmp_path / "mine.sh").write_text("true\n")
    with pytest.raises(UserError, match=r"mine.sh is in the folder of tasks, which the agent does"):
        agent(tmp_path, f"sh {tmp_path}/mine.sh")
    made(tmp_path, "rooted", dockerfile="FROM a\nWORKDIR /root\n")
    with pytest.raises(
        UserError, match=r"task .*/rooted: needs containers, because its working direct"
    ):
        agent(tmp_path, "true")


@needs_views
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            {"dockerfile": "FROM a\nWORKDIR /app\nCOPY nosuch .\n"},
            "Dockerfile copies nosuch, which",
        ),
        ({"toml": "[verifier.env]\nKEY = '${R3L_NO_SUCH}'"}, "KEY needs the environment variable"),
    ],
)
def test_what_a_task_lacks_is_said_before_anything_starts(
    tmp_path: Path, change: dict[str, str], what: str
) -> None:
    made(tmp_path, **change)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=what):
        agent(tmp_path)


@needs_views
def test_a_machine_without_mount_namespaces_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "refuses.py"
    script.write_text("import sys\nsys.exit('unshare: Operation not permitted')\n")
    monkeypatch.setattr("envs.agents.task_folders.harbor_tasks.PRIVATE_VIEW", script)
    made(tmp_path / "tasks")
    what = r"cannot make mount namespaces \(unshare: Operation not permitted\).*command=harbor:"
    with pytest.raises(UserError, match=what):
        agent(tmp_path / "tasks")


@needs_views
def test_the_solution_earns_1_and_an_untouched_folder_0(tmp_path: Path) -> None:
    folder = made(tmp_path)
    state, result = played(agent(tmp_path, ORACLE))
    assert state.exit == 0 and result == {"reward": 1.0, "parts": {}}
    assert played(agent(tmp_path, NOTHING))[1] == {"reward": 0.0, "parts": {}}
    (folder / "solution" / "solve.sh").unlink()
    with pytest.raises(EnvironmentFailed, match=r"has no solution/solve.sh"):
        played(agent(tmp_path, ORACLE))


@needs_views
def test_an_agent_sees_neither_tests_nor_solution(tmp_path: Path) -> None:
    variables = '[verifier.env]\nJUDGE = "j"\n[solution.env]\nSOLVER = "s"\n'
    tasks = tmp_path / "tasks"
    made(tasks, toml=f'{TOML}{variables}[environment.env]\nMODE = "m"\n')
    other = agent(tasks)
    other.prepare({"id": "task"}, [])  # a neighbour's folder
    (tmp_path / "looks.py").write_text(LOOKS)
    state, result = played(agent(tasks, f"python {tmp_path}/looks.py {tmp_path}"))
    other.close()
    seen = json.loads(state.stdout)
    assert seen.pop("files") == ["Dockerfile", "given.txt"] and result["reward"] == 1.0
    assert seen == {
        "found": [], "told": [], "cwd": "/app", "mode": "m", "own": "/app", "task": {"id": "task"}
    }  # fmt: skip


@needs_views
@pytest.mark.parametrize(
    ("test", "cause", "said"),
    [
        ("exit 3\n", "tests_exit", "exit code 3; test.sh wrote neither"),
        ("echo 1 > /logs/verifier/reward.txt\necho bad >&2\nexit 1\n", "tests_exit",
         "exit code 1, its last line is 'bad'; so its reward 1 is not paid"),
        ("kill -9 $$\n", "tests_exit", "exit code "),
        ("nosuchprogram\n", "tests_exit", "exit code 127"),
        ("true\n", "tests_no_reward", "wrote neither"),
        ("echo 7 > /logs/verifier/reward.txt\n", "tests_bad_reward", "not from 0 to 1"),
        ("echo 1 > /logs/verifier/reward.txt\nsleep 60\n", "tests_timeout", "longer than 1 s"),
    ],
)  # fmt: skip
def test_broken_tests_fail_the_attempt_by_name_and_never_pay(
    tmp_path: Path, test: str, cause: str, said: str
) -> None:
    made(tmp_path, test=test, toml="[verifier]\ntimeout_sec = 1\n" if "sleep" in test else TOML)
    _, result = played(agent(tmp_path))
    assert result["failed"] == cause and said in result["feedback"] and "reward" not in result


@needs_views
def test_tests_that_end_with_an_error_may_give_0(tmp_path: Path) -> None:
    made(tmp_path, test="echo 0 > /logs/verifier/reward.txt\nexit 1\n")
    assert played(agent(tmp_path))[1] == {"reward": 0.0, "parts": {}}


@needs_views
def test_what_the_agent_leaves_at_harbors_paths_is_no_reward(tmp_path: Path) -> None:
    script = "mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; exit 0"
    tasks = tmp_path / "tasks"
    made(tasks, test="ls /tests /logs/agent > /app/seen\n")
    (tmp_path / "agent.sh").write_text(f"echo log > /logs/agent/log; {script}\n")
    _, result = played(agent(tasks, f"sh {tmp_path}/agent.sh"))
    assert result["failed"] == "tests_no_reward"


@needs_views
def test_the_limits_of_a_task_are_its_agents_and_a_changed_task_fails_by_name(
    tmp_path: Path,
) -> None:
    folder = made(tmp_path)
    env = agent(tmp_path)
    facts = env.prepare({"id": "task"}, [])
    assert facts.limit_s == 50.0 and facts.grader_s and facts.grader_s > 20.0
    (folder / "tests" / "test.sh").unlink()
    for name in ("task", "gone"):
        with pytest.raises(EnvironmentFailed) as raised:
            env.prepare({"id": name}, [])
        assert raised.value.cause == "task_changed"
    env.close()


@needs_views
@pytest.mark.parametrize(
    ("toml", "dockerfile"),
    [
        ("", 'ENV PATH="/root/.local/bin:${PATH}"\n'),
        ("[environment.env]\nPATH = '/usr/local/bin:/usr/bin:/bin'\n", ""),
        ("[environment.env]\nPATH = '${PATH}'\n", ""),
    ],
)
def test_a_given_path_keeps_this_machines_programs_and_the_interpreter_first(
    tmp_path: Path, toml: str, dockerfile: str
) -> None:
    own = Path(sys.executable).parent
    test = f"which python | grep -x {own}/python && cat answer > /logs/verifier/reward.txt\n"
    made(tmp_path, toml=TOML + toml, test=test, dockerfile=f"FROM a\n{dockerfile}WORKDIR /app\n")
    assert played(agent(tmp_path, ORACLE))[1] == {"reward": 1.0, "parts": {}}


@needs_views
def test_a_task_gets_no_secret_that_the_attempt_does_not_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    lines = "[environment.env]\nA = '${MY_KEY:-none}'\n[verifier.env]\nB = '${MY_KEY}'\n"
    made(tmp_path / "tasks", toml=TOML + lines)
    (tmp_path / "says.sh").write_text("echo A is $A\n")
    env = agent(tmp_path / "tasks", f"sh {tmp_path}/says.sh")
    try:
        env.prepare({"id": "task"}, ["MY_KEY"])
        assert ended(env, env.start({})).stdout == "A is none"
        with pytest.raises(EnvironmentFailed, match=r"B needs .* MY_KEY.*env.pass_environment"):
            env.grade([])
    finally:
        env.close()


@needs_views
def test_a_task_that_changes_during_a_run_fails_by_name(tmp_path: Path) -> None:
    folder = made(tmp_path)
    env, dockerfile = agent(tmp_path), folder / "environment" / "Dockerfile"
    env.prepare({"id": "task"}, [])
    (folder / "tests").rename(tmp_path / "gone")
    with pytest.raises(EnvironmentFailed) as raised:
        env.grade([])
    assert raised.value.cause == "task_changed"
    (tmp_path / "gone").rename(folder / "tests")
    for text in ("COPY nosuch .", "COPY given.txt /etc/", "COPY --from=b a ."):
        dockerfile.write_text(f"FROM a\nWORKDIR /app\n{text}\n")
        with pytest.raises(EnvironmentFailed) as raised:
            env.prepare({"id": "task"}, [])
        assert raised.value.cause == "task_changed"
    env.close()


@needs_views
def test_what_git_keeps_of_the_tasks_is_hidden(tmp_path: Path) -> None:
    git = tmp_path / "main" / ".git"
    (git / "worktrees" / "w").mkdir(parents=True)
    (git / "worktrees" / "w" / "commondir").write_text("../..\n")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / ".git").write_text(f"gitdir: {git}/worktrees/w\n")
    (tmp_path / "lists.sh").write_text(f"echo in $(ls {git})\n")
    for tasks in (tmp_path / "main" / "tasks", tmp_path / "w" / "tasks"):
        made(tasks)
        state, _ = played(agent(tasks, f"sh {tmp_path}/lists.sh"))
        assert state.stdout == "in"


SEARCHES = """
import json, os, sys
for where in sys.argv[1:]:
    for name in os.listdir(where):
        if name.startswith(("r3l-env-", "r3l-agent-", "r3l-snapshots-")):
            inside = [at.split("r3l-")[-1] for at, _, _ in os.walk(os.path.join(where, name))]
            assert "caches" in inside[-1] and len(inside) == 3, inside
print("[]")
"""
"""Fails if there is a folder of attempts but the agent's own, which holds nothing but caches."""


def test_the_names_of_attempts_folders_are_those_that_are_hidden() -> None:
    assert {reaper.FOLDER, FOLDER} < set(ATTEMPTS)


@needs_views
def test_an_agent_in_a_worker_finds_no_folder_of_another_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, elsewhere = tmp_path / "tasks", tmp_path / "elsewhere"
    made(tasks)
    elsewhere.mkdir()
    (elsewhere / "r3l-snapshots-1").mkdir()
    (tmp_path / "looks.py").write_text(SEARCHES)
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    command = f"python {tmp_path}/looks.py /tmp {elsewhere}"
    options = {"command": command, "tasks": str(tasks), "unsandboxed": True}
    config = EnvConfig(name="agent", options=options, isolation="process", workers=1)

    async def test() -> None:
        async with environments(config, 1) as make_env:
            runner = make_env()
            assert isinstance(runner, AgentRunner)
            await guarded(lambda: runner.prepare({"id": "task"}, []))
            state, _ = await run_process(runner, MAIN, lambda: runner.start({}), 60.0)
            runner.close()
        assert state.exit == 0 and json.loads(state.stdout) == []

    with tempfile.TemporaryDirectory(prefix="r3l-env-", dir="/tmp"):
        asyncio.run(test())
