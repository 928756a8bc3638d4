"""OpenEnv servers: a stand-in that speaks their protocol, and those of the real package."""

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from envs import registry
from envs.testing import check_env
from r3l.errors import EnvironmentFailed, ReplayDiverged, UserError
from r3l.records import Task
from r3l.rollout.attempt import restore
from tests.envs.adapters.openenv.conftest import WORD

ROOT = Path(__file__).parents[4]
PYTHON = Path(os.environ.get("R3L_OPENENV_PYTHON", ROOT / "build" / "openenv" / "bin" / "python"))
real = pytest.mark.skipif(not PYTHON.exists(), reason="make test-agents runs this")


def test_an_action_with_one_text_field_is_its_text(serve: Any) -> None:
    made, name = serve(WORD)
    env = registry.make(name, reset={"level": 2})
    assert env.spec.name == name and '"word"' in env.spec.system_prompt
    assert env.reset(seed=3) == ("Say red.", {})
    assert env.step("It is not blue.\n<action>no</action>") == ("no", 0.0, False, False, {})
    assert "No action" in env.step("a\nb")[0]
    assert env.step("{}")[0] == "no" and made.asked[-1]["data"] == {"word": "{}"}
    assert env.step('{"word": "red"}') == ('{"text": "yes", "left": 2}', 1.0, True, False, {})
    env.close()
    env.close()
    assert made.asked[0] == {"type": "reset", "data": {"seed": 3, "level": 2}}
    assert made.asked[1] == {"type": "step", "data": {"word": "no"}}


def test_an_action_of_several_lines_is_sent_as_it_is(serve: Any) -> None:
    made, name = serve(WORD)
    env = registry.make(name)
    env.reset(seed=0)
    env.step("I loop.\n<action>\nfor n in x:\n    print(n)\n</action>")
    assert made.asked[-1]["data"] == {"word": "for n in x:\n    print(n)"}
    env.close()


def test_tools_are_listed_and_called(serve: Any) -> None:
    made, name = serve({"title": "Action", "properties": {}})
    env = registry.make(name)
    assert '"name": "say"' in env.spec.system_prompt
    env.reset(seed=0)
    _, reward, done, *_ = env.step('{"tool_name": "say", "arguments": {"word": "red"}}')
    assert (reward, done) == (1.0, True)
    given = {"type": "call_tool", "tool_name": "say", "arguments": {"word": "red"}}
    assert made.asked[-1]["data"] == given
    assert "must be a JSON object" in env.step("red")[0]
    env.close()


def test_what_lists_no_tools_is_refused_in_one_line(serve: Any) -> None:
    made, name = serve({"title": "Action", "properties": {}})
    made.say["step"] = answer({"tools": [{"called": "say"}]})
    with pytest.raises(UserError, match=f"^env {name}: list_tools: these are not tools"):
        registry.make(name)
    assert made.asked[-1]["type"] in ("step", "close")


def test_an_action_that_is_refused_gets_the_reasons(serve: Any) -> None:
    _, name = serve({"properties": {"word": {}, "how": {}}, "required": ["word", "how"]})
    env = registry.make(name)
    env.reset(seed=0)
    assert env.step("{}") == (
        "That is not understood: word: Field required", 0.0, False, False, {}
    )  # fmt: skip
    env.close()


def test_an_action_that_the_environment_raises_on_is_answered(serve: Any) -> None:
    env = registry.make(serve(WORD)[1])
    env.reset(seed=0)
    broken = ("it is broken", 0.0, False, False, {"fault": "openenv_error"})
    assert env.step("crash") == broken
    assert env.step("red")[1:3] == (1.0, True)
    env.close()


def answer(seen: object, **others: Any) -> str:
    data = {"observation": seen, "reward": 0.5, "done": False} | others
    return json.dumps({"type": "observation", "data": data})


