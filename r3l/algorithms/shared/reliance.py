"""Reliance: how much a retry needs the guidance that it read.

    Δ = mean_t [log π(y_t | x) − log π_g(y_t)]        over the tokens of a retry, in nats

π_g is the policy that reads the guidance, with the same weights as π. If the retry was sampled with
these weights, its stored log-probabilities are log π_g. Otherwise log π_g is computed anew: a
policy that has since been trained on the retry would seem to need no guidance. If Δ is far below 0,
the policy would not say without guidance what it says with it, so little of the retry transfers.
Source: hint reliance of HiLL (arXiv 2604.00698).
"""

import math
from collections.abc import Hashable, Iterator

import numpy as np

from r3l.algorithms.batch import Batch, Source
from r3l.algorithms.queries import Query, answer_of, key_of
from r3l.records import Group, Trajectory

WITHOUT, GUIDED = "reliance", "reliance guided"
"""What is asked: a retry without its guidance, and with it."""
SCALE = 0.3
"""Nats at which the weight of a retry has fallen to 1/e."""


def queries(batch: Batch) -> Iterator[Query]:
    """Asks for log π(y_t | x) of each retry that has log-probabilities, and for log π_g(y_t) unless
    the current weights alone sampled it."""
    for group in batch.groups:
        for _, retry in group.retries:
            mask = retry.responses_from(retry.first_played)
            if retry.has_logprobs and mask.any():
                heat = retry.temperature or 1.0
                yield Query(_key(WITHOUT, group, retry), retry.token_ids, mask, temperature=heat)
                if not _is_fresh(batch, retry):
                    ids, own = retry.as_shown()
                    yield Query(_key(GUIDED, group, retry), ids, own, temperature=heat)


def reliance(batch: Batch, group: Group, retry: Trajectory) -> float | None:
    """Returns the reliance Δ of a retry, in nats, or None if it is unknown."""
    found = batch.answers.get(_key(WITHOUT, group, retry))
    if found is None:
        return None
    mask = retry.responses_from(retry.first_played)
    guided = retry.logprobs[mask]
    if not _is_fresh(batch, retry):
        guided = answer_of(batch, _key(GUIDED, group, retry))[retry.as_shown()[1]]
    return float((found[mask].astype(np.float64) - guided).mean())


def weight(delta: float | None, scale: float = SCALE) -> float:
    """Computes w = exp(min(Δ, 0)/scale), from 0 to 1; 1 if Δ is not known."""
    return 1.0 if delta is None else math.exp(min(delta, 0.0) / scale)


def _is_fresh(batch: Batch, retry: Trajectory) -> bool:
    """Whether the batch's weights alone sampled the steps of a retry."""
    first = retry.first_played
    versions = (retry.step_versions[first:], retry.step_newest_versions[first:])
    return all(bool((each == batch.version).all()) for each in versions)


def _key(what: str, group: Group, retry: Trajectory) -> Hashable:
    return key_of(what, Source(group.group_id, group.group_id, retry))
