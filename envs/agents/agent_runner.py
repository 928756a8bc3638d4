"""The interface of agents: how an actor runs the processes of an attempt.

    prepare ─► the attempt's facts      start, grade, keep, serve ─► the state of a new process
                                        stop ─► the last state      close ─► nothing is left

envs.agents.agent implements it. envs.isolation.pool does so for an agent in a worker process, which
sends the records of this module as maps of plain values.
"""

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from r3l.rollout.env_interface import EnvSpec

MAIN, KEEPER = "agent", "keeper"
"""Names of processes: MAIN is the agent or its grader, KEEPER copies the agent's folder."""

Operation = Literal["save", "restore"]
Saved = Literal["nothing", "folder", "all"]
T = TypeVar("T")
Soon: TypeAlias = T | Awaitable[T]
"""A value now, or (from a worker process) an awaitable of it."""


@dataclass(frozen=True)
class AgentFacts:
    """What an attempt has besides its agent.

    `graded`: a grader gives the reward; otherwise the agent does. `saved`: what `keep` saves for
    retries: nothing, the agent's folder, or all state. With all state, the tools of MCP servers
    need not run again. `task`: what the agent may see of its task. `hidden`: the fields that only
    the grader sees. `servers`: the MCP servers by name, each with its URL, or "" if `serve` starts
    it. `limit_s`: the time limit that the task sets for its agent, seconds; None: the task sets no
    limit. `grader_s`: the time limit of the task's own grader, seconds; None: the limit for all
    attempts.
    """

    graded: bool = False
    saved: Saved = "nothing"
    servers: dict[str, str] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    hidden: list[str] = field(default_factory=list)
    limit_s: float | None = None
    grader_s: float | None = None


@dataclass(frozen=True)
class ProcessState:
    """The state of a process.

    `exit`: the exit code, or None while it runs. `stdout`: its last line; `stderr`: the error at
    its end; "" for a process with pipes. `pid`: the process's id, 0 if the work was done without
    another process. `folder`: where its files and pipes are.
    """

    exit: int | None = None
    stdout: str = ""
    stderr: str = ""
    pid: int = 0
    folder: str = ""


@runtime_checkable
class AgentRunner(Protocol):
    """Starts and ends the processes of one attempt at a time. Each method but `close` may raise
    EnvironmentFailed."""

    @property
    def spec(self) -> EnvSpec: ...

    def prepare(
        self, task: dict[str, Any], secret: list[str], stored: bool = False
    ) -> Soon[AgentFacts]:
        """Makes a new folder for an attempt at a task. Ends an earlier attempt. `secret`: the names
        of those environment variables of the worker that no process of the attempt gets. `stored`:
        the attempt was played before, so its folder stays empty, and the grader gets no folder."""

    def start(
        self, variables: dict[str, str], fresh: list[str] | None = None
    ) -> Soon[ProcessState]:
        """Starts the agent, with these environment variables. `fresh`: the names of further
        variables; each names a new folder, which is removed together with the attempt's folder."""

    def grade(self, calls: list[dict[str, Any]]) -> Soon[ProcessState]:
        """Starts the grader in place of the agent and its MCP servers, which are ended. `calls`:
        the agent's answered calls."""

    def keep(self, operation: Operation, folder: str, call: int) -> Soon[ProcessState]:
        """Saves the attempt's state before a call to `folder`, or restores it from there. May start
        a process."""

    def serve(self, name: str) -> Soon[ProcessState]:
        """Starts an MCP server, which reads and writes the pipes of its folder."""

    def stop(self, name: str) -> Soon[ProcessState]:
        """Kills a process and all processes that it started. Returns the state that it had before.
        Processes that were started by `keep`'s command stay alive until `close`."""

    def close(self) -> None:
        """Ends all processes and removes the folder."""
