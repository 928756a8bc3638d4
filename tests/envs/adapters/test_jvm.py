"""The Java machine that environments of a process share, the real one where ScienceWorld is."""

import os
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from envs import registry
from envs.adapters import jvm
from r3l.errors import EnvironmentFailed


class NetworkError(Exception):
    pass


class JavaError(Exception):
    java_exception = "java.lang.IllegalStateException: no such room\n  at Room.java"


@pytest.fixture
def py4j(monkeypatch):
    """A py4j whose machine is a process that sleeps."""
    gateway, protocol = types.ModuleType("py4j.java_gateway"), types.ModuleType("py4j.protocol")

    def launch_gateway(cwd, **_):
        return 1, "token", subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE, cwd=cwd)

    gateway.launch_gateway = launch_gateway
    gateway.GatewayParameters = gateway.JavaGateway = lambda **_: None
    protocol.Py4JError, protocol.Py4JJavaError = Exception, JavaError
    protocol.Py4JNetworkError = NetworkError
    for module in (types.ModuleType("py4j"), gateway, protocol):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("envs.requirements.program", lambda *_: None)


def failing(error):
    def call():
        raise error

    return call


def test_environments_of_equal_settings_share_a_machine_and_the_last_one_ends_it(py4j):
    first, second = (jvm.acquire("zork", ["a.jar"], 100, 60) for _ in range(2))
    other = jvm.acquire("zork", ["a.jar"], 200, 60)
    assert first is second and other is not first
    jvm.release(first)
    assert first.process.poll() is None
    jvm.release(second)
    assert first.process.poll() is not None and not Path(first.scratch.name).exists()
    jvm.release(other)
    assert jvm.acquire("zork", ["a.jar"], 100, 60) is not first
    jvm.release(jvm._shared["zork", ("a.jar",), 100, 60])
    assert not jvm._shared


def test_a_java_exception_fails_one_call_and_keeps_the_machine(py4j):
    machine = jvm.acquire("zork", ["a.jar"], 100, 60)
    with pytest.raises(EnvironmentFailed, match=r"IllegalStateException: no such room$") as caught:
        machine.call(failing(JavaError()))
    assert caught.value.cause == "jvm_error" and machine.call(lambda: 7) == 7
    jvm.release(machine)


@pytest.mark.parametrize(("killed", "cause"), [(True, "jvm_died"), (False, "jvm_hung")])
def test_a_machine_that_does_not_answer_is_ended_and_replaced(py4j, killed, cause):
    machine = jvm.acquire("zork", ["a.jar"], 100, 60)
    if killed:
        machine.process.kill()
    for _ in range(2):  # later calls get the same answer
        with pytest.raises(EnvironmentFailed) as caught:
            machine.call(failing(NetworkError()))
        assert caught.value.cause == cause
    assert machine.process.poll() is not None
    following = jvm.acquire("zork", ["a.jar"], 100, 60)
    assert following is not machine
    for each in (machine, following):
        jvm.release(each)


@pytest.fixture
def science(monkeypatch):
    """Makes a ScienceWorld whose attempt has started on Java."""
    pytest.importorskip("scienceworld", reason="pip install 'r3l[scienceworld]'")
    if shutil.which("java") is None:
        pytest.skip("no Java: apt-get install default-jre-headless")

    def make(**options):
        monkeypatch.setattr("envs.adapters.scienceworld.simulator._known", {})
        env = registry.make("scienceworld", **options)
        start(env)
        return env

    return make


def start(env):
    return env.reset(seed=0, options={"task": "find-plant", "variation": 0})[0]


def test_files_of_the_java_machine_stay_out_of_the_users_folder(science, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = science(timeout_s=300, heap_mib=500)  # a machine of its own
    scratch = Path(env.simulator.jvm.scratch.name)
    assert list(scratch.iterdir()) and not list(tmp_path.iterdir())
    env.close()
    assert not scratch.exists()


@pytest.mark.parametrize(
    ("signum", "cause", "limit"),
    [(signal.SIGKILL, "jvm_died", 300), (signal.SIGSTOP, "jvm_hung", 20)],
)
def test_a_lost_java_machine_is_a_named_error_and_later_steps_have_another(
    science, signum, cause, limit
):
    """In time: the suite's own time limit is the bound."""
    env, mate = (science(timeout_s=limit) for _ in range(2))
    process = env.simulator.jvm.process
    assert mate.simulator.jvm is env.simulator.jvm
    os.kill(process.pid, signum)
    with pytest.raises(EnvironmentFailed) as caught:
        env.step("go to kitchen")
    assert caught.value.cause == cause and process.returncode is not None
    assert "You move to the kitchen." in mate.step("go to kitchen")[0]
    assert "find a(n) plant" in start(env)
    assert env.simulator.jvm is not None and env.step("wait1")[0].startswith("You decide")
    env.close()
    mate.close()
