"""Turns drawn groups into micro-batches.

    groups ─► rows (tokens, mask, advantage)  ─►  micro-batches, balanced over ranks  ─►  tensors

Axes: B rows of a micro-batch, T padded positions, N distinct tokens (nodes of
learner.step.prefix_forest). Every rank plans the micro-batches of all ranks, then takes its own.
The loss of a step does not depend on how its rows are cut into micro-batches.
"""

import zlib
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from buffer.storage.rows import TrainedAttempt
from learner.step import prefix_forest
from learner.step.attention import Pack
from r3l.algorithms import credit
from r3l.algorithms.algorithm import Algorithm, ReplayContext
from r3l.algorithms.credit import Normalize
from r3l.errors import UserError
from r3l.records import Bool, Float32, Group, Int32, Recalled, Trajectory


class Source(NamedTuple):
    """An attempt in a step's batch. `into`: the group in which it is trained. `group_id`: the group
    that stores it."""

    into: str
    group_id: str
    attempt: Trajectory


@dataclass(frozen=True)
class Row:
    """One training sequence: arrays of shape [L], truncated after the last trained token.

    `mask`: trained tokens. `aux`: the row is supervised. Other rows have one `advantage`, or one
    per token in `token_advantages`. `weight`: weight of a trained token in the loss. `temperature`:
    the policy is ∝ exp(logits / temperature). `reused`: the attempt was recalled, or its group
    was replayed. `fresh`: tokens that an engine sampled with the learner's current weights, in
    exactly this row's context. `source`: the attempt that became this row.
    """

    token_ids: Int32
    mask: Bool
    old_logprobs: Float32
    advantage: float = 0.0
    distilled: bool = False
    aux: bool = False
    weight: float = 1.0
    temperature: float = 1.0
    reused: bool = False
    fresh: Bool | None = None
    token_advantages: Float32 | None = None
    source: Source | None = None

    @property
    def learns(self) -> bool:
        """Returns whether any trained token has an advantage other than 0."""
        if self.token_advantages is None:
            return bool(self.advantage)
        return bool(self.token_advantages[self.mask].any())


_Counted = tuple[list[Row], int, str]
"""One attempt or auxiliary sample: its rows (of weight w_g), its length |τ|, its group's id."""


@dataclass(frozen=True)
class Nodes:
    """The forest of a micro-batch (learner.step.prefix_forest) and the rows' paths in it, int64.

    `paths_BT[b, t]`: the node of token t of row b, 0 in the padding. `homes_N[n]`: one place of
    node n in the flattened `paths_BT`. Tree attention uses `rectangles` and `places_N`, which have
    less padding (learner.step.prefix_forest.lay_out).
    """

    token_ids_N: Tensor
    positions_N: Tensor
    parents_N: Tensor
    homes_N: Tensor
    paths_BT: Tensor
    rectangles: tuple[Tensor, ...]
    places_N: Tensor


@dataclass(frozen=True)
class MicroBatch:
    """B rows as tensors, padded on the right to T tokens. Outside sampled responses,
    `old_logprobs_BT` is 0. `input_tokens` excludes padding."""

    nodes: Nodes
    mask_BT: Tensor
    old_logprobs_BT: Tensor
    advantages_B: Tensor
    weights_B: Tensor
    distilled_B: Tensor
    aux_B: Tensor
    temperatures_B: Tensor
    reused_B: Tensor
    fresh_BT: Tensor
    input_tokens: int
    advantages_BT: Tensor | None = None


def rows_of(
    groups: Sequence[Group],
    algorithm: Algorithm,
    weights: Sequence[float] = (),
    recalled: Sequence[Recalled] = (),
    replayed: Container[str] = (),
    version: int | None = None,
) -> list[Row]:
    """Makes the rows of one step. Leaves out rows whose gradient is always zero.

    `weights`: importance weight w_g of each group (buffer.Draw.weights), by default 1. `recalled`:
    stored attempts that join the groups. `replayed`: ids of groups that were already trained.
    `version`: version of the learner's weights. The loss of the step is

        Σ_g w_g [ Σ_{i in g, kept} c_i Σ_t term_it + λ Σ_{j in g, auxiliary} c_j Σ_t −log π(y_jt) ]

    term_it is defined in r3l.algorithms.losses. r3l.algorithms.credit.token_weights computes c over
    all rows, before any is left out. c_j is 1 / (auxiliary tokens of the step). If `sft_pool` is
    shared, c_i and c_j are the weights of one mean over both sums. c does not depend on w_g. So
    with w_g = (n P_g)^-1 the expectation over draws is the mean over all n candidates.
    """
    policy: list[_Counted] = []
    aux: list[_Counted] = []
    context = ReplayContext(version or 0, _baseline(groups, replayed))
    for number, group in enumerate(groups):
        weight = weights[number] if weights else 1.0
        joined = [each for each in recalled if each.into == group.group_id]
        replay = context if group.group_id in replayed else None
        policy += _policy_rows(group, algorithm, weight, joined, replay, version)
        if algorithm.sft_weight:
            samples = [sample for result in group.results for sample in result.aux]
            samples += algorithm.extra(group) if algorithm.extra else ()
            made = [supervised_row(s.token_ids, s.response_mask, weight) for s in samples]
            aux += [([row], int(row.mask.sum()), group.group_id) for row in made]
    if algorithm.sft_share is not None:
        aux = _at_most(aux, algorithm.sft_share * _count_tokens(policy))
    if algorithm.sft_pool == "shared":
        rows = _weigh([*policy, *aux], algorithm.normalize)
    else:
        rows = [*_weigh(policy, algorithm.normalize), *_weigh(aux, "token")]
    penalized = algorithm.needs_reference  # a row of advantage 0 then has a gradient too
    return [row for row in rows if len(row.mask) and (row.aux or row.learns or penalized)]


