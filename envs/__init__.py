"""Exports what a text environment needs: protocol, spec, tasks and data."""

from envs.base import ListedTasks, SeededTasks, Split, TaskSource, TextEnv
from r3l.files.user_file import json_lines
from r3l.records import Task
from r3l.rollout.env_interface import EnvSpec

__all__ = [
    "EnvSpec",
    "ListedTasks",
    "SeededTasks",
    "Split",
    "Task",
    "TaskSource",
    "TextEnv",
    "json_lines",
]
