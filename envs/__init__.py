"""Exports what a text environment needs: protocol, spec and tasks."""

from envs.base import ListedTasks, SeededTasks, Split, TaskSource, TextEnv
from r3l.records import Task
from r3l.rollout.env_interface import EnvSpec

__all__ = ["EnvSpec", "ListedTasks", "SeededTasks", "Split", "Task", "TaskSource", "TextEnv"]
