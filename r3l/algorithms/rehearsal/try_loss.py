"""Tries a loss on made-up log-probabilities. Imports torch only when it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.losses import TokenBatch
from r3l.algorithms.rows import Row
from r3l.errors import UserError
from r3l.rollout.env_calls import place

if TYPE_CHECKING:
    from torch import Tensor

OF_LOSSES = ("loss", "policy_loss", "token_loss", "clipped_ratio", "corrected", "kl")
"""The methods that compute a loss."""
MOST_ROWS = 24
ELSEWHERE = "on ranks other than 0, which never call `rows`,"


def changes_the_loss(kind: type[Algorithm]) -> bool:
    """Whether a user's class has a loss of its own, and torch is installed."""
    modules = (getattr(getattr(kind, name, None), "__module__", "r3l.") for name in OF_LOSSES)
    return not all(name.startswith("r3l.") for name in modules) and find_spec("torch") is not None


def try_loss(algorithm: Algorithm, rows: Sequence[Row]) -> None:
    """Computes the loss and the gradient of some rows, together and one by one. Raises UserError if
    a part is not a finite number, if no gradient reaches the model, if the losses of single rows do
    not add up to the loss of all, or if the loss is different on a rank that made no rows."""
    some = rows[:: -(-len(rows) // MOST_ROWS)]
    batch = token_batch(some)
    parts = _parts(algorithm, batch)
    total: Tensor = sum(parts.values())
    if not total.requires_grad:
        raise UserError("it has no gradient; compute it from batch.logprobs_BT, not detached")
    total.backward()
    gradient = batch.logprobs_BT.grad
    if gradient is not None and not gradient.isfinite().all():
        raise UserError("its gradient is not finite; bound ratios and divisions")
    computed = [_numbers(parts)]
    computed += [_numbers(_parts(algorithm, token_batch([row]))) for row in some]
    whole, *single = (sum(each.values()) for each in computed)
    if abs(sum(single) - whole) > 1e-3 * sum(map(abs, single)) + 1e-6:
        raise UserError(
            f"the losses of single rows add up to {sum(single):.4g}, but the loss of all rows is "
            f"{whole:.4g}; add terms with batch.total, since the rows' weights contain every mean"
        )
    if problem := _problem_elsewhere(algorithm, [some, *([row] for row in some)], computed):
        raise UserError(f"{ELSEWHERE} {problem}; put what it reads into the rows")


def _problem_elsewhere(
    algorithm: Algorithm, several: Sequence[Sequence[Row]], computed: Sequence[Mapping[str, float]]
) -> str:
    """Computes the losses of several micro-batches with another object of the same settings, as
    other ranks than 0 do. Returns how they differ from the computed ones, or ""."""
    other = type(algorithm).model_validate(algorithm.model_dump())
    try:
        found = [_numbers(_parts(other, token_batch(rows))) for rows in several]
    except TimeoutError:
        raise
    except UserError as error:
        return str(error)
    except Exception as error:
        return f"it raised {type(error).__name__}: {str(error)[:200]} ({place(error)})"
    for here, there in zip(computed, found, strict=True):
        if here.keys() != there.keys():
            return f"its parts are {sorted(there)} instead of {sorted(here)}"
        for name in here:
            if abs(here[name] - there[name]) > 1e-5 * abs(here[name]) + 1e-9:
                return f"its part {name!r} is {there[name]:.4g} instead of {here[name]:.4g}"
    return ""


def _parts(algorithm: Algorithm, batch: TokenBatch) -> Mapping[str, Tensor]:
    """Returns an algorithm's parts. Raises UserError unless they are finite numbers."""
    parts: Any = algorithm.loss(batch)
    rule = "return named parts, each a tensor of one number: {'policy': batch.total(terms_BT)}"
    if not isinstance(parts, Mapping) or not parts:
        raise UserError(f"it returned {parts!r:.100}; {rule}")
    for name, part in parts.items():
        if not hasattr(part, "requires_grad") or part.dim():
            raise UserError(f"it returned {part!r:.100} as its part {name!r}; {rule}")
        if not part.isfinite():
            raise UserError(f"its part {name!r} is {part.item():g}; bound ratios and divisions")
    return parts


def _numbers(parts: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: float(part.detach()) for name, part in parts.items()}


def token_batch(rows: Sequence[Row]) -> TokenBatch:
    """Makes a micro-batch of rows. Each token is as likely as it was at sampling, up to a factor of
    e."""
    import torch

    def padded(values: Sequence[Any], dtype: Any) -> Tensor:
        made = torch.zeros(len(values), max(map(len, values)), dtype=dtype)
        for i, row in enumerate(values):
            made[i, : len(row)] = torch.tensor(row).to(dtype)  # as_tensor warns of read-only rows
        return made

    shifts = [np.random.default_rng(len(r.mask)).uniform(-1, 0, len(r.mask)) for r in rows]
    logprobs = [
        np.where(row.mask, row.old_logprobs - 0.01 + shift, 0)
        for row, shift in zip(rows, shifts, strict=True)
    ]
    references = [row.reference for row in rows]
    filled = [np.zeros(len(r.mask)) if r.reference is None else r.reference for r in rows]
    return TokenBatch(
        padded(logprobs, torch.float32).requires_grad_(),
        padded([row.old_logprobs for row in rows], torch.float32),
        padded([row.mask for row in rows], torch.bool),
        padded([row.advantages for row in rows], torch.float32),
        padded([row.weights for row in rows], torch.float32),
        torch.tensor([row.distilled for row in rows]),
        None if all(each is None for each in references) else padded(filled, torch.float32),
        tuple(row.loss for row in rows),
    )
