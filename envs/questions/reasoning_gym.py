"""Poses questions of the library reasoning-gym. A family of questions is chosen by name, such as
`reasoning:chain_sum`.

Every scorer is guarded, because some raise on nonsense, some reward it, and some execute answers.
"""

import contextlib
import io
import json
import math
import re
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from envs import requirements
from envs.base import SPLIT_SIZE, SPLITS, SeededTasks, TaskSource, split_of
from envs.questions.question import Judgement, OneEvalAttempt, Pace, Question, Step
from r3l.errors import EnvironmentFailed, UserError
from r3l.rollout.env_interface import EnvSpec

REFUSED = {
    "codeio": "its questions differ from run to run",
    "composite": "name the families themselves, such as in env.others",
}
EVALUATED = frozenset(
    "binary_matrix countdown intermediate_integration n_queens polynomial_multiplication puzzle24 "
    "simple_integration spiral_matrix string_insertion".split()
)
"""Families whose scorers evaluate an answer as Python. Only harmless answers are scored."""
SLOW = frozenset({"futoshiki", "knight_swap"})
"""Families that take seconds per question. The splits of such a family may share questions."""
LONGEST = 4000
"""Longest answer that is scored, characters."""
TRIES = 500
NONSENSE = ("zzz", "qqq qqq")
"""Answers that are wrong for every question. A scored answer must score more."""

_CALM = re.compile(r"[\w\s.,+\-*/^()\[\]='\"|]*")
_CODE = re.compile(r"__|[A-Za-z_]\s*\.|\.\s*[A-Za-z_]|\d\s*\*\*|\*\*\s*\(?\s*\d{3}|\)\s*\(|\]\s*\(")
_CALL = re.compile(r"(?<!\w)\d*+(\w+)\s*\(")  # begins where words do, so that it is linear
_FUNCTIONS = frozenset("sin cos tan exp log ln sqrt Abs asin acos atan sinh cosh tanh".split())


class Reasoning(Question):
    """Poses questions of one family. `config`: the family's own settings. `partial`: whether partly
    right answers earn reward. Other options: see envs.questions.question.Pace."""

    def __init__(
        self,
        family: str,
        *,
        config: dict[str, Any] | None = None,
        partial: bool = False,
        step: Step = "attempt",
        attempts: int = 3,
        paragraphs: int = 16,
        max_response_tokens: int | None = None,
    ) -> None:
        _check(family)
        self.family = family
        self.config, self.partial = json.dumps(config or {}, sort_keys=True), partial
        self.question = FamilyQuestion("", {}, None)
        if family not in SLOW:
            _entry(family, self.config, 0)
        spec = EnvSpec(f"reasoning:{family}", system_prompt="", max_steps=1, sessions=64)
        pace = Pace(step, attempts, paragraphs, max_response_tokens)
        super().__init__(spec, pace, ask="Answer the question.", form="as <answer>answer</answer>")

    @staticmethod
    def task_source(family: str, **_: Any) -> TaskSource:
        _check(family)
        return OneEvalAttempt(SeededTasks(f"reasoning:{family}"))

    def pose(self, seed: int, options: dict[str, Any]) -> str:
        """Returns the question of a seed. No two splits share one, except in SLOW families."""
        self.question = family_question(self.family, self.config, seed)
        return str(self.question.entry["question"])

    def judge(self, answer: str) -> Judgement:
        """Judges an answer. An answer equal to the reference is right; `score` judges any other."""
        gold = self.question.entry["answer"]
        if answer == gold:
            return Judgement(1.0, "Correct.")
        score, fault = self.question.score(answer)
        if score >= 1.0:
            return Judgement(1.0, "Correct.", fault)
        return Judgement(score if self.partial else 0.0, "Incorrect.", fault)

    def solution(self) -> str:
        """Returns the reference answer, which some families lack."""
        return f"<answer>{self.question.entry['answer']}</answer>"

    def right_answers(self) -> list[str]:
        """Returns the reference answer in its tags, without any reasoning before it."""
        gold = self.question.entry.get("answer")
        decides = self.pace.step == "attempt" and self.allowed == 1
        if gold is None or not decides:
            return []
        return [f"<answer>{space}{gold}{space}</answer>" for space in ("", " ")]

    def demonstration(self) -> list[str]:
        """Returns the solution in steps, or [] if there is no reference answer."""
        return super().demonstration() if self.question.entry.get("answer") is not None else []


@dataclass(frozen=True)
class FamilyQuestion:
    """A question of a family, with the data set for scoring its answers."""

    family: str
    entry: dict[str, Any]
    dataset: Any

    def score(self, answer: str) -> tuple[float, str]:
        """Returns (score from 0 to 1, fault). If nonsense scores at least as high, the score is 0.
        The fault names the scorer's error, such as scorer_ValueError."""
        earned, fault = self._raw(answer)
        nonsense = max(self._raw(text)[0] for text in NONSENSE)
        return (earned if earned > nonsense else 0.0), fault

    def _raw(self, answer: str) -> tuple[float, str]:
        if not answer or len(answer) > LONGEST:
            return 0.0, ""
        if self.family in EVALUATED and not harmless(answer):
            return 0.0, ""
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # one scorer prints
                score = float(self.dataset.score_answer(answer, self.entry))
        except Exception as error:  # an answer on which a scorer raises is wrong; it is counted
            return 0.0, f"scorer_{type(error).__name__}"
        return (min(max(score, 0.0), 1.0) if math.isfinite(score) else 0.0), ""


def harmless(answer: str) -> bool:
    """Returns whether an answer is safe to evaluate. Attributes, powers such as 9**9 and unknown
    functions are unsafe."""
    if not _CALM.fullmatch(answer) or _CODE.search(answer):
        return False
    return all(name in _FUNCTIONS for name in _CALL.findall(answer))


@lru_cache(maxsize=512)
def family_question(family: str, config: str, seed: int) -> FamilyQuestion:
    """Returns a seed's question. Raises EnvironmentFailed if no question fits the seed's split."""
    split = SPLITS[seed // SPLIT_SIZE % len(SPLITS)]
    for again in range(TRIES):
        # some families accept 32 bits of seed; a hash also decorrelates neighbouring tasks
        dataset, entry = _entry(family, config, zlib.crc32(f"{seed}/{again}".encode()))
        if family in SLOW or split_of(str(entry["question"])) == split:
            return FamilyQuestion(family, entry, dataset)
    raise EnvironmentFailed(
        f"reasoning:{family}: too few different questions for a separate {split} split",
        cause="split_empty",
    )


def _entry(family: str, config: str, seed: int) -> tuple[Any, dict[str, Any]]:
    gym = requirements.package("reasoning", "reasoning_gym", "reasoning")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            dataset = gym.create_dataset(family, size=1, seed=seed, **json.loads(config))
            return dataset, dict(dataset[0])
    except (TypeError, AssertionError) as error:
        raise UserError(
            f"env reasoning:{family}: option config is {config}; {str(error) or 'out of range'}"
        ) from error


def _check(family: str) -> None:
    """Raises UserError unless the family exists and can be used."""
    requirements.package("reasoning", "reasoning_gym", "reasoning")
    from reasoning_gym.factory import DATASETS

    if family in REFUSED:
        raise UserError(f"env reasoning:{family}: cannot be used; {REFUSED[family]}")
    if family not in DATASETS:
        raise UserError(
            f"env reasoning:{family}: unknown family; choose from "
            f"{', '.join(sorted(set(DATASETS) - set(REFUSED)))}"
        )
