"""What several algorithms make of the same stored groups: advantages, and the gradient of a step.

    store ─► newest groups ─► of each rule: recalled attempts, rows ─► gradient at one policy
                                                 │                        │
                                                 ▼                        ▼
                                             advantages            norms, cosines

The gradient is that of the loss of one step on all of the groups, before clipping
(learner.step.trainer.Trainer.gradient). The reference model of a KL term is the policy itself, so
that this term adds nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buffer.storage.store_path import store_path
from r3l import config as configuration
from r3l.config import RunConfig
from r3l.errors import UserError
from r3l.records import Group, Recalled

if TYPE_CHECKING:
    from torch import Tensor

    from learner.step.trainer import Trainer
CHECKED = 8
"""Groups whose tokens are compared with their texts."""
PLAIN = ("learner.dtype=float32", "learner.zero_stage=0", "learner.offload=none")
"""Gradients are compared in full precision, on one process."""


@dataclass(frozen=True)
class Answer:
    """What one rule makes of the groups.

    `advantages`: of each group its attempts' and then those of the recalled ones, None for an
    attempt that is left out. `gradient`: float32 [P], of the whole loss.
    """

    rule: str
    advantages: list[list[float | None]]
    recalled: list[Recalled]
    gradient: Tensor

    def facts(self) -> dict[str, Any]:
        """The numbers of a rule's line."""
        values = [value for one in self.advantages for value in one if value]
        return {
            "rule": self.rule,
            "groups": sum(any(one) for one in self.advantages),
            "attempts": len(values),
            "positive": sum(value > 0 for value in values),
            "recalled": len(self.recalled),
            "mean_abs_advantage": math.fsum(map(abs, values)) / max(len(values), 1),
            "gradient_norm": float(self.gradient.norm()),
        }


@click.command("compare")
@click.argument("store", metavar="STORE", type=store_path)
@click.argument("rules", nargs=-1, required=True, metavar="RULE...")
@click.option("--config", "path", type=Path, help="a run's config.yaml; its model is taken")
@click.option("--model", help="folder or name of the policy whose gradient is taken")
@click.option("--groups", "count", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="JSON file for all advantages")
def compare_command(
    store: Path,
    rules: tuple[str, ...],
    path: Path | None,
    model: str | None,
    count: int,
    out: Path | None,
) -> None:
    """Compare algorithms on the newest groups of a finished store.

    RULE is an algorithm with its settings, such as grpo or r3l,credit=false,alpha=1. Printed are
    its advantages, the norm of its gradient, and the cosines between the gradients.
    """
    configs = {rule: _config(rule, path, model) for rule in rules}
    if len(configs) < len(rules):
        raise UserError(f"compare: a rule is named twice in {' '.join(rules)}; name each once")
    groups, answers = compare(store, configs, count)
    facts = [answer.facts() for answer in answers]
    cosines = [[cosine(one.gradient, other.gradient) for other in answers] for one in answers]
    click.echo(f"{len(groups)} groups of {store}, model {configs[rules[0]].model}\n")
    click.echo("\n".join(table(facts, cosines)))
    if out is not None:
        tree = {
            "model": configs[rules[0]].model,
            "rules": facts,
            "cosines": cosines,
            "groups": [_group_facts(place, group, answers) for place, group in enumerate(groups)],
        }
        try:
            out.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None


