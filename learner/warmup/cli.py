"""`r3l-learner warmup`: runs the supervised warm-up."""

import json
import shlex
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from envs import registry
from envs.demonstrations import demonstrating
from learner.warmup.recipe import (
    LORA_LR,
    PRETRAINED_LR,
    PRETRAINED_STEPS,
    TINY_LR,
    TINY_STEPS,
    Recipe,
)
from r3l.errors import UserError
from r3l.files.hub_data_set import is_name, rows
from r3l.files.new_folder import check_new
from r3l.files.user_file import user_path
from r3l.models.model_folder import UNFINISHED, weight_bytes
from r3l.rollout.chat import EarlierReasoning
from r3l.rollout.prompts import GuidanceText
from r3l.run.downloads import with_downloads
from r3l.run.process.command_line import echo
from r3l.run.settings.learner import Compute
from r3l.settings import yaml_text

F = TypeVar("F", bound=Callable[..., Any])
SMALL_BYTES = 64 << 20  # of weights
STEPS_HELP = f"optimizer steps; unset: {TINY_STEPS}, or {PRETRAINED_STEPS} for a pretrained model"
LR_HELP = (
    f"highest learning rate; unset: {TINY_LR:g}, or {PRETRAINED_LR:g} for a pretrained "
    f"model, {LORA_LR:g} for its adapters"
)


def _setting(name: str, kind: click.ParamType[Any], meaning: str) -> Callable[[F], F]:
    """Makes the command-line option for the field `name` of Recipe."""
    option, default = "--" + name.replace("_", "-"), getattr(Recipe, name)
    return click.option(option, type=kind, default=default, show_default=True, help=meaning)


@click.command("warmup")
@click.option("--env", "envs", multiple=True, help="environment; may be repeated")
@click.option(
    "--set", "options", multiple=True, help="an option of the environment, NAME=VALUE; repeatable"
)
@click.option(
    "--data",
    type=Path,
    help='also learn JSON lines {"messages": [{"role": …, "content": …}]}: a file, a data set '
    "of the hub, owner/name@split, or session traces",
)
@click.option(
    "--model",
    help="model folder, org/name[@revision], GGUF file or smollm2 to continue from; unset: a tiny "
    "model",
)
@click.option("--yes", is_flag=True, help="download a model or data set of the hub without asking")
@click.option(
    "--out",
    type=Path,
    required=True,
    help="new folder, or the folder of an interrupted warm-up, to continue it",
)
@click.option("--steps", type=click.IntRange(1), help=STEPS_HELP)
@_setting("tokens_per_batch", click.IntRange(1), "padded tokens per step")
@click.option("--lr", type=click.FloatRange(0, 1, min_open=True), help=LR_HELP)
@_setting("lora", click.IntRange(0), "rank of adapters to train and merge; 0: all weights")
@_setting("compute", click.Choice(get_args(Compute)), "matrix product format (learner.compute)")
@_setting("seed", click.IntRange(0, (1 << 32) - 1), "seed of model, tasks and order")
@_setting("withheld", click.IntRange(0), "rules not demonstrated, left for reward to teach")
@_setting("certainty", click.FloatRange(0, 1), "probability per step of knowing a withheld rule")
@_setting("waste", click.FloatRange(0, 1), "share of the demonstrator's actions that do nothing")
@click.option(
    "--guidance-text",
    type=click.Choice(get_args(GuidanceText)),
    help="shown to demonstrated retries; unset: advice for a tiny model, else the report",
)
@_setting(
    "earlier_reasoning",
    click.Choice(get_args(EarlierReasoning)),
    "what to do about a chat template that removes earlier reasoning",
)
def warmup_command(
    envs: tuple[str, ...],
    options: tuple[str, ...],
    model: str | None,
    out: Path,
    *,
    yes: bool,
    **settings: Any,
) -> None:
    """Teach a policy to act, to reflect and to follow advice: from demonstrations of environments,
    from your own conversations, or from both.

    An environment needs a method `demonstration`: docs/environments/your-own.md.
    """
    if not envs and not (settings["data"] and model):
        raise UserError("warmup: give an --env to learn from, or both --data and --model")
    if settings["lr"] is not None and not settings["lr"] > 0:
        raise UserError(f"--lr {settings['lr']}: must be above 0, such as 3e-3")
    folder = user_path(str(out))
    if not (folder / UNFINISHED).is_file():
        check_new(folder, "--out")
    given = _options(envs, options)
    recipe = with_downloads(Recipe(envs, model, given, **settings).resolved, yes=yes)
    if is_name(str(recipe.data)):
        with_downloads(lambda: rows(str(recipe.data)), yes=yes)
    for env in envs:
        if env in registry.MATHEMATICS:  # whose problems are data sets of the hub
            with_downloads(partial(registry.tasks, env, given, "warmup", 1), yes=yes)
    if warning := recipe.warning():
        echo(f"warmup: {warning}", err=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be made ({error.strerror})") from None
    from learner.warmup.warmup import warmup
    from r3l.training.measures.processor import fix_threads

    alone = recipe.start is None or weight_bytes(recipe.start) < SMALL_BYTES
    fix_threads(1 if alone else None)  # a small model's threads would only wait for each other
    try:
        warmup(recipe, out)
    except KeyboardInterrupt:
        echo("r3l-learner: interrupted; run the same command again to continue", err=True)
        raise
    finally:
        with suppress(OSError):  # something was written
            out.rmdir()
    if not envs:
        echo(f"train it: r3l-launch --env ENV --model {shlex.quote(str(out))}")
        return
    small = "" if model else " --preset demo"
    world = [f"env.options.{option}" for option in options]
    if recipe.guidance_text != ("report" if model else "advice"):  # what such a run shows
        world.append(f"algorithm.guidance_text={recipe.guidance_text}")
    if others := envs[1:]:
        world.append(f"env.others={json.dumps({name: {} for name in others})}")
    arguments = shlex.join(["--env", envs[0], "--model", str(out), *world])
    echo(f"train it: r3l-launch{small} {arguments}")


def _options(envs: tuple[str, ...], given: tuple[str, ...]) -> dict[str, Any]:
    """Parses the environment's options from --set. Raises UserError if an option is malformed or
    the environment refuses it."""
    if given and len(envs) > 1:
        raise UserError(f"--set {given[0]}: needs exactly one --env, but there are {len(envs)}")
    options = {}
    for setting in given:
        name, equals, text = setting.partition("=")
        if not (name and equals):
            raise UserError(f"--set {setting}: must be NAME=VALUE, such as words=6")
        options[name] = yaml_text.parse(text, f"--set {setting}")
    for env in envs:
        registry.try_out(env, options)
        demonstrating(env, **options)
    return options
