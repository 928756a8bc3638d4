"""The facts of a group by name: what `query`, `ls` and the viewer list and filter."""

from __future__ import annotations

from typing import Any

from buffer.storage.rows import GroupRow
from buffer.storage.transaction import Txn

ROW_NAMES = frozenset(
    "group task env purpose tag state cause actor reward mean_reward min_reward contrast "
    "version slots resolved done step uses bytes".split()
)


def facts(txn: Txn, row: GroupRow) -> dict[str, Any]:
    """Plain values of a group by ROW_NAMES."""
    rewards = row.rewards
    return {
        "group": row.group_id,
        "task": row.task_id,
        "env": txn.task(row.purpose, row.tag, row.task_index).env,
        "purpose": row.purpose,
        "tag": row.tag,
        "state": row.state,
        "cause": row.cause,
        "actor": row.actor,
        "reward": max(rewards, default=None),
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "min_reward": min(rewards, default=None),
        "contrast": row.contrast,
        "version": row.oldest_version,
        "slots": row.plan.base + row.plan.distilled,
        "resolved": len(row.resolved),
        "done": row.done,
        "step": row.steps[-1] if row.steps else -1,
        "uses": len(row.steps),
        "bytes": row.nbytes,
    }