def compare(
    store: Path, configs: dict[str, RunConfig], count: int
) -> tuple[list[Group], list[Answer]]:
    """The newest `count` groups of a store, and each rule's answer on them.

    Raises UserError for a store or a model that does not fit.
    """
    from buffer.tools.stored_draws import StoredDraws
    from envs.builtin.policy import model_path
    from learner.offline.origin_check import check_models, check_texts
    from learner.step.batch import check_tokens
    from learner.step.trainer import Trainer
    from r3l.model_folder import check_model_folder, read_tokenizer

    built = {rule: config.algorithm.build() for rule, config in configs.items()}
    config = next(iter(configs.values()))
    any_group = config.model_copy(update={"algorithm": configuration.load().algorithm})
    draws = StoredDraws([store], any_group, ledger=Path())
    try:
        groups = draws.newest(count)
        recalled = {rule: draws.recalled_by(one, groups) for rule, one in configs.items()}
    finally:
        draws.close()
    folder = model_path(config.model)
    check_model_folder(folder, f"model {config.model}")
    tokenizer = read_tokenizer(folder, f"model {config.model}")
    check_models([store], folder)
    check_texts(groups[:CHECKED], tokenizer, f"model {config.model}")
    needy = next((one for one in built.values() if one.needs_reference), None)
    trainer = Trainer(folder, config.learner, needy, seed=config.seed)
    answers = list[Answer]()
    for rule, algorithm in built.items():
        check_tokens(groups, trainer.vocabulary, recalled[rule])
        trainer.algorithm = algorithm
        answers.append(_answer(rule, trainer, groups, recalled[rule]))
    return groups, answers


def _answer(
    rule: str, trainer: Trainer, groups: Sequence[Group], recalled: list[Recalled]
) -> Answer:
    from learner.step.batch import rows_of

    algorithm, entropies = trainer.algorithm, trainer.entropies_of(groups)
    assert algorithm is not None
    found = list[list[float | None]]()
    for place, group in enumerate(groups):
        joined = [one.trajectory for one in recalled if one.into == group.group_id]
        attempts = [*group.trajectories, *joined]
        values, keep = algorithm.advantages(
            [one.reward for one in attempts],
            attempts,
            recalled=len(joined),
            entropies=entropies.get(place),
        )
        found.append([float(v) if k else None for v, k in zip(values, keep, strict=True)])
    rows = rows_of(groups, algorithm, recalled=recalled, entropies=entropies)
    return Answer(rule, found, recalled, trainer.gradient(rows))


def cosine(one: Tensor, other: Tensor) -> float | None:
    """The cosine of two gradients; None if one is zero."""
    norms = float(one.norm()) * float(other.norm())
    return float(one @ other) / norms if norms else None


def table(facts: Sequence[dict[str, Any]], cosines: Sequence[Sequence[float | None]]) -> list[str]:
    """Lines for people: a line for each rule, and the matrix of cosines."""
    names = [fact["rule"] for fact in facts]
    wide = max(12, *(len(name) + 2 for name in names))
    lines = [
        f"{'rule':{wide}}{'groups':>8}{'attempts':>10}{'positive':>10}{'recalled':>10}"
        f"{'mean |Â|':>10}{'gradient norm':>15}"
    ]
    for fact in facts:
        lines.append(
            f"{fact['rule']:{wide}}{fact['groups']:8}{fact['attempts']:10}{fact['positive']:10}"
            f"{fact['recalled']:10}{fact['mean_abs_advantage']:10.3f}{fact['gradient_norm']:15.4g}"
        )
    lines += ["", f"{'cosine':{wide}}" + "".join(f"{name:>{wide}}" for name in names)]
    for name, row in zip(names, cosines, strict=True):
        cells = ("–" if value is None else f"{value:.3f}" for value in row)
        lines.append(f"{name:{wide}}" + "".join(f"{cell:>{wide}}" for cell in cells))
    return lines


def _config(rule: str, path: Path | None, model: str | None) -> RunConfig:
    """The settings of a rule."""
    name, *settings = rule.split(",")
    overrides = [f"algorithm={name}", *(f"algorithm.{one}" for one in settings), *PLAIN]
    return configuration.load(path, [*overrides, *([f"model={model}"] if model else [])])


def _group_facts(place: int, group: Group, answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "task": group.task.task_id,
        "attempts": [[one.role, one.slot, one.reward] for one in group.trajectories],
        "advantages": {answer.rule: answer.advantages[place] for answer in answers},
        "recalled": {
            answer.rule: [
                [one.group_id, one.trajectory.role, one.trajectory.slot, one.trajectory.reward]
                for one in answer.recalled
                if one.into == group.group_id
            ]
            for answer in answers
        },
    }
