"""Measures how far the policy has moved from the policies that sampled its data.

    sums over the tokens of each micro-batch ─► metrics of the step, per role

A retry was sampled with guidance that its row does not contain. So every role with retries (`all`,
`distilled`, `reused`) also measures the effect of guidance. One token that guidance made unlikely
can raise the k3 estimate of the KL to several nats per token. The role `base` has no retries.
"""

from torch import Tensor

ROLES = ("all", "base", "distilled", "reused")
SUMS = ("tokens", "k3", "gap", "ratio", "ratio_squared", "entropy")


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
