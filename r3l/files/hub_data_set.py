"""Reads data sets of Hugging Face's hub by name, such as openai/gsm8k:main@train.

    owner/name[:configuration]@split ─► user's cache ─► files of the split ─► rows
                                             └─ no ─► NotDownloaded ─► (after consent) those files

The data set's README lists the files of a split under `configs`. Without such a list, a file
belongs to the split that its name or its folder names. All files of the commit are considered, not
only those in the cache, so a missing part is noticed.
"""

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from r3l.errors import UserError, install
from r3l.files.hub_cache import Listing, Repository, absent, all_files, snapshot

NAME = re.compile(r"([\w.-]+/[\w.-]+?)(?::([\w.-]+))?@([\w.-]+)")
README = "README.md"
LINES, OBJECTS, TABLES = (".jsonl", ".jsonl.gz", ".ndjson"), (".json",), (".parquet",)
"""Endings of the files that are read. LINES: an object a line. OBJECTS: a list, or an object a
line. TABLES: Parquet."""
commits: dict[str, str] = {}
"""The commit of each data set that this process has read, keyed by its name."""


def is_name(where: str) -> bool:
    """Whether a text is the name of a data set on the hub, and not a file here."""
    return NAME.fullmatch(where) is not None and not Path(where).expanduser().exists()


def rows(where: str) -> list[dict[str, Any]]:
    """Reads the rows of a split. Raises NotDownloaded if it is missing or incomplete in the user's
    cache. Raises UserError if its files cannot be read."""
    repo = _parsed(where)[0]
    if (folder := snapshot(repo)) is None:
        raise absent(repo)
    if (names := all_files(repo)) is None:
        raise absent(repo, ["the list of its files"])
    readme = folder / README if README in names else None
    if readme is not None and not readme.is_file():
        raise absent(repo, [README])
    files = _files_of(names, _configs(readme, repo), where)
    lacks = [file for file in files if not (folder / file).is_file()]
    if lacks or not files:
        raise absent(repo, lacks)
    found: list[dict[str, Any]] = []
    for file in files:
        for number, row in enumerate(_rows_of(folder / file, repo), 1):
            if not isinstance(row, dict):
                raise UserError(f"{repo.title}: {file}, row {number}: must be an object")
            found.append(row)
    commits[repo.name] = folder.name
    return found


def needed_files(listed: Listing) -> list[str]:
    """Chooses the files of a split. Raises UserError if there are none."""
    repo = listed.repository
    _, configuration, split = _parsed(repo.written)
    readme = listed.read(README)
    configs = _configs(readme, repo)
    files = _files_of(listed.files, configs, repo.written)
    if not files:
        raise UserError(
            f"{repo.title}: has no files of the split {split}"
            + (f" in {configuration}" if configuration else "")
            + f"; {_known_instead(configs, configuration)}"
        )
    if odd := [file for file in files if not file.endswith((*LINES, *OBJECTS, *TABLES))]:
        raise UserError(
            f"{repo.title}: {odd[0]} is neither JSON nor Parquet; save it as JSON lines and give "
            "the file instead"
        )
    return [*([README] if readme else []), *files]


def split_files(
    names: Iterable[str], configs: Sequence[Mapping[str, Any]], configuration: str, split: str
) -> list[str]:
    """Returns the files of a split, sorted. `names`: all files. `configs`: the README's.
    `configuration`: "" is the default one. Raises TypeError for `data_files` of another form."""
    known = sorted(names)
    if configs:
        chosen = _chosen(configs, configuration)
        patterns = _patterns(chosen, split) if chosen is not None else []
        return [name for name in known if any(fnmatchcase(name, each) for each in patterns)]
    data = [name for name in known if name.endswith((*LINES, *OBJECTS, *TABLES))]
    if configuration:
        data = [name for name in data if configuration in name.split("/")[:-1]]
    word = re.compile(rf"(?:^|[/._-]){re.escape(split)}(?:[/._-]|$)")
    named = [name for name in data if word.search(name)]
    others = re.compile(r"(?:^|[/._-])(?:train|test|validation|valid|dev|eval)(?:[/._-]|$)")
    unnamed = split == "train" and not any(map(others.search, data))
    return named or (data if unnamed else [])


