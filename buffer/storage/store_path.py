"""Finds a store from what the user typed: its folder, the folder of its run, or the run's name."""

from pathlib import Path

from r3l.errors import UserError


def store_path(place: str) -> Path:
    """Returns the folder of the store at `place`, or `place` itself if there is no store."""
    candidates = [Path(place), Path(place) / "buffer"]
    if "/" not in place:
        candidates.append(Path("runs") / place / "buffer")
    return next((path for path in candidates if has_store(path)), Path(place))


def has_store(folder: Path) -> bool:
    """Returns whether a folder holds a store."""
    return (folder / "data.mdb").is_file()


def check_store(folder: Path, what: str = "store", hint: str = "") -> None:
    """Raises UserError unless `folder` holds a store. The message begins with `what`,
    and ends with `hint`."""
    if not has_store(folder):
        raise UserError(
            f"{what} {folder}: no store there (data.mdb is missing); give a run's name or folder, "
            f"or the folder of a store{hint}"
        )
