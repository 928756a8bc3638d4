"""Finds repositories of Hugging Face's hub in the user's cache, and downloads their files.

    name@revision ─► refs/REVISION ─► snapshots/COMMIT       in the cache; no network is needed
         └─► listing ─► chosen files ─► download             the reference is written last

Only other programs leave a reference without all of its files, such as an interrupted `hf
download`.
"""

import errno
import glob
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from r3l.errors import NotDownloaded, UserError
from r3l.text import size_text

Kind = Literal["model", "dataset"]
TITLES: dict[Kind, str] = {"model": "model", "dataset": "data set"}
_ERRNO = re.compile(r"\[Errno -?\d+\] ")
COMMIT = re.compile(r"[0-9a-f]{40}")
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of a disk that may name no file."""
ASK_S = 20.0
"""How long the hub may take to list a repository."""
SPARE_BYTES = 1 << 30
"""Left free on the disk after a download."""


@dataclass(frozen=True)
class Repository:
    """A repository of the hub, at a branch, tag or commit. `written`: how the user named it."""

    name: str
    revision: str = "main"
    kind: Kind = "model"
    written: str = field(default="", compare=False)

    @property
    def title(self) -> str:
        """The repository's name in messages."""
        return f"{TITLES[self.kind]} {self.written or self.name}"

    @property
    def command(self) -> str:
        """The command with which a user downloads all its files."""
        kind = " --repo-type dataset" if self.kind == "dataset" else ""
        revision = f" --revision {self.revision}" if self.revision != "main" else ""
        return f"hf download {self.name}{kind}{revision}"


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit, with their sizes in bytes."""

    repository: Repository
    commit: str
    files: dict[str, int]

    def read(self, file: str) -> Path | None:
        """Downloads one small file; None if the repository lacks it. Raises UserError."""
        if file not in self.files:
            return None
        from huggingface_hub import hf_hub_download

        repo, of = self.repository, _place(self.repository, self.commit)
        with _explained(repo):
            return Path(hf_hub_download(repo.name, file, **of))


@dataclass(frozen=True)
class Download:
    """The files of a listing that are to be downloaded."""

    listing: Listing
    files: tuple[str, ...]

    @property
    def missing(self) -> dict[str, int]:
        """The files that the cache lacks, with their sizes in bytes."""
        snapshot = _folder(self.listing.repository) / "snapshots" / self.listing.commit
        sizes = self.listing.files
        return {name: sizes[name] for name in self.files if not (snapshot / name).is_file()}

    def line(self) -> str:
        """Says what would be downloaded, from where and to where: the user may have meant a
        path."""
        missing = self.missing
        return (
            f"{self.listing.repository.title}: no path here, but on the hub: "
            f"{size_text(sum(missing.values()))} in {len(missing)} "
            f"{'file' if len(missing) == 1 else 'files'} from {endpoint()} to {cache()}"
        )

    def execute(self) -> None:
        """Downloads the files, with a progress bar. A repeated download skips the files that
        are complete. Raises UserError."""
        from huggingface_hub import hf_hub_download, snapshot_download

        repo, commit = self.listing.repository, self.listing.commit
        with _explained(repo):
            cache().mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(cache()).free
        needed = sum(self.missing.values())
        if needed + SPARE_BYTES > free:
            raise UserError(
                f"{repo.title}: needs {size_text(needed)}, but the disk of {cache()} has "
                f"{size_text(free)}; free some, or set HF_HOME to another disk"
            )
        with _explained(repo):
            exact = [glob.escape(name) for name in self.files]
            snapshot_download(repo.name, allow_patterns=exact, **_place(repo, commit))
            # Last, because it writes the reference by which the snapshot is found.
            hf_hub_download(repo.name, self.files[0], **_place(repo, repo.revision))


def cache() -> Path:
    """Returns the folder of the user's hub cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def endpoint() -> str:
    """Returns the hub's address, https://huggingface.co unless HF_ENDPOINT names another."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def snapshot(repository: Repository) -> Path | None:
    """Returns the folder of a repository in the cache, perhaps without some of its files; None if
    the cache does not have the revision. Uses no network."""
    commit = repository.revision
    if not COMMIT.fullmatch(commit):
        try:
            commit = reference(repository).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
    found = _folder(repository) / "snapshots" / commit
    return found if commit and found.is_dir() else None


def reference(repository: Repository) -> Path:
    """Returns the file of the cache that holds the commit of a branch or tag."""
    return _folder(repository) / "refs" / repository.revision


def all_files(repository: Repository) -> list[str] | None:
    """Returns the names of all files of a repository, including those that the cache lacks. Uses no
    network: huggingface_hub keeps a list for each commit that it downloads. Returns None if that
    list is missing."""
    from huggingface_hub import errors, get_cached_repo_tree

    where = {"repo_type": repository.kind, "revision": repository.revision}
    try:
        files = get_cached_repo_tree(repository.name, cache_dir=cache(), **where)
    except (errors.CachedRepoTreeNotFoundError, OSError, ValueError):
        return None
    return [file.path for file in files]


def listing(repository: Repository) -> Listing:
    """Asks the hub for a repository's files. Raises UserError."""
    from huggingface_hub import HfApi

    with _explained(repository):
        info: Any = HfApi(endpoint()).repo_info(
            repository.name,
            repo_type=repository.kind,
            revision=repository.revision,
            files_metadata=True,
            timeout=ASK_S,
        )
    files = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    return Listing(repository, str(info.sha), files)


