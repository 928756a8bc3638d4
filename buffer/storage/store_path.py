"""Where the store is that a person names: by its folder, by its run's, or by its run's name."""

from __future__ import annotations

from pathlib import Path

from r3l.errors import UserError


def store_path(place: str) -> Path:
    """The folder of the store at `place`; `place` itself if there is none."""
    candidates = [Path(place), Path(place) / "buffer"]
    if "/" not in place:
        candidates.append(Path("runs") / place / "buffer")
    return next((path for path in candidates if (path / "data.mdb").is_file()), Path(place))


def check_store(folder: Path, what: str = "store") -> None:
    """Raise UserError unless there is a store in `folder`; `what`: how it was asked for."""
    if not (folder / "data.mdb").is_file():
        raise UserError(
            f"{what} {folder}: no store there (data.mdb is missing); give a run's name or folder, "
            "or the folder of a store"
        )
