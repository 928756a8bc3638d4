"""Downloads what a command needs from Hugging Face's hub, once the user has consented.

work ─► NotDownloaded ─► the hub lists the files ─► consent ─► download ─► work again
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import click

from r3l.errors import NotDownloaded, UserError
from r3l.files import hub_cache, hub_data_set
from r3l.files.hub_cache import Download, Repository
from r3l.models import hub_model
from r3l.run.process.command_line import tell
from r3l.text import printable

T = TypeVar("T")


def with_downloads(
    work: Callable[[], T], *, yes: bool, trained: bool = True, dry_run: bool = False
) -> T:
    """Returns the result of `work`. If a model or data set is missing, downloads it and calls
    `work` again. `yes`: the user has consented. `trained`: whether a model must be fit for the
    learner. `dry_run`: nothing is downloaded, whatever `yes` says. Raises UserError without
    consent, or if a download fails."""
    got = set[str]()
    while True:
        try:
            return work()
        except NotDownloaded as error:
            repo = hub_cache.of_error(error)
            if repo.written in got:
                raise
            fetch(repo, yes=yes, trained=trained, dry_run=dry_run)
            got.add(repo.written)


def fetch(repo: Repository, *, yes: bool, trained: bool = True, dry_run: bool = False) -> None:
    """Downloads the needed files of a repository. Raises UserError without consent, and for a dry
    run."""
    listed = hub_cache.listing(repo)
    choose = hub_data_set.needed_files
    if repo.kind == "model":
        choose = partial(hub_model.needed_files, trained=trained)
    download = Download(listed, tuple(choose(listed)))
    if download.missing:  # else the cache lacks only the list of the files
        if dry_run:
            raise UserError(
                f"{download.line()}: a dry run downloads nothing; type: {repo.command}, or leave "
                "--dry-run out"
            )
        _consent(download, yes=yes)
    download.execute()


def _consent(download: Download, *, yes: bool) -> None:
    """Raises UserError without consent to a download."""
    repo, line = download.listing.repository, download.line()
    if yes:
        tell(f"downloading {line}", err=True)
    elif not sys.stdin.isatty():
        raise UserError(f"{line}: add --yes to download it, or type: {repo.command}")
    elif not click.confirm(printable(f"download {line}?"), err=True):
        raise UserError(f"{repo.title}: was not downloaded; give a folder or a file instead")
