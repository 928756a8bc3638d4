"""Attempts of real child processes: what ends them, and that they leave nothing behind."""

import asyncio
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import psutil
import pytest

from actors.agents import agent_attempt
from actors.agents.agent_attempt import AgentEnvironment, agents_served
from actors.agents.check_agent import play_attempt
from envs.isolation.pool import environments_of_all
from envs.registry import tasks_of_all
from r3l import codec
from r3l.errors import EngineDead, LeaseLost
from r3l.records import GroupPlan, SlotResult
from r3l.rollout.group import explore_group
from r3l.rollout.partial import Progress
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.config import RunConfig, load
from r3l.run.process.process_list import every_process
from r3l.views.tape import read_tape
from tests.processes import lives
from tests.r3l.fakes import ScriptedPolicy
from tests.r3l.rollout.fakes import exploration

AGENT = Path(__file__).with_name("stdlib_agent.py")


def config_of(folder: Path, mood: str, *more: str, **options: str) -> RunConfig:
    tasks = folder / "tasks.jsonl"
    tasks.write_text(json.dumps({"id": 1, "question": "q", "answer": "yes", "mood": mood}))
    # Other tests' agents are not left behind by this one.
    given = {"command": f"python {AGENT} {os.getpid()}", "tasks": str(tasks)} | options
    return load(None, ["env=agent", f"env.options={json.dumps(given)}", "algorithm=grpo", *more])


def play(
    config: RunConfig, policy: ScriptedPolicy | None = None, attempts: int = 1
) -> tuple[list[SlotResult], ActorMetrics]:
    policy, metrics = policy or ScriptedPolicy(lambda text: "yes"), ActorMetrics()

    async def explore() -> list[SlotResult]:
        (task,) = tasks_of_all(config.env, "train", 1)
        async with (
            environments_of_all(config.env, attempts) as made,
            agents_served(made, config, policy, metrics) as make_env,
        ):
            x = exploration(policy, config, task, make_env, plan=GroupPlan(attempts))
            return await explore_group(config.algorithm.explore, x)

    return asyncio.run(explore()), metrics


def left_behind(by: int | None = None) -> list[psutil.Process]:
    """The living agents of an actor, by its process id; by default of this process."""
    found, command = [], [str(AGENT), str(by or os.getpid())]
    for process in every_process():
        try:
            if process.cmdline()[-2:] == command and lives(process):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_an_unchanged_agent_becomes_a_trajectory_with_its_tape(tmp_path: Path) -> None:
    results, metrics = play(config_of(tmp_path, ""), attempts=3)
    for result in results:
        played = result.trajectory
        assert played is not None and played.reward == 1.0 and played.finish == "terminated"
        assert played.system == "Answer in one word." and played.actions == ("yes", "yes")
        assert played.observations == ("q", "Are you sure?", "well")
        assert played.extra.reward_parts == {"words": 2.0} and not played.extra.segments
        assert [call.parent for call in read_tape(played.extra.tape)] == [-1, 0]
    assert metrics.agent["attempts"] == 3 and metrics.agent["calls"] == 6
    assert metrics.agents_running == 0
    assert not left_behind()


def test_an_agent_has_the_memory_of_an_environment_and_no_more(tmp_path: Path) -> None:
    (result,), _ = play(config_of(tmp_path, "greedy", "env.memory_mib=1024"))
    assert (result.status, result.cause) == ("failed", "agent_exit")
    assert not left_behind()