def _files_of(names: Iterable[str], configs: Sequence[Mapping[str, Any]], where: str) -> list[str]:
    """Returns the files of the split that `where` names. Raises UserError."""
    repo, configuration, split = _parsed(where)
    try:
        return split_files(names, configs, configuration, split)
    except TypeError as error:
        raise _unreadable(repo, str(error)) from None


def _parsed(where: str) -> tuple[Repository, str, str]:
    found = NAME.fullmatch(where)
    assert found is not None, where
    return Repository(found[1], kind="dataset", written=where), found[2] or "", found[3]


def _configs(readme: Path | None, repo: Repository) -> list[Mapping[str, Any]]:
    """Reads `configs` of a README's head; [] if it has none. Raises UserError if they cannot be
    read, since the files' names may say something else."""
    import yaml
    from huggingface_hub import metadata_load

    try:
        head = metadata_load(readme) if readme is not None else None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise _unreadable(repo, " ".join(str(error).split())[:100]) from None
    configs = (head or {}).get("configs") or []
    if not isinstance(configs, list) or not all(isinstance(each, Mapping) for each in configs):
        raise _unreadable(repo, "configs is not a list of objects")
    return [each for each in configs if "data_files" in each]


def _unreadable(repo: Repository, why: str) -> UserError:
    return UserError(
        f"{repo.title}: its {README} does not say which files a split has ({why}); download the "
        "file and give its path instead"
    )


def _chosen(configs: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    usual = [e for e in configs if e.get("default") or e.get("config_name", "default") == "default"]
    if not name:
        return (usual or list(configs))[0] if usual or len(configs) == 1 else None
    return next((e for e in configs if e.get("config_name", "default") == name), None)


def _known_instead(configs: Sequence[Mapping[str, Any]], configuration: str) -> str:
    """Says which splits the configuration has and, if there are several, which configurations."""
    chosen = _chosen(configs, configuration)
    files = chosen["data_files"] if chosen is not None else ()
    entries = files if isinstance(files, list) else [files]
    splits = [
        str(each["split"]) for each in entries if isinstance(each, Mapping) and "split" in each
    ]
    names = [str(each.get("config_name")) for each in configs]
    said = [f"its splits are {', '.join(splits)}"] if splits else []
    if len(names) > 1 or (names and not splits):
        said.append(f"its configurations are {', '.join(names)}")
    return "; ".join(said) or "check the name on its page"


def _patterns(config: Mapping[str, Any], split: str) -> list[str]:
    """Returns the patterns of a split's files. Raises TypeError unless `data_files` is a path, an
    object with `split` and `path`, or a list of these."""
    files: Any = config["data_files"]
    found: list[Any] = []
    for entry in files if isinstance(files, list) else [files]:
        if isinstance(entry, Mapping):
            path = entry.get("path", []) if entry.get("split") == split else []
        else:  # no split is named: all is for training
            path = entry if split == "train" or not isinstance(entry, str) else []
        found += path if isinstance(path, list) else [path]
    if odd := [each for each in found if not isinstance(each, str)]:
        raise TypeError(f"data_files has {odd[0]!r:.40} where a path must be")
    folder = str(config.get("data_dir") or "").strip("/")
    return [f"{folder}/{each}" if folder else each for each in found]


def _rows_of(file: Path, repo: Repository) -> Iterator[Any]:
    """Yields a file's rows. Raises UserError."""
    try:
        if file.name.endswith(TABLES):
            yield from _table(file, repo)
            return
        data = file.read_bytes()
        text = (gzip.decompress(data) if file.name.endswith(".gz") else data).decode("utf-8-sig")
        if file.name.endswith(OBJECTS) and text.lstrip().startswith("["):
            yield from json.loads(text)
            return
        yield from (json.loads(line) for line in text.split("\n") if line.strip())
    except (OSError, ValueError, EOFError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{repo.title}: {file.name} cannot be read ({' '.join(str(error).split())[:100]}); "
            "delete it from the cache to download it again"
        ) from None


def _table(file: Path, repo: Repository) -> Iterator[Any]:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise UserError(
            f"{repo.title}: {file.name} is a Parquet file, which needs the package pyarrow; "
            f"{install('math')}"
        ) from None
    for batch in parquet.ParquetFile(file).iter_batches():  # its errors are ValueError and OSError
        yield from batch.to_pylist()
