"""The command `r3l-agent`: checks agents."""

import asyncio
import sys
from pathlib import Path

import click

from actors.agents.check_agent import check_agent
from r3l.errors import UserError
from r3l.models.model_folder import read_tokenizer
from r3l.models.model_path import model_path
from r3l.rollout.chat import ChatFormat
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.run.process.command_line import OneLineGroup, echo


@click.group("r3l-agent", cls=OneLineGroup)
def main() -> None:
    """Work on agents without a run."""


@main.command()
@click.argument("file", metavar="YAML", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def check(file: Path, overrides: tuple[str, ...]) -> None:
    """Play some tasks of an agent twice, without a model, and compare the two tapes.

    YAML and the KEY=VALUE arguments are a run's settings. The replies are made up: they call
    each tool once, with arguments that fit its schema, and then repeat the newest text. The chat
    template comes from the run's model. The exit code is 2 if an attempt gets no reward."""
    config = configuration.load(file, overrides)
    if len(config.env.names) > 1 or not config.env.has_agents:
        raise UserError(f"env {config.env.title}: is not an agent; use r3l-env check NAME")
    sys.exit(asyncio.run(_print(config)))


async def _print(config: RunConfig) -> int:
    """Prints a line for each task. Returns the exit code."""
    folder, failed = model_path(config.model), False
    chat = ChatFormat(read_tokenizer(folder, f"model {config.model}"))
    async for line, passed in check_agent(config, chat):
        echo(line)
        sys.stdout.flush()
        failed |= not passed
    return 2 if failed else 0


if __name__ == "__main__":
    main()
