"""Named facts of a group, and filters over them, such as `reward > 0.5 and env == 'workshop'`.

A comparison with None is false, except for `== None` and `!= None`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from buffer.storage.rows import GroupRow
from buffer.storage.transaction import Txn
from r3l.errors import UserError

NAMES = frozenset(
    "group task env purpose tag state cause actor reward mean_reward min_reward contrast "
    "version slots resolved done step uses bytes".split()
)
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, many: value in many,
    ast.NotIn: lambda value, many: value not in many,
}
Row = Mapping[str, Any]
Filter = Callable[[Row], bool]
EXAMPLE = "a filter is like reward > 0.5 and env == 'workshop'"


def facts(txn: Txn, row: GroupRow) -> dict[str, Any]:
    """Returns the facts of a group, keyed by NAMES. Rewards are None if it has no trajectory."""
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
        "slots": row.slots,
        "resolved": len(row.resolved),
        "done": row.done,
        "step": row.steps[-1] if row.steps else -1,
        "uses": len(row.steps),
        "bytes": row.nbytes,
    }


def parse_filter(text: str) -> Filter:
    """Parse a filter over groups. It may have names, constants, comparisons, `in` with a list,
    `and`, `or` and `not`; raises UserError for anything else."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else "it is too deep"
        raise UserError(f"query {text!r:.80}: cannot be parsed ({why}); {EXAMPLE}") from None
    _check(tree, text)

    def accepts(row: Row) -> bool:
        try:
            return bool(_value(tree, row))
        except TypeError as error:
            raise UserError(f"query {text!r:.80}: {error}") from None
        except RecursionError:
            raise UserError(f"query {text!r:.80}: is nested too deeply; shorten it") from None

    return accepts


def _check(node: ast.expr, text: str) -> None:
    """Raise UserError if a filter cannot be evaluated on every row."""
    known = (ast.BoolOp, ast.UnaryOp, ast.Compare, ast.Name, ast.Constant, ast.List, ast.Tuple)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner.id not in NAMES:
            raise UserError(
                f"query {text!r:.80}: unknown name {inner.id!r}; "
                f"choose from {', '.join(sorted(NAMES))}"
            )
        operators = (ast.boolop, ast.cmpop, ast.Not, ast.USub, ast.Load)
        if isinstance(inner, ast.Is | ast.IsNot) or not isinstance(inner, known + operators):
            raise UserError(
                f"query {text!r:.80}: a {type(inner).__name__.lower()} is not supported; {EXAMPLE}"
            )


def _value(node: ast.expr, row: Row) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return row[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(inner, row) for inner in node.elts]
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, row)
        return -value if isinstance(node.op, ast.USub) else not value
    if isinstance(node, ast.BoolOp):
        values = (_value(inner, row) for inner in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)
    assert isinstance(node, ast.Compare)
    left = _value(node.left, row)
    for comparison, right_node in zip(node.ops, node.comparators, strict=True):
        right = _value(right_node, row)
        equality = isinstance(comparison, ast.Eq | ast.NotEq)
        if (left is None or right is None) and not equality:
            return False
        if not _COMPARE[type(comparison)](left, right):
            return False
        left = right
    return True
