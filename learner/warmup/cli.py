"""`r3l-learner warmup`: the supervised warm start."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click

from envs import registry
from learner.warmup.recipe import Recipe
from r3l.errors import UserError
from r3l.model_folder import user_path
from r3l.rollout.chat import EarlierReasoning
from r3l.settings import yaml_text

SMALL_BYTES = 64 << 20  # of weights
LEGEND = """\
  success, reward: of first attempts; parsed: usable reflections; pivots: as the teacher chooses
  guided, restart: success after a failure, by a retry with advice or a new attempt without
  told: success if the task says every rule; reflection_cost: its tokens over those of an attempt"""


@click.command("warmup")
@click.option("--env", "envs", multiple=True, required=True, help="environment; may be repeated")
@click.option(
    "--set", "options", multiple=True, help="an option of the environment, NAME=VALUE; repeatable"
)
@click.option(
    "--model", type=Path, help="Hugging Face folder to continue from; unset: the tiny one"
)
@click.option("--out", type=Path, required=True, help="folder to write, must not exist")
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=Recipe.steps,
    show_default=True,
    help="optimizer steps",
)
@click.option(
    "--tokens-per-batch",
    type=click.IntRange(1),
    default=Recipe.tokens_per_batch,
    show_default=True,
    help="padded tokens a step",
)
@click.option(
    "--lr",
    type=click.FloatRange(0, 1, min_open=True),
    default=Recipe.lr,
    show_default=True,
    help="highest learning rate",
)
@click.option(
    "--seed",
    type=click.IntRange(0, (1 << 32) - 1),
    default=Recipe.seed,
    show_default=True,
    help="seed of model, tasks and order",
)
@click.option(
    "--withheld",
    type=click.IntRange(0),
    default=Recipe.withheld,
    show_default=True,
    help="rules of a built-in world or tasks of scienceworld left for reward to teach",
)
@click.option(
    "--certainty",
    type=click.FloatRange(0, 1),
    default=Recipe.certainty,
    show_default=True,
    help="probability per step that such a rule is known after all",
)
@click.option(
    "--waste",
    type=click.FloatRange(0, 1),
    default=Recipe.waste,
    show_default=True,
    help="share of the demonstrator's actions that do nothing",
)
@click.option(
    "--earlier-reasoning",
    type=click.Choice(get_args(EarlierReasoning)),
    default=Recipe.earlier_reasoning,
    show_default=True,
    help="how to treat chat templates that remove it",
)
@click.option(
    "--measured",
    type=click.IntRange(0),
    default=Recipe.measured,
    show_default=True,
    help="held-out tasks played at the end",
)
def warmup_command(
    envs: tuple[str, ...], options: tuple[str, ...], model: Path | None, out: Path, **settings: Any
) -> None:
    """Teach a policy, from demonstrations, to act, to reflect and to follow advice.

    The environment needs a method `demonstration`: docs/environments/your-own.md.
    """
    if not settings["lr"] > 0:
        raise UserError(f"--lr {settings['lr']}: must be above 0, such as 3e-3")
    if user_path(str(out)).exists():
        raise UserError(f"--out {out}: exists; warmup writes a new folder, name another")
    recipe = Recipe(envs, model, _options(envs, options), **settings)
    import torch

    from learner.warmup.warmup import warmup

    weights = model.glob("*.safetensors") if model is not None else ()
    if sum(path.stat().st_size for path in weights) < SMALL_BYTES:
        torch.set_num_threads(1)  # more threads would only wait for each other
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be made ({error.strerror})") from None
    try:
        found = warmup(recipe, out)
    except BaseException:
        with suppress(OSError):  # it is not empty
            out.rmdir()
        raise
    for name, quality in found.items():
        shares = " ".join(f"{k} {v:.2f}" for k, v in asdict(quality).items() if k != "tasks")
        click.echo(f"{name} ({quality.tasks} tasks): {shares}")
    if found:
        click.echo(LEGEND)
    small = "" if model else " --preset demo"
    world = [f"env.options.{option}" for option in options]
    if others := envs[1:]:
        world.append(f"env.others={json.dumps({name: {} for name in others})}")
    said = shlex.join(["--env", envs[0], "--model", str(out), *world])
    click.echo(f"next: r3l-launch{small} {said}")


def _options(envs: tuple[str, ...], given: tuple[str, ...]) -> dict[str, Any]:
    """The environment's options of --set. Raises UserError, also for one that it refuses."""
    if given and len(envs) > 1:
        raise UserError(f"--set {given[0]}: belongs to one --env, but there are {len(envs)}")
    options = {}
    for setting in given:
        name, equals, text = setting.partition("=")
        if not (name and equals):
            raise UserError(f"--set {setting}: must be NAME=VALUE, such as words=6")
        options[name] = yaml_text.parse(text, f"--set {setting}")
    for env in envs:
        registry.try_out(env, options)
    return options
