"""The command `r3l-env`: checks environments."""

import click

from envs import registry
from envs.testing import check_env
from r3l.errors import UserError
from r3l.run.process.command_line import OneLineGroup, echo, version_option
from r3l.run.settings.environment import by_agent
from r3l.settings import yaml_text


@click.group("r3l-env", cls=OneLineGroup)
@version_option
def main() -> None:
    """Work on environments without a run."""


@main.command()
@click.argument("name")
@click.argument("options", nargs=-1, metavar="[OPTION=VALUE]...")
def check(name: str, options: tuple[str, ...]) -> None:
    """Check that an environment meets the needs of exploration and retries.

    NAME is path/to/file.py:Class or a name of `r3l-launch --env`. OPTION=VALUE arguments are
    options of the environment. A fault is named with its seed and step, and ends the command
    with exit code 2."""
    made = dict(_option(text) for text in options)
    if by_agent(name):
        raise UserError(f"{name}: is an agent; use r3l-agent check YAML")
    try:
        check_env(name, options=made)
    except AssertionError as error:
        raise UserError(f"{name}: {error}") from error
    demonstrates = hasattr(registry.make(name, **made), "demonstration")
    shown = "its demonstrations succeed" if demonstrates else "it has no demonstrations"
    echo(f"{name}: passes at seeds 0, 1 and 2; {shown}")


def _option(text: str) -> tuple[str, object]:
    """Reads OPTION=VALUE. Raises UserError."""
    option, equals, value = text.partition("=")
    if not (option and equals):
        raise UserError(f"{text}: must be an option of the environment, OPTION=VALUE")
    return option, yaml_text.parse(value, text)


if __name__ == "__main__":
    main()
