"""`r3l-learner weights`, `replay` and `blame`: what a run left behind, asked again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from r3l.files.run_folder import RunFolder

if TYPE_CHECKING:
    from learner.offline.replayed_run import ReplayedRun

DIFFERS = 1
"""Exit code of a replay that is not the step of the run."""


@click.command("weights")
@click.argument("run", type=Path)
@click.option("--version", type=click.IntRange(0), required=True, help="optimizer steps done")
@click.option("--out", type=Path, required=True, help="model folder to write, must not exist")
def weights_command(run: Path, version: int, out: Path) -> None:
    """Rebuild a published version of RUN from its journal, bit for bit."""
    from learner.offline.rebuild import write_version

    click.echo(write_version(run, RunFolder(run).settings_of(version), version, out))


@click.command("replay")
@click.argument("run", type=Path)
@click.argument("step", type=click.IntRange(1))
@click.option(
    "--without", "groups", multiple=True, help="try STEP without this group; may be repeated"
)
def replay_command(run: Path, step: int, groups: tuple[str, ...]) -> None:
    """Execute optimizer step STEP of RUN again and compare loss and weights with the run's.

    Begins at the newest checkpoint before it and takes the batches from the ledger of the store.
    Exit code 1 if something differs.
    """
    from learner.offline import influence
    from learner.offline.replayed_run import ReplayedRun, without

    replayed = ReplayedRun(run, step)
    try:
        for name in groups:
            without(replayed.draw_of(step), name)
        same = _advance(replayed, step - 1)
        effects = [(name, influence.effect_of(replayed, name)) for name in groups]
        same = _advance(replayed, step) and same
    finally:
        replayed.close()
    for name, effect in effects:
        click.echo("\n".join(effect.lines(name)))
    if not same:
        sys.exit(DIFFERS)


@click.command("blame")
@click.argument("run", type=Path)
@click.argument("step", type=click.IntRange(1))
def blame_command(run: Path, step: int) -> None:
    """Rank the groups of optimizer step STEP by the dot product of their gradient with the step's.

    `share` is that product over the squared norm of the step's gradient; the shares sum to 1.
    """
    from learner.offline import influence
    from learner.offline.replayed_run import ReplayedRun

    replayed = ReplayedRun(run, step)
    try:
        _advance(replayed, step - 1)
        found = influence.blame(replayed)
    finally:
        replayed.close()
    click.echo("  share  cosine       norm  reward  group        task")
    for one in found:
        rewards = one.group.rewards
        reward = sum(rewards) / len(rewards)
        click.echo(
            f"{one.share:>7.3f} {one.cosine:>7.3f} {one.norm:>10.4g} {reward:>7.2f}  "
            f"{one.group.group_id}  {one.group.task.task_id}"
        )


def _advance(replayed: ReplayedRun, step: int) -> bool:
    """Execute the steps up to `step`; whether all that was compared is the same."""
    same = True
    while replayed.version < step:
        done = replayed.advance()
        click.echo(done.line())
        same = same and all(done.same.values())
    return same
