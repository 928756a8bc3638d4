"""Finds symptoms of wrong computation in an engine, for the actor and the buffer.

| symptom | meaning |
|---|---|
| `logprobs_not_finite` | a sampled token has a log-probability of NaN or infinity |
| `logprobs_positive` | a sampled token has a log-probability above 0 |
| `version_negative` | the weights have a version below 0 |
| `version_future` | the weights have a version that no learner has made yet |
| `weights_partial` | a load left parameters without their weights |
| `weights_differ` | the weights in the engine are not those that were published |

The name of a symptom is the `cause` of its error (EngineSick, SickResult).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from r3l.records import Float32

ROUNDING = 1e-4  # nats above 0 that a log-softmax in low precision may return


class Symptom(NamedTuple):
    """A symptom: its name, and a sentence for the user."""

    cause: str
    message: str


def of_logprobs(logprobs: Sequence[float] | Float32) -> Symptom | None:
    """Finds what is wrong with the log-probabilities (nats, [L]) of sampled tokens."""
    values = np.asarray(logprobs, np.float64)
    if strange := int(np.count_nonzero(~np.isfinite(values))):
        return Symptom(
            "logprobs_not_finite",
            f"{strange} of {len(values)} log-probabilities are NaN or infinite",
        )
    if len(values) and (largest := float(values.max())) > ROUNDING:
        return Symptom("logprobs_positive", f"a log-probability is {largest:g}, above 0")
    return None


def of_versions(versions: Iterable[int], newest: int) -> Symptom | None:
    """Finds what is wrong with an engine's policy versions. `newest`: the newest version that any
    learner of this store has made."""
    for version in versions:
        if version < 0:
            return Symptom("version_negative", f"policy version {version} is below 0")
        if version > newest:
            return Symptom(
                "version_future",
                f"policy version {version} does not exist yet; the newest is {newest}",
            )
    return None
