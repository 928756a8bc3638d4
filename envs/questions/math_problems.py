"""Mathematics problems. envs.questions.math_answer compares an answer with the reference.

A task carries its problem and reference, so an actor needs no data. An attempt never sees the
reference. A reflection sees the reference only if `reflect_with_answer` is set.
"""

from dataclasses import dataclass
from typing import Any

from envs import requirements
from envs.base import ListedTasks, Split, TaskSource, check_split
from envs.questions.datasets import Problem, load
from envs.questions.final_answer import boxed, stated
from envs.questions.question import PARAGRAPH_END, Judgement, OneEvalAttempt, Pace, Question, Step
from envs.questions.verifier import SHARED, Verifier
from r3l.errors import UserError
from r3l.records import Task
from r3l.rollout.env_interface import EnvSpec

UNREADABLE = "Incorrect: the final answer cannot be read as mathematics."
REMARKS = {"correct": "Correct.", "wrong": "Incorrect."}
DATA_SETS: dict[str, tuple[str | None, str | None]] = {
    # grade-school word problems (Cobbe et al. 2021): 7,473 for training, 1,319 for evaluation
    "gsm8k": ("openai/gsm8k:main@train", "openai/gsm8k:main@test"),
    "math": ("nlile/hendrycks-MATH-benchmark@train", "HuggingFaceH4/MATH-500@test"),
    # olympiad problems, text only, English (He et al. 2024)
    "olympiadbench": (None, "Hothan/OlympiadBench:OE_TO_maths_en_COMP@train"),
    # DAPO's 17 thousand training problems (Yu et al. 2025)
    "dapo-math": ("open-r1/DAPO-Math-17k-Processed:en@train", "HuggingFaceH4/aime_2024@train"),
    # American competitions: 30, 30 and 40 problems
    "aime24": (None, "HuggingFaceH4/aime_2024@train"),
    "aime25": (None, "math-ai/aime25@test"),
    "amc23": (None, "math-ai/amc23@test"),
}
"""The data of each environment: for training, for evaluation. None means that there is none."""


class MathProblems(Question):
    """Problems of a data set. The options `train` and `eval` name other data (datasets.py).

    `reflect_with_answer`: feedback on a failure names the answer. Other settings: see `Pace`.
    """

    def __init__(
        self,
        name: str,
        *,
        train: str | None = None,
        eval: str | None = None,
        step: Step = "attempt",
        attempts: int = 3,
        paragraphs: int = 16,
        max_response_tokens: int | None = None,
        reflect_with_answer: bool = False,
    ) -> None:
        requirements.require_installed(name, "math_verify", "math")
        if type(reflect_with_answer) is not bool:
            raise UserError(
                f"env option reflect_with_answer is {reflect_with_answer!r}; it must be true or "
                "false"
            )
        self.train = train or DATA_SETS[name][0] or ""
        self.reflect_with_answer = reflect_with_answer
        spec = EnvSpec(name, system_prompt="", max_steps=1, sessions=64)
        pace = Pace(step, attempts, paragraphs, max_response_tokens)
        super().__init__(spec, pace, ask="Solve the problem.", form=r"as \boxed{answer}")
        self.problem = Problem("", "", "")
        self.verifier: Verifier | None = SHARED.acquire()

    @staticmethod
    def task_source(
        name: str, *, train: str | None = None, eval: str | None = None, **_: Any
    ) -> TaskSource:
        """Returns the problems as tasks. A split is read when its tasks are requested."""
        for_training, for_evaluation = DATA_SETS[name]
        return OneEvalAttempt(ProblemTasks(name, train or for_training, eval or for_evaluation))

    def pose(self, seed: int, options: dict[str, Any]) -> str:
        """Returns the problem that the task carries, or else training problem number `seed`."""
        if "prompt" in options:
            self.problem = Problem(
                "", options["prompt"], options["answer"], "", options.get("solution", "")
            )
        else:
            problems = load(self.spec.name, "train", self.train)
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
        """Like `Question.feedback`. After a failure, may add the answer (`reflect_with_answer`)."""
        said = super().feedback()
        if not self.reflect_with_answer or self.reward >= 1.0:
            return said
        return f"{said} The right answer is {self.problem.answer}."  # the guidance may repeat it

    def close(self) -> None:
        if self.verifier is not None:
            self.verifier = None
            SHARED.release()

    def solution(self) -> str:
        """Returns the worked solution, if the problem has one, and the reference answer."""
        # its boxes are removed: only the last paragraph gives the answer
        worked = self.problem.solution.replace(r"\boxed", "").replace(r"\fbox", "")
        end = PARAGRAPH_END if worked else ""
        return rf"{worked}{end}The answer is \boxed{{{self.problem.answer}}}."


@dataclass(frozen=True)
class ProblemTasks:
    """Tasks of two data sets: one for evaluation, one for training and warm-up demonstrations."""

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
                f"env {self.env}: has no data for the split {split}; give data with the option "
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
