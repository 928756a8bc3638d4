"""Rules for what an algorithm's methods return. Each function returns the broken rule, or ""."""

import math
from collections.abc import Collection, Hashable
from typing import Any, get_args

import numpy as np

from r3l.algorithms.queries import Answer, Quantity, Query, TopK
from r3l.algorithms.rows import Row
from r3l.errors import RecordError
from r3l.records import AttemptKey, GroupPlan, check_cause

MOST_SLOTS = 1024


def of_plan(plan: Any, history: Collection[AttemptKey]) -> str:
    """Checks what `plan` returned. `history`: the attempts that it may hand out."""
    if not isinstance(plan, GroupPlan):
        return f"returned {plan!r:.100}; return a GroupPlan"
    if type(plan.slots) is not int or not 1 <= plan.slots <= MOST_SLOTS:
        return f"planned {plan.slots!r} slots; plan 1 to {MOST_SLOTS}"
    kind: Any = plan.kind
    if not isinstance(kind, str):
        return f"returned the kind {kind!r:.100}; it must be text"
    unknown = [key for key in plan.handed if key not in history]
    return f"hands out {unknown[0]!r:.100}; name attempts of lease.history" if unknown else ""


def of_cause(cause: Any) -> str:
    """Checks what `admits` returned."""
    if not isinstance(cause, str):
        return f'returned {cause!r:.100}; return "" or a cause, as text'
    try:
        check_cause(cause)
    except RecordError as error:
        return str(error)
    return ""


def of_recalled(chosen: Any, history: Collection[Any]) -> str:
    """Checks what `recalls` returned. `history`: the attempts that it may recall."""
    if isinstance(chosen, list | tuple) and all(each in history for each in chosen):
        return ""
    return f"returned {chosen!r:.100}; return a list of attempts of `history`"


def of_query(query: Any, needs: Collection[str], asked: Collection[Hashable]) -> str:
    """Checks a query. `needs`: the other weights that are held. `asked`: keys of other queries."""
    if not isinstance(query, Query):
        return f"returned {query!r:.100}; return a list of Query"
    try:
        known = query.key in asked
    except TypeError:
        return f"the key {query.key!r:.100} cannot be hashed; use a tuple of text and numbers"
    name, length = f"query {query.key!r:.80}", len(query.token_ids)
    if known:
        return f"{name}: another query has this key; give each its own"
    if getattr(query.mask, "shape", None) != (length,) or query.mask.dtype != np.bool_:
        return f"{name}: its mask must be bool of shape ({length},), as its tokens are"
    if length and query.mask[0]:
        return f"{name}: it asks about the first token, which nothing predicts; mask it out"
    if query.find not in get_args(Quantity) or query.weights not in ("current", *needs):
        return (
            f"{name}: it asks for {query.find} under the {query.weights} weights; ask for one of "
            f"{', '.join(get_args(Quantity))}, under the current weights or those in `needs`"
        )
    if (query.find == "topk") != (query.k > 0):
        return f"{name}: k is {query.k}; topk needs one token or more, other queries none"
    return ""


def of_row(row: Any) -> str:
    """Checks a row. Its lengths were checked when it was made."""
    if not isinstance(row, Row):
        return f"returned {row!r:.100}; return a list of Row (r3l.algorithms.rows)"
    if not len(row.mask):
        return "a row has no tokens; leave it out, as rows.with_gradient does"
    if row.mask.dtype != np.bool_:
        return f"a row's mask is of {row.mask.dtype}; it must be of bool"
    if row.mask[0]:
        return "a row trains its first token, which nothing predicts; mask it out"
    for name in ("advantages", "weights", "old_logprobs", "reference"):
        values = getattr(row, name)
        if values is not None and not np.isfinite(values[row.mask]).all():
            return f"the {name} of a row are not finite: {values[row.mask]!r:.100}"
    return ""


def of_metrics(metrics: Any) -> str:
    """Checks what `metrics` returned."""
    if not isinstance(metrics, dict):
        return f"returned {metrics!r:.100}; return a dict of names and numbers"
    for name, value in metrics.items():
        if not isinstance(name, str) or not name.startswith("group/"):
            return f"measures {name!r:.100}; a name begins with group/"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"measures {value!r:.100} as {name}; it must be a number"
    return ""


def made_up_answer(query: Query) -> Answer:
    """Makes up the answer of a query."""
    if query.find == "topk":
        shape = (len(query.token_ids), query.k)
        logprobs = np.full(shape, -math.log(2 * query.k), np.float32)
        return TopK(np.zeros(shape, np.int32), logprobs * query.mask[:, None])
    value = -0.6 if query.find == "logprobs" else 0.9
    return np.where(query.mask, value, 0).astype(np.float32)
