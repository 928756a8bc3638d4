"""Runs environments in worker processes. If an environment crashes, hangs or needs too much memory,
only one worker ends.

    attempt ─► RemoteEnv ─┐ one session each        ┌─► reaper ─► worker (envs.isolation.worker)
    attempt ─► RemoteEnv ─┼─► EnvPool ──────────────┤     sessions side by side, one call at a time
    attempt ─► RemoteEnv ─┘ picks the least loaded  └─► reaper ─► worker

An agent's attempt has a RemoteRunner in place of a RemoteEnv.
An attempt first waits for a free session. A worker answers one call at a time, and has `env.step_s`
seconds for each call. A worker that ends or takes too long is killed with everything that it
started. The worker's sessions fail with a named cause. The next session starts a new worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
import signal
import time
import uuid
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import psutil

from envs import registry
from envs.agents.agent_process import MARK
from envs.agents.agent_runner import AgentFacts, AgentRunner, Operation, ProcessState
from envs.agents.agent_variables import direct_hosts, secret_names
from envs.agents.opened_folder import FOLDER as ATTEMPT
from envs.isolation.reaper import CLEAR_S, FOLDER
from r3l.codec import RECORD_LIMIT, pack, unpack
from r3l.errors import EnvironmentFailed, RecordError, UserError, from_wire
from r3l.files.own_packages import import_path, module_command
from r3l.files.temporary_folder import remove_left
from r3l.records import Task
from r3l.rollout.env_interface import Environment, EnvSpec
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.process.process_list import every_process
from r3l.run.settings.environment import EnvConfig, by_agent

log = logging.getLogger(__name__)

START_S = 120.0
"""Time limit for a worker to import an environment's library and make an instance, seconds."""
END_S = 5.0
"""Time limit for a worker to close its environments before it is killed, seconds."""
UNLIMITED = 1 << 30
USUAL_WORKERS = 2
"""The default minimum of processes. If one ends, the sessions in the others continue."""


@asynccontextmanager
async def environments_of_all(
    config: EnvConfig, wanted: int, metrics: ActorMetrics | None = None
) -> AsyncIterator[Callable[[Task], Environment | AgentRunner]]:
    """Yields a function that makes a task's environment, or a runner of its agent (see
    `environments`). The function raises EnvironmentFailed if the run lacks this environment."""
    for prefix in (FOLDER, ATTEMPT):
        await asyncio.to_thread(remove_left, prefix)
    async with AsyncExitStack() as stack:
        made = {
            each.name: await stack.enter_async_context(environments(each, wanted, metrics))
            for each in config.each()
        }
        only = made[config.name] if len(made) == 1 else None  # its tasks may use another name

        def make_env(task: Task) -> Environment | AgentRunner:
            make = only or made.get(task.env)
            if make is None:
                raise EnvironmentFailed(
                    f"task {task.task_id} belongs to {task.env}, but this run has {config.title}",
                    cause="unknown_environment",
                )
            return make()

        yield make_env


@asynccontextmanager
async def environments(
    config: EnvConfig, wanted: int, metrics: ActorMetrics | None = None
) -> AsyncIterator[Callable[[], Environment | AgentRunner]]:
    """Yields a function that makes environments, or runners of an agent, in this process or in
    workers (`env.isolation`). The workers end when the context ends.

    `wanted`: number of attempts at the same time. `metrics` counts how long attempts wait for
    sessions. Raises UserError if the environment cannot be made.
    """
    alone = config.isolation == "process"
    if config.isolation == "auto":
        alone = not registry.in_process(config.name)
    if not alone:
        registry.try_out(config.name, config.options)
        yield partial(registry.make_any, config.name, **config.options)
        return
    pool = EnvPool(config, wanted, metrics)
    try:
        await pool.start()
        yield partial(RemoteRunner if by_agent(config.name) else RemoteEnv, pool)
    finally:
        await pool.close()


class EnvPool:
    """Worker processes of one environment, for `wanted` attempts at the same time.

    `metrics` counts how long attempts wait for a session.
    """

    def __init__(
        self, config: EnvConfig, wanted: int = 1, metrics: ActorMetrics | None = None
    ) -> None:
        self.config, self.wanted = config, wanted
        self.metrics = ActorMetrics() if metrics is None else metrics
        self.workers: list[_Worker | None] = []
        self.spec: EnvSpec
        self.offers: list[str] = []
        self._room: asyncio.Semaphore

    async def start(self) -> None:
        """Starts the first worker and receives what its environment declares. Raises UserError."""
        worker = _Worker(self.config)
        self.workers = [worker]
        try:
            hello = await worker.hello
        except EnvironmentFailed as error:
            raise UserError(f"env {self.config.name}: {error}") from error
        self.spec, self.offers = EnvSpec(**hello["spec"]), hello["offers"]
        sessions = self.spec.sessions or UNLIMITED
        count = self.config.workers or workers_for(self.wanted, sessions)
        self.workers += [None] * (count - 1)
        self._room = asyncio.Semaphore(count * sessions)

    async def acquire(self) -> _Worker:
        """Waits for a free session, and takes it from the least loaded worker."""
        began = time.monotonic()
        await self._room.acquire()
        self.metrics.session_wait_s += time.monotonic() - began
        loads = [0 if w is None or w.end_cause else w.sessions for w in self.workers]
        place = loads.index(min(loads))
        worker = self.workers[place]
        if worker is None or worker.end_cause:
            self.workers[place] = worker = _Worker(self.config)
        worker.sessions += 1
        return worker

    def release(self, worker: _Worker) -> None:
        worker.sessions -= 1
        self._room.release()

    async def close(self) -> None:
        await asyncio.gather(*(worker.end() for worker in self.workers if worker is not None))


