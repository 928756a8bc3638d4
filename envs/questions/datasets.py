"""Problems with reference answers, read from a JSON-lines file or a Hugging Face data set.

    train.jsonl                      one JSON object a line
    openai/gsm8k:main@train          repository[:configuration]@split, by the package `datasets`

PROMPT to FAMILY list the field names that common data sets use in a row.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from envs import requirements
from envs.questions.final_answer import boxed
from r3l.errors import UserError

PROMPT = ("prompt", "problem", "question")
ANSWER = ("answer", "final_answer", "expected_answer", "ground_truth", "solution")
FAMILY = ("subject", "type", "subfield", "level")
ID = ("id", "unique_id", "task_id")
ID_LIMIT = 200  # characters
HUB = re.compile(r"([\w.-]+/[\w.-]+?)(?::([\w.-]+))?@([\w.-]+)")


@dataclass(frozen=True)
class Problem:
    """One problem. `id`: its name in the data set (the row's number if it has none; #2 and so on if
    the name is not unique). `answer`: the reference, one expression; `family`: the kind of problem,
    "" if unknown; `solution`: a worked solution, if the data has one."""

    id: str
    prompt: str
    answer: str
    family: str = ""
    solution: str = ""


@lru_cache(maxsize=16)
def load(env: str, option: str, where: str) -> tuple[Problem, ...]:
    """Loads the problems of a file or of a named data set.

    Raises UserError that names `option` of `env` if the file is missing, a line is invalid, there
    are no problems, or the data set cannot be loaded.
    """
    if hub := HUB.fullmatch(where):
        rows = _hub_rows(env, option, where, hub)
    else:
        rows = _file_rows(env, option, where)
    problems: list[Problem] = []
    seen: Counter[str] = Counter()
    for number, row in enumerate(rows):
        try:
            problem = _problem(row, number)
            seen[problem.id] += 1
            if (again := seen[problem.id]) > 1:  # the data set gives two problems the same name
                problem = replace(problem, id=f"{problem.id}#{again}")
            problems.append(problem)
        except ValueError as error:
            raise UserError(
                f"env option {env}.{option}: {where}, row {number + 1}: {error}"
            ) from None
    if not problems:
        raise UserError(f"env option {env}.{option}: {where} has no problems")
    return tuple(problems)


def _file_rows(env: str, option: str, where: str) -> Iterable[Any]:
    path = Path(where).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UserError(
            f"env option {env}.{option}: {where} cannot be read ({reason}); give a JSON-lines "
            "file, or a Hugging Face data set as owner/name[:configuration]@split"
        ) from None
    for number, line in enumerate(lines):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError:
                raise UserError(
                    f"env option {env}.{option}: {where}, line {number + 1} is not JSON; "
                    "every line must be one JSON object"
                ) from None


def _hub_rows(env: str, option: str, where: str, hub: re.Match[str]) -> Iterable[Any]:
    datasets = requirements.package(env, "datasets", "math")
    repository, configuration, split = hub.groups()
    try:
        return list(datasets.load_dataset(repository, configuration, split=split))
    except (
        Exception
    ) as error:  # the hub's client raises many types; the user must know which data set
        raise UserError(
            f"env option {env}.{option}: {where} cannot be loaded "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); "
            "save it as JSON lines and give the file instead"
        ) from error


def _problem(row: Any, number: int) -> Problem:
    if not isinstance(row, dict):
        raise ValueError("must be an object with a prompt and an answer")
    prompt = _first(row, PROMPT)
    if isinstance(prompt, list):  # chat messages
        prompt = prompt[-1].get("content") if prompt and isinstance(prompt[-1], dict) else None
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"has no problem; it needs one of the fields {', '.join(PROMPT)}")
    answer = _answer(row)
    if not answer:
        raise ValueError(f"has no reference answer; it needs one of {', '.join(ANSWER)}")
    solution = row.get("solution") or str(row.get("answer", "")).rpartition("####")[0]
    name, family = _first(row, ID), _first(row, FAMILY)
    return Problem(
        id=f"{number:06d}" if name is None else str(name)[:ID_LIMIT],
        prompt=prompt.strip(),
        answer=answer,
        family="" if family is None else str(family).strip().lower().replace(" ", "_"),
        solution=solution.strip() if isinstance(solution, str) else "",
    )


def _answer(row: dict[str, Any]) -> str:
    """Returns the reference as one expression: what follows GSM8K's ####, or a solution's last box,
    or the whole field."""
    value = _first(row, ANSWER)
    if value is None and isinstance(row.get("reward_model"), dict):
        value = row["reward_model"].get("ground_truth")
    if isinstance(value, list):
        value = ", ".join(str(part).strip().strip("$") for part in value)
    text = "" if value is None else str(value)
    if "####" in text:
        return text.rpartition("####")[2].strip().replace(",", "")
    answer = boxed(text)
    return (text if answer is None else answer).strip().strip("$").strip()


def _first(row: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "", [])), None)
