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
from typing import Any

import msgspec

from envs.evaluation.conversation import Conversation
from envs.evaluation.metrics import Report
from r3l.config import RunConfig
from r3l.errors import UserError
from r3l.files import json_lines
from r3l.files.whole_file import write_whole

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
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / SETTINGS).exists() and (folder / RESULTS).exists():
                _check_same(folder, settings)
            else:
                write_whole(folder / SETTINGS, json.dumps(settings, indent=1))
            if (folder / RESULTS).exists():
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
        json_lines.append(self.folder / RESULTS, msgspec.to_builtins(attempt))

    def finish(self, report: Report) -> None:
        """Write the report."""
        write_whole(self.folder / REPORT, _pretty(report))

    def close(self) -> None:
        """Of an evaluation that never began leave nothing."""
        if self._made and not self.done:
            with suppress(OSError):
                (self.folder / SETTINGS).unlink()
                self.folder.rmdir()  # unless an engine's log is in it


def write_evaluation(
    folder: Path, settings: Settings, attempts: Iterable[Conversation], report: Report
) -> None:
    """Write a finished evaluation, the report last. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / SETTINGS, json.dumps(settings, indent=1))
    write_whole(folder / RESULTS, "".join(_line(one) for one in attempts))
    write_whole(folder / REPORT, _pretty(report))


def read_attempts(folder: Path, option: str) -> list[Conversation]:
    """The attempts in a folder, of each the last line. Raises UserError, which names `option`."""
    if not (folder / RESULTS).is_file():
        raise UserError(
            f"{option} {folder}: has no {RESULTS}, so it is not an evaluation; check the path"
        )
    lines = json_lines.read(folder / RESULTS, lambda line: msgspec.convert(line, Conversation))
    if lines.damaged:
        raise UserError(
            f"{option} {folder}: its {RESULTS} has a line that is not a result; choose another "
            "folder"
        )
    return list({one.key: one for one in lines.values}.values())


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
