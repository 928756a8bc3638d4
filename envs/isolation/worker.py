"""The worker process of environments, started by envs.isolation.pool through a reaper.

    request  {op: hello, name, options, memory_mib}     reply   {spec, offers}
             {op: call, session, method, arguments}             {value}
             {op: close, session}                               {}
                                                        or      {error, …}

Requests come on standard input, one at a time. Replies go to standard output. Each message is a
length (4 bytes, big endian) and a map of r3l.codec. A session is one attempt's use of an
environment, or of the runner of an agent (envs.agents.agent_runner). The next session reuses the
environment, unless it failed or its class sets `once`.
"""

import contextlib
import logging
import os
import resource
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, BinaryIO, NoReturn

from envs import registry
from envs.agents import agent_process
from envs.agents.agent_runner import AgentRunner
from envs.base import TextEnv
from r3l.codec import RECORD_LIMIT, pack, unpack
from r3l.errors import EnvironmentFailed, R3LError, to_wire
from r3l.rollout.env_calls import failure_of, fault_in, parts_in, read_reset, read_step
from r3l.text import plain_value

OPTIONAL = ("snapshot", "restore", "feedback", "demonstration", "right_answers")
"""Methods that a text environment may have."""


class Sessions:
    """The environments of one worker process."""

    def __init__(self) -> None:
        self.make: Callable[[], TextEnv | AgentRunner]
        self.free: list[TextEnv | AgentRunner] = []
        self.held: dict[int, TextEnv | AgentRunner] = {}
        self.failed: set[int] = set()

    def hello(self, name: str, options: dict[str, Any], memory_mib: int) -> dict[str, Any]:
        """Limits memory and makes a first environment. Returns the environment's spec and the names
        of its optional methods. Raises UserError."""
        limit = memory_mib << 20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        self.make = lambda: registry.make_any(name, **options)
        env = self.make()
        self.free.append(env)
        offers = [method for method in OPTIONAL if callable(getattr(env, method, None))]
        return {"spec": asdict(env.spec), "offers": offers}

    def call(self, session: int, method: str, arguments: list[Any]) -> dict[str, Any]:
        """Calls a method of a session's environment. Raises EnvironmentFailed."""
        try:
            if session not in self.held:
                self.held[session] = self.free.pop() if self.free else self.make()
            return {"value": _answer(self.held[session], method, arguments)}
        except MemoryError:
            raise
        except EnvironmentFailed:
            self.failed.add(session)
            raise
        except BaseException as error:
            self.failed.add(session)
            raise failure_of(error) from error

    def close(self, session: int) -> dict[str, Any]:
        """Ends a session. Closes the environment if it has failed or serves only one session."""
        env = self.held.pop(session, None)
        if env is not None and session not in self.failed and not getattr(env, "once", False):
            self.free.append(env)
        elif env is not None:
            _close(env)
        self.failed.discard(session)
        return {}

    def end(self) -> None:
        for env in [*self.free, *self.held.values()]:
            _close(env)


def serve(sessions: Sessions, requests: BinaryIO, answers: BinaryIO) -> None:
    """Replies to requests until the input ends or memory has run out."""
    worker = os.getpid()
    while request := read(requests):
        operation = getattr(sessions, request.pop("op"))
        exhausted = False
        try:
            answer = operation(**request)
            payload = pack(answer, RECORD_LIMIT)
        except MemoryError:
            exhausted = True
            limit = resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20
            why = f"the worker process needed more than {limit} MiB (env.memory_mib)"
            payload = pack(to_wire(EnvironmentFailed(why, cause="environment_memory")))
        except R3LError as error:
            payload = pack(to_wire(error))
        finally:
            if os.getpid() != worker:
                _end_fork()
        answers.write(len(payload).to_bytes(4) + payload)
        answers.flush()
        if exhausted:
            return


def read(stream: BinaryIO) -> dict[str, Any]:
    """Reads the next message. Returns {} at the end of the stream."""
    size = stream.read(4)
    return unpack(stream.read(int.from_bytes(size)), RECORD_LIMIT) if len(size) == 4 else {}


def main() -> None:
    """Serves on standard input and output. All other output goes to standard error."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s %(levelname)s %(message)s")
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    agent_process.heir = os.getppid()  # the reaper
    sessions = Sessions()
    try:
        serve(sessions, requests, answers)
    finally:
        sessions.end()


def _answer(env: TextEnv | AgentRunner, method: str, arguments: list[Any]) -> Any:
    if isinstance(env, AgentRunner):
        record = getattr(env, method)(*arguments)
        return _plain(env.spec.name, method, asdict(record))
    match method:
        case "reset":
            seed, options = arguments
            observation, _ = read_reset(env.spec.name, env.reset(seed=seed, options=options))
            return [observation, {}]
        case "step":
            *answer, info = read_step(env.spec.name, env.step(*arguments))
            known = {"fault": fault_in(info), "rewards": parts_in(info)}
            return [*answer, {name: value for name, value in known.items() if value}]
    return _plain(env.spec.name, method, getattr(env, method)(*arguments))


def _plain(name: str, method: str, value: Any) -> Any:
    """Returns what a method of environment `name` returned, if it can be sent. Raises
    EnvironmentFailed."""
    try:
        if not isinstance(value, str | bytes | list | dict | None):
            raise ValueError(f"{method} returned {type(value).__name__}; use text, bytes or JSON")
        return plain_value(value, method)
    except ValueError as error:
        raise EnvironmentFailed(f"{name}: {error}", cause=f"bad_{method}") from None


def _close(env: TextEnv | AgentRunner) -> None:
    with contextlib.suppress(BaseException):  # the worker is ended anyway
        env.close()


def _end_fork() -> NoReturn:
    """Ends this process, which is a fork of the worker. Only the worker may answer requests."""
    try:
        os.write(2, b"the environment forked a process that returned; end it with os._exit\n")
    finally:
        os._exit(1)
