"""Environments in worker processes: real crashes, hangs and memory eaters."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from envs.isolation.pool import EnvPool, RemoteEnv, environments, environments_of_all, workers_for
from r3l.errors import EnvironmentFailed, UserError
from r3l.files.temporary_folder import HELD
from r3l.records import SlotResult, Task
from r3l.rollout.env_calls import guarded
from r3l.rollout.group import explore_group
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.config import load
from r3l.run.settings.environment import EnvConfig
from tests.envs.isolation.faulty import FAULTY
from tests.processes import lives
from tests.r3l.fakes import ScriptedPolicy
from tests.r3l.rollout.fakes import exploration

pytestmark = pytest.mark.system
KILLED = "a worker process was killed"


def config(**more: Any) -> EnvConfig:
    return EnvConfig(**({"name": FAULTY, "workers": 1, "step_s": 20, "memory_mib": 512} | more))


async def cause_of(awaitable: Any) -> str:
    with pytest.raises(EnvironmentFailed) as caught:
        await asyncio.wait_for(awaitable, 120)
    return caught.value.cause


def pid_in(observation: str) -> int:
    return int(observation.split()[-1])


def group(leader: int) -> list[int]:
    """The living processes of a process group."""
    members = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getpgid(pid) == leader and lives(pid):
                members.append(pid)
    return members


def test_a_task_gets_its_own_environment_inside_the_actor_or_in_a_worker() -> None:
    async def play() -> None:
        both = config(others={"keys": {"locks": 2}})
        async with environments_of_all(both, 1) as make_env:
            inside = make_env(Task("k", "keys", 0))
            apart: Any = make_env(Task("f", FAULTY, 0))
            assert (inside.spec.max_steps, apart.spec.name) == (4, "faulty")
            with pytest.raises(EnvironmentFailed, match="task g belongs to gone"):
                make_env(Task("g", "gone", 0))
            first, _ = await apart.reset(seed=7)
            apart.close()
        async with environments_of_all(config(), 1) as make_env:
            assert make_env(Task("f", "as its source names it", 0)).spec.name == "faulty"
        assert pid_in(first) != os.getpid() and not lives(pid_in(first))

    asyncio.run(play())


def test_an_attempt_in_a_worker_is_like_one_inside_the_actor() -> None:
    async def play() -> None:
        async with environments(config(), 1) as make_env:
            env: Any = make_env()
            assert (env.spec.name, env.spec.sessions) == ("faulty", 4)
            first, info = await env.reset(seed=7, options={"a": 1})
            assert first.startswith("task 7 in ") and pid_in(first) != os.getpid() and info == {}
            assert await env.step("go") == ["step 1", 0.0, False, False, {}]
            state = await env.snapshot()
            await env.step("on")
            await env.restore(state)
            assert await env.step("on") == ["step 2", 0.0, False, False, {}]
            assert await env.feedback() == "2 said"
            assert (await env.step("stumble"))[-1] == {"fault": "stumbled"}
            assert (await env.step("earn"))[-1] == {"rewards": {"half": 0.5}}
            assert not hasattr(env, "demonstration")
            env.close()
            pid = pid_in(first)
        assert not lives(pid)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("action", "cause"),
    [
        ("crash", "environment_crash"),
        ("hang", "environment_hang"),
        ("breed", "environment_hang"),
        ("eat", "environment_memory"),
    ],
)
def test_a_lost_worker_fails_its_sessions_by_name_and_the_next_attempt_plays(
    action: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        pool = EnvPool(config(step_s=4 if action in ("hang", "breed") else 120))
        await pool.start()
        culprit, mate = RemoteEnv(pool), RemoteEnv(pool)
        pid = pid_in((await culprit.reset(seed=0))[0])
        await mate.reset(seed=1)
        assert await cause_of(culprit.step(action)) == cause
        assert await cause_of(mate.step("go")) == "environment_lost"
        culprit.close()
        mate.close()
        following = RemoteEnv(pool)
        observation, _ = await following.reset(seed=2)
        assert pid_in(observation) != pid
        assert (await following.step("end"))[2] is True
        assert caplog.text.count(f"{KILLED}: {cause}") == caplog.text.count(KILLED) == 1
        await until_gone(group(pid))
        await pool.close()

    asyncio.run(play())


@pytest.mark.parametrize("action", ["fork", "fork and raise", "fork and exit"])
def test_a_forked_process_that_comes_back_answers_nothing_and_ends(
    action: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        pool = EnvPool(config())
        await pool.start()
        env, mate = RemoteEnv(pool), RemoteEnv(pool)
        pid = pid_in((await env.reset(seed=0))[0])
        await mate.reset(seed=1)
        for step in range(1, 4):
            assert (await env.step(action))[:2] == [f"step {step}", 0.0]
            assert (await mate.step("go"))[0] == f"step {step}"
        assert group(pid) == [pid] and KILLED not in caplog.text
        await pool.close()

    asyncio.run(play())


def test_a_worker_killed_between_two_steps_is_a_crash() -> None:
    async def play() -> None:
        pool = EnvPool(config())
        await pool.start()
        env = RemoteEnv(pool)
        os.kill(pid_in((await env.reset(seed=0))[0]), signal.SIGKILL)
        assert await cause_of(env.step("go")) == "environment_crash"
        await pool.close()

    asyncio.run(play())


def test_an_error_or_a_wrong_answer_fails_only_its_own_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play() -> None:
        pool = EnvPool(config())
        await pool.start()
        mate = RemoteEnv(pool)
        await mate.reset(seed=1)
        for action, cause in [
            ("raise", "environment_KeyError"),
            ("exit", "environment_SystemExit"),
            ("array", "bad_observation"),
        ]:
            env = RemoteEnv(pool)
            await env.reset(seed=0)
            assert await cause_of(env.step(action)) == cause
            env.close()
        assert (await mate.step("go"))[0] == "step 1"
        assert KILLED not in caplog.text
        await pool.close()

    asyncio.run(play())


def test_attempts_beyond_the_sessions_wait_and_all_are_played() -> None:
    async def play() -> None:
        pool = EnvPool(config(workers=2))
        await pool.start()
        pids, held = set(), [0, 0]

        async def attempt(seed: int) -> None:
            env = RemoteEnv(pool)
            first, _ = await env.reset(seed=seed)
            held[0] += 1
            held[1] = max(held)
            pids.add(pid_in(first))
            for k in range(3):
                assert (await env.step("go"))[0] == f"step {k + 1}"
            held[0] -= 1
            env.close()

        await asyncio.wait_for(asyncio.gather(*(attempt(seed) for seed in range(40))), 120)
        assert held[1] <= 8 and len(pids) == 2
        await pool.close()

    asyncio.run(play())


def test_as_many_attempts_play_at_once_as_are_wanted_if_the_environment_sets_no_limit(
    tmp_path: Path,
) -> None:
    file = tmp_path / "plain.py"
    file.write_text(Path(__file__).with_name("faulty.py").read_text().replace(", sessions=4", ""))

    async def play() -> None:
        metrics = ActorMetrics()
        own = config(name=f"{file}:Faulty", workers=None)
        async with environments(own, 96, metrics) as make_env:
            attempts: list[Any] = [make_env() for _ in range(96)]
            async with asyncio.timeout(60):
                firsts = await asyncio.gather(*(env.reset(seed=0) for env in attempts))
            assert len({pid_in(first) for first, _ in firsts}) == 2
        assert metrics.session_wait_s < 1.0

    asyncio.run(play())


def test_waits_for_a_session_are_counted() -> None:
    async def play() -> None:
        metrics = ActorMetrics()
        pool = EnvPool(config(), 8, metrics)
        await pool.start()
        held = [RemoteEnv(pool) for _ in range(4)]
        await asyncio.gather(*(env.reset(seed=0) for env in held))
        waiting = [asyncio.ensure_future(RemoteEnv(pool).reset(seed=1)) for _ in range(2)]
        await asyncio.sleep(0.5)
        for env in held:
            env.close()
        await asyncio.gather(*waiting)
        await pool.close()
        assert metrics.session_wait_s >= 0.8

    asyncio.run(play())


@pytest.mark.parametrize(
    ("wanted", "sessions", "cores", "workers"),
    [(64, 64, 32, 2), (64, 16, 32, 4), (64, 8, 32, 8), (64, 1, 32, 32), (64, 8, 1, 2)],
)
def test_there_are_processes_for_the_wanted_attempts_but_hardly_more_than_cores(
    monkeypatch: pytest.MonkeyPatch, wanted: int, sessions: int, cores: int, workers: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert workers_for(wanted, sessions) == workers


def test_a_cancelled_attempt_leaves_its_session_usable() -> None:
    async def play() -> None:
        pool = EnvPool(config())
        await pool.start()
        for _ in range(10):
            env = RemoteEnv(pool)
            await env.reset(seed=0)
            step = asyncio.ensure_future(env.step("go"))
            await asyncio.sleep(0)
            step.cancel()
            env.close()
        env = RemoteEnv(pool)
        await env.reset(seed=0)
        assert (await env.step("go"))[0] == "step 1"
        await pool.close()

    asyncio.run(play())


def test_a_call_that_is_cancelled_before_its_turn_is_not_made() -> None:
    async def play() -> None:
        pool = EnvPool(config())
        await pool.start()
        first, second = RemoteEnv(pool), RemoteEnv(pool)
        for env in (first, second):
            await env.reset(seed=0)
        waiting = asyncio.ensure_future(first.step("wait"))
        await asyncio.sleep(0)
        step = asyncio.ensure_future(second.step("go"))
        await asyncio.sleep(0)
        step.cancel()
        await waiting
        assert (await second.step("go"))[0] == "step 1"
        await pool.close()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"at_start": "raise"}, "raised KeyError"),
        ({"at_start": "crash"}, "its start ended the worker process"),
        ({"colour": 3}, "colour: unknown"),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused_before_anything_is_played(
    options: dict[str, Any], line: str
) -> None:
    async def play() -> None:
        async with environments(config(options=options), 1):
            pass

    with pytest.raises(UserError, match=line) as caught:
        asyncio.run(play())
    assert "\n" not in str(caught.value)


def test_an_environment_that_starts_too_slowly_is_refused_without_a_setting_that_does_not_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("envs.isolation.pool.START_S", 1.0)

    async def main() -> None:
        async with environments(config(options={"at_start": "hang"}), 1):
            raise AssertionError("it started")

    with pytest.raises(UserError, match=r"its start .*than 1 s;"):
        asyncio.run(main())


def test_an_environment_is_refused_if_its_worker_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        async with environments(config(), 1):
            pass

    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(UserError, match=r"worker process .*has ended"):
        asyncio.run(play())


def test_an_action_or_observation_that_is_not_valid_text_fails_by_name() -> None:
    async def play() -> None:
        pool = EnvPool(config())
        await pool.start()
        env = RemoteEnv(pool)
        await env.reset(seed=0)
        for action in ("\ud800", "say \\ud800"):
            assert await cause_of(guarded(lambda a=action: env.step(a))) in (
                "environment_RecordError",
                "bad_observation",
            )
        env.close()
        other = RemoteEnv(pool)
        await other.reset(seed=1)
        assert (await other.step("go"))[0] == "step 1"
        await pool.close()

    asyncio.run(play())


def test_a_quick_world_stays_inside_the_actor_unless_configured_otherwise() -> None:
    async def reset(**more: Any) -> Any:
        async with environments(EnvConfig(name="keys", **more), 1) as make_env:
            return make_env().reset(seed=0)

    assert isinstance(asyncio.run(reset()), tuple)
    assert not isinstance(asyncio.run(reset(isolation="none")), list)


async def until_gone(pids: list[int]) -> None:
    for _ in range(600):
        if not any(map(lives, pids)):
            return
        await asyncio.sleep(0.1)
    pytest.fail("helpers of an environment stayed behind")


@pytest.mark.parametrize("how", ["close", "kill the worker", "kill the reaper", "crash", "hang"])
def test_helpers_in_other_sessions_end_with_their_worker(how: str) -> None:
    async def play() -> None:
        pool = EnvPool(config(step_s=8 if how == "hang" else 120))
        await pool.start()
        env = RemoteEnv(pool)
        worker = pid_in((await env.reset(seed=0))[0])
        helpers = [int(pid) for pid in (await env.step("daemon"))[0].split()]
        assert len(helpers) == 2 and all(map(lives, helpers))
        if how in ("crash", "hang"):
            assert await cause_of(env.step(how)) == f"environment_{how}"
        elif how != "close":
            victim = psutil.Process(worker)
            (victim if how == "kill the worker" else victim.parents()[0]).kill()
            await until_gone([worker])
            assert await cause_of(env.step("go")) == "environment_crash"
        if how != "close":
            await until_gone([worker, *helpers])
        await pool.close()
        await until_gone([worker, *helpers])

    asyncio.run(play())


@pytest.mark.parametrize("then", ["hang", "go"])
def test_a_killed_actor_leaves_neither_a_worker_nor_its_helpers_behind(then: str) -> None:
    program = (
        "import asyncio, os\n"
        "from envs.isolation.pool import EnvPool, RemoteEnv\n"
        "from r3l.run.settings.environment import EnvConfig\n"
        "async def main():\n"
        f"    pool = EnvPool(EnvConfig(name={FAULTY!r}, workers=1))\n"
        "    await pool.start()\n"
        "    env = RemoteEnv(pool)\n"
        "    pid = (await env.reset(seed=0))[0].split()[-1]\n"
        "    print(pid, (await env.step('daemon'))[0], flush=True)\n"
        f"    await env.step({then!r})\n"
        "    await asyncio.sleep(3600)\n"
        "asyncio.run(main())\n"
    )
    actor = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert actor.stdout is not None
    pids = [int(pid) for pid in actor.stdout.readline().split()]
    assert len(pids) == 3
    actor.kill()
    actor.communicate()
    asyncio.run(until_gone(pids))


def test_a_group_is_explored_around_an_attempt_that_loses_its_world() -> None:
    answers = iter(["go", "crash"])
    policy = ScriptedPolicy(lambda _: next(answers, "end"))
    settings = load(None, ["algorithm=grpo", "algorithm.group_size=4"])

    async def explore() -> list[SlotResult]:
        async with environments(config(workers=4), 4) as make_env:
            x = exploration(policy, settings, Task("t", FAULTY, 5), lambda task: make_env())
            return await explore_group(settings.algorithm.explore, x)

    results = asyncio.run(explore())
    causes = [result.cause for result in results if result.status == "failed"]
    assert causes == ["environment_crash"] and len(results) == 4
    played = [result.trajectory for result in results if result.trajectory is not None]
    assert all(
        t.observations[0].startswith("task 5 in ") and t.actions[-1] == "end" for t in played
    )


def test_what_killed_actors_left_is_removed_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = [tmp_path / f"{prefix}x{HELD}" for prefix in ("r3l-env-", "r3l-agent-")]
    for folder in left:
        (folder / "work" / "inner").mkdir(parents=True)
        os.utime(folder, (0, 0))

    async def start() -> None:
        async with environments_of_all(EnvConfig(), 1):
            assert not list(tmp_path.iterdir())

    asyncio.run(start())


def test_a_worker_gets_no_secret_and_no_proxy_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("MY_TOKEN", "MY_KEY", "https_proxy"):
        monkeypatch.setenv(name, "http://me:word@proxy")
    monkeypatch.delenv("no_proxy", raising=False)
    (tmp_path / "world.py").write_text(
        "import os\nfrom tests.r3l.fakes import Corridor\n"
        "class World(Corridor):\n"
        "    def reset(self, *, seed, options=None):\n"
        "        names = 'MY_TOKEN', 'MY_KEY', 'https_proxy', 'HOME', 'no_proxy'\n"
        "        return ' '.join(name for name in names if name in os.environ), {}\n"
    )

    async def seen(*passed: str) -> str:
        name = f"{tmp_path}/world.py:World"
        made = EnvConfig(name=name, isolation="process", pass_environment=passed)
        async with environments(made, 1) as make:
            env: Any = make()
            observation = (await env.reset(seed=0))[0]
            env.close()
            return str(observation)

    assert asyncio.run(seen()) == "https_proxy HOME no_proxy"
    assert asyncio.run(seen("MY_T*")) == "MY_TOKEN https_proxy HOME no_proxy"
