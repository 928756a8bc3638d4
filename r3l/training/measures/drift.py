"""Measures how far the policy has moved away from the policies that sampled its data.

    sums over the tokens of each micro-batch ─► metrics of the step, per role

A retry was sampled with guidance that its row does not contain. So every role with retries (`all`,
`distilled`, `reused`) also measures the effect of guidance. One token that guidance made unlikely
can raise the k3 estimate of the KL to several nats per token. The role `base` has no retries.
"""

from collections.abc import Sequence

from torch import Tensor

from r3l.algorithms.rows import Retry

ROLES = ("all", "base", "distilled", "reused")
SUMS = ("tokens", "k3", "gap", "ratio", "ratio_squared", "entropy")
RELIANCE_OF = "sum_reliance_of "
"""How the name of a single retry's Δ begins. No two micro-batches have the same retry."""


def drift_sums(
    logprobs_BT: Tensor, old_logprobs_BT: Tensor, entropy_BT: Tensor, roles_BT: dict[str, Tensor]
) -> dict[str, float]:
    """Sums each quantity over each role's tokens, keyed `sum_<name>_<role>`. `roles_BT`: masks,
    bool [B, T]. Tokens of the role `fresh` were sampled with the learner's current weights. The
    sums of micro-batches and ranks can be added."""
    sums: dict[str, float] = {}
    for role, mask_BT in roles_BT.items():
        log_ratio = (logprobs_BT - old_logprobs_BT)[mask_BT]
        ratio = log_ratio.clamp(-20, 20).exp()
        values = (
            mask_BT.sum(),
            (ratio - 1 - log_ratio).sum(),
            log_ratio.abs().sum(),
            ratio.sum(),
            ratio.square().sum(),
            entropy_BT[mask_BT].sum(),
        )
        sums |= {f"sum_{n}_{role}": float(v) for n, v in zip(SUMS, values, strict=True)}
    return sums


def drift_metrics(sums: dict[str, float]) -> dict[str, float]:
    """Computes three metrics of each role. `behaviour_kl`: KL(behaviour ‖ policy) in nats per
    token, estimated by k3. `behaviour_ess`: effective sample size per token, (Σw)² / Σw² / tokens,
    with w = policy / behaviour. `entropy`: mean in nats per token."""
    metrics: dict[str, float] = {}
    for role in ROLES:
        tokens = sums.get(f"sum_tokens_{role}", 0.0)
        if not tokens:
            continue
        end = "" if role == "all" else f"_{role}"
        weight, squares = sums[f"sum_ratio_{role}"], sums[f"sum_ratio_squared_{role}"]
        metrics[f"behaviour_kl{end}"] = sums[f"sum_k3_{role}"] / tokens
        metrics[f"behaviour_ess{end}"] = weight**2 / max(squares, 1e-12) / tokens
        metrics[f"entropy{end}"] = sums[f"sum_entropy_{role}"] / tokens
    return metrics


def reliance_sums(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    retries_BT: Tensor,
    retries: Sequence[Retry | None],
) -> dict[str, float]:
    """Sums the reliance Δ = mean_t [log π − log π_g] over the retries of a micro-batch, and names
    the Δ of each. `old_logprobs_BT`: log π_g, of sampling with guidance. `retries_BT`: the trained
    tokens of the retries, bool [B, T]. `retries`: the retry of each row."""
    lengths_B = retries_BT.sum(dim=1)
    gaps_BT = (logprobs_BT - old_logprobs_BT).masked_fill(~retries_BT, 0.0)
    means_B = gaps_BT.sum(dim=1) / lengths_B.clamp(min=1)
    found = {
        RELIANCE_OF + "\t".join(map(str, each)): mean
        for each, mean, length in zip(retries, means_B.tolist(), lengths_B.tolist(), strict=True)
        if each is not None and length
    }
    return found | {
        "sum_reliance": float(means_B.sum()),
        "sum_retries": float((lengths_B > 0).sum()),
    }


def reliance_metrics(sums: dict[str, float]) -> dict[str, float]:
    """Computes `reliance`, the mean Δ of a step's retries in nats per token."""
    count = sums.get("sum_retries", 0.0)
    return {"reliance": sums["sum_reliance"] / count} if count else {}


def reliance_of_retries(sums: dict[str, float]) -> dict[tuple[str, str, int], float]:
    """Returns the Δ of each of a step's retries in nats per token, by the group in which it is
    trained, the group that stores it, and its slot."""
    found = {}
    for name, value in sums.items():
        if name.startswith(RELIANCE_OF):
            into, group_id, slot = name.removeprefix(RELIANCE_OF).split("\t")
            found[into, group_id, int(slot)] = value
    return found


def engine_metrics(sums: dict[str, float]) -> dict[str, float]:
    """Compares the engine with the learner at equal weights, on `fresh` tokens. `engine_kl`:
    KL(engine ‖ learner) in nats per token, estimated by k3. `engine_gap`: mean absolute difference
    of log-probabilities."""
    tokens = sums.get("sum_tokens_fresh", 0.0)
    metrics = {"engine_tokens": tokens}
    if tokens:
        metrics["engine_kl"] = sums["sum_k3_fresh"] / tokens
        metrics["engine_gap"] = sums["sum_gap_fresh"] / tokens
    return metrics


def clipped_share(norm: float, limit: float) -> float:
    """Returns the share of the gradient norm that is lost when the norm is clipped to `limit`."""
    return max(0.0, 1.0 - limit / norm) if norm > 0 else 0.0