def trained_attempts(rows: Iterable[Row]) -> tuple[TrainedAttempt, ...]:
    """Describes how a step trains on each attempt that became a row."""
    return tuple(_trained(row, *row.source) for row in rows if row.source is not None)


def _trained(row: Row, into: str, group_id: str, attempt: Trajectory) -> TrainedAttempt:
    by_token, advantage = row.token_advantages is not None, row.advantage
    if row.token_advantages is not None:
        advantage = float(row.token_advantages[row.mask].mean())
    first = np.searchsorted(attempt.step_spans[:, 1], np.argmax(row.mask), side="right")
    return TrainedAttempt(
        into, group_id, attempt.role, attempt.slot, advantage, int(first), row.weight, by_token
    )


def _baseline(groups: Sequence[Group], replayed: Container[str]) -> float:
    """Returns the median of the new groups' mean rewards. Takes all groups if no group is new."""
    whole = [group for group in groups if group.trajectories]
    means = [group.rewards.mean() for group in whole if group.group_id not in replayed]
    return float(np.median(means or [group.rewards.mean() for group in whole] or [0.0]))


def _policy_rows(
    group: Group,
    algorithm: Algorithm,
    weight: float,
    recalled: Sequence[Recalled],
    replay: ReplayContext | None,
    version: int | None,
) -> list[_Counted]:
    """Makes rows of those attempts in `group` and `recalled` that the algorithm keeps."""
    name = group.group_id
    sources = [Source(name, name, attempt) for attempt in group.trajectories]
    sources += [Source(name, each.group_id, each.trajectory) for each in recalled]
    trajectories = [source.attempt for source in sources]
    if not group.trajectories:
        return []
    rewards = [attempt.reward for attempt in trajectories]
    number = len(recalled)
    advantages, keep = algorithm.advantages(rewards, trajectories, recalled=number)
    if replay is not None and algorithm.replay_rule is not None:
        advantages, keep = algorithm.replay_rule(np.array(rewards), advantages, replay)
    per_token = algorithm.token_advantages and algorithm.token_advantages(advantages, trajectories)
    masks = algorithm.masks(trajectories, recalled=number)
    lengths = credit.lengths(algorithm.normalize, trajectories, masks)
    counted = []
    for i in np.flatnonzero(keep):
        attempt = trajectories[i]
        rows = [
            _row(
                each.token_ids,
                mask,
                each.logprobs,
                advantage=float(advantages[i]),
                distilled=attempt.role == "distilled",
                weight=weight,
                reused=replay is not None or i >= len(trajectories) - number,
                fresh=_sampled_at(each, version),
                # Log-probabilities of a greedy attempt are stored at 1 (r3l.records.Trajectory).
                temperature=each.temperature or 1.0,
            )
            for each, mask in zip(
                attempt.conversations(),
                [masks[i], *credit.further_masks(attempt, masks[i])],
                strict=True,
            )
        ]
        own = None if per_token is None else per_token[i][: len(rows[0].mask)].astype(np.float32)
        rows[0] = replace(rows[0], token_advantages=own, source=sources[i])
        counted.append((rows, lengths[i], name))
    return counted


def _sampled_at(attempt: Trajectory, version: int | None) -> Bool | None:
    """Marks the tokens of each step that was sampled by `version` alone. Returns None for a retry,
    because a retry's row lacks the guidance."""
    if version is None or attempt.role == "distilled":
        return None
    fresh = np.zeros(len(attempt.token_ids), dtype=np.bool_)
    only = (attempt.step_versions == version) & (attempt.step_newest_versions == version)
    for start, end in attempt.step_spans[only]:
        fresh[start:end] = True
    return fresh


