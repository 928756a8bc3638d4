"""The names that a text environment of your own needs: its protocol, its spec, its tasks."""

from envs.base import ListedTasks, SeededTasks, Split, TaskSource, TextEnv
from r3l.records import Task
from r3l.rollout.interfaces import EnvSpec

__all__ = ["EnvSpec", "ListedTasks", "SeededTasks", "Split", "Task", "TaskSource", "TextEnv"]
