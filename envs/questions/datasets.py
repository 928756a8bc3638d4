"""Problems with reference answers, read from a JSON-lines file or a Hugging Face data set.

    train.jsonl                      one JSON object a line
    openai/gsm8k:main@train          repository[:configuration]@split (r3l.files.hub_data_set)

The constants PROMPT, ANSWER, FAMILY and ID list the field names of common data sets.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

from envs.questions.final_answer import boxed
from r3l.errors import UserError
from r3l.files import hub_data_set
from r3l.files.user_file import numbered_lines
from r3l.text import plain, shorten

PROMPT = ("prompt", "problem", "question")
ANSWER = ("answer", "final_answer", "expected_answer", "ground_truth", "solution")
FAMILY = ("subject", "type", "subfield", "level")
ID = ("id", "unique_id", "task_id")
CONTENT = frozenset(
    "image images video videos audio audios document documents choices options "
    "tools functions system system_prompt history text table input instruction code facts".split()
)
"""Fields that would change the question and are not read. They are refused unless the question has
their text."""
BEFORE = ("context", "passage", "body", "story", "paragraph", "article", "premise")
"""Fields of text that a question is about. They are shown before it, unless it holds them."""
ID_LIMIT = 200  # bytes
LONGEST_NUMBER = 30  # digits of a number that is written without a power of ten
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # thousands separators


@dataclass(frozen=True)
class Problem:
    """One problem. `id`: name in the data set, or row number. A repeated name gets an ending such
    as #2. `answer`: one expression. `family`: kind of problem. `solution`: steps to the answer."""

    id: str
    prompt: str
    answer: str
    family: str = ""
    solution: str = ""

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            object.__setattr__(self, name, plain(value, f"its {name}"))


@lru_cache(maxsize=16)
def load(env: str, option: str, where: str) -> tuple[Problem, ...]:
    """Loads problems from a file or a Hugging Face data set. Raises UserError for unreadable,
    invalid or empty data, and NotDownloaded for a data set that is not in the user's cache. `env`,
    `option`: named in errors."""
    rows: Iterable[tuple[str, Any]]
    if hub_data_set.is_name(where):
        rows = ((f"row {n}", row) for n, row in enumerate(hub_data_set.rows(where), 1))
    else:
        rows = _file_rows(env, option, where)
    problems: list[Problem] = []
    seen, taken = Counter[str](), set[str]()
    for number, (place, row) in enumerate(rows):
        try:
            problem = _problem(row, number)
            name = problem.id
            while problem.id in taken:  # the data set gives two problems the same name
                seen[name] += 1
                problem = replace(problem, id=f"{name}#{seen[name] + 1}")
            taken.add(problem.id)
            problems.append(problem)
        except ValueError as error:
            raise UserError(f"env option {env}.{option}: {where}, {place}: {error}") from None
    if not problems:
        raise UserError(f"env option {env}.{option}: {where} is empty; it must contain problems")
    return tuple(problems)


def _file_rows(env: str, option: str, where: str) -> Iterator[tuple[str, Any]]:
    """Yields each row with its place in the file."""
    what = f"env option {env}.{option}: {where}"
    remedy = "give a JSON-lines file, or a Hugging Face data set as owner/name@split"
    for number, line in numbered_lines(Path(where).expanduser(), what, remedy):
        try:
            yield f"line {number}", json.loads(line, parse_float=Decimal)
        except (ValueError, RecursionError):
            raise UserError(
                f"{what}, line {number} is not JSON; every line must be one JSON object"
            ) from None


def _problem(row: Any, number: int) -> Problem:
    if not isinstance(row, dict):
        raise ValueError("must be an object with a prompt and an answer")
    prompt = _prompt(row)
    answer = _answer(row)
    if not answer:
        raise ValueError(f"has no reference answer; add one of the fields {', '.join(ANSWER)}")
    solution = row.get("solution") or str(row.get("answer", "")).rpartition("####")[0]
    name, family = _first(row, ID), _first(row, FAMILY)
    return Problem(
        id=f"{number:06d}" if name is None else _name(name),
        prompt=prompt.strip(),
        answer=answer,
        family="" if family is None else str(family).strip().lower().replace(" ", "_"),
        solution=solution.strip() if isinstance(solution, str) else "",
    )