@pytest.mark.parametrize(
    ("said", "cause", "why"),
    [
        (answer({"text": 3}), "answer", "text: 3 is not of type 'string'"),
        (answer({"text": "so", "left": "2"}), "answer", "left: '2' is not of type 'integer'"),
        (answer("so"), "answer", "observation must be an object, not 'so'"),
        (answer({"text": "so"}, reward="1"), "answer", "reward must be a number or null, not '1'"),
        (answer({"text": "so"}, done=0), "answer", "done must be true or false, not 0"),
        ('{"type": "observation", "data": {"observation": {}}}', "answer", "reward must be"),
        ('{"type": "observation", "data": []}', "answer", "not of the type observation"),
        ('{"type": "state", "data": {}}', "answer", "not of the type observation"),
        ("[" * 100_000, "answer", "not JSON"),
        ("hello", "answer", "not JSON"),
        ('{"type": "error", "data": {"code": "SESSION_ERROR", "message": "?"}}', "error", "SESS"),
        ('{"type": "error", "data": {}}', "error", "None"),
    ],
)
def test_an_answer_that_breaks_the_rules_fails_the_attempt_by_name(
    serve: Any, said: str, cause: str, why: str
) -> None:
    made, name = serve(WORD)
    env = registry.make(name)
    env.reset(seed=0)
    made.say["lie"] = said
    with pytest.raises(EnvironmentFailed, match=why) as failed:
        env.step("lie")
    assert failed.value.cause == f"openenv_{cause}" and "\n" not in str(failed.value)
    assert env.reset(seed=0)[0] == "Say red."
    env.close()


def test_an_observation_of_another_shape_is_taken_if_the_options_say_so(serve: Any) -> None:
    made, name = serve(WORD)
    made.say["lie"] = answer({"text": 3, "more": "x"})
    env = registry.make(name, check_observations=False)
    env.reset(seed=0)
    assert env.step("lie")[0] == '{"text": 3, "more": "x"}'
    env.close()


def test_an_episode_that_is_over_at_its_beginning_fails_by_name(serve: Any) -> None:
    made, name = serve(WORD)
    made.say["reset"] = answer({"text": "so"}, done=True)
    env = registry.make(name)
    with pytest.raises(EnvironmentFailed, match="over at its beginning"):
        env.reset(seed=0)


def test_the_state_is_the_closing_remark(serve: Any) -> None:
    made, name = serve(WORD)
    env = registry.make(name, feedback=["secret", "board"])
    env.reset(seed=0)
    assert env.feedback() == "secret: red\nboard: [1, 2]"
    assert made.asked[-1] == {"type": "state"}
    assert registry.make(name).feedback() == ""
    env.close()
    lacking = registry.make(name, feedback=["answer"])
    lacking.reset(seed=0)
    with pytest.raises(EnvironmentFailed, match=r"no answer \(env option feedback\); it has step"):
        lacking.feedback()
    with pytest.raises(UserError, match="feedback is 'secret'; it must be a list"):
        registry.make(name, feedback="secret")
    with pytest.raises(UserError, match="reset is 3; it must be arguments by name"):
        registry.make(name, reset=3)


def test_the_description_of_the_server_is_the_task(serve: Any) -> None:
    made, name = serve(WORD)
    made.pages["/metadata"] = {"name": "Words", "description": "Say the\nword."}
    assert registry.make(name).spec.system_prompt.startswith("Say the word. An action is")
    assert registry.make(name, prompt="Speak.").spec.system_prompt.startswith("Speak. An action")
    made.pages["/metadata"] = {"name": "Words", "description": "Words environment"}
    assert registry.make(name).spec.system_prompt.startswith("You act in an environment.")


def test_a_server_that_no_longer_answers_fails_the_attempt_and_not_the_run(serve: Any) -> None:
    made, name = serve(WORD)
    registry.make(name)
    made.pages["/schema"] = 500
    with pytest.raises(UserError, match=r"/schema answers 500"):
        registry.make(name)


