"""Where uploads go: a Hugging Face repository, or a folder of any fsspec file system.

Importing this module imports neither fsspec nor huggingface_hub.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Protocol

from learner.checkpoint import STATE
from r3l.errors import UserError

CHECK_S = 60.0
"""Longest wait for a target that is tried before a run."""
HUB = "hf://"
PROBE = ".r3l"
"""The empty file that is written to a target, and removed, to see whether it takes files."""


class Target(Protocol):
    """A place that takes folders."""

    def check(self) -> None:
        """Raise any exception unless the place can be written now."""

    def send(self, folder: Path, name: str) -> None:
        """Copy a folder there as `name`, such as checkpoints/step-000050. Raises any exception."""


class FileSystem:
    """A folder of an fsspec file system. A checkpoint's state file is sent last, so that an upload
    that broke off is no checkpoint."""

    def __init__(self, address: str) -> None:
        from fsspec.core import url_to_fs

        local = address.startswith(("file://", "local://"))
        self._files, root = url_to_fs(address, **({"auto_mkdir": True} if local else {}))
        self._root = root.rstrip("/")

    def check(self) -> None:
        """Write an empty file and remove it."""
        self._files.pipe_file(f"{self._root}/{PROBE}", b"")
        self._files.rm_file(f"{self._root}/{PROBE}")

    def send(self, folder: Path, name: str) -> None:
        """Copy the files of a folder, which replace those of the same names."""
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in sorted(files, key=lambda path: path.name == STATE):
            there = f"{self._root}/{name}/{path.relative_to(folder).as_posix()}"
            self._files.put_file(str(path), there)


class Hub:
    """A model repository of the Hugging Face hub, made private if it does not exist. The final
    model is at its root, other folders below their names."""

    def __init__(self, repository: str) -> None:
        from huggingface_hub import HfApi

        self._api: Any = HfApi()
        self._repository = repository

    def check(self) -> None:
        """Make the repository unless it exists, and see whether it may be written to."""
        self._api.create_repo(self._repository, private=True, exist_ok=True)
        self._api.auth_check(self._repository, write=True)  # the call above passes if it exists

    def send(self, folder: Path, name: str) -> None:
        """Add a folder in one commit."""
        self._api.upload_folder(
            repo_id=self._repository,
            folder_path=str(folder),
            path_in_repo="" if name == "model" else name,
            commit_message=f"r3l: {name}",
        )


def target_of(address: str) -> Target:
    """The target of `learner.upload.to`. Raises UserError for an unknown scheme or a missing
    package."""
    what = f"learner.upload.to {address}"
    scheme, found, rest = address.partition("://")
    if not (found and scheme and rest):
        raise UserError(
            f"{what}: must be an address such as s3://bucket/path, file:///folder or "
            "hf://user/repository"
        )
    if address.startswith(HUB) and (rest.count("/") != 1 or not all(rest.split("/"))):
        raise UserError(f"{what}: must be hf://user/repository")
    try:
        return Hub(rest) if address.startswith(HUB) else FileSystem(address)
    except ImportError as error:
        raise UserError(f"{what}: a package is missing ({_line(error)})") from None
    except ValueError as error:
        raise UserError(f"{what}: {_line(error)}") from None


def check(address: str, *, reach: bool = True) -> None:
    """Raise UserError, one line, for an impossible `learner.upload.to`, and with `reach` unless
    files can be written there, which takes CHECK_S at most; "" is no target."""
    if not address:
        return
    target, failed = target_of(address), list[str]()
    if not reach:
        return

    def attempt() -> None:
        try:
            target.check()
        except Exception as error:  # each file system has errors of its own
            failed.append(_line(error))

    thread = threading.Thread(target=attempt, name="upload check", daemon=True)
    thread.start()
    thread.join(CHECK_S)
    if thread.is_alive():
        failed.append(f"no reply within {CHECK_S:g} s")
    if failed:
        raise UserError(f"learner.upload.to {address}: cannot be written ({failed[0]})")


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text:.200}"
