"""The command `r3l-agent`: checks agents."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import click

from actors.agents.check_agent import TASKS, check_agent
from actors.agents.check_solutions import check_solutions
from envs.agents.agent_tasks import unknown_fields
from envs.registry import tasks_of_all, try_out
from r3l.errors import UserError
from r3l.models.model_folder import read_tokenizer
from r3l.models.model_path import model_path
from r3l.rollout.chat import ChatFormat
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.run.process.command_line import OneLineGroup, echo, version_option


@click.group("r3l-agent", cls=OneLineGroup)
@version_option
def main() -> None:
    """Work on agents without a run."""


class _Check(click.Command):
    """Reads `--model` without a name, even in front of YAML or KEY=VALUE."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        following = [*args, ""][1:]
        pairs = zip(args, following, strict=True)
        unnamed = [word == "--model" and _is_no_model(after) for word, after in pairs]
        words = zip(args, unnamed, strict=True)
        return super().parse_args(ctx, [f"{word}=" if own else word for word, own in words])


def _is_no_model(word: str) -> bool:
    return not word or word.startswith("-") or "=" in word or word.endswith((".yaml", ".yml"))


@main.command(cls=_Check)
@click.option(
    "--model",
    metavar="[NAME]",
    help="play one task with a model and show its calls as a chat; NAME: a model folder, or "
    "builtin; without NAME: the run's model",
)
@click.option(
    "--oracle", is_flag=True, help="play each task's own solution, and nothing at all, instead"
)
@click.argument("file", metavar="YAML", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def check(file: Path, model: str | None, oracle: bool, overrides: tuple[str, ...]) -> None:
    """Play some tasks of an agent twice, without a model, and compare the two tapes.

    YAML and the KEY=VALUE arguments are a run's settings. The replies are made up: they call each
    tool once, with arguments that fit its schema, and then repeat the newest text. The chat
    template comes from the run's model. With --model one task is played once, with replies that the
    model samples in this process. With --oracle the solutions of task folders in Harbor's format
    are played instead of the agent: each should earn 1, and an untouched folder 0. The exit code is
    2 if an attempt gets no reward, or if --oracle finds a wrong reward."""
    named = [f"model={json.dumps(model)}"] if model else []
    config = configuration.load(file, [*overrides, *named])
    if len(config.env.names) > 1 or not config.env.has_agents:
        raise UserError(f"env {config.env.title}: is not an agent; use r3l-env check NAME")
    if oracle and model is not None:
        raise UserError("--oracle uses no model; leave --model out")
    if not oracle:  # names a faulty option or task before the long imports of torch and vLLM
        for each in config.env.each():
            try_out(each.name, each.options)
        tasks = tasks_of_all(config.env, "train", TASKS)
        if note := unknown_fields(str(config.env.options.get("command", "")), tasks):
            echo(f"note: {note}")
    lines = check_solutions(config) if oracle else None
    sys.exit(
        asyncio.run(_print(lines or (_made_up(config) if model is None else _sampled(config))))
    )


def _made_up(config: RunConfig) -> AsyncIterator[tuple[str, bool]]:
    """Returns the lines of a check without a model."""
    tokenizer = read_tokenizer(model_path(config.model), f"model {config.model}")
    earlier = config.actor.earlier_reasoning
    return check_agent(config, ChatFormat(tokenizer, earlier_reasoning=earlier))


def _sampled(config: RunConfig) -> AsyncIterator[tuple[str, bool]]:
    """Returns the lines of a check with the run's model."""
    from actors.agents.check_with_model import check_with_model

    return check_with_model(config)


async def _print(lines: AsyncIterator[tuple[str, bool]]) -> int:
    """Prints the lines of a check. Returns the exit code."""
    failed = False
    async for line, passed in lines:
        echo(line)
        sys.stdout.flush()
        failed |= not passed
    return 2 if failed else 0


if __name__ == "__main__":
    main()