def test_a_task_of_a_split_is_reset_by_its_split_and_index(serve: Any) -> None:
    made, name = serve(WORD)
    env = registry.make(name)
    env.reset(seed=2, options={"split": "easy", "index": 2})
    assert made.asked[-1]["data"] == {"seed": 2, "split": "easy", "index": 2}
    env.close()
    assert len(registry.tasks(name, {}, "train", 10)) == 10


def base_attempt(actions: list[str], *observations: str, system: str) -> Any:
    made = {"actions": tuple(actions), "observations": observations, "system": system}
    return SimpleNamespace(**made, num_steps=len(actions))


def test_a_retry_replays_the_actions_and_a_difference_is_named(serve: Any) -> None:
    made, name = serve(WORD)
    env, task = registry.make(name), Task("t", name, 5)
    base = base_attempt(["no", "blue"], "Say red.", "no", "no", system=env.spec.system_prompt)
    assert asyncio.run(restore(env, task, base, 2)) == [0.0, 0.0]
    sent = [message["data"] for message in made.asked]
    assert sent == [{"seed": 5}, {"word": "no"}, {"word": "blue"}]
    made.say["blue"] = answer({"text": "perhaps"})
    with pytest.raises(ReplayDiverged, match="observation 2 differs on replay") as diverged:
        asyncio.run(restore(env, task, base, 2))
    assert diverged.value.cause == "replay_diverged"
    env.close()


@contextmanager
def running(*arguments: str, cwd: Path = ROOT) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Runs a server of the real package on a free port. Yields its address and its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([PYTHON, *arguments, "--port", str(port)], cwd=cwd) as server:
        try:
            deadline = time.monotonic() + 200
            while not answers(url) and server.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
            yield url, server
        finally:
            server.kill()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).is_success
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with running(str(Path(__file__).with_name("openenv_server.py"))) as started:
        yield started


@real
def test_a_server_of_the_real_package_passes_the_checks_of_an_environment(served: Any) -> None:
    name = f"openenv:{served[0]}"
    env = registry.make(name, reset={"shout": True}, feedback=["word", "step_count"])
    assert "One of red, green and blue" in env.spec.system_prompt
    word = env.reset(seed=1)[0].removeprefix("Say ").removesuffix(".")
    assert word.isupper() and env.step("<action>x</action>")[0] == "no"
    assert env.step("crash")[0] == "it is broken"
    assert env.step(f"<action>{word}</action>") == ("yes", 1.0, True, False, {})
    assert env.feedback() == f"word: {word}\nstep_count: 3"
    env.close()
    check_env(name, options={"sessions": 1})


@real
def test_a_retry_in_a_real_server_is_checked(served: Any) -> None:
    env, task = registry.make(f"openenv:{served[0]}"), Task("t", "words", 1)
    seen = [env.reset(seed=1)[0], env.step("x")[0], env.step("luck")[0]]
    base = base_attempt(["x", "luck"], *seen, system=env.spec.system_prompt)
    assert asyncio.run(restore(env, task, base, 1)) == [0.0]
    with pytest.raises(ReplayDiverged, match="observation 2 differs on replay"):
        asyncio.run(restore(env, task, base, 2))
    env.close()


@real
def test_a_full_server_of_the_real_package_is_named_and_a_place_is_free_at_once(
    served: Any,
) -> None:
    envs = [registry.make(f"openenv:{served[0]}", timeout_s=1.0) for _ in range(5)]
    for env in envs[:4]:
        env.reset(seed=1)
    with pytest.raises(
        EnvironmentFailed, match=r"sessions of the server are taken \(it allows 4\)"
    ) as full:
        envs[4].reset(seed=1)
    assert full.value.cause == "openenv_full"
    envs[0].close()
    envs[4].reset(seed=1)
    for env in envs:
        env.close()


