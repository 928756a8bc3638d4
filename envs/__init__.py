"""Text environments: the protocol, the registry's front door, and where tasks come from."""

from envs.base import ListedTasks, SeededTasks, Split, TaskSource, TextEnv
from r3l.records import Task
from r3l.rollout.interfaces import EnvSpec

__all__ = ["EnvSpec", "ListedTasks", "SeededTasks", "Split", "Task", "TaskSource", "TextEnv"]
