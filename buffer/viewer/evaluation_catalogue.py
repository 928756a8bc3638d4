"""The catalogue of an evaluation's folder (docs/evaluation.md): each task is a group."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import convert, to_builtins

from buffer.viewer.catalogue import SHARE, Facts
from r3l.errors import NotFound
from r3l.run.files import json_lines
from r3l.views.attempt_view import AttemptView

RESULTS = "results.jsonl"
MORE: Facts = {
    "seed": "", "options": "{}", "weight": 1.0, "kind": "", "handed": [], "unresolved": [],
    "recalled": [],
}  # fmt: skip


class EvaluatedAttempt(AttemptView, kw_only=True):
    """A line of the file RESULTS. See Conversation in learner.evaluation.conversation."""

    task_id: str
    attempt: int
    family: str = ""


class EvaluationCatalogue:
    """Lists an evaluation's tasks, the last one first. A task's family is shown as its `env`. A
    failed attempt counts as reward 0, as in the report."""

    kind = "evaluation"

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / RESULTS
        self.change, self.total, self.version, self._next = -1, 0, 0, 0.0
        self._facts, self._lock = list[Facts](), threading.Lock()
        self._groups: dict[str, list[EvaluatedAttempt]] = {}

    @property
    def gone(self) -> bool:
        return not self.file.is_file()

    def group(self, group_id: str) -> Facts:
        if (attempts := self._groups.get(group_id)) is None:
            raise NotFound(f"there is no group {group_id!r:.40}")
        return _facts(group_id, attempts) | MORE | {"pairs": [_pair(one) for one in attempts]}

    def summary(self) -> Facts:
        """Returns the number of tasks, counted as groups of an evaluation."""
        groups = self.read()
        return {
            "change": self.change, "version": self.version, "total": self.total,
            "listed": len(groups),
            "states": {"eval": {"complete": len(groups)}} if groups else {},
        }  # fmt: skip

    def page(self, purpose: str, before: str, limit: int) -> tuple[int, list[Facts]]:
        """Returns the number of tasks, and the last tasks before the group `before` ("": before the
        end)."""
        groups = self.read() if purpose in ("", "eval") else []
        older = [group for group in groups if not before or group["group"] < before]
        return len(groups), older[:limit]

    def read(self) -> Sequence[Facts]:
        with self._lock:
            began, status = time.monotonic(), self.file.stat()
            change = hash((status.st_mtime_ns, status.st_size))
            if began >= self._next and change != self.change:
                groups = self._groups = _groups(self.file)
                self._facts = [_facts(*group) for group in reversed(groups.items())]
                self.version = max((facts["version"] for facts in self._facts), default=0)
                self.change, self.total = change, len(groups)
                self._next = time.monotonic() + (time.monotonic() - began) / SHARE
            return self._facts


def _groups(file: Path) -> dict[str, list[EvaluatedAttempt]]:
    tasks: dict[str, dict[int, EvaluatedAttempt]] = {}
    for line in json_lines.read(file, lambda line: convert(line, EvaluatedAttempt)).values:
        tasks.setdefault(line.task_id, {})[line.attempt] = line  # the last line of an attempt
    attempts = ([own[number] for number in sorted(own)] for own in tasks.values())
    return {f"g{number:06}": own for number, own in enumerate(attempts, 1)}


def _facts(group_id: str, attempts: Sequence[EvaluatedAttempt]) -> Facts:
    rewards, count = [one.reward or 0.0 for one in attempts], len(attempts)
    causes, first = [one.cause for one in attempts if one.cause], attempts[0]
    return {
        "group": group_id, "task": first.task_id, "env": first.family, "purpose": "eval",
        "tag": "", "source": "", "priority": None,
        "state": "complete", "cause": ", ".join(dict.fromkeys(causes)), "actor": "",
        "reward": max(rewards), "mean_reward": sum(rewards) / count, "min_reward": min(rewards),
        "contrast": max(rewards) - min(rewards), "gain": None, "bytes": None, "slots": count,
        "version": max(one.oldest_version or 0 for one in attempts), "resolved": count,
        "done": count - len(causes), "step": -1, "uses": 0, "rewards": rewards, "times": {},
    }  # fmt: skip


def _pair(attempt: EvaluatedAttempt) -> Facts:
    """Converts an attempt to a pair that has no retry. The steps have no tokens."""
    shown: Facts = to_builtins(attempt) | {"advantage": None, "tree": []}
    shown["steps"] = [step | {"logprobs": []} for step in shown["steps"]] or None
    nothing = dict.fromkeys(("reflection", "retry", "gain"))
    return {"slot": attempt.attempt, "base": shown, "pivot": -1} | nothing
