"""The files of one evaluation, the same for those during a run and those of `r3l-eval`.

settings.json    what the results depend on
results.jsonl    one attempt a line (envs.evaluation.conversation)
report.json      the metrics (envs.evaluation.metrics)
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import msgspec

from envs.evaluation.conversation import Conversation
from envs.evaluation.metrics import Report
from r3l.config import RunConfig
from r3l.errors import UserError

SETTINGS, RESULTS, REPORT = "settings.json", "results.jsonl", "report.json"
Settings = dict[str, Any]


def settings_of(
    config: RunConfig, *, model: str, weights: str, split: str, engine: str = ""
) -> Settings:
    """The settings that results depend on. `weights` tells apart weights at the same place."""
    values = config.model_dump(mode="json")
    actor = "max_response_tokens max_model_len dtype engine earlier_reasoning".split()
    return {
        "model": model,
        "weights": weights,
        "engine": engine,
        "env": values["env"],
        "split": split,
        "seed": config.seed,
        "temperature": config.eval.temperature,
        "actor": {name: values["actor"][name] for name in actor},
    }


class EvaluationFolder:
    """An evaluation that `r3l-eval` plays or continues. `done`: its attempts so far.

    Raises UserError if the folder holds another evaluation or cannot be written.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self._made = folder, not folder.exists()
        self.done: dict[tuple[str, int], Conversation] = {}
        self._file: TextIO | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / SETTINGS).exists() and (folder / RESULTS).exists():
                _check_same(folder, settings)
            else:
                _write(folder / SETTINGS, json.dumps(settings, indent=1))
            if (folder / RESULTS).exists():
                _cut_half_line(folder / RESULTS)
                self.done = {one.key: one for one in read_attempts(folder, "--out")}
        except OSError as error:
            raise UserError(f"--out {folder}: cannot be used ({error.strerror})") from None

    def missing(self, keys: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Those of `keys` (task and number of an attempt) that are still to be played: they have
        no result, or they failed."""
        return [key for key in keys if key not in self.done or self.done[key].cause]

    def add(self, attempt: Conversation) -> None:
        """Keep an attempt, which is on disk when this returns."""
        self.done[attempt.key] = attempt
        if self._file is None:
            self._file = (self.folder / RESULTS).open("a", encoding="utf-8")
        self._file.write(_line(attempt))
        self._file.flush()

    def finish(self, report: Report) -> None:
        """Write the report."""
        _write(self.folder / REPORT, _pretty(report))

    def close(self) -> None:
        """Close the file. Of an evaluation that never began nothing is left."""
        if self._made and not self.done:
            with suppress(OSError):
                (self.folder / SETTINGS).unlink()
                self.folder.rmdir()  # unless an engine's log is in it
        if self._file is not None:
            self._file.close()


def write_whole(
    folder: Path, settings: Settings, attempts: Iterable[Conversation], report: Report
) -> None:
    """Write a finished evaluation, the report last. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / SETTINGS, json.dumps(settings, indent=1))
    _write(folder / RESULTS, "".join(_line(one) for one in attempts))
    _write(folder / REPORT, _pretty(report))


def read_attempts(folder: Path, option: str) -> list[Conversation]:
    """The attempts in a folder, of each the last line. Raises UserError, which names `option`."""
    try:
        lines = (folder / RESULTS).read_bytes().splitlines()
        found = [msgspec.json.decode(line, type=Conversation) for line in lines]
    except OSError:
        raise UserError(
            f"{option} {folder}: has no {RESULTS}, so it is not an evaluation; check the path"
        ) from None
    except (ValueError, TypeError):
        raise UserError(
            f"{option} {folder}: its {RESULTS} has a line that is not a result; choose another "
            "folder"
        ) from None
    return list({one.key: one for one in found}.values())


def read_settings(folder: Path, option: str) -> Settings:
    """The settings in a folder. Raises UserError, which names `option`."""
    try:
        return dict(json.loads((folder / SETTINGS).read_bytes()))
    except (OSError, ValueError, TypeError):
        raise UserError(
            f"{option} {folder}: its {SETTINGS} is not valid JSON; choose another folder"
        ) from None


def _check_same(folder: Path, settings: Settings) -> None:
    known = read_settings(folder, "--out")
    for name in sorted(known.keys() | settings.keys()):
        if known.get(name) != settings.get(name):
            raise UserError(
                f"--out {folder}: holds an evaluation with {name} {known.get(name)!r}, this one "
                f"has {settings.get(name)!r}; choose another folder"
            )


def _line(attempt: Conversation) -> str:
    return msgspec.json.encode(attempt).decode() + "\n"


def _pretty(report: Report) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=1).decode() + "\n"


def _write(path: Path, text: str) -> None:
    """Write a file whole: a reader sees the earlier one or this one."""
    building = path.with_name(f".{path.name}")
    building.write_text(text, encoding="utf-8")
    building.replace(path)


def _cut_half_line(path: Path) -> None:
    """Remove an incomplete last line, which a killed writer has left."""
    whole, _, half = path.read_bytes().rpartition(b"\n")
    if half:
        with path.open("rb+") as file:
            file.truncate(len(whole) + bool(whole))
