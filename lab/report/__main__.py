"""Write the overview, four pages of results and their pictures: `python -m lab.report`."""

import click

from lab.dry_run import DRY_RUN
from lab.report import text
from r3l.run.process.command_line import OneLine


@click.command("lab.report", cls=OneLine)
@DRY_RUN
def main(dry_run: bool) -> None:
    """Write the pages and pictures from the lines of all programs."""
    lines = text.Lines.read()
    if dry_run:
        for path, page in text.render(lines).items():
            click.echo(f"{path} would have {len(page.split())} words")
        click.echo(f"and {len(text.PICTURES)} pictures: {', '.join(text.PICTURES)}")
        return
    text.write(lines)


if __name__ == "__main__":
    main()