class _Remote(BaseHTTPRequestHandler):
    """A server of agents. It posts its result, or replies."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {"Authorization": f"Bearer {asked['api_key']}"}
        client = httpx.Client(headers=headers, trust_env=False)
        messages = [{"role": "user", "content": asked["task"]["question"]}]
        client.post(asked["base_url"] + "/chat/completions", json={"messages": messages})
        if self.path == "/posts":
            client.post(asked["url"] + "/r3l/result", json={"reward": 0.5})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"" if self.path == "/posts" else b'{"reward": 0.5}')

    def log_message(self, *given: Any) -> None:
        """Silence."""


@pytest.mark.parametrize("path", ["/posts", "/replies"])
def test_a_server_plays_attempts(path: str, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Remote) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}{path}"
        results, _ = play(config_of(tmp_path, "", command=url), attempts=2)
        server.shutdown()
    rewards = [result.trajectory and result.trajectory.reward for result in results]
    assert rewards == [0.5, 0.5], results


@pytest.mark.parametrize(
    ("mood", "cause"),
    [
        ("mute", "agent_no_calls"),
        ("raises", "agent_exit"),
        ("vague", "no_reward"),
        ('says {"failed": "restore_failed"}', "restore_failed"),
    ],
)
def test_an_agent_that_fails_has_no_reward_but_a_cause(
    tmp_path: Path, mood: str, cause: str
) -> None:
    ((result,), _) = play(config_of(tmp_path, mood))
    assert result.status == "failed" and result.cause == cause


@pytest.mark.parametrize(("tokens", "cut"), [(2, True), (9, False)])
def test_a_cut_reply_is_named_beside_the_agents_error(
    tokens: int, cut: bool, tmp_path: Path
) -> None:
    config = config_of(tmp_path, "raises", f"actor.max_response_tokens={tokens}")
    policy = ScriptedPolicy(lambda text: "yes")

    async def outcome() -> str:
        (task,) = tasks_of_all(config.env, "train", 1)
        async with (
            environments_of_all(config.env, 1) as made,
            agents_served(made, config, policy) as make_env,
        ):
            env = make_env(task)
            assert isinstance(env, AgentEnvironment)
            return (await play_attempt(env, task, config)).outcome

    said = asyncio.run(outcome())
    assert said.startswith("failed: the agent ended with exit code 1: I give up")
    assert ("(its last reply was cut after 2 tokens, which " in said) == cut


def test_a_silent_agent_is_killed_at_its_time_limit(tmp_path: Path) -> None:
    began = time.monotonic()
    ((result,), _) = play(config_of(tmp_path, "silent", "actor.agent.timeout_s=2"))
    assert result.cause == "agent_timeout" and time.monotonic() - began < 30
    assert not left_behind()


def test_a_function_is_called_and_graded_by_a_function(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        f"import os, sys\nsys.path.insert(0, {str(AGENT.parent)!r})\n"
        "from stdlib_agent import ask\n"
        "async def play(task):\n"
        "    open('made.txt', 'w').write('x')\n"
        "    return ask([{'role': 'user', 'content': task['question']}])['content']\n"
        "def grade(task, calls, workspace):\n"
        "    assert os.path.exists(workspace + '/made.txt')\n"
        "    return {'reward': len(calls) / 2, 'feedback': calls[-1]['reply']['content']}\n"
        "def broken(task, calls, workspace):\n    raise ValueError('not today')\n"
    )
    options = {"command": f"{file}:play", "reward": f"{file}:grade"}
    ((result,), _) = play(config_of(tmp_path, "", **options))
    assert result.trajectory is not None
    assert (result.trajectory.reward, result.trajectory.feedback) == (0.5, "yes")
    ((result,), _) = play(config_of(tmp_path, "", **options | {"reward": f"{file}:broken"}))
    assert result.cause == "grader_failed"


def test_the_key_of_another_models_server_is_no_variable_of_the_agent_and_the_grader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPT_KEY", "theirs")
    file = tmp_path / "mine.py"
    file.write_text(
        f"import os, sys\nsys.path.insert(0, {str(AGENT.parent)!r})\n"
        "from stdlib_agent import ask\n"
        "def play(task):\n"
        "    ask([{'role': 'user', 'content': 'q'}])\n"
        "    open('made.txt', 'w').write(str('GPT_KEY' in os.environ))\n"
        "def grade(task, calls, workspace):\n"
        "    seen = open(workspace + '/made.txt').read() + str('GPT_KEY' in os.environ)\n"
        "    return {'reward': 1.0, 'feedback': seen}\n"
    )
    models = "actor.agent.models={'gpt-*': {url: 'http://none.example', key: GPT_KEY}}"
    options = {"command": f"{file}:play", "reward": f"{file}:grade"}
    ((result,), _) = play(config_of(tmp_path, "", models, **options))
    assert result.trajectory is not None and result.trajectory.feedback == "FalseFalse"


def test_a_dead_engine_is_not_the_fault_of_the_attempt(tmp_path: Path) -> None:
    class Dead(ScriptedPolicy):
        async def sample(self, token_ids: Any, params: SampleParams) -> Sample:
            raise EngineDead("gone")

    with pytest.raises(EngineDead):
        play(config_of(tmp_path, ""), Dead(lambda text: ""))
    assert not left_behind()


def test_a_full_context_is_graded_by_what_the_agent_makes_of_it(tmp_path: Path) -> None:
    ((result,), _) = play(
        config_of(tmp_path, ""), ScriptedPolicy(lambda text: "yes", context_length=75)
    )
    assert result.cause == "no_reward"  # this one raises at the error it gets, and prints nothing
    file = tmp_path / "grade.py"
    file.write_text("def grade(task, calls):\n    return 0.5\n")
    ((result,), _) = play(
        config_of(tmp_path, "", reward=f"{file}:grade"),
        ScriptedPolicy(lambda text: "yes", context_length=75),
    )
    assert result.trajectory is not None
    assert (result.trajectory.reward, result.trajectory.finish) == (0.5, "context_overflow")


def test_a_cancelled_attempt_ends_its_agent_and_removes_its_folder(tmp_path: Path) -> None:
    config = config_of(tmp_path, "silent")

    async def cancel() -> None:
        (task,) = tasks_of_all(config.env, "train", 1)
        policy = ScriptedPolicy(lambda text: "yes")
        async with (
            environments_of_all(config.env, 1) as made,
            agents_served(made, config, policy) as make_env,
        ):
            x = exploration(policy, config, task, make_env, plan=GroupPlan(1))
            playing = asyncio.create_task(explore_group(config.algorithm.explore, x))
            while not (agents := left_behind()):
                await asyncio.sleep(0.05)
            folder = Path(agents[0].cwd()).parent
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            deadline = time.monotonic() + 20
            while folder.exists() and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            assert not folder.exists()
            psutil.wait_procs(agents, timeout=10)
            assert not left_behind()

    asyncio.run(asyncio.wait_for(cancel(), 60))


@pytest.mark.parametrize(
    "line", ["[" * 2000, str(10**400), f'{{"reward": {10**400}}}'], ids=["deep", "long", "object"]
)
def test_a_last_line_of_any_kind_fails_the_attempt_alone(tmp_path: Path, line: str) -> None:
    ((result,), _) = play(config_of(tmp_path, f"says {line}"))
    assert result.status == "failed" and result.cause == "no_reward"


def test_an_unexpected_error_fails_the_attempt_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(agent_attempt, "outcome_of", broken)
    ((result,), _) = play(config_of(tmp_path, ""))
    assert result.status == "failed" and result.cause == "environment_ZeroDivisionError"


def test_a_users_proxy_exceptions_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "a.example")
    monkeypatch.setenv("NO_PROXY", "b.example")
    settings = config_of(tmp_path, "").actor.agent
    attempt = AgentEnvironment(Mock(), Mock(url=f"http://{settings.host}:1"))
    attempt.session = Mock(key="k")
    given = attempt._variables()
    assert given["NO_PROXY"] == given["no_proxy"] == "a.example,b.example,localhost,127.0.0.1,::1"


def test_a_late_agent_is_graded_by_its_last_line_if_so_set(tmp_path: Path) -> None:
    limits = ("actor.agent.timeout_s=15", "actor.agent.at_timeout=grade")
    ((result,), _) = play(config_of(tmp_path, "late", *limits))
    assert result.trajectory is not None
    assert (result.trajectory.reward, result.trajectory.finish) == (0.25, "truncated")


WALKER = """
import json, os, sys, time, urllib.request
url, headers = os.environ["OPENAI_BASE_URL"] + "/chat/completions", {
    "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
messages = [{"role": "user", "content": "begin" + CLOCK}]
for step in range(5):
    BEFORE
    body = json.dumps({"messages": messages}).encode()
    reply = json.load(urllib.request.urlopen(urllib.request.Request(url, body, headers)))
    said = reply["choices"][0]["message"]["content"]
    messages.append({"role": "assistant", "content": said})
    messages.append({"role": "user", "content": "after " + said})
print(json.dumps({"reward": 1.0}))
"""


def walk(
    folder: Path, clock: str, progress: Progress, die_after: int = 99, before: str = "pass"
) -> tuple[SlotResult | None, int, ActorMetrics]:
    """Plays an agent of five calls, whose every message depends on the replies. The engine dies
    after some responses. Returns the result, if there is one, and the number of responses."""
    agent = folder / "walker.py"
    agent.write_text(WALKER.replace("CLOCK", clock).replace("BEFORE", before))
    config = config_of(folder, "", command=f"python {agent}")
    policy, metrics = ScriptedPolicy(lambda text: f"word {len(policy.prompts)}"), ActorMetrics()
    sample, begun = policy.sample, len(progress.found) and progress.found[0].trajectory

    async def mortal(*asked: Any) -> Sample:
        if len(policy.prompts) >= die_after:
            await asyncio.sleep(0.3)
            raise EngineDead("killed")
        return await sample(*asked)

    policy.sample = mortal  # type: ignore[method-assign]
    if begun:  # so that each response is another, and the same one if nothing is lost
        policy.prompts += [""] * begun.num_steps

    async def explore() -> list[SlotResult]:
        (task,) = tasks_of_all(config.env, "train", 1)
        progress.counts = metrics.partial
        async with (
            environments_of_all(config.env, 1) as made,
            agents_served(made, config, policy, metrics) as make_env,
        ):
            x = exploration(policy, config, task, make_env, plan=GroupPlan(1), progress=progress)
            return await explore_group(config.algorithm.explore, x)

    try:
        (result,) = asyncio.run(explore())
    except EngineDead:
        return None, len(policy.prompts), metrics
    return result, len(policy.prompts), metrics


def keeping(kept: list[SlotResult]) -> Progress:
    async def save(result: SlotResult) -> None:
        kept[:] = [codec.decode(SlotResult, codec.encode(result))]

    return Progress(list(kept), save)


def test_an_agent_whose_actor_died_is_played_up_to_its_last_call(tmp_path: Path) -> None:
    whole, _, _ = walk(tmp_path, "''", Progress())
    assert whole is not None and whole.trajectory is not None
    for die_after in (1, 4):
        kept = list[SlotResult]()
        assert walk(tmp_path, "''", keeping(kept), die_after)[0] is None
        assert kept[0].trajectory is not None and kept[0].trajectory.num_steps == die_after
        result, responses, metrics = walk(tmp_path, "''", keeping(kept))
        assert result is not None and result.trajectory is not None and responses == 5
        assert result.trajectory.actions == whole.trajectory.actions
        assert result.trajectory.token_ids.tolist() == whole.trajectory.token_ids.tolist()
        assert result.trajectory.logprobs.tolist() == whole.trajectory.logprobs.tolist()
        assert metrics.partial["continued"] == 1 and metrics.agent["taped"] == die_after
        assert metrics.partial["tokens"] == kept_tokens(whole, die_after)


def kept_tokens(whole: SlotResult, steps: int) -> int:
    spans = whole.trajectory.step_spans[:steps]  # type: ignore[union-attr]
    return int((spans[:, 1] - spans[:, 0]).sum())


def test_an_agent_that_asks_otherwise_is_sampled_afresh(tmp_path: Path) -> None:
    kept = list[SlotResult]()
    walk(tmp_path, "str(time.time())", keeping(kept), 3)
    result, responses, metrics = walk(tmp_path, "str(time.time())", keeping(list(kept)))
    assert result is not None and result.trajectory is not None
    assert result.trajectory.num_steps == 5 and responses == 3 + 5
    assert metrics.partial == {"dropped": 1, "tokens": 0} and metrics.agent["taped"] == 0


def ending(folder: Path, times: int, code: str) -> str:
    """Text that ends an agent before its fourth call, the first `times` times."""
    mark = folder / "ended"
    mark.write_text("")
    said = f"print(file=open({str(mark)!r}, 'a'), flush=True)"
    return f"if step == 3 and os.path.getsize({str(mark)!r}) < {times}: {said}; {code}"


KILL = "os.kill(os.getpid(), 9)"


def test_an_agent_that_is_killed_is_continued_once(tmp_path: Path) -> None:
    result, responses, metrics = walk(tmp_path, "''", Progress(), before=ending(tmp_path, 1, KILL))
    assert result is not None and result.trajectory is not None
    assert result.trajectory.num_steps == responses == 5  # all of them sampled once
    assert metrics.agent["killed"] == 1 and metrics.agent["taped"] == 3
    assert metrics.partial["continued"] == 1
    result, responses, metrics = walk(tmp_path, "''", Progress(), before=ending(tmp_path, 3, KILL))
    assert result is not None and result.cause == "agent_exit" and responses == 3
    assert metrics.agent["killed"] == 1


@pytest.mark.parametrize("code", ["sys.exit('no')", "os.kill(os.getpid(), 11)"])
def test_an_agent_that_ends_by_itself_is_not_started_again(tmp_path: Path, code: str) -> None:
    result, responses, metrics = walk(tmp_path, "''", Progress(), before=ending(tmp_path, 1, code))
    assert result is not None and result.cause == "agent_exit" and responses == 3
    assert metrics.agent["killed"] == 0


def test_a_reply_is_kept_before_the_agent_gets_it(tmp_path: Path) -> None:
    """So a kill costs the response under way, and no other."""
    kept, asked = list[int](), tmp_path / "asked"

    async def save(result: SlotResult) -> None:
        assert result.trajectory is not None
        await asyncio.sleep(0.1)  # the agent could ask again
        assert len(asked.read_text().split("\n")) - 1 == result.trajectory.num_steps
        kept.append(result.trajectory.num_steps)

    before = f"print(file=open({str(asked)!r}, 'a'), flush=True)"
    result, *_ = walk(tmp_path, "''", Progress((), save), before=before)
    assert result is not None and kept == [1, 2, 3, 4, 5]


def test_an_agent_whose_group_another_actor_has_is_ended(tmp_path: Path) -> None:
    async def save(result: SlotResult) -> None:
        raise LeaseLost("another's")

    with pytest.raises(LeaseLost):
        walk(tmp_path, "''", Progress((), save))
