"""Reads and writes the files of an evaluation, for runs and for `r3l-eval`.

settings.json    what the results depend on
results.jsonl    one attempt a line (learner.evaluation.conversation)
report.json      the metrics (learner.evaluation.metrics)
temperature-T    a folder like this one: the same tasks at a further temperature T
"""

from collections.abc import Iterable, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import convert, to_builtins

from learner.evaluation.conversation import Conversation
from learner.evaluation.metrics import Report
from r3l.errors import UserError
from r3l.files.whole_file import read_json, write_json, write_whole
from r3l.models.model_folder import UNFINISHED
from r3l.run.config import RunConfig
from r3l.run.evaluation_tags import number_text
from r3l.run.files import json_lines

SETTINGS, RESULTS, REPORT = "settings.json", "results.jsonl", "report.json"
PART = "temperature-"
"""Prefix of the folders of further parts."""
Settings = dict[str, Any]


def settings_of(
    config: RunConfig,
    *,
    model: str,
    weights: str,
    split: str,
    temperature: float | None = None,
) -> Settings:
    """Returns the settings that the results depend on. `weights`: an identifier of the weights.
    `temperature`: None for an evaluation's first part, which alone has exact probabilities."""
    values = config.model_dump(mode="json")
    actor = "max_response_tokens max_model_len dtype engine earlier_reasoning".split()
    return {
        "model": model,
        "weights": weights,
        "env": values["env"],
        "split": split,
        "seed": config.seed,
        "temperature": config.eval.main_temperature if temperature is None else temperature,
        "actor": {name: values["actor"][name] for name in actor},
        **({"exact": True} if config.eval.exact and temperature is None else {}),
    }


class EvaluationFolder:
    """Starts or continues an evaluation of `r3l-eval` in a folder. Raises UserError if the folder
    holds other settings or cannot be written."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self._made = folder, not folder.exists()
        self.done: dict[tuple[str, int], Conversation] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / SETTINGS).exists() and (folder / RESULTS).exists():
                _check_same(folder, read_settings(folder), settings)
                self.done = {attempt.key: attempt for attempt in _read(folder)}
            else:
                write_json(folder / SETTINGS, settings)
        except OSError as error:
            raise UserError(f"--out {folder}: cannot be used ({error.strerror})") from None

    def missing(self, keys: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Returns the `keys` (task, attempt number) whose attempt is missing or failed."""
        return [key for key in keys if key not in self.done or self.done[key].cause]

    def add(self, attempt: Conversation) -> None:
        """Records an attempt, and appends it to the file of results at once."""
        self.done[attempt.key] = attempt
        json_lines.append(self.folder / RESULTS, to_builtins(attempt))

    def finish(self, report: Report) -> None:
        write_json(self.folder / REPORT, to_builtins(report))

    def close(self) -> None:
        """Removes the folder if this object made it and recorded no attempt."""
        if self._made and not self.done:
            with suppress(OSError):
                (self.folder / SETTINGS).unlink()
                self.folder.rmdir()  # unless an engine's log is in it


def write_evaluation(
    folder: Path, settings: Settings, attempts: Iterable[Conversation], report: Report
) -> None:
    """Writes a finished evaluation, the report last. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / SETTINGS, settings)
    lines = (json_lines.encoded(to_builtins(attempt)) for attempt in attempts)
    write_whole(folder / RESULTS, lines)
    write_json(folder / REPORT, to_builtins(report))


def read_attempts(folder: Path, option: str) -> list[Conversation]:
    """Reads the attempts of an evaluation. Raises UserError if there are none. `option`: the
    command-line option that named the folder."""
    attempts = _read(folder)
    if not attempts:
        raise UserError(f"{option} {folder}: {_no_evaluation(folder)}")
    return attempts


def _no_evaluation(folder: Path) -> str:
    """Says what a folder without an evaluation is, and what to give instead."""
    if (folder / UNFINISHED).is_file():
        return (
            "is an unfinished warm-up, which has no evaluation; repeat its r3l-learner warmup "
            f"command to finish it, then evaluate it with r3l-eval --model {folder}"
        )
    if (folder / "config.yaml").is_file():
        return f"is a run; name one of its evaluations, such as {folder}/evaluations/step-000000"
    if (folder / "config.json").is_file():
        return (
            f"is a model; evaluate it with r3l-eval --model {folder}, and name the folder of the "
            "results"
        )
    return f"found no attempt in {RESULTS}; check the path"


def read_other(folder: Path, tasks: Set[str], settings: Settings) -> list[Conversation]:
    """Reads the attempts of another evaluation. Raises UserError if the two evaluations differ in
    environment, split or tasks."""
    attempts = read_attempts(folder, "--against")
    if _environment(settings) != _environment(read_settings(folder)):
        raise UserError(
            f"--against {folder}: its environment or split differs, so its tasks differ; "
            "give both evaluations the same --env, --split and env.options"
        )
    there = {attempt.task_id for attempt in attempts}
    if there != tasks:
        raise UserError(
            f"--against {folder}: has {len(there)} tasks, this evaluation has {len(tasks)}, and "
            f"they share {len(there & tasks)}; give both evaluations the same --tasks"
        )
    one, other = (_digest(each) for each in (settings, read_settings(folder)))
    if one and other and one != other:
        raise UserError(
            f"--against {folder}: its tasks have the same names, but its panel is {other} and this "
            f"evaluation's is {one}, so the environment has changed; repeat both evaluations"
        )
    return attempts


def read_settings(folder: Path) -> Settings:
    """Reads the settings of an evaluation, {} if the file is missing. Raises UserError."""
    return read_json(folder / SETTINGS, "choose another folder", dict[str, Any]) or {}


def further_parts(folder: Path) -> dict[float, Path]:
    """Returns the folders of an evaluation's further parts, keyed by temperature."""
    found = {}
    for path in sorted(folder.glob(f"{PART}*")):
        with suppress(ValueError):
            found[float(path.name.removeprefix(PART))] = path
    return found


def part_folder(folder: Path, temperature: float | None) -> Path:
    """Returns the folder of an evaluation's part. `temperature`: None for the first part, which is
    in `folder` itself."""
    return folder if temperature is None else folder / f"{PART}{number_text(temperature)}"


def _read(folder: Path) -> list[Conversation]:
    """Reads the last line of each attempt. Skips damaged lines."""
    lines = json_lines.read(folder / RESULTS, lambda line: convert(line, Conversation))
    return list({attempt.key: attempt for attempt in lines.values}.values())


def _check_same(folder: Path, known: Settings, settings: Settings) -> None:
    for name in sorted(known.keys() | settings.keys()):
        if known.get(name) != settings.get(name):
            raise UserError(
                f"--out {folder}: holds an evaluation with {name} {known.get(name)!r}, but this "
                f"one has {settings.get(name)!r}; choose another folder"
            )


def _digest(settings: Settings) -> str:
    """Returns the digest of an evaluation's panel; "" if it is unknown."""
    panel = settings.get("panel")
    return str(panel.get("digest", "")) if isinstance(panel, dict) else ""


def _environment(settings: Settings) -> tuple[object, ...]:
    """Returns the settings that two evaluations must share to be compared."""
    env = settings.get("env")
    env = env if isinstance(env, dict) else {}
    return settings.get("split"), *(env.get(name) for name in ("name", "options", "others"))
