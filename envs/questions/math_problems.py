"""Mathematics with a reference answer, judged by math-verify (envs.questions.verifier).

A task carries its problem and reference, so an actor needs no data. An attempt never sees the
reference. A reflection sees it only if `reflect_with_answer` is set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from envs import requirements
from envs.base import ListedTasks, Split, TaskSource, check_split
from envs.questions.datasets import Problem, load
from envs.questions.final_answer import boxed, stated
from envs.questions.question import PARAGRAPH_END, EvalAttempts, Judgement, Pace, Question, Step
from envs.questions.verifier import SHARED, Verifier
from r3l.errors import UserError
from r3l.records import Task
from r3l.rollout.interfaces import EnvSpec

UNREADABLE = "Incorrect: the final answer cannot be read as mathematics."
REMARKS = {"correct": "Correct.", "wrong": "Incorrect."}


class MathProblems(Question):
    """Problems of a data set. `train`, `eval`: other data, named as in envs.questions.datasets.
    `reflect_with_answer`: the feedback on a failed attempt names the correct answer. The reflection
    then knows it, and its guidance may reveal it to the retry. The other settings are those of
    envs.questions.question.Pace."""

    name: ClassVar[str] = "math"
    train_data: ClassVar[str | None] = "nlile/hendrycks-MATH-benchmark@train"
    eval_data: ClassVar[str | None] = "HuggingFaceH4/MATH-500@test"

    def __init__(
        self,
        *,
        train: str | None = None,
        eval: str | None = None,
        step: Step = "attempt",
        attempts: int = 3,
        eval_attempts: int = 1,
        paragraphs: int = 16,
        max_response_tokens: int | None = None,
        reflect_with_answer: bool = False,
    ) -> None:
        requirements.installed(self.name, "math_verify", "math")
        if type(reflect_with_answer) is not bool:
            raise UserError(
                f"env option reflect_with_answer is {reflect_with_answer!r}; it must be true or "
                "false"
            )
        self.train, self.reflect_with_answer = train, reflect_with_answer
        spec = EnvSpec(
            name=self.name,
            system_prompt="",
            max_steps=1,
            sessions=64,
        )
        pace = Pace(step, attempts, eval_attempts, paragraphs, max_response_tokens)
        super().__init__(spec, pace, ask="Solve the problem.", form=r"as \boxed{answer}")
        self.problem = Problem("", "", "")
        self.verifier: Verifier | None = SHARED.acquire()

    @classmethod
    def task_source(
        cls,
        *,
        train: str | None = None,
        eval: str | None = None,
        eval_attempts: int = 1,
        **_: Any,
    ) -> TaskSource:
        """Returns the problems as tasks. A split is read when its tasks are requested."""
        return EvalAttempts(
            ProblemTasks(cls.name, train or cls.train_data, eval or cls.eval_data), eval_attempts
        )

    def pose(self, seed: int, options: dict[str, Any]) -> str:
        """Returns the problem that the task carries, or else training problem number `seed`."""
        if "prompt" in options:
            self.problem = Problem(
                "", options["prompt"], options["answer"], "", options.get("solution", "")
            )
        else:
            problems = load(self.name, "train", self.train or self.train_data or "")
            self.problem = problems[seed % len(problems)]
        return self.problem.prompt

    def find(self, text: str) -> str | None:
        r"""Returns the last \boxed{…}, or else the text after the last "Answer:" or "####"."""
        found = boxed(text)
        return stated(text) if found is None else found

    def judge(self, answer: str) -> Judgement:
        """Compares an answer with the reference. Raises EnvironmentFailed if the reference is
        unreadable."""
        assert self.verifier is not None, "closed"
        verdict = self.verifier.check(self.problem.answer, answer)
        fault = f"verifier_{verdict}" if verdict in ("timeout", "crash") else ""
        return Judgement(float(verdict == "correct"), REMARKS.get(verdict, UNREADABLE), fault)

    def feedback(self) -> str:
        """Like `Question.feedback`; with `reflect_with_answer`, also names the missed answer."""
        said = super().feedback()
        if not self.reflect_with_answer or self.reward >= 1.0:
            return said
        return f"{said} The right answer is {self.problem.answer}."

    def close(self) -> None:
        """Release the verifier."""
        if self.verifier is not None:
            self.verifier = None
            SHARED.release()

    def solution(self) -> str:
        """Returns the data's own solution, if it has one, and the reference answer."""
        # its boxes are removed: only the last paragraph gives the answer
        worked = self.problem.solution.replace(r"\boxed", "").replace(r"\fbox", "")
        end = PARAGRAPH_END if worked else ""
        return rf"{worked}{end}The answer is \boxed{{{self.problem.answer}}}."


@dataclass(frozen=True)
class ProblemTasks:
    """The problems of two data sets as tasks; warm-up demonstrations use the training data."""

    env: str
    train: str | None
    eval: str | None

    def tasks(self, split: Split, count: int, seed: int = 0, start: int = 0) -> list[Task]:
        """Like `envs.base.ListedTasks.tasks`. Raises UserError if a split has no data."""
        check_split(split)
        option = "eval" if split == "eval" else "train"
        where = self.eval if split == "eval" else self.train
        if where is None:
            raise UserError(
                f"env {self.env}: has no {split} problems; give some as its option "
                f"{option}, such as env.options.{option}=FILE.jsonl"
            )
        listed = [
            self._task(split, number, problem)
            for number, problem in enumerate(load(self.env, option, where))
        ]
        return ListedTasks({split: listed}).tasks(split, count, seed, start)

    def _task(self, split: Split, number: int, problem: Problem) -> Task:
        options = {"prompt": problem.prompt, "answer": problem.answer}
        more = {"family": problem.family, "solution": problem.solution}
        return Task(
            f"{self.env}/{split}/{problem.id}",
            self.env,
            number,
            options | {name: text for name, text in more.items() if text},
        )


class GSM8K(MathProblems):
    """Grade-school word problems (Cobbe et al. 2021): 7,473 for training, 1,319 for evaluation."""

    name = "gsm8k"
    train_data, eval_data = "openai/gsm8k:main@train", "openai/gsm8k:main@test"


class OlympiadBench(MathProblems):
    """Olympiad problems, text only, English (He et al. 2024), for evaluation."""

    name = "olympiadbench"
    train_data, eval_data = None, "Hothan/OlympiadBench:OE_TO_maths_en_COMP@train"


class DapoMath(MathProblems):
    """DAPO's 17 thousand training problems (Yu et al. 2025), evaluated on AIME 2024."""

    name = "dapo-math"
    train_data = "open-r1/DAPO-Math-17k-Processed:en@train"
    eval_data = "HuggingFaceH4/aime_2024@train"


class AIME24(MathProblems):
    """AIME 2024 (American Invitational Mathematics Examination): 30 problems for evaluation."""

    name = "aime24"
    train_data, eval_data = None, "HuggingFaceH4/aime_2024@train"


class AIME25(MathProblems):
    """AIME 2025 (American Invitational Mathematics Examination): 30 problems for evaluation."""

    name = "aime25"
    train_data, eval_data = None, "math-ai/aime25@test"


class AMC23(MathProblems):
    """AMC 2023 (American Mathematics Competition): 40 problems for evaluation."""

    name = "amc23"
    train_data, eval_data = None, "math-ai/amc23@test"
