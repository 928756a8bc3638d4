"""Import these to write a text environment: its protocol, its spec, its tasks."""

from envs.base import ListedTasks, SeededTasks, Split, TaskSource, TextEnv
from r3l.records import Task
from r3l.rollout.env_interface import EnvSpec

__all__ = ["EnvSpec", "ListedTasks", "SeededTasks", "Split", "Task", "TaskSource", "TextEnv"]
