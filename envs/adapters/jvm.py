"""Shares one Java virtual machine (JVM) among the environments of a process, through py4j.

Calls take turns: objects of one JVM share state, and simultaneous calls from two threads corrupt
the state silently. A JVM that dies or stops answering is killed. Attempts that use it then fail
with a named cause, and the next attempt starts a new JVM.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from envs import requirements
from r3l.errors import EnvironmentFailed

T = TypeVar("T")

INSTALL_JAVA = "apt-get install default-jre-headless"
OPTIONS = ("-XX:+UseSerialGC", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
"""Without hashCode=2, Java orders listings by identity hashes, which differ from run to run. Then
one replay in three would show another order."""
_shared: dict[tuple[Any, ...], Jvm] = {}
_sharing = threading.Lock()


class Jvm:
    """A running JVM. `timeout_s`: time limit of a call, seconds."""

    def __init__(self, env: str, classpath: str, heap_mib: int, timeout_s: float) -> None:
        py4j = requirements.package(env, "py4j.java_gateway", env)
        requirements.program(env, "java", INSTALL_JAVA)
        logging.getLogger().addFilter(_without_py4j)
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        self.env, self.timeout_s, self.users = env, timeout_s, 0
        self.lost, self.lock = "", threading.Lock()
        # ScienceWorld's jar writes a file into its working directory.
        self.scratch = tempfile.TemporaryDirectory(prefix="r3l-jvm-", ignore_cleanup_errors=True)
        port, token, self.process = py4j.launch_gateway(
            classpath=classpath,
            javaopts=[f"-Xmx{heap_mib}m", *OPTIONS],
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
            cwd=self.scratch.name,
        )
        parameters = py4j.GatewayParameters(
            port=port, auth_token=token, auto_field=True, read_timeout=timeout_s
        )
        self.gateway = py4j.JavaGateway(gateway_parameters=parameters)

    def call(self, call: Callable[[], T]) -> T:
        """Runs `call` while no other call runs on this JVM. Raises EnvironmentFailed with the cause
        jvm_error, jvm_died or jvm_hung. A JVM that died or hung fails all later calls."""
        from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

        with self.lock:
            if self.lost:
                raise self._failure()
            try:
                return call()
            except Py4JJavaError as error:
                line = str(error.java_exception).splitlines()[0][:300]
                raise EnvironmentFailed(
                    f"{self.env}: Java raised {line}", cause="jvm_error"
                ) from None
            except (Py4JNetworkError, Py4JError, OSError) as error:
                self._mark_lost()
                raise self._failure() from error

    def close(self) -> None:
        """Ends the JVM, waits for its process and removes its folder."""
        self.lost = self.lost or "closed"
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # the process has ended
                self.process.stdin.close()
        self.scratch.cleanup()

    def _mark_lost(self) -> None:
        try:
            self.process.wait(timeout=1.0)
            self.lost = "died"
        except subprocess.TimeoutExpired:
            self.lost = "hung"
        self.close()

    def _failure(self) -> EnvironmentFailed:
        why = f"did not answer for {self.timeout_s:g} s" if self.lost == "hung" else self.lost
        return EnvironmentFailed(f"{self.env}: the Java machine {why}", cause=f"jvm_{self.lost}")


def acquire(env: str, classpath: Sequence[str], heap_mib: int, timeout_s: float) -> Jvm:
    """Returns the process's JVM for the given settings. Call `release` after use. Raises UserError
    if Java or py4j is missing."""
    key = (env, tuple(classpath), heap_mib, timeout_s)
    with _sharing:
        jvm = _shared.get(key)
        if jvm is None or jvm.lost:
            _shared[key] = jvm = Jvm(env, ":".join(classpath), heap_mib, timeout_s)
        jvm.users += 1
        return jvm


def release(jvm: Jvm) -> None:
    """Releases a JVM. The JVM ends when its last user releases it."""
    with _sharing:
        jvm.users -= 1
        if jvm.users == 0:
            jvm.close()
            for key in [key for key, shared in _shared.items() if shared is jvm]:
                del _shared[key]


def _without_py4j(record: logging.LogRecord) -> bool:
    """Drops py4j's log records, which repeat the errors that py4j raises."""
    return "/py4j/" not in record.pathname