def workers_for(wanted: int, sessions: int) -> int:
    """Returns the number of workers to start for `wanted` attempts: USUAL_WORKERS or more.
    `sessions`: how many attempts a worker can hold."""
    needed = math.ceil(wanted / sessions)
    return max(USUAL_WORKERS, min(needed, os.cpu_count() or 1))  # a worker may start a JVM


class _Remote:
    """An attempt's session in a worker process. The first call acquires the session.

    Calls return awaitables. They raise the environment's own error, or EnvironmentFailed with cause
    environment_hang, environment_crash, environment_memory or environment_lost (another session has
    ended the worker).
    """

    _numbers = itertools.count()

    def __init__(self, pool: EnvPool) -> None:
        self.pool, self.spec = pool, pool.spec
        self.session = next(self._numbers)
        self.worker: _Worker | None = None

    async def _call(self, method: str, *arguments: Any) -> Any:
        if self.worker is None:
            self.worker = await self.pool.acquire()
        request = {"op": "call", "session": self.session, "method": method}
        request["arguments"] = list(arguments)
        return (await self.worker.post(request))["value"]

    def close(self) -> None:
        """Releases the session without waiting."""
        if self.worker is not None:
            self.worker.post({"op": "close", "session": self.session})
            self.pool.release(self.worker)
            self.worker = None


class RemoteEnv(_Remote):
    """An attempt's `Environment` in a worker process, with the optional methods that it offers."""

    def __init__(self, pool: EnvPool) -> None:
        super().__init__(pool)
        for method in pool.offers:
            setattr(self, method, partial(self._call, method))

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> Any:
        return self._call("reset", seed, options)

    def step(self, action: str) -> Any:
        return self._call("step", action)


class RemoteRunner(_Remote):
    """An attempt's `AgentRunner` in a worker process."""

    async def prepare(
        self, task: dict[str, Any], secret: list[str], stored: bool = False
    ) -> AgentFacts:
        return msgspec.convert(await self._call("prepare", task, secret, stored), AgentFacts)

    async def start(
        self, variables: dict[str, str], fresh: list[str] | None = None
    ) -> ProcessState:
        return await self._state("start", variables, fresh)

    async def grade(self, calls: list[dict[str, Any]]) -> ProcessState:
        return await self._state("grade", calls)

    async def keep(self, operation: Operation, folder: str, call: int) -> ProcessState:
        return await self._state("keep", operation, folder, call)

    async def serve(self, name: str) -> ProcessState:
        return await self._state("serve", name)

    async def stop(self, name: str) -> ProcessState:
        return await self._state("stop", name)

    async def _state(self, method: str, *arguments: Any) -> ProcessState:
        return msgspec.convert(await self._call(method, *arguments), ProcessState)


