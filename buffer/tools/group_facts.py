"""Named facts of a group, and filters over them, such as `reward > 0.5 and env == 'workshop'`.

A group without a trajectory has no reward, and a group without a retry has no gain. Comparisons
with a missing fact are false, except `!=`, which is true.
"""

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

from buffer.storage.stored_rows import GroupRow
from r3l.errors import UserError

NAMES = frozenset(
    "group task env purpose tag state cause actor source reward mean_reward min_reward contrast "
    "gain priority version slots resolved done step uses bytes".split()
)
"""Names of facts. They are attributes of GroupRow, so filters and samplers use the same names."""
_FILTER = (ast.BoolOp, ast.UnaryOp, ast.Compare, ast.Name, ast.Constant, ast.List, ast.Tuple,
           ast.boolop, ast.cmpop, ast.Not, ast.USub, ast.Load)  # fmt: skip
Row = Mapping[str, Any]
Filter = Callable[[Row], bool]
EXAMPLE = "a filter is like reward > 0.5 and env == 'workshop'"


def facts(row: GroupRow) -> dict[str, Any]:
    """Returns the facts of a group, keyed by NAMES, from the attributes of its row. Rewards are
    None if the group has no trajectory."""
    return {name: getattr(row, name) for name in sorted(NAMES)}


def parse_filter(text: str) -> Filter:
    """Parses a filter over groups: names, constants, comparisons, `in` with a list, `and`, `or` and
    `not`. Raises UserError for anything else."""
    try:
        tree = ast.parse(text, mode="eval")
        _check(tree.body, text)
        code = compile(tree, "filter", "eval")
    except UserError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else "it is too deep"
        raise UserError(f"filter {text!r:.80}: cannot be parsed ({why}); {EXAMPLE}") from None

    def accepts(row: Row) -> bool:
        values = {name: math.nan if value is None else value for name, value in row.items()}
        try:  # safe: _check allows neither calls nor attributes
            return bool(eval(code, {"__builtins__": {}}, values))
        except TypeError as error:
            why = f"compares values of different types ({error})"
            raise UserError(f"filter {text!r:.80}: {why}; {EXAMPLE}") from None

    return accepts


def _check(tree: ast.expr, text: str) -> None:
    """Raises UserError if a filter has anything that `parse_filter` does not allow."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in NAMES:
            raise UserError(
                f"filter {text!r:.80}: unknown name {node.id!r}; "
                f"choose from {', '.join(sorted(NAMES))}"
            )
        if isinstance(node, ast.Is | ast.IsNot) or not isinstance(node, _FILTER):
            raise UserError(
                f"filter {text!r:.80}: a {type(node).__name__.lower()} is not supported; {EXAMPLE}"
            )
