"""What a policy with a shell tries: to give itself the reward, and to read answers and keys."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from actors.agents import agent_attempt
from actors.agents.agent_attempt import agents_served
from envs.isolation.pool import environments_of_all
from envs.registry import tasks_of_all
from r3l.errors import EnvironmentFailed, UserError
from r3l.rollout.policy_interface import SampleParams
from r3l.run.config import load
from tests.actors.agents.test_agent_attempt import AGENT, config_of, play
from tests.processes import without_rights
from tests.r3l.fakes import ScriptedPolicy

HEAD = f"""
import glob, json, os, subprocess, sys, time, urllib.error, urllib.request
sys.path.insert(0, {str(AGENT.parent)!r})
from stdlib_agent import ask

def asked(path, body=None, key=None):
    headers = {{"Authorization": "Bearer " + (key or os.environ["OPENAI_API_KEY"])}}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ["R3L_URL"] + path, data, headers)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)

ask([{{"role": "user", "content": "q"}}])
"""
GRADE = """
def grade(task, calls, workspace):
    try:
        seen = open(workspace + "/seen").read()
    except FileNotFoundError:
        seen = ""
    return {"reward": 0.25, "feedback": seen, "parts": {"answer": float(task["answer"] == "yes")}}
"""


def options_of(folder: Path, script: str, **more: str) -> dict[str, str]:
    (folder / "agent.py").write_text(HEAD + script)
    (folder / "grade.py").write_text(GRADE)
    options = {"command": f"python {folder}/agent.py", "reward": f"{folder}/grade.py:grade"}
    return options | more


@pytest.mark.parametrize(
    "posted", [{"reward": 1.0}, {"reward": "much"}, {"reward": None}, {"failed": ""}, {}]
)
def test_a_post_does_not_beat_the_grader(
    posted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    monkeypatch.setattr(agent_attempt, "notice_again", lambda kind, text: said.append(text))
    script = f"print(asked('/r3l/result', {posted!r}))\ntime.sleep(600)\n"
    (result,), _ = play(config_of(tmp_path, "", **options_of(tmp_path, script)))
    assert result.trajectory is not None, result
    assert result.trajectory.reward == 0.25 and result.trajectory.finish == "terminated"
    assert result.trajectory.extra.reward_parts == {"answer": 1.0}
    assert len(said) == 1 and f"an agent posted {posted!r}" in said[0]


def test_a_post_that_reports_a_failure_fails_the_attempt_with_a_grader_too(tmp_path: Path) -> None:
    script = "asked('/r3l/result', {'failed': 'disk_full'})\ntime.sleep(600)\n"
    (result,), _ = play(config_of(tmp_path, "", **options_of(tmp_path, script)))
    assert (result.status, result.cause) == ("failed", "disk_full")


def test_an_agent_finds_no_hidden_field_in_what_it_is_given(tmp_path: Path) -> None:
    script = """
files = [open(name).read() for name in glob.glob("../*") if os.path.isfile(name)]
seen = [asked("/r3l/task"), json.loads(os.environ["R3L_TASK"]), sys.argv, files, {**os.environ}]
open("seen", "w").write(str("42 sheep" in json.dumps(seen)))
"""
    (tmp_path / "own.jsonl").write_text('{"id": 1, "question": "q", "answer": "42 sheep"}')
    options = options_of(tmp_path, script, tasks=f"{tmp_path}/own.jsonl")
    options["command"] += " {question}"
    (result,), _ = play(config_of(tmp_path, "", **options))
    assert result.trajectory is not None and result.trajectory.feedback == "False"


def test_an_agent_that_needs_a_hidden_field_is_told_the_option(tmp_path: Path) -> None:
    script = "print(json.loads(os.environ['R3L_TASK'])['answer'])\n"
    config = config_of(tmp_path, "", **options_of(tmp_path, script))

    async def fail() -> str:
        (task,) = tasks_of_all(config.env, "train", 1)
        policy = ScriptedPolicy(lambda text: "yes")
        async with (
            environments_of_all(config.env, 1) as made,
            agents_served(made, config, policy) as make_env,
        ):
            env: Any = make_env(task)
            with pytest.raises(EnvironmentFailed) as failed:
                await env.play_with_agent(task, 0, lambda step: SampleParams(20))
            return str(failed.value)

    said = asyncio.run(fail())
    assert "KeyError: 'answer' (" in said and "agent.py:" in said
    assert said.endswith("(only the grader sees answer: env.options.hidden)")


def test_an_agent_and_its_grader_get_no_secret_but_those_that_the_user_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = (
        "HF_TOKEN WANDB_API_KEY AWS_PROFILE SLURM_JWT ANTHROPIC_AUTH_TOKEN OPENAI_ORG_ID "
        "AZURE_OPENAI_ENDPOINT WANTED_TOKEN GEMINI_API_KEY"
    ).split()
    for name in secrets:
        monkeypatch.setenv(name, "mine")
    monkeypatch.setenv("https_proxy", "http://me:word@proxy")
    script = f"""