@real
def test_tools_of_the_real_package_are_called(served: Any) -> None:
    env = registry.make(f"openenv:{served[0]}/tools")
    assert "Says a word." in env.spec.system_prompt
    assert "Say red." in env.reset(seed=1)[0]
    assert env.step('{"tool_name": "say", "arguments": {"word": "red"}}')[0] == "yes"
    assert "sing" in env.step('{"tool_name": "sing"}')[0]
    env.close()


@real
def test_the_environment_that_openenv_packages_is_played(tmp_path: Path) -> None:
    """`openenv init` makes it from the package's own template."""
    init = [PYTHON, "-m", "openenv.cli", "init", "echo_env", "--output-dir", str(tmp_path)]
    subprocess.run(init, check=True, timeout=120, capture_output=True)
    with running("-m", "server.app", "--host", "127.0.0.1", cwd=tmp_path / "echo_env") as (url, _):
        env = registry.make(f"openenv:{url}")
        assert 'the plain text of the field {"message": {' in env.spec.system_prompt
        assert "ready!" in env.reset(seed=1)[0]
        seen = env.step("<action>hello</action>")
        assert seen == ('{"echoed_message": "hello", "message_length": 5}', 0.5, False, False, {})
        env.close()


@real
def test_a_real_server_that_is_slow_or_dies_in_an_attempt_fails_it_by_name(served: Any) -> None:
    """The last of the module, since it ends the server."""
    url, server = served
    env = registry.make(f"openenv:{url}", timeout_s=1.5)
    env.reset(seed=1)
    with pytest.raises(EnvironmentFailed, match=r"no answer in 1\.5 s") as slow:
        env.step("wait")
    env.reset(seed=1)
    with pytest.raises(
        EnvironmentFailed, match="step: SESSION_ERROR: Unable to serialize"
    ) as ended:
        env.step("unsayable")
    env.reset(seed=1)
    server.kill()
    with pytest.raises(EnvironmentFailed, match="closed the session") as gone:
        env.step("x")
    with pytest.raises(EnvironmentFailed, match=r"no connection to the server in 1\.5 s") as away:
        env.reset(seed=1)
    causes = [failed.value.cause for failed in (slow, ended, gone, away)]
    assert causes == ["openenv_timeout", "openenv_error", "openenv_lost", "openenv_lost"]


@pytest.mark.parametrize(
    "url", ["ws://127.0.0.1:1", "127.0.0.1:8000", "http://", "http://127.0.0.1:1/?a=1"]
)
def test_an_address_that_is_none_is_refused_at_the_start(url: str) -> None:
    for asks in (
        registry.make,
        lambda name: registry.tasks(name, {"splits": {"train": "a"}}, "train", 1),
    ):
        with pytest.raises(
            UserError, match=r"is not the address of a server; write http://HOST:PORT"
        ):
            asks(f"openenv:{url}")


def test_an_address_may_be_written_in_capitals(serve: Any) -> None:
    _, name = serve(WORD)
    env = registry.make(name.replace("http://", "HTTP://") + "//")
    assert env.reset(seed=0)[0] == "Say red."
    env.close()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"reset": {"seed": 9}}, "reset: every task has its own seed; leave seed out"),
        ({"timeout_s": -1}, "timeout_s is -1; write seconds above 0"),
    ],
)
def test_options_that_no_attempt_could_use_are_refused(
    serve: Any, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(UserError, match=what):
        registry.make(serve(WORD)[1], **options)


def test_splits_are_names_by_names(serve: Any) -> None:
    with pytest.raises(UserError, match=r"splits is 'train'; map r3l's splits to the server's"):
        registry.tasks(serve(WORD)[1], {"splits": "train"}, "train", 1)


def test_reasons_may_have_any_place(serve: Any) -> None:
    made, name = serve(WORD)
    wrong = {"code": "VALIDATION_ERROR", "errors": [{"loc": 5, "msg": "bad"}]}
    made.say["red"] = json.dumps({"type": "error", "data": wrong})
    env = registry.make(name)
    env.reset(seed=0)
    assert env.step("red")[0] == "That is not understood: bad"
    env.close()