def supervised_row(token_ids: Int32, mask: Bool, weight: float) -> Row:
    """Makes a supervised row. The temperature of 1 leaves the likelihood unchanged."""
    unused = np.zeros(len(token_ids), dtype=np.float32)
    return _row(token_ids, mask, unused, aux=True, weight=weight)


def _at_most(counted: Sequence[_Counted], tokens: float) -> list[_Counted]:
    """Keeps samples that together have at most `tokens` tokens. The choice is pseudo-random, but
    the same on all ranks."""
    kept = []
    for each in sorted(counted, key=lambda each: zlib.crc32(each[0][0].token_ids.tobytes())):
        size = _count_tokens([each])
        if size <= tokens:
            kept.append(each)
            tokens -= size
    return kept


def _count_tokens(counted: Sequence[_Counted]) -> int:
    return sum(len(row.mask) for rows, *_ in counted for row in rows)


def _row(token_ids: Int32, mask: Bool, logprobs: Float32, **more: Any) -> Row:
    """Makes a row that ends after its last trained token. Without one, the row is empty."""
    end = int(np.flatnonzero(mask)[-1]) + 1 if mask.any() else 0
    return Row(token_ids[:end], mask[:end], logprobs[:end], **more)


def _weigh(counted: Sequence[_Counted], normalize: Normalize) -> list[Row]:
    """Multiplies the weight of each row by c (r3l.algorithms.credit.token_weights). `counted`: all
    rows that are averaged together."""
    lengths, groups = [length for _, length, _ in counted], [group for *_, group in counted]
    shares = credit.token_weights(normalize, lengths, groups)
    pairs = zip(counted, shares, strict=True)
    return [replace(row, weight=row.weight * share) for (rows, *_), share in pairs for row in rows]


def weight_metrics(rows: Sequence[Row], sft_weight: float) -> dict[str, float]:
    """Computes metrics of the loss weights. `aux_share`: the auxiliary rows' share of the total
    weight. `largest_token_weight`: largest / mean weight of a token outside auxiliary rows."""
    policy = [(row.weight, float(row.mask.sum())) for row in rows if not row.aux]
    tokens, mass = sum(count for _, count in policy), sum(w * count for w, count in policy)
    aux = sft_weight * sum(row.weight * float(row.mask.sum()) for row in rows if row.aux)
    metrics = {"learner/aux_share": aux / (mass + aux)} if mass + aux else {}
    if mass:
        metrics["learner/largest_token_weight"] = max(w for w, _ in policy) * tokens / mass
    return metrics


def check_tokens(
    groups: Sequence[Group], vocabulary: int, recalled: Iterable[Recalled] = ()
) -> None:
    """Refuses tokens outside the model's vocabulary."""
    held = [
        (group.group_id, each.token_ids)
        for group in groups
        for attempt in group.trajectories
        for each in attempt.conversations()
    ]
    held += [(g.group_id, aux.token_ids) for g in groups for r in g.results for aux in r.aux]
    held += [(each.group_id, each.trajectory.token_ids) for each in recalled]
    for group_id, token_ids in held:
        highest = int(token_ids.max(initial=0))
        if highest >= vocabulary:
            raise UserError(
                f"group {group_id}: holds token {highest}, but the model's vocabulary ends at "
                f"{vocabulary - 1}; train with the model whose tokenizer filled this buffer"
            )