names = [name for name in {secrets!r} if name in os.environ]
parent = open(f"/proc/{{os.getppid()}}/environ").read()
names += [name for name in {secrets!r} if name + "=" in parent]
open("seen", "w").write(" ".join(names + [os.environ["https_proxy"], os.environ["HOME"]]))
"""
    fence = json.loads('{"fence": false}')  # so that it can read its parent's variables
    passed = "env.pass_environment=[WANTED_*, GEMINI_API_KEY]"
    config = config_of(tmp_path, "", passed, **options_of(tmp_path, script), **fence)
    (result,), _ = play(config)
    assert result.trajectory is not None, result
    twice = "WANTED_TOKEN GEMINI_API_KEY WANTED_TOKEN GEMINI_API_KEY"
    assert result.trajectory.feedback == f"{twice} http://me:word@proxy {os.environ['HOME']}"


THIEF = """
found = set()
until = time.monotonic() + 3
while time.monotonic() < until:
    for name in glob.glob("/proc/[0-9]*/environ"):
        try:
            text = open(name, "rb").read().decode(errors="replace")
        except OSError:
            continue
        for variable in text.split(chr(0)):
            if variable.startswith(("OPENAI_API_KEY=", "R3L_MCP", "THEIR_")):
                found.add(variable.partition("=")[2])
found.discard(os.environ["OPENAI_API_KEY"])
stolen = 0
for key in found:
    try:
        stolen += bool(asked("/r3l/task", key=key))
    except urllib.error.HTTPError:
        pass
open("seen", "w").write(f"{stolen} {'theirs' in found}")
"""


def test_the_keys_of_neighbours_and_servers_are_not_found_in_proc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", "theirs")
    models = "actor.agent.models={'gpt-*': {url: 'http://none.example', key: THEIR_KEY}}"
    config = config_of(tmp_path, "", models, "env.workers=1", **options_of(tmp_path, THIEF))
    results, _ = play(config, attempts=3)
    seen = [result.trajectory and result.trajectory.feedback for result in results]
    assert seen == ["0 False"] * 3


HIDDEN = """
import asyncio, os, psutil, sys, tempfile, time
from pathlib import Path
from envs.agents.agent_runner import MAIN
from envs.isolation.pool import environments
from r3l.rollout.env_calls import guarded
from r3l.run.settings.environment import EnvConfig

AGENT = "import time" + chr(10) + "def play(task): time.sleep(600)"

async def main():
    folder = Path(tempfile.mkdtemp())
    (folder / "agent.py").write_text(AGENT)
    options = {"command": f"{folder}/agent.py:play", "tasks": "none"}
    async with environments(EnvConfig(name="agent", options=options, workers=1), 1) as make:
        runner = make()
        await guarded(lambda: runner.prepare({}, []))
        await guarded(lambda: runner.start({"OPENAI_API_KEY": "mine"}))
        end = time.monotonic() + 60
        while len(family := psutil.Process().children(recursive=True)) < 5:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        for process in family:
            try:
                print("mine" in str(process.environ()))
            except psutil.AccessDenied:
                print("hidden")
        if os.environ["KILL"]:
            family[0].kill()  # the reaper, so that it ends nothing itself
        runner.close()
    _, alive = psutil.wait_procs(family, timeout=60)
    print(len(alive))

asyncio.run(main())
"""


@pytest.mark.parametrize("kill", ["", "the reaper"])
def test_workers_starters_and_functions_hide_their_variables_from_an_ordinary_user(
    kill: str,
) -> None:
    """And are ended nevertheless."""
    assert without_rights(HIDDEN, KILL=kill).split() == ["hidden"] * 5 + ["0"]


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_agents_reach_a_gateway_on_ipv6(host: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, "", f"actor.agent.host={host!r}", **options_of(tmp_path, ""))
    (result,), _ = play(config)
    assert result.trajectory is not None and result.trajectory.reward == 0.25


def test_a_proxy_gets_no_call_of_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    (result,), _ = play(config_of(tmp_path, "", **options_of(tmp_path, "")))
    assert result.trajectory is not None and result.trajectory.reward == 0.25


def test_keys_leave_the_machine_encrypted_or_as_the_user_says(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "node7", ""):
        for more in ((), ("actor.agent.plain_http=true",), ("actor.agent.certificate=x.pem",)):
            settings = [f"actor.agent.host={host!r}", *more]
            if more:
                load(None, settings)
            else:
                with pytest.raises(UserError, match=r"unencrypted; set certificate, or plain_http"):
                    load(None, settings)
    for host in ("localhost", "127.0.0.1", "127.0.1.1", "::1", "[::1]"):
        load(None, [f"actor.agent.host={host!r}"])


def test_a_server_of_agents_elsewhere_gets_its_key_over_https(tmp_path: Path) -> None:
    far = "http://agents.example:8000/play"
    with pytest.raises(UserError, match=r"command http://agents\.example.*plain_http=true"):
        config_of(tmp_path, "", command=far)
    config_of(tmp_path, "", "actor.agent.plain_http=true", command=far)
    for command in ("https://agents.example/play", "http://127.0.0.1:8000/play", "http://[::1]/"):
        config_of(tmp_path, "", command=command)