def _prompt(row: dict[str, Any]) -> str:
    """Returns a row's question, with the texts that it is about before it. Raises ValueError if
    something of the question would not be shown."""
    prompt = _first(row, PROMPT)
    if isinstance(prompt, list):
        prompt = _conversation(prompt)
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"contains no problem text; add one of the fields {', '.join(PROMPT)}")
    given = {name: value for name, value in row.items() if value not in (None, "", [], {})}
    taken, *others = [name for name in PROMPT if name in given]
    for name in others:
        if not _holds(prompt, given[name]):
            raise ValueError(f"its {taken} and {name} differ; keep one of them")
    for name in sorted(CONTENT & set(given)):
        if not _holds(prompt, given[name]):
            raise ValueError(
                f"its {name} would not be shown; write it into the prompt, or remove it"
            )
    question = prompt
    for name in BEFORE:
        if name in given and not isinstance(given[name], str):
            raise ValueError(f"its {name} is not text; write it into the prompt, or remove it")
        if name in given and not _holds(question, given[name]):
            prompt = f"{given[name].strip()}\n\n{prompt}"
    return prompt


def _holds(question: str, value: Any) -> bool:
    return isinstance(value, str) and value.strip() in question


def _name(value: Any) -> str:
    """Cleans and shortens a row's own id, for use in a task's id."""
    return shorten(plain(str(value), "its id"), ID_LIMIT).replace("\0", "")


def _conversation(messages: list[Any]) -> str:
    """Joins the system and user messages of a chat. Raises ValueError for other messages, and for
    other fields than a role and a text."""
    roles = [m.get("role") if isinstance(m, dict) else None for m in messages]
    if not all(role in ("system", "developer", "user") for role in roles):
        raise ValueError(
            f"its messages have the roles {', '.join(map(str, roles))}; only system and user "
            "messages are supported, so write the conversation as one text"
        )
    for message in messages:
        for name, value in message.items():
            if name not in ("role", "content") and value not in (None, "", [], {}):
                raise ValueError(f"the {name} of its messages would not be shown; remove it")
    return "\n\n".join(_text(message.get("content")) for message in messages)


def _text(content: Any) -> str:
    """Returns a message's text, or that of its parts, a line each."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    kinds = [part.get("type", "text") if isinstance(part, dict) else None for part in parts]
    if set(kinds) != {"text"} or not all(isinstance(text, str) for text in texts):
        raise ValueError("the content of its messages is not text; only text can be shown")
    return "\n".join(map(str, texts))


def _answer(row: dict[str, Any]) -> str:
    """Returns the reference answer of a row. Takes the text after ####, else the last box, else the
    whole field."""
    value = _first(row, ANSWER)
    if value is None and isinstance(row.get("reward_model"), dict):
        value = row["reward_model"].get("ground_truth")
    if isinstance(value, list):
        value = ", ".join(_written(part).strip().strip("$") for part in value)
    text = "" if value is None else _written(value)
    if "####" in text:
        return _GROUPED.sub("", text.rpartition("####")[2].strip())
    answer = boxed(text)
    return (text if answer is None else answer).strip().strip("$").strip()


def _written(value: Any) -> str:
    """Writes a JSON value as mathematics. A number's notation may change, but not its value."""
    if isinstance(value, dict):
        raise ValueError("its reference answer is an object; give a text, a number or a list")
    if not isinstance(value, float | Decimal):
        return str(value)
    number = Decimal(repr(value)) if isinstance(value, float) else value
    if not number.is_finite():
        raise ValueError(f"its reference answer is {value}, which is not a finite number")
    size = number.adjusted()
    if abs(size) <= LONGEST_NUMBER:
        return f"{number:f}"
    return rf"{number.scaleb(-size):f} \times 10^{{{size}}}"


def _first(row: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "", [])), None)