def absent(repository: Repository, lacks: Sequence[str] = ()) -> NotDownloaded:
    """Returns the error for a repository that the cache lacks. `lacks`: the files that are missing,
    if the cache has only a part of the repository."""
    where = f"is neither a path here nor in the hub cache ({cache()})"
    if lacks:
        more = f" and {len(lacks) - 1} more" if len(lacks) > 1 else ""
        where = f"its download is incomplete: it lacks {lacks[0]}{more}"
    return NotDownloaded(
        f"{repository.title}: {where}; type: {repository.command}",
        name=repository.name,
        revision=repository.revision,
        kind=repository.kind,
        written=repository.written,
    )


def of_error(error: NotDownloaded) -> Repository:
    """Returns the repository that an error of `absent` is about."""
    facts = error.facts
    return Repository(facts["name"], facts["revision"], facts["kind"], facts["written"])


def _place(repository: Repository, revision: str) -> dict[str, Any]:
    """Returns the arguments that say from where a download comes and where it goes."""
    of = {"repo_type": repository.kind, "revision": revision}
    return of | {"endpoint": endpoint(), "cache_dir": cache()}


def _folder(repository: Repository) -> Path:
    name = repository.name.replace("/", "--")
    return cache() / f"{repository.kind}s--{name}"


@contextmanager
def _explained(repository: Repository) -> Iterator[None]:
    """Turns an error of the hub, the network or the disk into one line that says what to do. Other
    errors are mistakes of this program, and pass."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except (errors.HfHubHTTPError, errors.HFValidationError) as error:
        raise UserError(f"{repository.title}: {_refusal(repository, error)}") from error
    except OSError as error:
        of_disk = error.errno in _DISK or (error.errno is not None and error.filename is not None)
        reason = _of_disk(error) if of_disk else _out_of_reach(repository, error)
        raise UserError(f"{repository.title}: {reason}") from error
    except (
        httpx2.HTTPError,
        httpx2.InvalidURL,  # HF_ENDPOINT is not an address
        json.JSONDecodeError,  # another server answers, such as a proxy
        errors.RevisionResolutionError,
        errors.XetDownloadError,
        RuntimeError,  # hf_xet raises it if a download breaks off
    ) as error:
        raise UserError(f"{repository.title}: {_out_of_reach(repository, error)}") from error


def _refusal(repo: Repository, error: Exception) -> str:
    """Returns why the hub does not give a repository, and what to do."""
    from huggingface_hub import errors

    hub = endpoint()
    if isinstance(error, errors.GatedRepoError):
        page = f"{hub}/{'datasets/' if repo.kind == 'dataset' else ''}{repo.name}"
        return f"is gated; ask for access at {page}, then type: hf auth login"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"is neither a path here nor public at {hub}; check the name, or type hf auth "
            "login if it is private"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"has no revision {repo.revision!r}; give a branch, a tag or a commit after @"
    if isinstance(error, errors.HFValidationError):
        return f"is neither a path here nor a name that {hub} can have; check the name"
    code = getattr(getattr(error, "response", None), "status_code", "an error")
    return f"{hub} answers with {code}; try again later, or type: {repo.command}"


def _of_disk(error: OSError) -> str:
    where = error.filename if error.filename is not None else cache()
    return (
        f"{where} cannot be written ({os.strerror(error.errno or 0)}); make room or permit it, or "
        "set HF_HOME to another folder, then type the same command again"
    )


def _out_of_reach(repo: Repository, error: Exception) -> str:
    from huggingface_hub import errors

    why = _ERRNO.sub("", " ".join(str(error).split()))[:100] or type(error).__name__
    if isinstance(error, errors.OfflineModeIsEnabled):
        why = "HF_HUB_OFFLINE is set"
    where = f"is neither a path here nor in the hub cache ({cache()})"
    if snapshot(repo) is not None:  # else nobody would look for what the cache lacks
        where = f"its download in the hub cache ({cache()}) is incomplete"
    return (
        f"{where}, and {endpoint()} cannot be reached ({why}); where there is a network, type: "
        f"{repo.command}"
    )
