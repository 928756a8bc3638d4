"""Write the appendix with every comparison, and its pictures: `python -m lab.where_it_pays`."""

import click

from lab.dry_run import DRY_RUN
from lab.where_it_pays import sentences
from lab.where_it_pays.sentences import Everything
from r3l.run.process.command_line import OneLine


@click.command("lab.where_it_pays", cls=OneLine)
@DRY_RUN
def main(dry_run: bool) -> None:
    """Write the page from the lines of all experiments."""
    read = Everything.read()
    if dry_run:
        words = len(sentences.render(read).split())
        click.echo(f"{sentences.PAGE} would have {words} words, of {len(read.rows)} worlds")
        return
    sentences.write(read)


if __name__ == "__main__":
    main()