class _Worker:
    """One worker process and the queue of calls to it.

    `hello`: a future for the worker's first reply, which declares the environment.
    """

    def __init__(self, config: EnvConfig) -> None:
        self.config = config
        self.sessions, self.end_cause = 0, ""
        self.refusal = ""  # why the environment of this process could not be made
        self._mark = uuid.uuid4().hex
        self.calls: asyncio.Queue[tuple[dict[str, Any], bytes, asyncio.Future[Any]] | None]
        self.calls = asyncio.Queue()
        self.hello = self.post(
            {
                "op": "hello",
                "name": self.config.name,
                "options": self.config.options,
                "memory_mib": self.config.memory_mib,
            }
        )
        self.serving = asyncio.create_task(self._serve())

    def post(self, request: dict[str, Any]) -> asyncio.Future[Any]:
        """Queues a request. Returns a future for its reply or error. Raises RecordError if the
        request cannot be encoded."""
        payload = pack(request, RECORD_LIMIT)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        if self.end_cause:
            future.set_exception(self._lost_error())
        else:
            self.calls.put_nowait((request, payload, future))
        return future

    async def end(self) -> None:
        """Asks the process to close its environments. Kills it if it takes longer than END_S."""
        self.calls.put_nowait(None)
        done, _ = await asyncio.wait([self.serving], timeout=END_S)
        if not done:
            self.end_cause = "environment_closed"
            self.serving.cancel()
            await asyncio.wait([self.serving])

    async def _serve(self) -> None:
        """Sends queued calls one at a time and delivers their replies. Finally ends the process."""
        try:
            process = await self._spawn()
        except OSError as refused:
            log.error("%s: a worker process cannot be started: %s", self.config.name, refused)
            self.end_cause = "environment_crash"
            self._fail_waiting()
            return
        try:
            while (call := await self.calls.get()) is not None:
                request, payload, future = call
                if future.cancelled() and request["op"] != "close":
                    continue
                try:
                    answer = await self._exchange(process, request, payload)
                except EnvironmentFailed as lost:
                    self.end_cause = lost.cause
                    _fail(future, lost)
                    break
                if "error" not in answer:
                    if not future.done():
                        future.set_result(answer)
                    continue
                error = from_wire(answer)
                _fail(future, error)
                if request["op"] == "hello" or error.cause == "environment_memory":
                    # Whoever awaits the first worker reports the user's errors, in one line. Of a
                    # later one its attempts do.
                    wrong = isinstance(error, UserError)
                    self.refusal = str(error) if wrong else ""
                    self.end_cause = "environment_closed" if wrong else error.cause
                    break
        finally:
            patient = not self.end_cause
            self._fail_waiting()
            await _end(process, self._mark, patient=patient)

    async def _spawn(self) -> Process:
        secret = secret_names(os.environ, self.config.pass_environment)
        given = {name: value for name, value in os.environ.items() if name not in secret}
        settled = {"PYTHONPATH": import_path(), "PYTHONHASHSEED": "0"} | direct_hosts(given)
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        return await asyncio.create_subprocess_exec(
            *(*module_command("envs.isolation.reaper"), str(os.getpid()), self._mark),
            stdin=PIPE,
            stdout=PIPE,
            env=given | settled | threads | {MARK: self._mark},
            start_new_session=True,
        )

    async def _exchange(
        self, process: Process, request: dict[str, Any], payload: bytes
    ) -> dict[str, Any]:
        """Returns the reply to a request. Raises EnvironmentFailed if the worker ends or hangs."""
        starts = request["op"] == "hello"
        limit, setting = (START_S, "") if starts else (self.config.step_s, " (env.step_s)")
        assert process.stdin is not None and process.stdout is not None  # both streams are pipes
        try:
            async with asyncio.timeout(limit):
                process.stdin.write(len(payload).to_bytes(4) + payload)
                await process.stdin.drain()
                return await _read(process.stdout)
        except TimeoutError:
            cause = "hang"
            why = f"took longer than {limit:g} s{setting}; the worker process was killed"
        except (asyncio.IncompleteReadError, ConnectionError, RecordError):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await process.wait()
            cause = "crash"
            why = f"ended the worker process (exit code {process.returncode})"
        called = f"{self.config.name}: {request.get('method', 'its start')}"
        raise EnvironmentFailed(f"{called} {why}", cause=f"environment_{cause}")

    def _fail_waiting(self) -> None:
        """Refuses further calls, and fails the waiting calls."""
        if self.end_cause not in ("", "environment_closed"):
            log.warning("%s: a worker process was killed: %s", self.config.name, self.end_cause)
        self.end_cause = self.end_cause or "environment_closed"
        while not self.calls.empty():
            if (call := self.calls.get_nowait()) is not None:
                _fail(call[2], self._lost_error())

    def _lost_error(self) -> EnvironmentFailed:
        ended = f"has ended ({self.end_cause})"
        if self.refusal:
            ended = f"could not be started: {self.refusal}"
        return EnvironmentFailed(
            f"{self.config.name}: the worker process of this attempt {ended}",
            cause="environment_lost",
        )


async def _read(replies: asyncio.StreamReader) -> dict[str, Any]:
    """Reads the next reply. Raises RecordError if it is not a valid record."""
    size = int.from_bytes(await replies.readexactly(4))
    if size > RECORD_LIMIT:
        raise RecordError(f"a reply of {size} bytes")
    return unpack(await replies.readexactly(size), RECORD_LIMIT)


async def _end(process: Process, mark: str, *, patient: bool) -> None:
    """Ends a worker and everything that it started. If `patient`, first lets the worker close its
    environments."""
    assert process.stdin is not None
    process.stdin.close()
    if patient:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await process.wait()
    with contextlib.suppress(ProcessLookupError, TimeoutError):
        process.terminate()  # the reaper kills what the worker started
        async with asyncio.timeout(END_S + CLEAR_S):
            await process.wait()
    if process.returncode in (None, -signal.SIGKILL):  # the reaper was killed and killed nothing
        _kill_marked(mark)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):  # asyncio also waits for other holders of the pipes
            await process.wait()


def _kill_marked(mark: str) -> None:
    """Kills all of this user's processes that have the environment variable MARK set to `mark`, or
    `mark` in the command line: the variables of the worker and its forks cannot be read."""
    for process in every_process():
        with contextlib.suppress(psutil.Error, OSError):
            if mark in process.cmdline() or process.environ().get(MARK) == mark:
                process.kill()


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieves a future's exception. Otherwise asyncio would log the exception."""
    if not future.cancelled():
        future.exception()