def micro_batches(
    rows: Sequence[Row], token_budget: int, ranks: int, *, shared: bool
) -> list[list[list[Row]]]:
    """Cuts rows into micro-batches of at most `token_budget` computed tokens. A longer row is a
    micro-batch of its own. Each rank gets equally many micro-batches, largest first; the last may
    be empty. With `shared`, a common prefix counts once, and padding does not count."""
    cut = _runs if shared else _rectangles
    bins, sizes = cut(rows, token_budget)
    best = _spread(bins, sizes, ranks)
    fair = -(-sum(sizes) // ranks)
    # Smaller bins can be shared out more evenly, but repeat shared prefixes more often.
    for limit in (fair, fair // 2) if ranks > 1 else ():
        if 0 < limit < token_budget:
            best = min(best, _spread(*cut(rows, limit), ranks), key=lambda plan: plan[0])
    return best[1]


def _spread(
    bins: list[list[Row]], sizes: list[int], ranks: int
) -> tuple[int, list[list[list[Row]]]]:
    """Gives each bin, largest first, to the emptiest rank. Returns (size of the fullest rank, bins
    of each rank)."""
    share: list[list[list[Row]]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for index in sorted(range(len(bins)), key=lambda i: -sizes[i]):
        rank = load.index(min(load))
        share[rank].append(bins[index])
        load[rank] += sizes[index]
    depth = max((len(s) for s in share), default=0) or 1
    return max(load), [s + [[]] * (depth - len(s)) for s in share]


def _runs(rows: Sequence[Row], budget: int) -> tuple[list[list[Row]], list[int]]:
    """Sorts rows by their tokens and cuts them into runs. Returns (runs, nodes of each run)."""
    order, overlaps = prefix_forest.neighbours([row.token_ids for row in rows])
    ordered = [rows[i] for i in order]
    spans = prefix_forest.cut([len(row.token_ids) for row in ordered], overlaps, budget)
    sizes = [
        sum(len(ordered[i].token_ids) - (overlaps[i] if i > span.start else 0) for i in span)
        for span in spans
    ]
    return [[ordered[i] for i in span] for span in spans], sizes


def _rectangles(rows: Sequence[Row], budget: int) -> tuple[list[list[Row]], list[int]]:
    """Cuts rows into bins of similar length. Returns (bins, each bin's padded area)."""
    bins: list[list[Row]] = []
    for row in sorted(rows, key=lambda r: -len(r.token_ids)):
        # Descending lengths: the first row of a bin is its padded width.
        if bins and (len(bins[-1]) + 1) * len(bins[-1][0].token_ids) <= budget:
            bins[-1].append(row)
        else:
            bins.append([row])
    return bins, [len(rows) * len(rows[0].token_ids) for rows in bins]


def collate(rows: Sequence[Row], device: torch.device) -> MicroBatch:
    """Makes the tensors of a micro-batch. If `rows` is empty, makes one row of two masked-out
    tokens."""
    input_tokens = sum(len(row.token_ids) for row in rows)
    rows = rows or [Row(np.zeros(2, np.int32), np.zeros(2, np.bool_), np.zeros(2, np.float32))]
    forest = prefix_forest.plant([row.token_ids for row in rows])
    shape = (len(rows), max(len(row.token_ids) for row in rows))
    paths, old = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    advantages = np.zeros(shape, np.float32)
    mask, fresh = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    homes = np.zeros(len(forest.token_ids), np.int64)
    for i, (row, path) in enumerate(zip(rows, forest.paths, strict=True)):
        length = len(path)
        paths[i, :length], old[i, :length], mask[i, :length] = path, row.old_logprobs, row.mask
        own = row.token_advantages
        advantages[i, :length] = row.advantage if own is None else own
        if row.fresh is not None:
            fresh[i, :length] = row.fresh[:length]
        homes[path] = i * shape[1] + np.arange(length)

    rectangles, places = prefix_forest.lay_out(forest.paths, len(forest.token_ids))
    by_token = any(row.token_advantages is not None for row in rows)

    def tensor(values: object, dtype: torch.dtype | None = None) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).to(device)

    return MicroBatch(
        nodes=Nodes(
            token_ids_N=tensor(forest.token_ids),
            positions_N=tensor(forest.positions),
            parents_N=tensor(forest.parents),
            homes_N=tensor(homes),
            paths_BT=tensor(paths),
            rectangles=tuple(tensor(each) for each in rectangles),
            places_N=tensor(places),
        ),
        mask_BT=tensor(mask),
        old_logprobs_BT=tensor(old),
        advantages_B=tensor([row.advantage for row in rows], torch.float32),
        weights_B=tensor([row.weight for row in rows], torch.float32),
        distilled_B=tensor([row.distilled for row in rows], torch.bool),
        aux_B=tensor([row.aux for row in rows], torch.bool),
        temperatures_B=tensor([row.temperature for row in rows], torch.float32),
        reused_B=tensor([row.reused for row in rows], torch.bool),
        fresh_BT=tensor(fresh),
        input_tokens=input_tokens,
        advantages_BT=tensor(advantages) if by_token else None,
    )


def packing_shares(sums: dict[str, float]) -> dict[str, float]:
    """Computes two shares. `padding`: the share of computed positions that hold no token.
    `shared_tokens`: the share of the rows' tokens that are reused from another row."""
    held = sums["sum_held_tokens"]
    return {
        "padding": 1.0 - held / max(sums["sum_computed_tokens"], 1.0),
        "shared_tokens": 1.0 - held / max(sums["sum_input_tokens"], 1.0),
    }


def packing_sums(micro: MicroBatch, pack: Pack) -> dict[str, float]:
    """Counts the rows' tokens, the computed positions, and the positions that hold a token."""
    if not micro.input_tokens:
        return dict.fromkeys(("sum_input_tokens", "sum_computed_tokens", "sum_held_tokens"), 0.0)
    nodes, padded = micro.nodes.token_ids_N.numel(), micro.mask_BT.numel()
    computed, held = (padded, micro.input_tokens) if pack == "rows" else (nodes, nodes)
    return {
        "sum_input_tokens": float(micro.input_tokens),
        "sum_computed_tokens": float(computed),
        "sum_held_tokens": float(held),
    }
